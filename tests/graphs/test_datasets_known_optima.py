"""Graphs of known optimum: the peak or makespan in them is the least, and their plan reaches it."""

from collections.abc import Callable

import numpy as np
import pytest
from shortest_makespan import optimum

from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.known_optima import Bytes, KnownPeak, in_tree, out_tree, planted, series_parallel
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan

TIES = Bytes(1, 3)  # few sizes, so that ties and zero changes are common
NO_WORKSPACE = Bytes(1, 9, workspace=0.0)


def least_peak(graph: ComputationGraph) -> int:
    """The least peak of all orders, by dynamic programming over sets of done ops: for graphs without kept or shared
    tensors.
    """
    a = graph.arrays
    n = a.num_ops
    before, readers = [0] * n, [0] * a.num_tensors
    for source, target in zip(*(ops.tolist() for ops in a.dependencies()), strict=True):
        before[target] |= 1 << source
    for tensor, op in zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True):
        readers[tensor] |= 1 << op
    tensors = list(zip(a.producer.tolist(), readers, a.tensor_bytes.tolist(), strict=True))
    needs = a.workspace_bytes + np.bincount(a.producer, a.tensor_bytes, minlength=n).astype(np.int64)
    peaks = {0: 0}
    for _ in range(n):
        following: dict[int, int] = {}
        for done, peak in peaks.items():
            live = sum(size for producer, read, size in tensors if done >> producer & 1 and read & ~done)
            for op in range(n):
                if not done >> op & 1 and not before[op] & ~done:
                    reached = max(peak, live + int(needs[op]))
                    after = done | 1 << op
                    following[after] = min(following.get(after, reached), reached)
        peaks = following
    return peaks[(1 << n) - 1]


def peak_of(graph: ComputationGraph, order: np.ndarray) -> int:
    return evaluate(graph, Problem(), np.zeros(graph.arrays.num_ops, int), order).peak_memory[0]


MAKERS: dict[str, Callable[[int, int, Bytes], KnownPeak]] = {
    "in-tree": lambda n, seed, sizes: in_tree(n, seed, None, sizes),
    "thin in-tree": lambda n, seed, sizes: in_tree(n, seed, 3, sizes),
    "out-tree": lambda n, seed, sizes: out_tree(n, seed, None, sizes),
    "thin out-tree": lambda n, seed, sizes: out_tree(n, seed, 3, sizes),
    "series-parallel": lambda n, seed, sizes: series_parallel(n, seed, 0.5, sizes),
    "bushy series-parallel": lambda n, seed, sizes: series_parallel(n, seed, 0.9, sizes),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("sizes", [Bytes(), TIES, NO_WORKSPACE], ids=["wide", "ties", "no workspace"])
def test_the_peak_is_the_least_of_all_orders(name: str, sizes: Bytes) -> None:
    """18 x 24 = 432 instances of 2 to 13 ops."""
    easy = 0
    for seed in range(24):
        drawn = MAKERS[name](2 + seed % 12, seed, sizes)
        assert drawn.peak == least_peak(drawn.graph) == peak_of(drawn.graph, drawn.order)
        assert lower_bound(drawn.graph, Problem()) <= drawn.peak
        easy += drawn.peak == peak_of(drawn.graph, drawn.graph.arrays.topological)
    assert easy < 22  # the graph's own order of ops is often not the best


@pytest.mark.parametrize("name", MAKERS)
def test_large_ones(name: str) -> None:
    drawn = MAKERS[name](1500, 1, Bytes())
    assert drawn.graph.arrays.num_ops == 1500
    assert peak_of(drawn.graph, drawn.order) == drawn.peak < peak_of(drawn.graph, drawn.graph.arrays.topological)
    again = MAKERS[name](1500, 1, Bytes())
    assert again.graph == drawn.graph
    assert (again.order == drawn.order).all()


def test_shapes() -> None:
    for make, count in ((in_tree, "use_tensor"), (out_tree, "producer")):
        a = make(50, 0).graph.arrays
        assert len(a.use_tensor) == a.num_tensors == 49
        ends = a.producer if count == "use_tensor" else a.use_op
        assert np.bincount(ends).max() == 1  # one parent each
    assert in_tree(50, 0).graph.arrays.topological.tolist() == list(range(50))
    chain = in_tree(50, 0, window=1).graph.arrays
    assert chain.dependencies()[0].tolist() == list(range(49))
    a = series_parallel(50, 0).graph.arrays
    assert np.bincount(a.use_tensor).max() == 1
    assert set(range(50)) - set(a.producer.tolist()) == {49}
    assert set(range(50)) - set(a.use_op.tolist()) == {0}


def test_the_smallest() -> None:
    assert in_tree(1, 0).peak == least_peak(in_tree(1, 0).graph)
    assert series_parallel(2, 0).graph.arrays.num_tensors == 1


def test_chains_are_half_as_deep_as_long_where_the_window_is_small() -> None:
    """A deep tree does not exceed Python's stack."""
    tree = out_tree(5000, 0, 2)
    assert peak_of(tree.graph, tree.order) == tree.peak


def test_errors() -> None:
    with pytest.raises(ProblemError, match="num_ops is 0: must be an integer of at least 1"):
        in_tree(0, 0)
    with pytest.raises(ProblemError, match="window is 0"):
        out_tree(5, 0, 0)
    with pytest.raises(ProblemError, match="num_ops is 1: must be an integer of at least 2"):
        series_parallel(1, 0)
    with pytest.raises(ProblemError, match="bytes are from 0 to 5"):
        Bytes(0, 5)
    with pytest.raises(ProblemError, match="workspace is 2"):
        Bytes(workspace=2)


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("num_ops", [8, 50, 300])
def test_the_planted_plan_meets_the_bound(num_ops: int, devices: int) -> None:
    for seed in range(4):
        instance = planted(num_ops, devices, seed)
        for bandwidth in (float("inf"), 1.0):  # tensors are small enough to arrive in time at a byte per second
            problem = Problem("makespan", devices, "free", bandwidth=bandwidth)
            assert evaluate(instance.graph, problem, instance.placement, instance.order).makespan == instance.makespan
        assert (
            lower_bound(instance.graph, problem) == instance.makespan == instance.graph.arrays.runtime.sum() / devices
        )
        plan = Plan.from_order(
            instance.graph,
            problem,
            instance.placement,
            instance.order,
            method="planted",
            seconds=0.0,
            evaluations=0,
            seed=seed,
        )
        plan.check(instance.graph)
        assert instance.graph.arrays.topological.tolist() == list(range(num_ops))
        assert (instance.graph.arrays.runtime >= 1).all()


def test_the_optimum_is_that_of_an_independent_solver() -> None:
    for seed in range(6):
        instance = planted(9, 2, seed)
        assert optimum(instance.graph, 2) == instance.makespan


def test_errors_of_planted() -> None:
    with pytest.raises(ProblemError, match="num_ops is 3: must be an integer of at least 4"):
        planted(3, 4, 0)
    with pytest.raises(ProblemError, match="devices is 0"):
        planted(3, 0, 0)
