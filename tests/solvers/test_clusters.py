"""Clusters of ops that searches, and GO's policy, move as one."""

import dataclasses

import numpy as np
import pytest

from graphrl.agents.go.agent import coarse, coarse_instance
from graphrl.agents.go.network import Policy, _logits
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined, Tensor
from graphrl.methods import find_solver
from graphrl.solvers.anneal import clusters
from graphrl.solvers.anneal.clusters import Clusters, has_parts, make_clusters
from graphrl.solvers.base import Budget, Task

DEAR = Problem("makespan", 4, latency=0.5, bandwidth=1.0)


def chains(count: int, length: int, *, grouped: bool = False) -> ComputationGraph:
    """Chains of ops of 1 s, which take turns in the order; `grouped`: a chain's first and last op are colocated."""
    ops = []
    for step in range(length):
        for chain in range(count):
            inputs = (f"t{chain}-{step - 1}",) if step else ()
            together = Pipelined(colocation=chain) if grouped and step in (0, length - 1) else None
            outputs = (Tensor(f"t{chain}-{step}", 1),)
            ops.append(Op(f"{chain}-{step}", "op", 1.0, inputs=inputs, outputs=outputs, pipelined=together))
    return ComputationGraph("chains", tuple(ops))


def test_a_cluster_is_of_one_device_and_keeps_groups_whole() -> None:
    graph = chains(6, 100, grouped=True)
    placement = np.random.default_rng(0).integers(0, 4, 600)[graph.leaders]
    for count in (1, 40, 200):
        cluster = Clusters(graph, DEAR).of(placement, count)
        assert np.array_equal(placement[cluster], placement)
        assert np.array_equal(cluster[graph.leaders], cluster)
        assert len(np.unique(cluster)) >= count
    assert len(np.unique(Clusters(graph, DEAR).of(np.zeros(600, np.int64), 40))) == 40


def test_clusters_are_the_chains_where_nothing_else_is_connected() -> None:
    graph = chains(4, 150)
    cluster = Clusters(graph, DEAR).of(np.zeros(600, np.int64), 4)
    assert np.array_equal(cluster, np.tile(cluster[:4], 150))
    assert len(np.unique(cluster)) == 4


def test_the_dearest_transfer_is_inside() -> None:
    sizes = [1, 9, 1]
    ops = [Op("a", "op", 1.0, outputs=(Tensor("t0", sizes[0]),))]
    ops += [Op(f"b{i}", "op", 1.0, inputs=(f"t{i - 1}",), outputs=(Tensor(f"t{i}", sizes[i]),)) for i in (1, 2)]
    ops.append(Op("c", "op", 1.0, inputs=("t2",)))
    cluster = Clusters(ComputationGraph("line", tuple(ops)), DEAR).of(np.zeros(4, np.int64), 3)
    assert cluster.tolist() == [0, 1, 1, 3]


def test_small_and_dense_graphs_have_none_nor_have_other_transfers() -> None:
    graph = chains(6, 100)
    assert make_clusters(graph, DEAR) is not None
    assert make_clusters(graph, dataclasses.replace(DEAR, transfer="link")) is None
    assert make_clusters(graph, Problem("peak_memory", 4)) is None
    assert not has_parts(layered(100, 0))


@pytest.mark.parametrize(
    ("method", "transfer"),
    [("anneal-ops", "rendezvous"), ("anneal-ops", "link"), ("anneal-schedule", "rendezvous")],
)
def test_searches_leave_one_device_by_moving_clusters(
    method: str, transfer: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains that exchange nothing: a plan may be as short as their run times over the devices.

    A search that starts with all ops on one device moves whole chains. Without clusters no move gains under rendezvous,
    as a part of a chain costs a transfer, and few gain elsewhere.
    """
    graph = chains(120, 20)
    problem = dataclasses.replace(DEAR, transfer=transfer, latency=20.0)

    def makespan() -> float:
        task = Task(graph, problem, Budget(evaluations=3_000), 0)
        hint = Task(graph, problem, Budget(evaluations=1)).plan(None, np.arange(2_400), evaluations=1)
        plan = find_solver(method)(task, hint=hint)
        plan.check(graph)
        return plan.makespan

    assert makespan() == 600
    monkeypatch.setattr(clusters, "MIN_OPS", len(graph.ops) + 1)
    assert makespan() == 2_400 if transfer == "rendezvous" else makespan() > 900


def test_the_policy_sees_a_graph_of_clusters() -> None:
    graph = chains(6, 100)
    placement = np.repeat([0, 1], 300)
    group = Clusters(graph, DEAR).of(placement, 30)
    view = coarse(graph, group, np.arange(600))
    assert len(view.graph.ops) == len(np.unique(group)) == 30
    assert view.graph.arrays.runtime.sum() == pytest.approx(600)
    crossing = view.cluster[:-6] != view.cluster[6:]
    assert view.graph.arrays.tensor_bytes.sum() == crossing.sum()  # a byte per edge of a chain, none against the order
    instance, played = coarse_instance(view, DEAR, placement, Policy.default(DEAR).config)
    assert np.array_equal(np.asarray(instance.start.placement)[view.cluster], placement)
    assert played.ops.shape[0] == len(instance.order)


def test_go_moves_clusters_and_keeps_groups_whole() -> None:
    graph = chains(6, 110, grouped=True)
    plans = [find_solver("go:rounds=1")(Task(graph, DEAR, Budget(evaluations=500), 3)) for _ in range(2)]
    plans[0].check(graph)
    placement, order = plans[0].decisions(graph)
    assert np.array_equal(placement, placement[graph.leaders])
    assert np.array_equal(order, plans[1].decisions(graph)[1])
    assert np.array_equal(placement, plans[1].decisions(graph)[0])


def test_one_program_serves_all_graphs_of_as_many_clusters() -> None:
    sizes, method = [], f"go:rounds=1,checkpoint={Policy.defaults / 'makespan-changes.msgpack'}"
    for length in (110, 120, 400):
        find_solver(method)(Task(chains(6, length), DEAR, Budget(evaluations=70)))
        sizes.append(_logits._cache_size())  # type: ignore[attr-defined]
    assert sizes[0] == sizes[1] == sizes[2]
