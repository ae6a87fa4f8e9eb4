"""Decisions on demand: what is known, or else a search, one at a time in a process."""

import dataclasses
import threading
from collections.abc import Sequence

import jax

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.units import format_bytes
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.callback import Unplanned
from graphrl.xla.planning.cache import Decision, DecisionCache
from graphrl.xla.planning.search import MIN_BYTES, decide, is_small
from graphrl.xla.report import Report
from graphrl.xla.settings import Settings

_SHARED = DecisionCache(on_disk=True)

# A search uses all cores, and a second thread with the same program shall find what the first one found.
_searching = threading.RLock()

# What XLA makes of `jax.lax.rng_uniform`, with a key from a sequence that goes on with each compilation of the process.
_DRAWS = "rng-get-and-update-state"

_BODIES = frozenset(("while", "conditional", "call"))  # instructions with computations of their own


class Planner:
    """What to do with the modules of one set of settings. Threads may share it.

    Attributes:
      settings: of the searches.
      reports: of the programs that it has given a decision for, by fingerprint, in the order of their compilation.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reports: dict[str, Report] = {}
        self._decisions = _SHARED if settings.cache else DecisionCache(on_disk=False)

    def rule(self, module: HloModule) -> Sequence[str] | bytes | None:
        """What a module runs as, for `callback.set_rule`.

        Raises:
          Unplanned: it needs a search.
        """
        reason = _untouched(module)
        decision, from_disk = (None, False) if reason else self._find(module)
        if decision is None and not reason and _needs_little(module):
            reason = _too_small(module)
        if reason:
            self.reports[module.fingerprint] = Report(module.name, False, reason)
            return None
        if decision is None or not decision.serves(self.settings):
            raise Unplanned(module)
        self._report(module, decision, from_cache=from_disk)
        return decision.answer(module)

    def plan(self, lowered: jax.stages.Lowered, module: HloModule) -> Decision:
        """The decision for a program that `rule` did not know: a search, unless another thread was faster.

        Args:
          lowered: the program.
          module: what `rule` was asked for.

        Raises:
          Interrupted: Ctrl-C; nothing is remembered.
          GraphrlError: the method cannot take this program.
        """
        with _searching:
            decision = self.decision(module)
            if decision is None or not decision.serves(self.settings):
                decision = decide(lowered, module, self.settings, decision)
                self._decisions.keep(decision)
            self._report(module, decision, from_cache=False)
            return decision

    def decision(self, module: HloModule) -> Decision | None:
        """What `rule` goes by for a module; None if it was too small."""
        return self._find(module)[0]

    def withdraw(self, module: HloModule, decision: Decision, measured: int) -> None:
        """XLA's schedule stays after all: the decision's order was measured to need so many bytes."""
        reason = f"the order on disk needs {format_bytes(measured)}, XLA's own {format_bytes(decision.xla_bytes)}"
        decision = dataclasses.replace(decision, order=None, found_by="", reason=reason, graphrl_bytes=measured)
        self._decisions.keep(decision)
        self.reports.pop(module.fingerprint, None)

    def _find(self, module: HloModule) -> tuple[Decision | None, bool]:
        return self._decisions.find(module, self.settings.recompute)

    def _report(self, module: HloModule, decision: Decision, *, from_cache: bool) -> None:
        if module.fingerprint not in self.reports:
            self.reports[module.fingerprint] = Report.of(module.name, decision, from_cache=from_cache)


def _untouched(module: HloModule) -> str:
    """One line why a module is left alone whatever is known of it; "" if it is not."""
    if is_small(module):
        return _too_small(module)
    if any(i.opcode == _DRAWS for c in module.computations.values() for i in c.instructions):
        return "left alone: compiling it twice, as planning does, would change its random numbers (jax.lax.rng_uniform)"
    return ""


def _needs_little(module: HloModule) -> bool:
    """Whether it is not worth a search: XLA's own schedule needs next to nothing, however much the program makes."""
    return TempPredictor(module)(module.order(module.entry)) < MIN_BYTES


def _too_small(module: HloModule) -> str:
    """One line that says so; a program may be large only in what it repeats."""
    inside = sorted({i.opcode for i in module.entry.instructions} & _BODIES)
    if inside:
        return f"left alone: too small outside of its {' and '.join(inside)} bodies, where XLA's order stays"
    return "left alone: too small to gain anything"
