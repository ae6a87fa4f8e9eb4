"""Lower bounds: never above a plan, tight where they should be."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs, plans, problems

from graphrl.costs import exact
from graphrl.costs.bounds import lower, lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


@given(st.data())
def test_no_plan_is_below_the_bound(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=10)), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    costs = exact.evaluate(graph, problem, placement, order)
    for objective in ("peak_memory", "makespan"):
        other = dataclasses.replace(problem, objective=objective)
        assert lower_bound(graph, other) <= costs.objective(other)


@given(graphs(max_ops=10), problems())
def test_a_sample_of_the_ops_gives_no_more_than_all(graph: ComputationGraph, problem: Problem) -> None:
    full = lower_bound(graph, problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "PAIRS", 4 * len(graph.ops))
        assert lower_bound(graph, problem) <= full


def op(name: str, inputs: str = "", outputs: tuple[Tensor, ...] = (), runtime: float = 1.0, **fields: int) -> Op:
    return Op(name, "", runtime, tuple(inputs.split()), outputs, **fields)  # type: ignore[arg-type]


TINY = ComputationGraph(
    "tiny",
    (
        op("a", outputs=(Tensor("a0", 4),)),
        op("b", "a0", (Tensor("b0", 3),), 2.0),
        op("c", "a0", (Tensor("c0", 5),), 3.0, workspace_bytes=2),
        op("d", "b0 c0", (Tensor("d0", 1),)),
    ),
)


def test_worked_example() -> None:
    assert lower_bound(TINY, Problem()) == 11  # c: a0, c0 and its workspace; the optimum is 12
    assert lower_bound(TINY, Problem(devices=2)) == 11
    assert lower_bound(TINY, Problem("makespan")) == 7
    assert lower_bound(TINY, Problem("makespan", devices=2)) == 5  # a, c, d, and the optimum
    assert lower_bound(TINY, Problem("makespan", devices=2, memory_limit=1)) == 5


def test_a_tensor_that_waits_for_a_descendant_counts() -> None:
    # skip (10 bytes) is read by the last op of a chain whose middle op needs 3 + 4 bytes and 2 of workspace
    ops = (
        op("a", outputs=(Tensor("skip", 10), Tensor("x", 3))),
        op("b", "x", (Tensor("y", 4),), workspace_bytes=2),
        op("c", "y skip"),
    )
    graph = ComputationGraph("skip", ops)
    assert lower_bound(graph, Problem()) == 19
    assert exact.evaluate(graph, Problem(), [0, 0, 0], [0, 1, 2]).peak_memory == (19,)
    # on two devices c needs 14 together at least; on three, too
    assert lower_bound(graph, Problem(devices=3)) == 14


def test_kept_tensors_and_resident_weights() -> None:
    ops = tuple(op(f"op{i}", outputs=(Tensor(f"t{i}", 5),), weight_bytes=10) for i in range(4))
    graph = ComputationGraph("kept", ops, (), ("t0", "t1", "t2", "t3"))
    assert lower_bound(graph, Problem()) == 20
    assert lower_bound(graph, Problem(devices=3)) == 7  # 20 / 3, rounded up
    assert lower_bound(graph, Problem(resident_weights=True)) == 60
    assert lower_bound(graph, Problem(devices=4, resident_weights=True)) == 15


def test_shared_buffers_count_once() -> None:
    ops = (
        op("a", outputs=(Tensor("t", 8),)),
        op("view", "t", (Tensor("w", 8, alias="t"),)),
        op("b", "t w", (Tensor("u", 8, reuses="w"),)),
        op("c", "u"),
    )
    graph = ComputationGraph("shared", ops)
    assert lower_bound(graph, Problem()) == 8
    assert exact.evaluate(graph, Problem(), [0] * 4, [0, 1, 2, 3]).peak_memory == (8,)


def test_makespan_bound_sees_heads_and_tails() -> None:
    # 1 s before and 1 s after six ops of 1 s on two devices: 1 + 3 + 1, above the path (3) and work / 2 (4)
    middle = [op(f"m{i}", "s", (Tensor(f"t{i}"),)) for i in range(6)]
    last = op("last", " ".join(f"t{i}" for i in range(6)))
    graph = ComputationGraph("bow", (op("first", outputs=(Tensor("s"),)), *middle, last))
    assert lower_bound(graph, Problem("makespan", devices=2)) == 5
    assert lower_bound(graph, Problem("makespan", devices=64)) == 3


@pytest.mark.parametrize(
    ("problem", "runtime", "bound"),
    [
        (Problem("makespan", 2, "free"), 1.0, 2.0),
        (Problem("makespan", 2, "link", latency=3.0, bandwidth=0.5), 1.0, 2.0),
        (Problem("makespan", 2, "free", latency=0.25), 1.0, 1.5),
        (Problem("makespan", 2, "free", bandwidth=3.0), 1.0, 1.5),
        (Problem("makespan", 2, "free"), 0.5, 0.75),
    ],
)
def test_a_makespan_of_whole_seconds_is_bounded_by_a_whole_number(
    problem: Problem, runtime: float, bound: float
) -> None:
    graph = ComputationGraph(
        "three",
        (op("a", outputs=(Tensor("x", 1),), runtime=runtime), op("b", runtime=runtime), op("c", runtime=runtime)),
    )
    assert lower_bound(graph, problem) == bound


def test_sums_that_do_not_come_out_even_stay_below_every_order() -> None:
    runtimes = np.random.default_rng(0).random(200)
    graph = ComputationGraph("uneven", tuple(Op(f"op{i}", runtime=float(time)) for i, time in enumerate(runtimes)))
    problem = Problem("makespan")
    bound = lower_bound(graph, problem)
    assert bound == pytest.approx(runtimes.sum(), rel=1e-10)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(200)
        assert bound <= exact.evaluate(graph, problem, [0] * 200, order).makespan


def test_large_graphs_are_quick() -> None:
    n = 15_000
    rng = np.random.default_rng(0)
    ops = []
    for i in range(n):
        inputs = {f"t{int(j)}" for j in rng.integers(max(0, i - 50), i, 2)} if i else set()
        ops.append(Op(f"op{i}", inputs=tuple(sorted(inputs)), outputs=(Tensor(f"t{i}", int(rng.integers(1, 99))),)))
    graph = ComputationGraph("large", tuple(ops))
    start = time.process_time()
    bound = lower_bound(graph, Problem())
    assert time.process_time() - start < 20  # 0.8 s on one idle core
    peak = exact.evaluate(graph, Problem(), np.zeros(n, int), graph.arrays.topological).peak_memory[0]
    assert 0.1 * peak < bound <= peak
