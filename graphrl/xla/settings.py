"""Options of planned programs, checked before anything is traced."""

import dataclasses
import hashlib

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.methods import find_solver
from graphrl.optimize import DEFAULT_SECONDS, check_seed
from graphrl.solvers.base import Budget, Progress

METHOD = "auto"
PROBLEM = Problem("peak_memory")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of planning; the arguments of `graphrl.jit` and `graphrl.compile`.

    Attributes:
      objective: "peak_memory", the only objective for the schedule of one compiled program.
      seconds: search time for each program, in seconds of wall clock.
      method: as in `graphrl.optimize`.
      seed: as in `graphrl.optimize`.
      progress: as in `graphrl.optimize`.
      cache: True to read plans from disk and store them there.
      recompute: share of the program's estimated run time that it may spend on computing values again, 0 to 1.

    Raises:
      ProblemError: an option is out of range; one line states the valid values.
    """

    objective: str = "peak_memory"
    seconds: float = DEFAULT_SECONDS
    method: str = METHOD
    seed: int = 0
    progress: Progress | None = dataclasses.field(default=None, compare=False)
    cache: bool = True
    recompute: float = 0.0

    def __post_init__(self) -> None:
        if self.objective != "peak_memory":
            raise ProblemError(
                f"objective is {self.objective!r}: must be 'peak_memory', as XLA takes an order of one device's "
                "instructions and no placement; graphrl.optimize plans a graph for 'makespan'"
            )
        check_seed(self.seed)
        check_limit(self.recompute)
        if self.seconds is None:
            raise ProblemError("seconds is None: must be a finite number above 0")
        if not isinstance(self.cache, bool):
            raise ProblemError(f"cache is {self.cache!r}: must be True or False")
        if self.progress is not None and not callable(self.progress):
            raise ProblemError(f"progress is of type {type(self.progress).__name__}: must be a function")
        _ = self.budget
        if self.method != METHOD:  # "auto" needs no solver, and importing all of them takes time
            find_solver(self.method)

    @property
    def budget(self) -> Budget:
        """The budget of the search for one program."""
        return Budget(None, self.seconds)

    @property
    def mark(self) -> str:
        """Hash, as 16 hexadecimal digits, of all options that affect a program's executable."""
        fields = (self.objective, float(self.seconds), self.method, self.seed, self.cache, float(self.recompute))
        return hashlib.sha256(repr(fields).encode()).hexdigest()[:16]


def check_limit(limit: float) -> None:
    """Raises ProblemError unless a limit of recomputation is a number from 0 to 1."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= 1:
        raise ProblemError(f"recompute is {limit!r}: must be a part of the run time, a number from 0 to 1")
