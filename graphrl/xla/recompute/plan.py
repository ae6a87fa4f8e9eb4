"""Recomputation for a program: which instructions, and in which order, for least temporary memory within a limit."""

import dataclasses
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.readers.hlo import HloProgram, read_hlo
from graphrl.graphs.readers.hlo_module import HloModule
from graphrl.solvers.base import Budget
from graphrl.solvers.min_cut.solver import solve
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.recompute.candidates import Routes, repeatable
from graphrl.xla.recompute.clones import Clone
from graphrl.xla.recompute.cost import Costs
from graphrl.xla.recompute.prune import Clones, pruned, without
from graphrl.xla.recompute.rewrite import rewritten
from graphrl.xla.recompute.state import Facts, State
from graphrl.xla.recompute.target import relieved
from graphrl.xla.recompute.wiring import wired

MAX_ROUNDS = 6
WORTH = 0.002  # of the memory: a round that saves less is the last one
ORDERING = 0.4  # of the time that is left a search for an order may take


@dataclasses.dataclass(frozen=True, eq=False)
class Recomputation:
    """A program that computes some values again.

    Attributes:
      clones: what is computed again.
      module: the program's module with them.
      sequence: names of all instructions of its entry computation, as they shall run.
      predicted: bytes of temporaries that XLA will need for it.
      cost: part of the program's estimated run time that they take.
      seconds: that finding it took.
    """

    clones: tuple[Clone, ...]
    module: HloModule
    sequence: tuple[str, ...]
    predicted: int
    cost: float
    seconds: float


class _Found(NamedTuple):
    order: list[int]  # nodes
    clones: Clones
    spent: float


def recompute(
    program: HloProgram, order: ArrayLike, *, limit: float, seconds: float = 10.0, seed: int = 0
) -> Recomputation | None:
    """Has a program compute cheap values again instead of keeping them.

    Candidates are element-wise and moving instructions and loop fusions of them. In rounds: `relieved` chooses what to
    compute again in the present order, then method "min-cut" orders the program anew, then what turned out useless is
    given up.

    Args:
      program: scheduled, as XLA left it.
      order: `[n]` ops of its graph; a good one without recomputation.
      limit: part of the program's estimated run time (`Costs`) that may be spent again, 0 to 1.
      seconds: of search, of wall clock; a round that has begun is ended.
      seed: of the search for orders.

    Returns:
      The best found by predicted bytes, or None if nothing could be computed again for less memory.

    Raises:
      ProblemError: the limit is out of range.
    """
    if not 0 <= limit <= 1:
        raise ProblemError(f"recompute is {limit}: must be a part of the run time from 0 to 1")
    return _Search(program, limit, seconds, seed).run([int(op) for op in np.asarray(order)])


class _Search:
    def __init__(self, program: HloProgram, limit: float, seconds: float, seed: int) -> None:
        self.began = time.perf_counter()
        self.program, self.limit, self.seconds, self.seed = program, limit, seconds, seed
        costs, by_name = Costs(program.module), program.module.entry.by_name
        spent = [costs.of(by_name[op.name]) for op in program.graph.ops]
        self.total = sum(spent)
        self.facts = Facts(program.graph, spent, repeatable(program), set())
        self.routes = Routes(program)
        self.facts.fixed |= self._fixed()

    def run(self, order: list[int]) -> Recomputation | None:
        best: Recomputation | None = None
        base = predicted = TempPredictor(self.program.module, donation=False)(self.program.sequence(order))
        found = _Found(order, [], 0.0)
        for _ in range(MAX_ROUNDS):
            state = State(self.facts, found.order, found.clones)
            better = relieved(state, self.limit * self.total, self._over)
            if better is state:
                break
            found, made = self._settled(better)
            if made.predicted < predicted:
                best = made
            if made.predicted > (1 - WORTH) * predicted or self._over():
                break
            predicted = made.predicted
        return best if best is not None and best.predicted < base else None

    def _fixed(self) -> set[tuple[int, int]]:
        """Pairs of an op and a buffer of which it must read the original."""
        facts, ops = self.facts, self.program.graph.ops
        return {
            (user, buffer)
            for buffer, writer in facts.writer.items()
            if facts.repeatable[writer]
            for user in facts.flow.users[buffer]
            if self.routes.views(ops[user].name, ops[writer].name) is None
        }

    def _over(self) -> bool:
        return time.perf_counter() - self.began > self.seconds

    def _settled(self, state: State) -> tuple[_Found, Recomputation]:
        """The order made anew, without what it does not need."""
        order, clones = without(state, [])
        module, program, places, names = self._program(order, clones)
        left = max(0.5, ORDERING * (self.seconds - (time.perf_counter() - self.began)))
        plan = solve(program.graph, Problem(), Budget(None, left), self.seed, starts=(places,))
        new = plan.decisions(program.graph)[1]
        back = np.empty(len(places), np.int64)  # node of each op of the new graph
        back[places] = order
        state = State(self.facts, back[new].tolist(), clones)
        gone = pruned(state)
        order, clones = without(state, gone)
        if gone:
            module, program, places, names = self._program(order, clones)
        else:
            places = new
        sequence = program.sequence(places)
        predicted = TempPredictor(module, donation=False)(sequence)
        spent = sum(self.facts.seconds[op] for op, _ in clones)
        cost, seconds = spent / self.total, time.perf_counter() - self.began
        return _Found(order, clones, spent), Recomputation(names, module, sequence, predicted, cost, seconds)

    def _program(
        self, order: Sequence[int], clones: Clones
    ) -> tuple[HloModule, HloProgram, np.ndarray, tuple[Clone, ...]]:
        """The module with the clones, its graph, and the order as ops of that."""
        names, all_clones = wired(self.program, self.routes, clones)
        module = rewritten(self.program.module, all_clones)
        program = read_hlo(module)
        place = {op.name: k for k, op in enumerate(program.graph.ops)}
        return module, program, np.array([place[names[node]] for node in order], np.int64), all_clones
