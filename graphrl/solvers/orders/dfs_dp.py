"""Depth-first dynamic programming over orders, with a time limit (Topoformer, appendix C.3).

Orders are extended op by op, depth first with backtracking. A branch ends where
1. its set of ops has been reached before at no higher a peak: its continuations depend on the set alone;
2. its peak is not below that of the best complete order.

If it finishes, the search proves its best order optimal, and the plan's bound is its value; else it answers with the
best order so far, the first one being complete after n steps whatever the time limit.

With `paper` the next op is drawn at random among the ready ones, as in the paper. Without, the same search is faster
and stays exact:
- the ready op that keeps the peak least goes first, then the one that leaves least live, ties at random;
- once all orders from a set have been tried, no better one goes through it, even if the set is reached again at a lower
  peak: the tried orders failed after the set. So a set is never searched twice, unless its search was not finished;
- an op that can run within the peak so far and leaves no more live than before goes next alone: running it later is
  never better, since the bytes that it frees only grow. (Not if outputs reuse inputs: then live bytes depend on the
  order.)
- the search ends at the lower bound.

Deviations from the paper: rule 2 also ends branches that only equal the best (the paper: "higher"); where outputs reuse
inputs a state is the set and the sizes of the reused buffers; the table of states is bounded, beyond which new states
are searched but not stored.
"""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact.memory import MemoryWalk
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.solver import solver

MAX_BYTES = 2**30  # limit of the table of states
STATES = 2_000_000  # stored states: about 0.5 GB at 500 ops
CHECK_STEPS = 64  # iterations of the search between two checks of the clock

State = int | tuple[int, tuple[tuple[int, int], ...]]  # the set of ops that have run, as bits; and `MemoryWalk.sizes`


@solver("dfs-dp", "depth-first dynamic programming over orders, exact if it finishes", one_device=True)
def solve(task: Task, *, paper: bool = False, states: int = STATES) -> Plan:
    """Depth-first dynamic programming (see the module). n steps of the search count as an evaluation.

    Args:
      paper: True searches as the paper describes it, without the accelerations.
      states: maximum number of states to store, as far as they fit in 1 GiB.

    Raises:
      ProblemError: `states` is negative.
    """
    if states < 0:
        raise ProblemError(f"states is {states}: must be at least 0, the number of stored states")
    n, max_evaluations = len(task.graph.ops), task.budget.evaluations

    def evaluations() -> int:
        return -(-search.steps // n)

    def plan() -> Plan:
        optimal = search.finished and task.problem.objective == "peak_memory"
        return task.plan(None, search.best, evaluations=evaluations(), optimal=optimal)

    def improved() -> None:
        task.best = plan

    def is_spent() -> bool:
        task.report(evaluations(), task.order_value(search.best_peak))
        return task.is_spent(search.steps // n)

    search = DepthFirst(task.graph, task.seed, improved, paper=paper, states=states)
    search.run(is_spent, math.inf if max_evaluations is None else n * max_evaluations)
    return plan()


class _Frame(NamedTuple):
    """A set of ops that the current branch of the search has run."""

    op: int  # the op that ran last, -1 if the set is empty
    done: int  # the set, as bits
    state: State
    peak: float  # bytes, largest memory on the way there
    children: list[int]  # the ops to try next, the last one first


class DepthFirst:
    """Depth-first search over the orders of a graph.

    Attributes:
      best, best_peak: the best complete order so far, empty at first, and its peak in bytes, without resident weights.
      finished: True if `best` is proved to be the best order.
      steps: number of ops that were run, trials included.
    """

    def __init__(
        self, graph: ComputationGraph, seed: int, improved: Callable[[], None], *, paper: bool, states: int
    ) -> None:
        flow = Flow(graph)
        self._walk = MemoryWalk(graph, Problem(), flow.routes)
        self._n, self._successors = flow.num_ops, flow.successors
        self._left = [len(before) for before in flow.predecessors]
        self._ready = [op for op in range(self._n) if self._left[op] == 0]
        self._random, self._paper, self._improved = random.Random(seed), paper, improved
        state = len(graph.ops) // 8 + 100  # bytes, roughly: a set is an integer with a bit for each op
        self._states = min(states, MAX_BYTES // state)
        self._floor = 0.0 if paper else lower_bound(graph, Problem())
        self._peaks: dict[State, float] = {}
        self._stack: list[_Frame] = []
        self._pruned = False  # True if ops were left out untried
        self.best: list[int] = []
        self.best_peak = math.inf
        self.finished = False
        self.steps = 0

    def run(self, is_spent: Callable[[], bool], max_steps: float = math.inf) -> None:
        """Searches until finished or, once it has an order, until `is_spent` returns True or `max_steps` are made."""
        self._is_spent = is_spent
        self._stack.append(_Frame(-1, 0, 0, 0, self._children(0)))
        iterations = 0
        while self._stack:
            iterations += 1
            if self.best and (self.steps >= max_steps or (iterations % CHECK_STEPS == 0 and is_spent())):
                return
            frame = self._stack[-1]
            if frame.peak >= self.best_peak or not frame.children:
                self._leave(frame)
            else:
                self._enter(frame, frame.children.pop())
        self.finished = not self._pruned or self.best_peak <= self._floor

    def _enter(self, frame: _Frame, op: int) -> None:
        walk, done = self._walk, frame.done | 1 << op
        peak = max(frame.peak, walk.step(op))
        self.steps += 1
        state: State = (done, walk.sizes()) if walk.reuses else done
        known_peak = self._peaks.get(state)
        if peak >= self.best_peak or (known_peak is not None and (peak >= known_peak or not self._paper)):
            walk.back(op)
        elif len(self._stack) == self._n:
            self.best, self.best_peak = [*(before.op for before in self._stack[1:]), op], peak
            self._improved()
            walk.back(op)
            if peak <= self._floor:
                self._stack.clear()
        else:
            if known_peak is not None or len(self._peaks) < self._states:
                self._peaks[state] = peak
            self._ready.remove(op)
            for after in self._successors[op]:
                self._left[after] -= 1
                if self._left[after] == 0:
                    self._ready.append(after)
            self._stack.append(_Frame(op, done, state, peak, self._children(peak)))

    def _leave(self, frame: _Frame) -> None:
        self._stack.pop()
        if frame.op < 0:
            return
        for after in self._successors[frame.op]:
            if self._left[after] == 0:
                self._ready.remove(after)
            self._left[after] += 1
        self._ready.append(frame.op)
        self._walk.back(frame.op)
        if frame.peak >= self.best_peak and not self._paper:
            self._peaks.pop(frame.state, None)  # its search was not finished: at a lower peak, it may still be better

    def _children(self, peak: float) -> list[int]:
        if not self.best and self._is_spent():
            self._pruned = True
            return self._ready[-1:]  # out of time: the quickest way to an order
        if self._paper:
            return self._random.sample(self._ready, len(self._ready))
        walk, live, children = self._walk, self._walk.live[0], []
        for op in self._ready:
            step_peak = walk.step(op)
            live_after = walk.live[0]
            walk.back(op)
            self.steps += 1
            if step_peak <= peak and live_after <= live and not walk.reuses:
                return [op]
            if step_peak < self.best_peak:
                children.append((max(peak, step_peak), live_after, self._random.random(), op))
        return [op for *_, op in sorted(children, reverse=True)]
