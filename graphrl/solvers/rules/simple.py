"""Plain traversals of one device, and the given order: O(n + e), independent of sizes.

"depth-first", "breadth-first" and "alap" (as late as possible) are orders of one device, `given` the graph's own order.
Each makes one plan, whatever the budget and the seed. `order_rule` makes a `Solver` of any rule for an order.

Topoformer (section 5) has the first two "according to the layout of the graph generated using pygraphviz"; without a
layout, ties go by index. On 60 layered graphs of 500 ops the mean peak relative to that of the best of 100 random
priorities is 1.064 depth first and 1.117 breadth first; the paper's figures give 1.057 and 1.132.
"""

from collections.abc import Callable, Sequence

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.solver import Solver, solver


def order_rule(name: str, help: str, order_of: Callable[[Flow], Sequence[int]]) -> Solver[[]]:
    """Registers a `Solver` of the given name that runs the ops in the order `[n]` of `order_of`."""

    @solver(name, help, one_device=True)
    def solve(task: Task) -> Plan:
        flow = Flow(task.graph)
        order = order_of(flow)
        return task.answer(task.plan(None, order, evaluations=max(1, flow.evaluations)))

    return solve


def depth_first(waiting: Waiting, *, lowest_first: bool = True) -> list[int]:
    """Orders ops depth first: next is the ready op that became ready last (Kahn's algorithm with a stack).

    Args:
      waiting: the predecessors that each op waits for.
      lowest_first: of several that one op made ready, the lowest index first, else the highest. Sources go by index.
    """
    ready = waiting.ready()[::-1]
    order = []
    while ready:
        order.append(ready.pop())
        ready += waiting.finish(order[-1])[:: -1 if lowest_first else 1]
    return order


def breadth_first(flow: Flow) -> list[int]:
    """Orders ops breadth first: next is the ready op that became ready first (Kahn's algorithm with a queue)."""
    waiting = flow.waiting()
    order = waiting.ready()  # also the queue: it grows during the loop
    for op in order:
        order += waiting.finish(op)
    return order


def as_late_as_possible(flow: Flow) -> list[int]:
    """Orders ops by level: each op is on the last level that it can have if all ops take one step, as many steps before
    the end as its longest path to a sink has edges. Equal ones by index.
    """
    return np.argsort(-flow.graph.arrays.height, kind="stable").tolist()


def given_order(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """Places everything on device 0, in the graph's own order, as far as its dependencies allow.

    For a traced program or an ONNX file this is the order in which it was written, often a good one for memory.

    Returns:
      The placement `[n] int64`, all 0, and the order `[n] int64` of ops: no transfer is needed.
    """
    return np.zeros(len(graph.ops), np.int64), graph.arrays.topological.astype(np.int64)


@solver("given", "everything on one device, in the graph's own order", colocates=True)
def solve_given(task: Task) -> Plan:
    """Returns the plan of `given_order`, whatever the budget and the seed."""
    return task.answer(task.plan(*given_order(task.graph, task.problem), evaluations=1))


order_rule("depth-first", "the ready op that became ready last", lambda flow: depth_first(flow.waiting()))
order_rule("breadth-first", "the ready op that became ready first", breadth_first)
order_rule("alap", "as late as possible: by level, counted from the end", as_late_as_possible)
