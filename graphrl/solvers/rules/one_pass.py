"""Rules for the order of one device as solvers.

Budget and seed do not matter to them: they take what they take, and say so in the plan.
"""

from collections.abc import Callable, Sequence

from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.solver import Solver, solver


def order_rule(name: str, help: str, order_of: Callable[[Flow], Sequence[int]]) -> Solver[[]]:
    """The `Solver` of that name which runs the ops in the order `[n]` that `order_of` says."""

    @solver(name, help, one_device=True)
    def solve(task: Task) -> Plan:
        flow = Flow(task.graph)
        order = order_of(flow)
        return task.answer(task.plan(None, order, evaluations=max(1, flow.evaluations)))

    return solve
