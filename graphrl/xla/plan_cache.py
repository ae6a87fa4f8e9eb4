"""Decisions about compiled programs, in memory and on disk: one small JSON file a program, named by its fingerprint.

They lie in `$XDG_CACHE_HOME/graphrl/plans` (by default ~/.cache/graphrl/plans) and may be deleted at any time.
A decision serves every request for the same method and seed and for no more seconds of search, with the same jaxlib.
Any other request searches again, starting from it, so that a program's file never gets worse.
"""

import dataclasses
import json
import threading
import typing
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphrl.errors import GraphrlError, PlanError
from graphrl.files import cache_folder, content, write_atomically
from graphrl.graphs.readers.hlo_module import HloModule
from graphrl.xla.callback import check_sequence
from graphrl.xla.settings import Settings

FORMAT, VERSION = "graphrl-schedule", 1


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
        scheduler, and under the best order found, also if that is not used.
      memory_measured: whether `memory_bytes` is XLA's figure, and not a prediction.
      undonated_bytes: of results that XLA writes into donated arguments, but not under an order that it is given.
      bound: bytes that no order of the program's graph is below.
      search_seconds: what planning took in all.
      evaluations: of the search, see `Plan`.
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
    memory_bytes: int
    memory_measured: bool
    graphrl_bytes: int
    undonated_bytes: int
    bound: float
    search_seconds: float
    evaluations: int

    def serves(self, settings: Settings) -> bool:
        """Whether it is what a search with these settings, or a longer one, gave with this jaxlib."""
        asked = (settings.method, settings.seed, jaxlib_version())
        return (self.method, self.seed, self.jaxlib) == asked and self.seconds >= settings.seconds

    def sequence(self, module: HloModule) -> tuple[str, ...] | None:
        """The order as names of a module's instructions; None for XLA's own.

        Raises:
          PlanError: it is no order of this module.
        """
        if self.order is None:
            return None
        instructions = module.entry.instructions
        if any(not 0 <= place < len(instructions) for place in self.order):
            raise PlanError(f"{module.name}: places of instructions must be from 0 to {len(instructions) - 1}")
        names = tuple(instructions[place].name for place in self.order)
        check_sequence(module, names)
        return names


def jaxlib_version() -> str:
    """The version of XLA that this process has, as one of jaxlib."""
    from jaxlib.version import __version__

    return __version__


def places(module: HloModule, sequence: Sequence[str]) -> tuple[int, ...]:
    """What `Decision.sequence` turns into names."""
    place = {instruction.name: k for k, instruction in enumerate(module.entry.instructions)}
    return tuple(place[name] for name in sequence)


class Decisions:
    """The decisions that this process knows, over those on disk. Threads may share it.

    Args:
      on_disk: whether there are files.
    """

    def __init__(self, *, on_disk: bool) -> None:
        self._on_disk = on_disk
        self._known: dict[tuple[Path, str], Decision] = {}
        self._lock = threading.Lock()

    def find(self, module: HloModule) -> tuple[Decision, bool] | None:
        """The decision for a program and whether it was read from disk just now; None if there is none that fits.

        A file that is broken, or that does not fit the module, counts as none.
        """
        key = (_folder(), module.fingerprint)
        with self._lock:
            if key in self._known:
                return self._known[key], False
        if not self._on_disk:
            return None
        decision = _read(_path(module.fingerprint))
        try:
            if decision is None or decision.fingerprint != module.fingerprint:
                return None
            decision.sequence(module)
        except GraphrlError:
            return None
        with self._lock:
            self._known[key] = decision
        return decision, True

    def keep(self, decision: Decision) -> None:
        """Remembers a decision; a folder that cannot be written costs a warning and the next process a search."""
        with self._lock:
            self._known[_folder(), decision.fingerprint] = decision
        if not self._on_disk:
            return
        data = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(decision)}
        try:
            _folder().mkdir(parents=True, exist_ok=True)
            write_atomically(_path(decision.fingerprint), lambda file: json.dump(data, file))
        except (OSError, GraphrlError) as error:
            warnings.warn(f"graphrl: the plan is not kept for the next process: {error}", stacklevel=2)


def _folder() -> Path:
    return cache_folder("plans")


def _path(fingerprint: str) -> Path:
    return _folder() / f"{fingerprint}.json"


def _read(path: Path) -> Decision | None:
    """The decision in a file; None if there is none, or anything is wrong with it."""
    try:
        with content(path) as data:
            fields = json.loads(bytes(data[:]))
    except (GraphrlError, ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or (fields.pop("format", None), fields.pop("version", None)) != (FORMAT, VERSION):
        return None
    types = typing.get_type_hints(Decision)
    if fields.keys() != types.keys() or not all(_is(fields[name], types[name]) for name in types):
        return None
    order = fields.pop("order")
    return Decision(**fields, order=None if order is None else tuple(order))


def _is(value: Any, kind: Any) -> bool:
    if kind == tuple[int, ...] | None:
        return value is None or (isinstance(value, list) and all(type(place) is int for place in value))
    if kind is float:
        return type(value) in (int, float)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
