"""From a captured module to a decision: search on its graph, predict, compile the best for its true figure."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.units import format_bytes
from graphrl.xla import callback, hook
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.planning.cache import Decision, jaxlib_version, places
from graphrl.xla.planning.temp_search import METHOD, counted, least_temp
from graphrl.xla.recompute.clones import Clone, named, numbered
from graphrl.xla.recompute.plan import recompute
from graphrl.xla.recompute.rewrite import rewritten
from graphrl.xla.settings import PROBLEM, Settings

# Below either, a module is left alone: nothing that anybody would miss could be saved.
MIN_OPS = 5
MIN_BYTES = 2**20

LEAST_GAIN = 0.05  # of XLA's bytes: where the bound shows that less is to be had, there is no search

RECOMPUTING = 0.5  # of the seconds go to finding what to compute again, if anything may be

MEMORY_SCHEDULER = "XLA's memory scheduler"

_NO_BUFFER = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"})


class Candidate(NamedTuple):
    """An order that may be taken.

    Attributes:
      found_by: who made it.
      sequence: names of all instructions of the entry computation.
      predicted: bytes of temporaries that XLA will need.
      evaluations: that finding it took.
      clones: instructions that are computed again; they are in `sequence` too.
      recomputed: part of the program's estimated run time that they take.
    """

    found_by: str
    sequence: tuple[str, ...]
    predicted: int
    evaluations: int
    clones: tuple[Clone, ...] = ()
    recomputed: float = 0.0


def is_small(module: HloModule) -> bool:
    """Whether a module has too few instructions, or too few bytes between them, to be worth a search."""
    inner = [i for i in module.entry.instructions if i.opcode not in _NO_BUFFER and not i.is_root]
    return len(inner) < MIN_OPS or sum(i.shape.bytes for i in inner) < MIN_BYTES


def decide(lowered: jax.stages.Lowered, module: HloModule, settings: Settings, earlier: Decision | None) -> Decision:
    """Plans a program.

    Args:
      lowered: the program.
      module: as XLA's default scheduler left it.
      settings: of the search.
      earlier: a decision about it; its order is a candidate.

    Returns:
      A decision whose order, if it has one, needs fewer bytes than XLA's own: both were compiled.

    Raises:
      Interrupted: Ctrl-C.
      GraphrlError: the method cannot take this program.
    """
    started = time.perf_counter()
    rescheduled = undonated(module)
    program, predict = read_hlo(rescheduled, chip=DEFAULT_CHIP), TempPredictor(rescheduled)
    own = module.order(module.entry)
    stays = _xla_s_own(module, settings, TempPredictor(module)(own), temp_bound(program, own))
    if (earlier is None or earlier.order is None) and _cannot_win(stays):
        return dataclasses.replace(stays, search_seconds=time.perf_counter() - started)
    memory = hook.captured(lowered, "memory")
    candidates = [
        Candidate(by, sequence, predict(sequence), evaluations)
        for by, sequence, evaluations in _orders(program, predict, memory, settings, earlier, stays.bound)
    ]
    best = ordered = min(candidates, key=lambda candidate: candidate.predicted)
    if settings.recompute:
        best = min([best, *_recomputed(program, settings, earlier, best)], key=lambda candidate: candidate.predicted)
    figures = _measured(lowered, module, best, stays)
    if figures.reason and best is not ordered:
        best, figures = ordered, _measured(lowered, module, ordered, stays)
    decision = dataclasses.replace(
        stays,
        reason=figures.reason,
        xla_bytes=figures.xla,
        memory_bytes=TempPredictor(memory)(memory.order(memory.entry)),
        graphrl_bytes=figures.graphrl,
        undonated_bytes=figures.undonated,
        bound=max(stays.bound, temp_bound(program, ordered.sequence)),
        evaluations=best.evaluations,
        search_seconds=time.perf_counter() - started,
    )
    if figures.reason:
        return decision
    return dataclasses.replace(
        decision,
        order=places(module, best.sequence, best.clones),
        found_by=best.found_by,
        clones=numbered(module, best.clones),
        recomputed=best.recomputed,
    )


def _xla_s_own(module: HloModule, settings: Settings, predicted: int, bound: float) -> Decision:
    """The decision that XLA's schedule stays, since no order can need much less; with predicted figures."""
    donated = sum(module.entry.root.shape.at(alias.output_index).bytes for alias in module.input_output_aliases)
    return Decision(
        fingerprint=module.fingerprint,
        jaxlib=jaxlib_version(),
        method=settings.method,
        seed=settings.seed,
        seconds=float(settings.seconds),
        order=None,
        found_by="",
        reason=f"no order needs less than {format_bytes(bound)}{_beside(donated)}; XLA's own {format_bytes(predicted)}",
        xla_bytes=predicted,
        memory_bytes=None,
        memory_measured=False,
        graphrl_bytes=predicted,
        undonated_bytes=donated,
        bound=bound,
        search_seconds=0.0,
        evaluations=0,
        recompute=float(settings.recompute),
    )


def _cannot_win(stays: Decision) -> bool:
    """Whether even the bound is hardly below what XLA's own schedule needs; computing again may go below it."""
    return not stays.recompute and stays.bound + stays.undonated_bytes >= (1 - LEAST_GAIN) * stays.xla_bytes


def undonated(module: HloModule) -> HloModule:
    """The module as XLA has it once it has taken a schedule: with that it forgets which results may be written into
    donated arguments (XLA of jaxlib 0.10.2: `HloModule::ReplaceEntryComputation`).
    """
    return dataclasses.replace(module, input_output_aliases=())


def plan_of(decision: Decision, module: HloModule) -> Plan | None:
    """The plan behind a decision, of the module's graph; None where XLA's schedule stays."""
    sequence = decision.sequence(module)
    if sequence is None:
        return None
    program = read_hlo(undonated(decision.program(module)), chip=DEFAULT_CHIP)
    order = order_of(program, sequence)
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


def order_of(program: HloProgram, sequence: Sequence[str]) -> np.ndarray:
    """The order `[n]` of the graph's ops in a sequence of all instructions."""
    place = {op.name: k for k, op in enumerate(program.graph.ops)}
    return np.array([place[name] for name in sequence if name in place], np.int64)


def _budget(settings: Settings) -> Budget:
    """For orders of the program as it is."""
    return Budget(None, settings.seconds * (1 - RECOMPUTING)) if settings.recompute else settings.budget


def temp_bound(program: HloProgram, sequence: Sequence[str]) -> float:
    """Bytes that XLA's temporaries need in any order, beside the results; a good order makes the bound tight."""
    everything, results = counted(program)
    graph = everything.graph
    least = ComputationGraph(graph.name, tuple(_least(graph.ops)), graph.inputs, graph.outputs)
    return max(0.0, lower_bound(least, PROBLEM, order_of(program, sequence)) - results)


def _least(ops: Sequence[Op]) -> Iterator[Op]:
    """Ops with the bytes that they need for certain. What a loop or a branch needs inside may lie in the buffers of
    what it is given and what it gives, while they hold nothing; the results of a call in those of its operands.
    """
    called = {t.name for op in ops if op.type == "call" for t in op.outputs if t.alias is None}
    for op in ops:
        outputs = (dataclasses.replace(t, bytes=0, reuses=None) if t.name in called else t for t in op.outputs)
        outputs = (dataclasses.replace(t, reuses=None) if t.reuses in called else t for t in outputs)
        yield dataclasses.replace(op, outputs=tuple(outputs), workspace_bytes=0)


def _orders(
    program: HloProgram,
    predict: TempPredictor,
    memory: HloModule,
    settings: Settings,
    earlier: Decision | None,
    bound: float,
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Who made it, the sequence, and the evaluations that it took."""
    starts = []
    if memory.fingerprint == program.module.fingerprint:
        order = places(memory, memory.order(memory.entry))
        instructions = program.module.entry.instructions
        sequence = tuple(instructions[place].name for place in order)
        starts.append(order_of(program, sequence))
        yield MEMORY_SCHEDULER, sequence, 0
    if earlier is not None and earlier.order is not None and not earlier.clones:
        again = earlier.sequence(program.module)
        assert again is not None
        starts.append(order_of(program, again))
        yield earlier.found_by, again, earlier.evaluations
    task = Task(program.graph, PROBLEM, _budget(settings), settings.seed, settings.progress)
    if settings.method == METHOD:
        plan = least_temp(task, program, predict, starts, bound)
    else:
        plan = find_solver(settings.method)(task)
    yield plan.method, program.sequence(plan.decisions(program.graph)[1]), plan.evaluations


def _recomputed(
    program: HloProgram, settings: Settings, earlier: Decision | None, best: Candidate
) -> Iterator[Candidate]:
    """The best order with values computed again, as known and as found now."""
    module = program.module
    if earlier is not None and earlier.clones:
        sequence = earlier.sequence(module)
        assert sequence is not None
        predicted = TempPredictor(undonated(earlier.program(module)))(sequence)
        clones = named(module, earlier.clones)
        yield Candidate(earlier.found_by, sequence, predicted, earlier.evaluations, clones, earlier.recomputed)
    again = recompute(
        program,
        order_of(program, best.sequence),
        limit=settings.recompute,
        seconds=RECOMPUTING * settings.seconds,
        seed=settings.seed,
    )
    if again is not None:
        by = f"{best.found_by}, recomputation"
        yield Candidate(by, again.sequence, again.predicted, best.evaluations, again.clones, again.cost)


class _Figures(NamedTuple):
    xla: int
    graphrl: int
    undonated: int
    reason: str


def _measured(lowered: jax.stages.Lowered, module: HloModule, best: Candidate, stays: Decision) -> _Figures:
    """Bytes under XLA's schedule and under the best order, and why XLA's stays, if it does. Nothing is compiled where
    the prediction says so.
    """
    xla, donated = stays.xla_bytes, stays.undonated_bytes
    if best.predicted + donated < xla:
        xla, donated = memory_of(_quick(lowered, module, None))
    if best.predicted + donated >= xla:
        return _Figures(xla, best.predicted, donated, _too_much(best.predicted, donated, xla, " by prediction"))
    planned, left = memory_of(_quick(lowered, module, best))
    reason = "" if planned + donated - left < xla else _too_much(planned, donated - left, xla, "")
    return _Figures(xla, planned, donated - left, reason)


def _too_much(planned: int, donated: int, xla: int, how: str) -> str:
    return f"the best order found needs {format_bytes(planned)}{how}{_beside(donated)}; XLA's own {format_bytes(xla)}"


def _beside(donated: int) -> str:
    return f", and {format_bytes(donated)} for donated arguments that it cannot write to" if donated else ""


class _Other(Exception):
    """The quick compilation is of another module."""


def _quick(lowered: jax.stages.Lowered, module: HloModule, best: Candidate | None) -> jax.stages.Compiled:
    """An executable with the buffers of a candidate, or of XLA's own schedule; see `hook.compile_in_order`."""

    def answer(compiled: HloModule) -> Sequence[str] | bytes | None:
        if best is None or not best.clones:
            return best and best.sequence
        return callback.rescheduled(rewritten(compiled, best.clones), best.sequence)

    def rule(compiled: HloModule) -> Sequence[str] | bytes | None:
        if compiled.fingerprint != module.fingerprint:
            raise _Other
        return answer(compiled)

    try:
        return hook.compile_by(lowered, rule, quick=True)
    except _Other:  # not seen so far, but nothing promises that optimisation leaves the module alone
        return hook.compile_by(lowered, answer)


def memory_of(executable: jax.stages.Compiled) -> tuple[int, int]:
    """Bytes of temporaries, and of results that are written into donated arguments, as XLA reports them."""
    analysis = executable.memory_analysis()
    return int(analysis.temp_size_in_bytes), int(analysis.alias_size_in_bytes)  # type: ignore[union-attr]
