"""The best order of one device where polynomial time suffices: series-parallel graphs and trees.

Every buffer must have at most one user, and the dependencies must reduce to one edge by merging parallel edges and by
removing ops with one predecessor and one successor (Valdes, Tarjan and Lawler 1982). All sources are first joined to
one source and all sinks to one sink, so that trees are such graphs too. `graphs/datasets/known_optima.py` solves
it from the inside out (Liu 1987; Kayaaslan, Lambert, Marchal and Ucar, TCS 707, 2018).
"""

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import known_optima
from graphrl.graphs.datasets.known_optima import Segment
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.solver import solver


@solver(
    "series-parallel",
    "exact for trees and series-parallel graphs in which each tensor has one reader",
    one_device=True,
    objectives=("peak_memory",),
)
def solve(task: Task) -> Plan:
    """Finds an order of least peak memory, which is also the bound. Budget and seed do not matter.

    Raises:
      ProblemError: the graph is not of this kind.
    """
    order = best_order(Flow(task.graph))
    if order is None:
        raise ProblemError(
            "method 'series-parallel' needs a series-parallel graph or a tree whose tensors have one reader each: "
            "use another method, such as anneal"
        )
    return task.answer(task.plan(None, order, evaluations=1, optimal=True))


def best_order(flow: Flow) -> list[int] | None:
    """Returns an order of least peak memory; None if the graph is not series-parallel with one reader per tensor."""
    if flow.reuses or any(len(users) > 1 for users in flow.users):
        return None
    segments = _reduced(flow, _segments(flow))
    return None if segments is None else known_optima.order(segments)


def _segments(flow: Flow) -> list[Segment]:
    """Returns the segment of each op: its peak and its change of the live bytes."""
    freed = [sum(flow.size[b] for b in reads if not flow.pinned[b]) for reads in flow.reads]
    workspace = flow.graph.arrays.workspace_bytes.tolist()
    segments = []
    for op in range(flow.num_ops):
        kept = flow.kept_bytes(op)
        unread = sum(flow.size[b] for b in flow.writes[op]) - kept  # outputs without readers are freed after the op
        segments.append(known_optima.op_segment(op, freed[op], kept, workspace[op] + unread))
    return segments


def _reduced(flow: Flow, own: list[Segment]) -> list[Segment] | None:
    """Returns the segments of the whole graph, or None if it does not reduce to one edge."""
    n = flow.num_ops
    source, sink = n, n + 1
    # parts[u][v]: the segments between u and v, branches in parallel; an edge has one branch without ops
    parts: list[dict[int, list[list[Segment]]]] = [{} for _ in range(n + 2)]
    before: list[set[int]] = [set(flow.predecessors[op]) or {source} for op in range(n)] + [set(), set()]
    for op in range(n):
        for other in before[op]:
            parts[other][op] = [[]]
        if not flow.successors[op]:
            parts[op][sink] = [[]]
            before[sink].add(op)
    left = n
    ready = [op for op in range(n) if len(before[op]) == 1 == len(parts[op])]
    while ready:
        op = ready.pop()
        if len(before[op]) != 1 or len(parts[op]) != 1:
            continue  # removed already
        left -= 1
        (u,), ((v, after),) = before[op], parts[op].items()
        between = known_optima.series(known_optima.parallel(parts[u].pop(op)), [own[op]], known_optima.parallel(after))
        before[op], parts[op] = set(), {}
        before[v].discard(op)
        before[v].add(u)
        parts[u].setdefault(v, []).append(between)
        ready += [end for end in (u, v) if end < n and len(before[end]) == 1 == len(parts[end])]
    return known_optima.parallel(parts[source][sink]) if left == 0 else None
