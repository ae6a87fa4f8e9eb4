"""Decisions about compiled programs, in memory and on disk: one small JSON file a program, named by its fingerprint.

They lie in `$XDG_CACHE_HOME/graphrl/plans` (by default ~/.cache/graphrl/plans) and may be deleted at any time.
A decision serves every request for the same method and seed and for no more seconds of search, with the same jaxlib.
Any other request searches again, starting from it, so that a program's file never gets worse. Decisions for different
limits of recomputation are kept apart.
"""

import dataclasses
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from graphrl.documents import read_document, write_document
from graphrl.errors import GraphrlError, PlanError
from graphrl.files import cache_folder
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla.callback import check_sequence, rescheduled
from graphrl.xla.recompute.clones import Clone, Numbered, named, numbers
from graphrl.xla.recompute.rewrite import rewritten
from graphrl.xla.settings import Settings

FORMAT, VERSION = "graphrl-schedule", 2  # rises when a search finds better plans, so that older ones are not kept


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a program shall run as, and why.

    Attributes:
      fingerprint: `HloModule.fingerprint` of the program.
      jaxlib: version that the bytes were measured with.
      method, seed, seconds: what was asked for.
      order: places in the entry computation's instructions, as they shall run; None for XLA's own schedule.
      found_by: the method behind the order; "" without one.
      reason: one line why XLA's schedule stays; "" where it does not.
      xla_bytes, memory_bytes, graphrl_bytes: temporaries under XLA's default schedule, under that of its memory
        scheduler (None where it was not asked), and under the best order found, also if that is not used. Where a
        prediction was enough to keep XLA's schedule, they are predicted.
      memory_measured: whether `memory_bytes` is XLA's figure, and not a prediction.
      undonated_bytes: of results that XLA writes into donated arguments, but not under an order that it is given.
      bound: bytes that the temporaries of no order are below (`search.temp_bound`).
      search_seconds: what planning took in all.
      evaluations: of the search, see `Plan`.
      recompute: what was asked for.
      clones: instructions that are computed again; `order` has their numbers too (recompute/clones.py).
      recomputed: part of the program's estimated run time that they take.
    """

    fingerprint: str
    jaxlib: str
    method: str
    seed: int
    seconds: float
    order: tuple[int, ...] | None
    found_by: str
    reason: str
    xla_bytes: int
    memory_bytes: int | None
    memory_measured: bool
    graphrl_bytes: int
    undonated_bytes: int
    bound: float
    search_seconds: float
    evaluations: int
    recompute: float = 0.0
    clones: Numbered = ()
    recomputed: float = 0.0

    def serves(self, settings: Settings) -> bool:
        """Whether it is what a search with these settings, or a longer one, gave with this jaxlib."""
        wanted = (settings.method, settings.seed, settings.recompute, jaxlib_version())
        return (self.method, self.seed, self.recompute, self.jaxlib) == wanted and self.seconds >= settings.seconds

    def program(self, module: HloModule) -> HloModule:
        """A module with what is computed again.

        Raises:
          PlanError: the clones do not fit this module.
        """
        return rewritten(module, named(module, self.clones)) if self.clones else module

    def answer(self, module: HloModule) -> Sequence[str] | bytes | None:
        """What `callback.Rule` wants for a module.

        Raises:
          PlanError: the decision does not fit this module.
        """
        if self.order is None:
            return None
        program = self.program(module)
        sequence = self._names(module, program)
        return rescheduled(program, sequence) if self.clones else sequence

    def sequence(self, module: HloModule) -> tuple[str, ...] | None:
        """The order as names of the instructions of `program(module)`; None for XLA's own.

        Raises:
          PlanError: it is no order of this module.
        """
        return None if self.order is None else self._names(module, self.program(module))

    def _names(self, module: HloModule, program: HloModule) -> tuple[str, ...]:
        names = list(numbers(module, named(module, self.clones)))
        order = self.order or ()
        if any(not 0 <= place < len(names) for place in order):
            raise PlanError(f"{module.name}: places of instructions must be from 0 to {len(names) - 1}")
        sequence = tuple(names[place] for place in order)
        check_sequence(program, sequence)
        return sequence


def jaxlib_version() -> str:
    """The version of XLA that this process has, as one of jaxlib."""
    from jaxlib.version import __version__

    return __version__


def places(module: HloModule, sequence: Sequence[str], clones: Sequence[Clone] = ()) -> tuple[int, ...]:
    """What `Decision.sequence` turns into names."""
    place = numbers(module, clones)
    return tuple(place[name] for name in sequence)


class DecisionCache:
    """The decisions that this process knows, over those on disk. Threads may share it.

    Args:
      on_disk: whether there are files.
    """

    def __init__(self, *, on_disk: bool) -> None:
        self._on_disk = on_disk
        self._in_memory: dict[tuple[Path, str, float], Decision] = {}
        self._lock = threading.Lock()

    def find(self, module: HloModule, recompute: float = 0.0) -> tuple[Decision | None, bool]:
        """The decision for a program, None if there is none that fits; and whether it was read from disk just now.

        A file that is broken, or that does not fit the module, counts as none.
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
            decision.sequence(module)
        except GraphrlError:
            return None, False
        with self._lock:
            self._in_memory[key] = decision
        return decision, True

    def keep(self, decision: Decision) -> None:
        """Remembers a decision; a folder that cannot be written costs a warning and the next process a search."""
        with self._lock:
            self._in_memory[_folder(), decision.fingerprint, decision.recompute] = decision
        if not self._on_disk:
            return
        try:
            _folder().mkdir(parents=True, exist_ok=True)
            write_document(_path(decision.fingerprint, decision.recompute), decision, FORMAT, VERSION)
        except (OSError, GraphrlError) as error:
            warnings.warn(f"graphrl: the plan is not kept for the next process: {error}", stacklevel=2)


def _folder() -> Path:
    return cache_folder("plans")


def _path(fingerprint: str, recompute: float) -> Path:
    suffix = f"-recompute-{float(recompute)!r}" if recompute else ""
    return _folder() / f"{fingerprint}{suffix}.json"
