"""The yardsticks of the benchmark: exact, searches, and compared with graphrl."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs as any_graphs
from reproduce import yardstick
from reproduce.yardstick import plain_batch

from graphrl.bench.cases import PARAMETERS, TRANSFERS, padded, problem, random_chromosomes, random_graphs
from graphrl.bench.measure import check_agreement
from graphrl.bench.timing import Costs, Program, Sample
from graphrl.bench.yardstick.decode import host_graph
from graphrl.bench.yardstick.program import cost_all, search_all
from graphrl.costs import exact
from graphrl.costs.problem import Objective, Problem, Transfer
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.chromosomes.brkga import Parameters

# Few examples of many graphs each: every example compiles a program of its own shape.
batches = st.lists(any_graphs(sharing=False), min_size=12, max_size=12)
few = settings(max_examples=2, suppress_health_check=list(HealthCheck))


def split(genes: np.ndarray, graph: ComputationGraph, devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One chromosome as placement `[n]`, op keys `[n]` and transfer keys `[t, d]`: what `costs.exact` takes."""
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    affinities, op_keys, transfer_keys = np.split(genes, [devices * n, (devices + 1) * n])
    return affinities.reshape(devices, n).argmax(0), op_keys, transfer_keys.reshape(devices, t).T


def exact_costs(graph: ComputationGraph, task: Problem, genes: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """What the host twin says of one chromosome: makespan and peaks."""
    placement, op_keys, transfer_keys = split(genes, graph, task.devices)
    costs = exact.evaluate(graph, task, placement, exact.decode(graph, task, placement, op_keys, transfer_keys))
    return costs.makespan, costs.peak_memory


def chromosomes(graphs: list[ComputationGraph], devices: int, count: int) -> list[np.ndarray]:
    """Random chromosomes of each graph; the second half of them with keys that often tie."""
    batches = [random_chromosomes(graph, devices, count, seed) for seed, graph in enumerate(graphs)]
    for genes in batches:
        genes[count // 2 :] = np.floor(genes[count // 2 :] * 4) / 4
    return batches


# The yardsticks


@pytest.mark.parametrize(("transfer", "devices"), [("rendezvous", 3), ("link", 2), ("free", 1)])
@few
@given(graphs=batches)
def test_plain_is_exact(transfer: Transfer, devices: int, graphs: list[ComputationGraph]) -> None:
    task = Problem("makespan", devices, transfer, 0.5, 4.0)
    genes = chromosomes(graphs, devices, 6)
    sizes = common_sizes(graphs)
    stacked = np.stack([padded(x, graph, sizes, devices) for x, graph in zip(genes, graphs, strict=True)])
    costs = jax.vmap(jax.vmap(lambda graph, x: yardstick.costs(graph, x, task), (None, 0)))
    makespan, peak = jax.device_get(jax.jit(costs)(plain_batch(graphs, task), stacked))
    for g, graph in enumerate(graphs):
        for p in range(6):
            assert (makespan[g, p], tuple(peak[g, p])) == exact_costs(graph, task, genes[g][p])


@pytest.mark.parametrize("devices", [1, 3])
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(graphs=batches, transfer=st.sampled_from(TRANSFERS))
def test_numba_is_exact(devices: int, graphs: list[ComputationGraph], transfer: Transfer) -> None:
    task = Problem("makespan", devices, transfer, 0.5, 4.0)
    genes = chromosomes(graphs, devices, 4)

    def costs(timed: bool, memory: bool, runs: int = 1, threads: int = 1) -> Costs:
        return cost_all([host_graph(graph, task, timed=timed, memory=memory) for graph in graphs], genes, runs, threads)

    both = costs(timed=True, memory=True, threads=2)
    for g, graph in enumerate(graphs):
        for p in range(4):
            assert (both.makespan[g, p], tuple(both.peak[g, p])) == exact_costs(graph, task, genes[g][p])
    makespans, peaks = costs(timed=True, memory=False, runs=2), costs(timed=False, memory=True)
    assert (makespans.makespan == both.makespan).all()
    assert (peaks.peak == both.peak).all()
    assert not makespans.peak.any()
    assert not peaks.makespan.any()


@pytest.mark.parametrize("objective", ["peak_memory", "makespan"])
def test_numba_search_is_a_search(objective: Objective) -> None:
    task, timed = problem(objective, "rendezvous"), objective == "makespan"
    graphs = random_graphs(24, 3, 0)
    batch = [host_graph(graph, task, timed=timed, memory=not timed) for graph in graphs]
    runs, again, first = (
        search_all(batch, PARAMETERS, generations, 1, threads) for generations, threads in ((20, 2), (20, 1), (1, 1))
    )
    values = [value for value, _ in runs]
    assert values == [value for value, _ in again]
    assert all(value <= start for value, (start, _) in zip(values, first, strict=True))
    assert any(value < start for value, (start, _) in zip(values, first, strict=True))
    for graph, (value, genes) in zip(graphs, runs, strict=True):
        assert ((genes >= 0) & (genes < 1)).all()
        makespan, peak = exact_costs(graph, task, genes)
        assert value == (makespan if timed else max(peak))


def test_plain_search_is_a_search() -> None:
    task = problem("peak_memory", "free")
    (graph,) = random_graphs(16, 1, 0)
    parameters = Parameters(population=10, elites=3, mutants=2)
    single = jax.tree.map(lambda x: jnp.asarray(x[0]), plain_batch([graph], task))
    search = jax.jit(lambda key: yardstick.search(single, key, task, parameters, 6))
    genes, value = jax.device_get(search(jax.random.key(0)))
    assert max(exact_costs(graph, task, np.asarray(genes))[1]) == value  # 16 ops need no padding


def test_yardsticks_refuse_what_they_leave_out() -> None:
    ops = (Op("a", outputs=(Tensor("x", 4),)), Op("b", inputs=("x",), outputs=(Tensor("y", 4, alias="x"),)))
    with pytest.raises(GraphrlError, match="aliases"):
        plain_batch([ComputationGraph("aliased", ops)], problem("peak_memory", "free"))
    with pytest.raises(GraphrlError, match="memory limits"):
        host_graph(random_graphs(16, 1, 0)[0], Problem("makespan", memory_limit=1), timed=True, memory=True)


def test_disagreement_is_told() -> None:
    costs = Costs(np.ones((2, 3)), np.ones((2, 3, 2)))
    wrong = Costs(np.ones((1, 3)), np.array([[[1, 1], [1, 2], [1, 1]]]))
    ours = Program(lambda runs: Sample(1, 0.1, 0.1), costs=costs)
    check_agreement({"graphrl": ours, "plain": ours})
    with pytest.raises(GraphrlError, match="peak memory of graph 0, chromosome 1"):
        check_agreement({"graphrl": ours, "none": ours._replace(costs=None), "plain": ours._replace(costs=wrong)})
