"""REGAL's local search (BASELINES): from a random placement and schedule, greedily, by moving an op across devices or
changing an op's place in the order; from a new random start when that no longer helps.

Ours takes the first move that is not worse (REGAL does not say how many it looks at), so that plateaus are walked on.
What it compares is the energy of annealing (chain.py), whose moves these are. Transfers run right before they are
needed.
"""

from collections.abc import Iterator

import numpy as np

from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.random_orders import Drawing
from graphrl.solvers.schedules.moves import KINDS
from graphrl.solvers.schedules.solver import Chain, counts_memory, prepare, run_chain, start_chain
from graphrl.solvers.solver import solver

MIX = dict.fromkeys(KINDS, 0.0) | {"shift": 0.5, "device": 0.5}
ROUNDING = 1e-12  # of the energy: so small a rise is none, as sums of seconds depend on their order
LOOK = 100  # moves between two looks at the budget, and at whether it is stuck


@solver("local-search", "REGAL's local search: moves of one op, from one random plan after the other")
def solve(task: Task, *, patience: int = 2000) -> Plan:
    """An evaluation is a random plan or a move. Compiling does not count.

    Args:
      patience: moves in a row that make nothing better, after which it starts anew.

    Raises:
      ProblemError: patience is below 1.
    """
    if patience < 1:
        raise ProblemError(f"patience is {patience}: must be at least 1")
    with task.uncounted():
        prepare(counts_memory(task.problem))
    starts = _starts(task)
    chain, evaluations, waited = next(starts), 1, 0
    best, least = chain.best, _energy(chain)

    def plan() -> Plan:
        return task.plan(*best.plan, evaluations=evaluations)

    task.best = plan
    while not task.over(evaluations):
        left = LOOK if task.budget.evaluations is None else task.budget.evaluations - evaluations
        if waited >= patience:
            chain, moves, waited = next(starts), 1, 0
            least = _energy(chain)
        else:
            heat = max(ROUNDING * least, 1e-300)
            moves = run_chain(chain, min(LOOK, patience - waited, left), heat, heat, MIX)
            if moves == 0:  # no plan but this
                break
            better = _energy(chain) < least * (1 - ROUNDING)
            least, waited = min(least, _energy(chain)), 0 if better else waited + moves
        evaluations += moves
        best = min(best, chain.best, key=lambda one: one.rank)
        task.report(evaluations, best.objective(task.problem))
    return plan()


def _starts(task: Task) -> Iterator[Chain]:
    """Chains at random plans."""
    drawing, seeds = Drawing(Flow(task.graph)), np.random.SeedSequence(task.seed)
    while True:
        seed = seeds.spawn(1)[0]
        rng = np.random.default_rng(seed)
        orders = drawing.draw(rng, 1, by_priority=True)
        assert orders is not None
        placement = rng.integers(task.problem.devices, size=len(task.graph.ops))
        yield start_chain(task.graph, task.problem, (placement, orders[0]), seed)


def _energy(chain: Chain) -> float:
    """That of the schedule where it stands."""
    return float(chain.schedule.score[2])
