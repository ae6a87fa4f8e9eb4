"""Decisions about captured modules: stored ones, or new ones by search, one search at a time in a process.

`Planner` answers XLA for one set of settings; `decide` searches for the order of one module.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.graphs.readers.hlo.module import HloModule, as_program
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.plan import Plan
from graphrl.units import format_bytes
from graphrl.xla import hook
from graphrl.xla.assignment import TempPredictor, predicted_bytes
from graphrl.xla.callback import Answer, Unplanned
from graphrl.xla.donation import Donation, preserve_donation
from graphrl.xla.planning.cache import MEMORY_SCHEDULER, Decision, DecisionCache, jaxlib_version, places_of
from graphrl.xla.planning.temp_search import (
    LEAST_GAIN,
    LEAST_SECONDS,
    MIN_BYTES,
    Schedule,
    Target,
    is_small,
    order_of,
    search_orders,
    targets_of,
    temp_bound,
)
from graphrl.xla.recompute.candidates import ClonesByName, Numbered, numbered
from graphrl.xla.recompute.plan import recompute_everywhere
from graphrl.xla.recompute.residuals import Dropped, choose_residuals
from graphrl.xla.recompute.rewrite import without_residuals
from graphrl.xla.report import Report
from graphrl.xla.settings import PROBLEM, Settings

NEGLIGIBLE = 0.01  # share of XLA's bytes: if the bounds allow no larger saving, XLA's memory scheduler is not run
LEAST_SEARCH = 0.25  # least share of the seconds for planning, however long XLA took to produce the module
DROPPING = 0.3  # largest share of the seconds for recomputation that the residuals of loops get
RECOMPUTING = 0.5  # share of the seconds for recomputation, if it is requested

_SHARED = DecisionCache(on_disk=True)

# A search uses all cores, and a second thread with the same program should get the result of the first.
_searching = threading.RLock()

# The opcode of `jax.lax.rng_uniform`; each compilation in the process takes the next key of a sequence.
_DRAWS = "rng-get-and-update-state"

_TOO_SMALL = "not planned: too small to gain anything"


class Planner:
    """Plans modules with one set of settings, and answers XLA's callback for them. Threads may share it.

    Attributes:
      settings: settings of the searches.
      reports: fingerprint -> report, for the programs that it has planned, in the order of their compilation.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reports: dict[str, Report] = {}
        self._decisions = _SHARED if settings.cache else DecisionCache(on_disk=False)

    def rule(self, module: HloModule) -> Answer | None:
        """Answers XLA's callback for a module, from stored decisions; None for XLA's own schedule.

        Raises:
          Unplanned: the module needs a search.
        """
        reason = _skip_reason(module)
        decision, from_disk = (None, False) if reason else self._find(module)
        if decision is None and not reason and predicted_bytes(module) < MIN_BYTES:  # whatever the program computes
            reason = _TOO_SMALL
        if reason:
            self.reports[module.fingerprint] = Report(module.name, False, reason)
            return None
        if decision is None or not decision.serves(self.settings):
            raise Unplanned(module)
        self._report(module, decision, from_cache=from_disk)
        return self._answer(module, decision)

    def plan(self, lowered: jax.stages.Lowered, unplanned: Unplanned) -> Decision:
        """Decides about a program that `rule` did not know: by a search, unless another thread was faster.

        Args:
          lowered: the program.
          unplanned: the exception of `rule`; the time that XLA took counts as search.

        Raises:
          Interrupted: Ctrl-C; nothing is stored.
          GraphrlError: the method cannot take this program.
        """
        module = unplanned.module
        with _searching:
            decision = self.decision(module)
            if decision is None or not decision.serves(self.settings):
                decision = decide(lowered, unplanned, self.settings, decision)
                self._decisions.store(decision)
            self._report(module, decision, from_cache=False)
            return decision

    def decision(self, module: HloModule) -> Decision | None:
        """Returns the stored decision for a module; None without one, as for modules that are too small."""
        return self._find(module)[0]

    def _answer(self, module: HloModule, decision: Decision) -> Answer | None:
        """Converts a decision to an answer that also handles wrong predictions; None for XLA's default schedule."""
        answer, other = decision.answer(module), decision.fallback()
        if answer is None:
            return None
        return dataclasses.replace(
            answer,
            on_misprediction=functools.partial(self._correct, module, decision),
            fallback=None if other is None else functools.partial(self._answer_fallback, other),
            fallback_bytes=0 if other is None else other.graphrl_bytes + other.undonated_bytes,
        )

    def _answer_fallback(self, fallback: Decision, module: HloModule) -> Answer | None:
        """Stores a fallback and answers with it, after another decision has needed more bytes than the fallback."""
        self._decisions.store(fallback)
        self.reports[module.fingerprint] = Report.of(module.name, fallback, from_cache=False)
        return self._answer(module, fallback)

    def _correct(self, module: HloModule, decision: Decision, measured: int, default: int, why: str) -> None:
        """Corrects a decision whose order needs other bytes than predicted, or cannot be used.

        Args:
          module: the program.
          decision: the decision about it.
          measured: bytes of temporaries under the decision's order.
          default: bytes of temporaries under XLA's own schedule.
          why: one line why the order cannot be used; "" if the prediction was wrong.
        """
        decision = dataclasses.replace(decision, graphrl_bytes=measured, xla_bytes=max(default, decision.xla_bytes))
        if why or default <= measured + decision.undonated_bytes:
            reason = why or f"the order needs {format_bytes(measured)}, more than predicted"
            decision = dataclasses.replace(decision.without_plan(), reason=reason)
        self._decisions.store(decision)
        self.reports[module.fingerprint] = Report.of(module.name, decision, from_cache=False)

    def _find(self, module: HloModule) -> tuple[Decision | None, bool]:
        return self._decisions.find(module, self.settings.recompute)

    def _report(self, module: HloModule, decision: Decision, *, from_cache: bool) -> None:
        if module.fingerprint not in self.reports:
            self.reports[module.fingerprint] = Report.of(module.name, decision, from_cache=from_cache)


class Candidate(NamedTuple):
    """A candidate schedule of a program.

    Attributes:
      found_by: the method or scheduler that found it.
      program: the module in this order, with recomputation.
      predicted: bytes of temporaries that XLA is predicted to need.
      evaluations: number of orders evaluated by the search that found it.
      dropped: residuals that loops do not keep.
      clones: instructions that are computed again, for each computation by name.
      recomputed: share of the program's estimated run time that clones and dropped residuals take.
    """

    found_by: str
    program: HloModule
    predicted: int
    evaluations: int
    dropped: Dropped = ()
    clones: ClonesByName = MappingProxyType({})
    recomputed: float = 0.0


def decide(lowered: jax.stages.Lowered, unplanned: Unplanned, settings: Settings, earlier: Decision | None) -> Decision:
    """Searches for the schedule of a program, and decides whether to use it.

    Args:
      lowered: the program.
      unplanned: the module under XLA's default schedule, and the seconds that XLA took.
      settings: settings of the search.
      earlier: an earlier decision, if there is one; its orders are a candidate.

    Returns:
      A decision whose orders, if any, are predicted to need fewer bytes than XLA's default schedule, and at most as
      many as that of XLA's memory scheduler.

    Raises:
      Interrupted: Ctrl-C.
      GraphrlError: the method cannot take this program.
    """
    module, now = unplanned.module, time.perf_counter()
    started = now - unplanned.seconds
    seconds = max(settings.seconds - unplanned.seconds, LEAST_SEARCH * settings.seconds)
    donation = preserve_donation(module)
    base, targets = donation.module, targets_of(donation.module)
    default = _xla_decision(module, settings, donation, targets)
    if (earlier is None or earlier.orders is None) and _cannot_gain(default, targets):
        return dataclasses.replace(default, search_seconds=time.perf_counter() - started)
    if default.bound + donation.lost_bytes >= default.xla_bytes:  # no order saves more than the lost donations cost
        targets = {}
    memory = hook.captured(lowered, "memory")
    default = dataclasses.replace(default, memory_bytes=predicted_bytes(memory))
    by_memory = preserve_donation(memory).module if memory.fingerprint == module.fingerprint else None

    def left(part: float = 1.0) -> float:
        return part * (now + seconds - time.perf_counter())

    end = time.perf_counter() + left(1 - RECOMPUTING if settings.recompute else 1)
    candidates = list(_candidates(base, targets, by_memory, settings, earlier, end, LEAST_GAIN * default.xla_bytes))
    best = plain = min(candidates, key=lambda candidate: candidate.predicted)
    if settings.recompute:
        best = min([best, *_recomputed(base, settings, earlier, best, left())], key=lambda each: each.predicted)
    bound = default.bound
    if left() > 0:  # a better order tightens the bound
        sequence = plain.program.order(plain.program.entry)
        bound = max(bound, temp_bound(read_hlo(plain.program, chip=DEFAULT_CHIP), sequence))
    decision = dataclasses.replace(
        default,
        graphrl_bytes=best.predicted,
        undonated_bytes=donation.lost_bytes,
        bound=bound,
        evaluations=best.evaluations,
    )
    decision = _chosen(decision, best, plain, base)
    return dataclasses.replace(decision, search_seconds=time.perf_counter() - started)


def _chosen(decision: Decision, best: Candidate, plain: Candidate, base: HloModule) -> Decision:
    """Decides for the least bytes: XLA's own schedule, that of its memory scheduler, or the best candidate.

    With recomputation, the best candidate without it is kept as the fallback `plain`.
    """
    memory = decision.memory_bytes
    assert memory is not None
    most = min(memory, decision.xla_bytes - 1) - decision.undonated_bytes
    if best.predicted <= most:
        kept = (places_of(plain.program), plain.predicted) if best is not plain and plain.predicted <= most else None
        base = without_residuals(base, best.dropped)
        return dataclasses.replace(
            decision,
            reason="",
            orders=places_of(best.program, base, best.clones),
            found_by=best.found_by,
            dropped=best.dropped,
            clones=_numbered(base, best.clones),
            recomputed=best.recomputed,
            plain=kept,
        )
    reason = (
        f"the best order found needs {format_bytes(best.predicted)}{_undonated(decision.undonated_bytes)}; "
        f"XLA's own {format_bytes(decision.xla_bytes)}"
    )
    decision = dataclasses.replace(decision, reason=reason)
    return decision.by_memory_scheduler(memory) if memory < decision.xla_bytes else decision


def _xla_decision(module: HloModule, settings: Settings, donation: Donation, targets: Mapping[str, Target]) -> Decision:
    """Returns the decision to use XLA's schedule because no order can need much less."""
    predicted, entry = predicted_bytes(module), targets.get(donation.module.entry.name)
    if entry is not None and not entry.runs_others:
        bound = entry.bound
    else:
        bound = temp_bound(read_hlo(donation.module, chip=DEFAULT_CHIP), donation.module.order(donation.module.entry))
    donated = sum(module.entry.root.shape.at(alias.output_index).bytes for alias in module.input_output_aliases)
    return Decision(
        fingerprint=module.fingerprint,
        jaxlib=jaxlib_version(),
        method=settings.method,
        seed=settings.seed,
        seconds=float(settings.seconds),
        reason=(
            f"no order needs less than {format_bytes(bound)}{_undonated(donation.lost_bytes)}; "
            f"XLA's own {format_bytes(predicted)}"
        ),
        xla_bytes=predicted,
        graphrl_bytes=predicted,
        argument_bytes=sum(parameter.shape.leaf_bytes for parameter in module.entry.parameters),
        result_bytes=module.entry.root.shape.leaf_bytes - donated,
        undonated_bytes=donation.lost_bytes,
        bound=bound,
        recompute=float(settings.recompute),
    )


def _cannot_gain(default: Decision, targets: Mapping[str, Target]) -> bool:
    """True if the bounds allow hardly any saving. False with recomputation, which may go below them."""
    least = NEGLIGIBLE * default.xla_bytes
    if default.recompute:
        return False
    return default.xla_bytes - default.bound < least or not any(target.can_save(least) for target in targets.values())


def plan_of(decision: Decision, module: HloModule) -> Plan | None:
    """Converts a decision to a `Plan` of the module's graph; None if XLA's schedule is used."""
    if decision.orders is None:
        return None
    scheduled = decision.program(preserve_donation(module).module)
    program = read_hlo(scheduled, chip=DEFAULT_CHIP)
    order = order_of(program, scheduled.order(scheduled.entry))
    return Plan.from_order(
        program.graph,
        PROBLEM,
        np.zeros(len(order), np.int64),
        order,
        method=decision.found_by,
        seconds=decision.search_seconds,
        evaluations=decision.evaluations,
        seed=decision.seed,
        bound=lower_bound(program.graph, PROBLEM, order),
    )


def _candidates(
    base: HloModule,
    targets: Mapping[str, Target],
    memory: HloModule | None,
    settings: Settings,
    earlier: Decision | None,
    end: float,
    least: float,
) -> Iterator[Candidate]:
    """Yields the orders of XLA's memory scheduler, of an earlier decision, and of a search from the best of these."""
    predict = TempPredictor(base)

    def candidate(by: str, schedule: Schedule, evaluations: int) -> Candidate:
        program = base.with_orders(schedule)
        return Candidate(by, program, predict(program.order(program.entry), program.schedule), evaluations)

    starts = [candidate("XLA", _schedule(base), 0)]
    if memory is not None:
        starts.append(candidate(MEMORY_SCHEDULER, _translated(memory, base), 0))
    if earlier is not None and earlier.orders is not None and not (earlier.clones or earlier.dropped):
        starts.append(candidate(earlier.found_by, _schedule(earlier.program(base)), earlier.evaluations))
    yield from starts[1:]
    starts.sort(key=lambda start: start.predicted)
    result = search_orders(base, targets, [_schedule(start.program) for start in starts], settings, end, least)
    yield candidate(result.found_by or starts[0].found_by, result.schedule, result.evaluations)


def _schedule(module: HloModule) -> Schedule:
    return {c.name: module.order(c) for c in module.sequential}


def _translated(other: HloModule, module: HloModule) -> Schedule:
    """Translates the schedule of another module with the same fingerprint to this module's instruction names."""
    schedule = {}
    for theirs, ours in zip(other.sequential, module.sequential, strict=True):
        name = dict(zip(theirs.by_name, ours.by_name, strict=True))
        schedule[ours.name] = tuple(name[each] for each in other.order(theirs))
    return schedule


def _recomputed(
    base: HloModule, settings: Settings, earlier: Decision | None, best: Candidate, seconds: float
) -> Iterator[Candidate]:
    """Yields candidates with recomputation: of an earlier decision, and of a new search from the best order."""
    if earlier is not None and (earlier.clones or earlier.dropped):
        program = earlier.program(base)
        clones = earlier.named_clones(without_residuals(base, earlier.dropped))
        predicted, by = predicted_bytes(program), earlier.found_by
        yield Candidate(by, program, predicted, earlier.evaluations, earlier.dropped, clones, earlier.recomputed)
    began = time.perf_counter()
    reduced = _without_residuals(best, settings.recompute, began + DROPPING * seconds)
    recomputation = recompute_everywhere(
        reduced.program,
        limit=settings.recompute - reduced.recomputed,
        seconds=max(LEAST_SECONDS, seconds - (time.perf_counter() - began)),
        seed=settings.seed,
    )
    if recomputation.clones or reduced.dropped:
        yield Candidate(
            f"{best.found_by}, recomputation",
            recomputation.module,
            recomputation.predicted,
            best.evaluations,
            reduced.dropped,
            recomputation.clones,
            reduced.recomputed + recomputation.cost,
        )


def _without_residuals(best: Candidate, limit: float, end: float) -> Candidate:
    """Drops residuals of loops from the best candidate, if it then needs fewer bytes.

    Args:
      best: the candidate.
      limit: share of the estimated run time that recomputation may take.
      end: time by `time.perf_counter` at which the choice of residuals ends.
    """
    choice = choose_residuals(best.program, limit, lambda: time.perf_counter() > end)
    if not choice.dropped:
        return best
    program = without_residuals(best.program, choice.dropped)
    reduced = best._replace(
        program=program, predicted=predicted_bytes(program), dropped=choice.dropped, recomputed=choice.cost
    )
    return min(best, reduced, key=lambda each: each.predicted)


def _numbered(module: HloModule, clones: ClonesByName) -> tuple[Numbered, ...]:
    """Converts clones to the form of `Decision.clones`."""
    if not clones:
        return ()
    return tuple(numbered(as_program(module, c), clones.get(c.name, ())) for c in module.sequential)


def _undonated(lost: int) -> str:
    return f", and {format_bytes(lost)} for donated arguments that it cannot write to" if lost else ""


def memory_of(executable: jax.stages.Compiled) -> tuple[int, int]:
    """Returns the bytes of temporaries, and of results written into donated arguments, as XLA reports them."""
    analysis = executable.memory_analysis()
    return int(analysis.temp_size_in_bytes), int(analysis.alias_size_in_bytes)  # type: ignore[union-attr]


def _skip_reason(module: HloModule) -> str:
    """Returns one line why a module is not planned, whatever decision is stored; "" if it may be planned."""
    if is_small(module):
        return _TOO_SMALL
    if any(i.opcode == _DRAWS for c in module.computations.values() for i in c.instructions):
        return "not planned: planning compiles it twice, which would change its random numbers (jax.lax.rng_uniform)"
    return ""
