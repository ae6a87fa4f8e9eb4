"""Graphs like REGAL's synthetic data: the four models, and the attributes drawn for them."""

import numpy as np
import pytest

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import regal_like as random_models
from graphrl.graphs.datasets.regal_like import MODELS, Model, RegalLike, regal_like


def assert_simple(pairs: np.ndarray, n: int) -> None:
    ordered = np.sort(pairs, axis=1)
    assert (ordered[:, 0] < ordered[:, 1]).all()
    assert len(np.unique(ordered, axis=0)) == len(pairs)
    if len(pairs):
        assert pairs.min() >= 0
        assert pairs.max() < n


def test_erdos_renyi_has_each_edge_with_its_probability() -> None:
    rng = np.random.default_rng(0)
    count = np.zeros((40, 40))
    for _ in range(400):
        pairs = random_models.erdos_renyi(40, 0.3, rng)
        assert_simple(pairs, 40)
        count[pairs[:, 0], pairs[:, 1]] += 1
    each = count[np.triu_indices(40, 1)] / 400
    assert each.mean() == pytest.approx(0.3, abs=0.005)
    assert np.abs(each - 0.3).max() < 5 * np.sqrt(0.21 / 400)
    assert len(random_models.erdos_renyi(10, 1.0, rng)) == 45
    assert len(random_models.erdos_renyi(10, 0.0, rng)) == 0


def test_barabasi_albert_prefers_the_well_connected() -> None:
    rng = np.random.default_rng(0)
    pairs = random_models.barabasi_albert(2000, 2, rng)
    assert_simple(pairs, 2000)
    assert len(pairs) == 2 + 2 * 1997
    degree = np.bincount(pairs.reshape(-1))
    assert degree.min() >= 1
    assert (degree[3:] >= 2).all()
    assert 30 < degree.max() < 400  # about sqrt(n) times the mean; a random graph of this density has 13
    assert (degree >= 8).mean() == pytest.approx(2 * 3 / (8 * 9), rel=0.25)  # P(degree >= k) = m (m + 1) / (k (k + 1))


def test_watts_strogatz_rewires_its_share_of_a_ring() -> None:
    rng = np.random.default_rng(0)
    pairs = random_models.watts_strogatz(1000, 4, 0.3, rng)
    assert_simple(pairs, 1000)
    assert len(pairs) == 2000
    apart = np.abs(pairs[:, 0] - pairs[:, 1])
    assert (np.minimum(apart, 1000 - apart) > 2).mean() == pytest.approx(0.3, abs=0.03)
    ring = random_models.watts_strogatz(10, 4, 0.0, rng)
    assert {(b - a) % 10 for a, b in ring.tolist()} <= {1, 2, 8, 9}
    assert_simple(random_models.watts_strogatz(5, 4, 1.0, rng), 5)  # complete: nothing can move


def test_stochastic_block_model_joins_within_blocks() -> None:
    rng = np.random.default_rng(0)
    within = across = 0
    for _ in range(100):
        pairs = random_models.stochastic_block(42, 4, 0.3, 0.01, rng)
        assert_simple(pairs, 42)
        block = np.repeat(np.arange(4), [11, 11, 10, 10])
        same = block[pairs[:, 0]] == block[pairs[:, 1]]
        within, across = within + int(same.sum()), across + int((~same).sum())
    assert within / (100 * 200) == pytest.approx(0.3, rel=0.05)
    assert across / (100 * 661) == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("model", MODELS)
def test_source_and_sink_close_every_graph(model: Model) -> None:
    for seed in range(20):
        graph = regal_like(seed, model)
        a = graph.arrays
        n = a.num_ops
        assert 52 <= n <= 202
        assert graph.name == f"regal-like-{model}-{n - 2}-{seed}"
        assert a.topological.tolist() == list(range(n))
        source, target = a.dependencies()
        assert set(range(n)) - set(target.tolist()) == {0}
        assert set(range(n)) - set(source.tolist()) == {n - 1}
        assert (a.runtime[[0, -1]] == 0).all()
        assert not graph.ops[0].outputs
        assert not graph.ops[-1].outputs
        for op in graph.ops[1:-1]:
            assert "source" not in op.after or (op.after == ("source",) and not op.inputs)


def test_what_is_drawn_on_top_of_the_models() -> None:
    graphs = [regal_like(seed) for seed in range(60)]
    inner = [op for graph in graphs for op in graph.ops[1:-1]]
    shares = np.bincount([len(op.outputs) for op in inner]) / len(inner)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.03)
    for values in ([op.runtime for op in inner], [tensor.bytes for op in inner for tensor in op.outputs]):
        assert np.mean(values) == pytest.approx(50, abs=0.5)
        assert np.std(values) == pytest.approx(10, abs=0.5)
        assert min(values) >= 1
        assert all(float(value).is_integer() for value in values)
    control = total = 0
    for graph in graphs:
        has_tensors = {op.name for op in graph.ops if op.outputs}
        control += sum(name in has_tensors for op in graph.ops for name in op.after)
        total += sum(len(op.inputs) for op in graph.ops)
    assert control / (control + total) == pytest.approx(0.1, abs=0.015)
    models = [graph.name.split("-")[2] for graph in graphs]
    assert {models.count(model) > 6 for model in MODELS} == {True}


def test_what_the_seed_would_draw_may_be_said() -> None:
    graph = regal_like(7)
    model, ops = graph.name.split("-")[2:4]
    assert regal_like(7, model, int(ops)) == graph  # type: ignore[arg-type]
    assert regal_like(7) == graph
    assert regal_like(8) != graph


def test_parameters() -> None:
    p = RegalLike(least_ops=10, most_ops=10, er_probability=1.0, control=0.0, mean=-50, most_tensors=1)
    graph = regal_like(0, "er", parameters=p)
    assert graph.arrays.num_ops == 12
    assert {tensor.bytes for op in graph.ops for tensor in op.outputs} == {1}
    assert len(graph.arrays.dependencies()[0]) == 45 + 2


def test_large_graphs_are_sparse_in_memory() -> None:
    graph = regal_like(0, "er", 5000, RegalLike(er_probability=0.0005))
    assert len(graph.arrays.dependencies()[0]) > 5000


def test_errors() -> None:
    with pytest.raises(ProblemError, match="unknown random graph model 'xy': known are er, ba, ws, sbm"):
        regal_like(0, "xy")  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="num_ops is 4: must be an integer of at least 5"):
        regal_like(0, "ws", 4)
    with pytest.raises(ProblemError, match="seed is -1"):
        regal_like(-1)
