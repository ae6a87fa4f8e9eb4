"""Decisions on demand: what is known, or else a search, one at a time in a process."""

import dataclasses
import functools
import threading

import jax

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.units import format_bytes
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.callback import Answer, Unplanned
from graphrl.xla.planning.cache import Decision, DecisionCache
from graphrl.xla.planning.search import decide
from graphrl.xla.planning.temp_search import MIN_BYTES, is_small
from graphrl.xla.report import Report
from graphrl.xla.settings import Settings

_SHARED = DecisionCache(on_disk=True)

# A search uses all cores, and a second thread with the same program shall find what the first one found.
_searching = threading.RLock()

# What XLA makes of `jax.lax.rng_uniform`, with a key from a sequence that goes on with each compilation of the process.
_DRAWS = "rng-get-and-update-state"

_TOO_SMALL = "left alone: too small to gain anything"


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

    def rule(self, module: HloModule) -> Answer | None:
        """What a module runs as, for `callback.set_rule`.

        Raises:
          Unplanned: it needs a search.
        """
        reason = _untouched(module)
        decision, from_disk = (None, False) if reason else self._find(module)
        if decision is None and not reason and _needs_little(module):
            reason = _TOO_SMALL
        if reason:
            self.reports[module.fingerprint] = Report(module.name, False, reason)
            return None
        if decision is None or not decision.serves(self.settings):
            raise Unplanned(module)
        self._report(module, decision, from_cache=from_disk)
        return self._answer(module, decision)

    def plan(self, lowered: jax.stages.Lowered, unplanned: Unplanned) -> Decision:
        """The decision for a program that `rule` did not know: a search, unless another thread was faster.

        Args:
          lowered: the program.
          unplanned: what `rule` raised for it; the time that XLA took is part of the search's.

        Raises:
          Interrupted: Ctrl-C; nothing is remembered.
          GraphrlError: the method cannot take this program.
        """
        module = unplanned.module
        with _searching:
            decision = self.decision(module)
            if decision is None or not decision.serves(self.settings):
                decision = decide(lowered, unplanned, self.settings, decision)
                self._decisions.keep(decision)
            self._report(module, decision, from_cache=False)
            return decision

    def decision(self, module: HloModule) -> Decision | None:
        """What `rule` goes by for a module; None if it was too small."""
        return self._find(module)[0]

    def _answer(self, module: HloModule, decision: Decision) -> Answer | None:
        """A decision as an answer, and what becomes of it where it is not true."""
        answer, other = decision.answer(module), decision.next_best()
        if answer is None:
            return None
        return dataclasses.replace(
            answer,
            mistaken=functools.partial(self._correct, module, decision),
            otherwise=None if other is None else functools.partial(self._instead, other),
            otherwise_bytes=0 if other is None else other.graphrl_bytes + other.undonated_bytes,
        )

    def _instead(self, decision: Decision, module: HloModule) -> Answer | None:
        """The rule for a module whose last decision needs more bytes than this one."""
        self._decisions.keep(decision)
        self.reports[module.fingerprint] = Report.of(module.name, decision, from_cache=False)
        return self._answer(module, decision)

    def _correct(self, module: HloModule, decision: Decision, measured: int, own: int, why: str) -> None:
        """The decision's order was measured to need other bytes than predicted, and XLA's own schedule so many; or it
        cannot be taken, and why.
        """
        decision = dataclasses.replace(decision, graphrl_bytes=measured, xla_bytes=max(own, decision.xla_bytes))
        if why or own <= measured + decision.undonated_bytes:
            reason = why or f"the order needs {format_bytes(measured)}, which is more than was predicted"
            decision = dataclasses.replace(decision.without_plan(), reason=reason)
        self._decisions.keep(decision)
        self.reports[module.fingerprint] = Report.of(module.name, decision, from_cache=False)

    def _find(self, module: HloModule) -> tuple[Decision | None, bool]:
        return self._decisions.find(module, self.settings.recompute)

    def _report(self, module: HloModule, decision: Decision, *, from_cache: bool) -> None:
        if module.fingerprint not in self.reports:
            self.reports[module.fingerprint] = Report.of(module.name, decision, from_cache=from_cache)


def _untouched(module: HloModule) -> str:
    """One line why a module is left alone whatever is known of it; "" if it is not."""
    if is_small(module):
        return _TOO_SMALL
    if any(i.opcode == _DRAWS for c in module.computations.values() for i in c.instructions):
        return "left alone: compiling it twice, as planning does, would change its random numbers (jax.lax.rng_uniform)"
    return ""


def _needs_little(module: HloModule) -> bool:
    """Whether it is not worth a search: XLA's own schedule needs next to nothing, however much the program makes."""
    return TempPredictor(module)(module.order(module.entry)) < MIN_BYTES
