"""Decisions about compiled programs, in memory and on disk: one JSON file per program, named by its fingerprint.

The folder is `$XDG_CACHE_HOME/graphrl/plans` (by default ~/.cache/graphrl/plans); it may be deleted at any time.
A stored decision is used for every request with the same method, seed and jaxlib and no more seconds of search. Any
other request searches again, starting from it, so that a program's file never gets worse. Decisions for different
limits of recomputation have separate files.
"""

import dataclasses
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from graphrl.errors import GraphrlError, PlanError
from graphrl.files import cache_folder, read_document, write_document
from graphrl.graphs.readers.hlo.module import HloModule, as_program
from graphrl.xla.callback import Answer, Scheduler, check_sequence, rescheduled
from graphrl.xla.donation import preserve_donation
from graphrl.xla.recompute.candidates import ClonesByName, Numbered, named, numbers
from graphrl.xla.recompute.plan import with_clones
from graphrl.xla.recompute.residuals import Dropped
from graphrl.xla.recompute.rewrite import without_residuals
from graphrl.xla.settings import Settings

FORMAT = "graphrl-schedule"
VERSION = 7  # increase when a search finds better or safer plans: older ones are then ignored

MEMORY_SCHEDULER = "XLA's memory scheduler"

Places = tuple[tuple[int, ...], ...]  # for each computation in `HloModule.sequential`, indices of instructions in order


@dataclasses.dataclass(frozen=True)
class Decision:
    """The schedule chosen for a program, its predicted memory, and the reason if it is XLA's own.

    Attributes:
      fingerprint: `HloModule.fingerprint` of the program.
      jaxlib: version of jaxlib that the decision was made with.
      method, seed, seconds: as requested.
      orders: for each computation in `HloModule.sequential`, indices of its instructions in execution order; None for
        XLA's own schedule.
      found_by: the method that found the order; "" without one.
      reason: one line why XLA's schedule is used; "" if it is not.
      xla_bytes, memory_bytes, graphrl_bytes: bytes of temporaries under XLA's default schedule, under that of its
        memory scheduler (None if it was not run), and under the best order found, even if that is not used. They are
        predicted until a compilation measures another figure.
      memory_measured: True if `memory_bytes` is XLA's figure, not a prediction.
      argument_bytes: bytes of the program's arguments.
      result_bytes: bytes of the results that XLA does not write into donated arguments.
      undonated_bytes: bytes of further results: XLA's own schedule writes them into donated arguments, the best order
        found does not.
      bound: lower bound on the bytes of temporaries in any order (`temp_search.temp_bound`).
      search_seconds: total time of planning in seconds.
      evaluations: number of orders evaluated by the search, see `Plan`.
      scheduler: the XLA scheduler to use if `orders` is None.
      recompute: as requested.
      dropped: residuals that loops do not keep for other loops, which compute them again (recompute/residuals.py).
        `clones` and `orders` refer to the module without them.
      clones: for each computation in `HloModule.sequential`, its clones (recompute/candidates.py): instructions that
        run twice; empty if there are none at all. Orders contain the clones' numbers too.
      recomputed: share of the program's estimated run time that clones and dropped residuals take.
      plain: orders of the module without recomputation, and the bytes of temporaries that they are predicted to need;
        only if the decision recomputes and these orders need less than XLA's schedules too.
    """

    fingerprint: str
    jaxlib: str
    method: str
    seed: int
    seconds: float
    reason: str
    xla_bytes: int
    graphrl_bytes: int
    argument_bytes: int
    result_bytes: int
    undonated_bytes: int
    bound: float
    orders: Places | None = None
    found_by: str = ""
    memory_bytes: int | None = None
    memory_measured: bool = False
    search_seconds: float = 0.0
    evaluations: int = 0
    scheduler: Scheduler = "default"
    recompute: float = 0.0
    dropped: Dropped = ()
    clones: tuple[Numbered, ...] = ()
    recomputed: float = 0.0
    plain: tuple[Places, int] | None = None

    def serves(self, settings: Settings) -> bool:
        """True if a search with these settings, or a longer one, made the decision with this jaxlib."""
        wanted = (settings.method, settings.seed, settings.recompute, jaxlib_version())
        return (self.method, self.seed, self.recompute, self.jaxlib) == wanted and self.seconds >= settings.seconds

    @property
    def is_planned(self) -> bool:
        """True unless the program runs under XLA's default schedule."""
        return self.orders is not None or self.scheduler != "default"

    def fallback(self) -> "Decision | None":
        """Returns the decision to use if the order needs more bytes than predicted.

        This is the best order without recomputation, or that of XLA's memory scheduler; None if only XLA's default
        schedule is left.
        """
        if self.plain is not None:
            return dataclasses.replace(
                self.without_plan(), orders=self.plain[0], graphrl_bytes=self.plain[1], found_by=self.found_by
            )
        if self.orders is not None and self.memory_bytes is not None and self.memory_bytes < self.xla_bytes:
            return self.by_memory_scheduler(self.memory_bytes)
        return None

    def without_plan(self) -> "Decision":
        """Returns the decision with XLA's default schedule instead of its orders."""
        return dataclasses.replace(
            self, orders=None, found_by="", reason="", dropped=(), clones=(), recomputed=0.0, plain=None
        )

    def by_memory_scheduler(self, temp_bytes: int) -> "Decision":
        """Returns the decision with the schedule of XLA's memory scheduler, which needs `temp_bytes` of temporaries."""
        return dataclasses.replace(
            self.without_plan(),
            scheduler="memory",
            found_by=MEMORY_SCHEDULER,
            graphrl_bytes=temp_bytes,
            undonated_bytes=0,
        )

    def program(self, module: HloModule) -> HloModule:
        """Applies recomputation and the decided orders to a module; its `message` does not get these orders.

        Raises:
          PlanError: the decision does not fit this module.
        """
        module = without_residuals(module, self.dropped)
        clones = self.named_clones(module)
        program = with_clones(module, clones)
        if self.orders is None:
            return program
        return program.with_orders(named_orders(program, self.orders, _numbers(module, clones)))

    def named_clones(self, module: HloModule) -> ClonesByName:
        """Returns the clones for each computation, by its name, in a `module` without the dropped residuals.

        Raises:
          PlanError: the decision does not fit this module.
        """
        pairs = zip(module.sequential, self.clones, strict=False)
        return {c.name: named(as_program(module, c), numbered) for c, numbered in pairs if numbered}

    def answer(self, module: HloModule) -> Answer | None:
        """Returns the answer of a `callback.Rule` for a module, without `on_misprediction` and `fallback`.

        Raises:
          PlanError: the decision does not fit this module.
        """
        if self.orders is None:
            return None if self.scheduler == "default" else Answer(scheduler=self.scheduler)
        donation = preserve_donation(module)
        data = answer_of(self.program(donation.module))
        return Answer(data, "default", donation.aliases, self.graphrl_bytes, self.undonated_bytes)


def named_orders(
    program: HloModule, places: Places, numbering: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> dict[str, tuple[str, ...]]:
    """Converts orders of indices to orders of instruction names, for each computation by name.

    Args:
      program: the module.
      places: as in `Decision.orders`.
      numbering: name of a computation -> the instruction names to which indices refer; by default those of `by_name`.

    Raises:
      PlanError: they are not valid orders of this module.
    """
    if len(places) != len(program.sequential):
        raise PlanError(f"{program.name}: orders of {len(places)} computations, not {len(program.sequential)}")
    orders = {}
    for computation, order in zip(program.sequential, places, strict=True):
        names = tuple(numbering.get(computation.name, computation.by_name))
        if any(not 0 <= place < len(names) for place in order):
            raise PlanError(f"{program.name}: places of instructions must be from 0 to {len(names) - 1}")
        orders[computation.name] = tuple(names[place] for place in order)
        check_sequence(program, orders[computation.name], computation)
    return orders


def answer_of(program: HloModule) -> bytes:
    """Serializes a module and its schedule for XLA."""
    return rescheduled(program, {c.name: program.order(c) for c in program.sequential})


def jaxlib_version() -> str:
    """Returns the version of jaxlib, and so of XLA, in this process."""
    from jaxlib.version import __version__

    return __version__


def places_of(
    program: HloModule, module: HloModule | None = None, clones: ClonesByName = MappingProxyType({})
) -> Places:
    """Converts the orders of a scheduled module's computations to indices, the inverse of `named_orders`.

    Args:
      program: the module, with its clones.
      module: the module without clones; by default `program`.
      clones: the clones of each computation, by its name.
    """
    numbering = _numbers(module or program, clones)
    return tuple(
        tuple(numbering[computation.name][name] for name in program.order(computation))
        for computation in program.sequential
    )


def _numbers(module: HloModule, clones: ClonesByName) -> dict[str, dict[str, int]]:
    """Returns for each computation, by name, a table: name of an instruction or clone -> its index."""
    return {c.name: numbers(as_program(module, c), clones.get(c.name, ())) for c in module.sequential}


class DecisionCache:
    """Decisions in memory, backed by those on disk. Threads may share it.

    Args:
      on_disk: True to read and write files.
    """

    def __init__(self, *, on_disk: bool) -> None:
        self._on_disk = on_disk
        self._in_memory: dict[tuple[Path, str, float], Decision] = {}
        self._lock = threading.Lock()

    def find(self, module: HloModule, recompute: float = 0.0) -> tuple[Decision | None, bool]:
        """Returns the decision for a program, or None; and True if it was read from disk just now.

        A file that is broken, or that does not fit the module, is ignored.
        """
        key = (_folder(), module.fingerprint, recompute)
        with self._lock:
            if key in self._in_memory:
                return self._in_memory[key], False
        if not self._on_disk:
            return None, False
        try:
            decision = read_document(_path(module.fingerprint, recompute), Decision, FORMAT, VERSION)
            if (decision.fingerprint, decision.recompute) != (module.fingerprint, recompute):
                return None, False
            decision.program(preserve_donation(module).module)
        except GraphrlError:
            return None, False
        with self._lock:
            self._in_memory[key] = decision
        return decision, True

    def store(self, decision: Decision) -> None:
        """Stores a decision. If the folder cannot be written, this warns, and the next process searches again."""
        with self._lock:
            self._in_memory[_folder(), decision.fingerprint, decision.recompute] = decision
        if not self._on_disk:
            return
        try:
            _folder().mkdir(parents=True, exist_ok=True)
            write_document(_path(decision.fingerprint, decision.recompute), decision, FORMAT, VERSION)
        except (OSError, GraphrlError) as error:
            warnings.warn(f"graphrl: the plan cannot be stored for the next process: {error}", stacklevel=2)


def _folder() -> Path:
    return cache_folder("plans")


def _path(fingerprint: str, recompute: float) -> Path:
    suffix = f"-recompute-{float(recompute)!r}" if recompute else ""
    return _folder() / f"{fingerprint}{suffix}.json"
