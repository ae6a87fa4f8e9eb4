"""Inductor's memory-aware orders: true to their rules."""

import pytest
from hypothesis import given, settings
from random_graphs import graphs
from rule_orders import names, program

from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules import compilers


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("a 10; b 10; c 10 a b", "a b c"),  # equal: by index
        ("a 20; b 10; c 10 a b", "b a c"),  # above the peak so far: the least size
        ("a 40; b 30 a; c 5; d 9 c; e 9 b d", "c d a b e"),
        # Within the peak of 50 after b: c leaves least behind though e allocates less.
        ("a 20; b 30 a; c 10 b; e 5; f 9 c e", "e a b c f"),
        ("a 10+30; b 20; c 9 a b", "b a c"),  # workspace is a buffer that nobody reads
    ],
)
def test_inductor_lpmf(text: str, order: str) -> None:
    assert names("inductor-lpmf", program(text)) == order


def test_inductor_lpmf_starts_at_the_bytes_of_the_outputs() -> None:
    text = "a 20; b 30; c 5 b; d 9 a c"
    assert names("inductor-lpmf", program(text)) == "a b c d"
    # With 60 bytes of outputs everything fits at first; b and a leave 30 and 20, o leaves 60.
    assert names("inductor-lpmf", program(text + "; o 60", "o")) == "a b c d o"


@settings(max_examples=50)
@given(graphs(max_ops=12))
def test_inductor_lpmf_is_what_a_look_at_all_ready_ops_finds(graph: ComputationGraph) -> None:
    flow = Flow(graph)
    workspace = graph.arrays.workspace_bytes.tolist()
    uses = {b: len(users) + flow.pinned[b] for b, users in enumerate(flow.users)}
    live, peak = 0, sum(flow.size[b] for b in uses if flow.pinned[b])
    order: list[int] = []
    while len(order) < flow.num_ops:
        keys = []
        for op in range(flow.num_ops):
            if op not in order and set(flow.predecessors[op]) <= set(order):
                size = sum(flow.size[b] for b in flow.writes[op]) + workspace[op]
                freed = sum(flow.size[b] for b in flow.reads[op] if uses[b] == 1)
                freed += sum(flow.size[b] for b in flow.writes[op] if uses[b] == 0) + workspace[op]
                keys.append((size if size > peak - live else 0, size - freed, op, size))
        _, change, op, size = min(keys)
        order.append(op)
        peak, live = max(peak, live + size), live + change
        for b in flow.reads[op]:
            uses[b] -= 1
    assert compilers.inductor_lpmf(flow) == order


def test_inductor_bfs() -> None:
    # d's predecessors ran at (0,), e's at (0, 2), f's at (1,): lexicographic, a shorter list first.
    assert names("inductor-bfs", program("a 1; b 1; c 1; f 1 b; e 1 a c; d 1 a")) == "a b c d e f"


def test_inductor_dfs() -> None:
    # Ops by bytes written and read: c 5, b 20, a 30, e (5 + 20 + 1), d (30 + 20 + 1), and e pulls b, d pulls a.
    assert names("inductor-dfs", program("a 30; b 20; c 5; d 1 a b; e 1 b c")) == "c b e a d"
