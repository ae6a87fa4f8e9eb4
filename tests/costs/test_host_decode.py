"""The host decoder equals the exact costs."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs as any_graphs

from graphrl.bench.cases import TRANSFERS, random_chromosomes, random_graphs
from graphrl.costs import exact
from graphrl.costs.host.decode import cost_all, host_graph
from graphrl.costs.problem import Problem, Transfer
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

batches = st.lists(any_graphs(sharing=False), min_size=12, max_size=12)


def split(genes: np.ndarray, graph: ComputationGraph, devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits one chromosome into placement `[n]`, op keys `[n]` and transfer keys `[t, d]`, as `costs.exact` takes
    them.
    """
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    affinities, op_keys, transfer_keys = np.split(genes, [devices * n, (devices + 1) * n])
    return affinities.reshape(devices, n).argmax(0), op_keys, transfer_keys.reshape(devices, t).T


def exact_costs(graph: ComputationGraph, task: Problem, genes: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """Makespan and peaks of one chromosome by the host twin."""
    placement, op_keys, transfer_keys = split(genes, graph, task.devices)
    costs = exact.evaluate(graph, task, placement, exact.decode(graph, task, placement, op_keys, transfer_keys))
    return costs.makespan, costs.peak_memory


def chromosomes(graphs: list[ComputationGraph], devices: int, count: int) -> list[np.ndarray]:
    """Random chromosomes of each graph; the second half have keys that often tie."""
    batches = [random_chromosomes(graph, devices, count, seed) for seed, graph in enumerate(graphs)]
    for genes in batches:
        genes[count // 2 :] = np.floor(genes[count // 2 :] * 4) / 4
    return batches


@pytest.mark.parametrize("devices", [1, 3])
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(graphs=batches, transfer=st.sampled_from(TRANSFERS))
def test_it_is_exact(devices: int, graphs: list[ComputationGraph], transfer: Transfer) -> None:
    task = Problem("makespan", devices, transfer, 0.5, 4.0)
    genes = chromosomes(graphs, devices, 4)

    def costs(timed: bool, memory: bool, runs: int = 1, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        return cost_all([host_graph(graph, task, timed=timed, memory=memory) for graph in graphs], genes, runs, threads)

    makespan, peak = costs(timed=True, memory=True, threads=2)
    for g, graph in enumerate(graphs):
        for p in range(4):
            assert (makespan[g, p], tuple(peak[g, p])) == exact_costs(graph, task, genes[g][p])
    makespans, no_peaks = costs(timed=True, memory=False, runs=2)
    no_makespans, peaks = costs(timed=False, memory=True)
    assert (makespans == makespan).all()
    assert (peaks == peak).all()
    assert not no_peaks.any()
    assert not no_makespans.any()


def test_it_refuses_what_it_leaves_out() -> None:
    ops = (Op("a", outputs=(Tensor("x", 4),)), Op("b", inputs=("x",), outputs=(Tensor("y", 4, alias="x"),)))
    with pytest.raises(GraphrlError, match="aliases"):
        host_graph(ComputationGraph("aliased", ops), Problem(), timed=True, memory=True)
    with pytest.raises(GraphrlError, match="memory limits"):
        host_graph(random_graphs(16, 1, 0)[0], Problem("makespan", memory_limit=1), timed=True, memory=True)
