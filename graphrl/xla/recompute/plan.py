"""Recomputation plans: the instructions to compute again, and their order, within a limit of run time.

`recompute` plans one program for the least temporary memory. `recompute_everywhere` plans a module's entry and the
bodies of its loops, each as a separate program. A body's clones (instructions that run twice) cost run time in each
trip, and all computations share one limit. If XLA does not know a loop's number of trips, the limit is a share of one
trip's run time. The computation whose clones save most of the module's bytes comes first, then the others with the rest
of the limit. Branches and calls are left alone: their results may be written over their arguments, and that is decided
outside of them. After a program is reordered, `prune` removes clones that the new order does not need.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.hlo.module import HloModule, as_program, put_back
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.readers.hlo.work import runs_of
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.graphs.topology import least_first
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.orders.min_cut import solve
from graphrl.xla.assignment import TempPredictor, predicted_bytes
from graphrl.xla.planning.temp_search import least_temp, order_of
from graphrl.xla.recompute.candidates import Clone, ClonesByName, Routes, RunTimes, repeatable, wire_clones
from graphrl.xla.recompute.greedy import Facts, State, lower_peak
from graphrl.xla.recompute.rewrite import insert_clones
from graphrl.xla.settings import PROBLEM, check_limit

MAX_ROUNDS = 6
LEAST_GAIN = 0.002  # share of the memory: a round that saves less is the last one
ROUND_SHARE = 0.4  # share of the time that must be left to start another round, or class of candidates
CHOOSING, ORDERING = 0.4, 0.3  # shares of the time that is left, in a round, for all classes together
LEAST_SECONDS = 0.2  # time for one class, even if no time is left
LEAST_NEED = 0.05  # share of the module's bytes: computations that need less, without arguments, are left alone
LEAST_BODY_SECONDS = 0.05  # time for one computation, even if no time is left
LEAST_COMPUTATIONS = 2  # computations planned even if no time is left: the entry, and the body that needs most
FIRST = 0.6  # share of the time that is left for each turn but the last one
Clones = list[tuple[int, frozenset[int]]]  # as in `State`


class Recomputation(NamedTuple):
    """A module that computes some values again.

    Attributes:
      module: the module with the clones, in the planned orders.
      clones: the clones of each computation, by its name.
      predicted: bytes of temporaries that XLA is predicted to need for it.
      cost: share of the program's estimated run time that the clones take.
    """

    module: HloModule
    clones: ClonesByName
    predicted: int
    cost: float


def recompute(
    program: HloProgram, order: ArrayLike, *, limit: float, seconds: float = 10.0, seed: int = 0
) -> Recomputation | None:
    """Plans which values of a program are computed again, and its order, for the least temporary memory.

    Each round has three steps: `lower_peak` chooses clones in the present order, method "min-cut" reorders the program,
    and `prune` removes useless clones. At the end `least_temp` orders the best program by XLA's predicted temporaries.
    There are two classes of candidates. One has element-wise and moving instructions and loop fusions of them. The
    other also has products, convolutions and reductions: without these little can be dropped from programs that consist
    of them, but with them the limit may be spent badly. The first round tries both classes, later rounds the better.

    Args:
      program: the module as XLA scheduled it, with its graph of n ops.
      order: `[n]`: a good order of the ops without recomputation.
      limit: share of the program's estimated run time (`RunTimes`) that clones may take, 0 to 1.
      seconds: search time in seconds of wall clock; a round that has started is completed.
      seed: seed of the search for orders.

    Returns:
      The plan with the fewest predicted bytes, or None if no clones lower them.

    Raises:
      ProblemError: the limit is out of range.
      Interrupted: Ctrl-C in the search for an order.
    """
    check_limit(limit)
    return _Search(program, limit, seconds, seed).run(np.asarray(order))


def recompute_everywhere(module: HloModule, *, limit: float, seconds: float, seed: int) -> Recomputation:
    """Plans recomputation in the computations of a scheduled module, see `recompute`.

    Args:
      module: the scheduled module.
      limit: share of the module's estimated run time that clones may take, 0 to 1.
      seconds: search time in seconds of wall clock; a search that has started is completed.
      seed: seed of the searches for orders.
    """
    end, costs, runs = time.perf_counter() + seconds, RunTimes(module), runs_of(module)
    total = costs.of_computation(module.entry.name)
    best = Recomputation(module, {}, predicted_bytes(module), 0.0)
    bodies = {i.called[0] for c in module.sequential for i in c.instructions if i.opcode == "while"}
    needs = {name: predicted_bytes(_program(module, name)) for name in sorted(bodies)}
    hopeful = (name for name, need in needs.items() if need >= LEAST_NEED * best.predicted)
    left = [module.entry.name, *sorted(hopeful, key=lambda name: -needs[name])]
    left = [name for name in left if costs.of_computation(name)]  # without run time there is nothing to clone
    while left:
        share = (FIRST if len(left) > 1 else 1.0) * (end - time.perf_counter()) / len(left)
        parts = {name: max(1.0, total / runs[name] / costs.of_computation(name)) for name in left}
        candidates = [
            _better(best, name, limit - best.cost, parts[name], share, seed)
            for number, name in enumerate(left)
            if number < LEAST_COMPUTATIONS or time.perf_counter() < end
        ]
        better = [candidate for candidate in candidates if candidate is not None]
        best = min([best, *better], key=lambda candidate: candidate.predicted)
        if not better or time.perf_counter() >= end:
            break
        left = [name for name in left if name not in best.clones]
    return best


def _program(module: HloModule, name: str) -> HloModule:
    return as_program(module, module.computations[name])


def _better(
    best: Recomputation, name: str, limit: float, part: float, seconds: float, seed: int
) -> Recomputation | None:
    """Adds clones in computation `name` to the best module; None if that does not lower its predicted bytes.

    Args:
      limit: share of the module's run time that the new clones may take.
      part: the module's run time divided by that of all runs of the computation; at least 1.
    """
    module = best.module
    program = _program(module, name)
    graph = read_hlo(program, chip=DEFAULT_CHIP)
    result = recompute(
        graph,
        order_of(graph, program.order(program.entry)),
        limit=min(1.0, limit * part),
        seconds=max(LEAST_BODY_SECONDS, seconds),
        seed=seed,
    )
    if result is None:
        return None
    changed = put_back(module, result.module)
    predicted = result.predicted if program is module else predicted_bytes(changed)
    if predicted >= best.predicted:
        return None
    return Recomputation(changed, {**best.clones, **result.clones}, predicted, best.cost + result.cost / part)


def with_clones(module: HloModule, clones: ClonesByName) -> HloModule:
    """Inserts clones into the computations of a module."""
    for name, copies in clones.items():
        if copies:
            module = put_back(module, insert_clones(_program(module, name), copies))
    return module


class _Variant(NamedTuple):
    """A program with clones, in an order."""

    order: list[int]  # nodes
    clones: Clones
    program: HloProgram  # the module with the clones, and its graph
    names: tuple[Clone, ...]
    places: np.ndarray  # [ops of that graph], the order
    predicted: int  # bytes of temporaries


class _Search:
    def __init__(self, program: HloProgram, limit: float, seconds: float, seed: int) -> None:
        self.began = time.perf_counter()
        self.program, self.limit, self.seconds, self.seed = program, limit, seconds, seed
        costs, by_name = RunTimes(program.module), program.module.entry.by_name
        self.op_seconds = [costs.of(by_name[op.name]) for op in program.graph.ops]  # seconds, by op
        self.total = sum(self.op_seconds)
        self.routes = Routes(program)
        classes = list(dict.fromkeys(tuple(repeatable(program, expensive=expensive)) for expensive in (False, True)))
        self.classes = [Facts(program.graph, self.op_seconds, flags, self.routes.may_read_clone) for flags in classes]

    def run(self, order: np.ndarray) -> Recomputation | None:
        nodes = [int(op) for op in order]
        predicted = TempPredictor(self.program.module)(self.program.sequence(order))
        best = present = _Variant(nodes, [], self.program, (), order, predicted)
        for _ in range(MAX_ROUNDS):
            before = present.predicted
            rounds = list(self._rounds(present))
            if not rounds:
                break
            present, facts = min(rounds, key=lambda one: one[0].predicted)
            self.classes = [facts]
            best = min(best, present, key=lambda one: one.predicted)
            if present.predicted > (1 - LEAST_GAIN) * before or not self._has_time():
                break
        return self._final_order(best) if best.clones else None

    def _rounds(self, present: _Variant) -> Iterator[tuple[_Variant, Facts]]:
        """Runs a round with each class of candidates for which there is time; yields those that lower the peak."""
        for facts in self.classes:
            state = State(facts, present.order, present.clones)
            if facts is self.classes[0] or self._has_time():
                better = lower_peak(state, self.limit * self.total, self._choosing_over())
                if better is not state:
                    yield self._reordered(better), facts

    def _has_time(self) -> bool:
        return self._left() >= ROUND_SHARE * self.seconds

    def _left(self) -> float:
        return self.seconds - (time.perf_counter() - self.began)

    def _choosing_over(self) -> Callable[[], bool]:
        end = time.perf_counter() + max(LEAST_SECONDS, CHOOSING / len(self.classes) * self._left())
        return lambda: time.perf_counter() > end

    def _reordered(self, state: State) -> _Variant:
        """Reorders a state's program and removes the clones that the new order does not need."""
        order, clones = without_nodes(state, [])
        program, order, places, names = self._program(order, clones)
        budget = Budget(None, max(LEAST_SECONDS, ORDERING / len(self.classes) * self._left()))
        plan = solve(Task(program.graph, PROBLEM, budget, self.seed), starts=(places,))
        new_places = plan.decisions(program.graph)[1]
        node_of = np.empty(len(places), np.int64)  # node of each op of the new graph
        node_of[places] = order
        state = State(state.facts, node_of[new_places].tolist(), clones)
        removed = prune(state)
        order, clones = without_nodes(state, removed)
        places = new_places
        if removed:
            program, order, places, names = self._program(order, clones)
        predicted = TempPredictor(program.module)(program.sequence(places))
        return _Variant(order, clones, program, names, places, predicted)

    def _program(
        self, order: Sequence[int], clones: Clones
    ) -> tuple[HloProgram, list[int], np.ndarray, tuple[Clone, ...]]:
        """Inserts clones into the program; returns it, the order as nodes and as ops of its graph, and the clones as
        instructions. Instructions that write over an argument move behind the clones that read it.
        """
        names, copies = wire_clones(self.program, self.routes, clones)
        program = read_hlo(insert_clones(self.program.module, copies))
        place = {op.name: k for k, op in enumerate(program.graph.ops)}
        node_of = {place[names[node]]: node for node in order}
        places = _valid(program.graph, list(node_of))
        return program, [node_of[op] for op in places], np.array(places, np.int64), copies

    def _final_order(self, best: _Variant) -> Recomputation:
        program = best.program
        predict = TempPredictor(program.module)
        budget = Budget(None, max(LEAST_SECONDS, self._left()))
        plan = least_temp(Task(program.graph, PROBLEM, budget, self.seed), program, predict, (best.places,))
        sequence = program.sequence(plan.decisions(program.graph)[1])
        predicted = predict(sequence)
        if predicted > best.predicted:  # the search had no time to evaluate the starting order
            sequence, predicted = program.sequence(best.places), best.predicted
        seconds = sum(self.op_seconds[op] for op, _ in best.clones)
        name = program.module.entry.name
        module = program.module.with_orders({name: sequence})
        return Recomputation(module, {name: best.names}, predicted, seconds / self.total)


def _valid(graph: ComputationGraph, order: Sequence[int]) -> list[int]:
    """Repairs an order of ops: each op that comes before one of its predecessors moves right behind it."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return least_first(place, graph.arrays.waiting())


def prune(state: State) -> list[int]:
    """Removes clones, the most expensive first, if keeping the value since its last use does not raise the peak.

    Clones that only removed clones read are removed too. `state` is changed in place: it still has the removed nodes,
    without readers.

    Returns:
      The removed nodes.
    """
    n, peak = state.facts.n, int(state.profile.max())
    written = {v.writer: number for number, v in state.values.items()}
    removed: list[int] = []
    for node in sorted(range(n, len(state.op)), key=lambda node: -state.facts.seconds[state.op[node]]):
        value = written[node]
        if state.values[value].readers and _can_drop(state, value, peak):
            removed += _drop_clone(state, node, written)
    return removed


def _earlier(state: State, value: int) -> int | None:
    """Returns the latest other value of the same buffer that exists when this one is written, or None."""
    versions = state.versions[state.values[value].buffer]
    birth = state.birth(value)
    births = [(state.birth(v), v) for v in versions if v != value and state.birth(v) <= birth and _in_use(state, v)]
    return max(births)[1] if births else None


def _in_use(state: State, value: int) -> bool:
    v = state.values[value]
    return v.writer < state.facts.n or bool(v.readers)


def _can_drop(state: State, value: int, peak: int) -> bool:
    earlier = _earlier(state, value)
    if earlier is None:
        return False
    begin = state.death(earlier) + (earlier not in state.overwritten)
    added = state.profile[begin : state.birth(value)]
    return not len(added) or int(added.max()) + state.size(value) <= peak


def _drop_clone(state: State, node: int, written: dict[int, int]) -> list[int]:
    """Redirects a clone's readers to the value before it; returns the nodes that are then unread."""
    value = written[node]
    earlier = _earlier(state, value)
    assert earlier is not None
    begin = state.death(earlier) + (earlier not in state.overwritten)
    state.profile[begin : state.birth(value)] += state.size(value)
    state.overwritten.discard(earlier)
    if value in state.overwritten:
        state.overwritten.add(earlier)
    for reader in list(state.values[value].readers):
        state.move(reader, earlier)
    return _unread(state, node, written)


def _unread(state: State, node: int, written: dict[int, int]) -> list[int]:
    removed = [node]
    for value in state.reads[node].values():
        v = state.values[value]
        v.readers.discard(node)
        if not v.readers and v.writer >= state.facts.n:
            removed += _unread(state, v.writer, written)
    return removed


def without_nodes(state: State, removed: list[int]) -> tuple[list[int], Clones]:
    """Returns the order and the clones without the `removed` nodes, renumbered, as arguments of `State`."""
    n, dropped = state.facts.n, set(removed)
    kept = [node for node in range(len(state.op)) if node not in dropped]
    number = {node: k for k, node in enumerate(kept)}
    rank = state.facts.flow.graph.arrays.rank
    order = [number[node] for node in sorted(kept, key=lambda node: (state.time[node], rank[state.op[node]]))]
    written = {v.writer: v for v in state.values.values() if v.writer >= n}
    clones = [
        (state.op[node], frozenset(number[reader] for reader in written[node].readers if reader in number))
        for node in kept[n:]
    ]
    return order, clones
