"""Layered graphs follow the paper's appendix A; published graphs of the family settle its ambiguities."""

import itertools
import math

import numpy as np
import pytest

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import Layered, LayeredArrays, layered, layered_arrays

SEEDS = range(30)
PER_NODE = Layered(cost_per="node")


def sizes_of(arrays: LayeredArrays) -> np.ndarray:
    return np.bincount(arrays.layer)


def span(arrays: LayeredArrays) -> np.ndarray:
    """Number of layers that each edge spans."""
    return arrays.layer[arrays.target] - arrays.layer[arrays.source]


def test_same_seed_same_graph() -> None:
    assert layered(60, 3) == layered(60, 3)
    assert layered(60, 3) != layered(60, 4)
    names = {graph.name for graph in (layered(60, 3), layered(60, 4), layered(61, 3))}
    assert names == {"layered-60-3", "layered-60-4", "layered-61-3"}


@pytest.mark.parametrize("num_ops", [3, 4, 5, 25, 100, 500])
def test_the_graph_is_its_arrays(num_ops: int) -> None:
    for seed in range(5):
        a, graph = layered_arrays(num_ops, seed), layered(num_ops, seed)
        g = graph.arrays
        assert g.num_ops == g.num_tensors == num_ops
        assert g.topological.tolist() == list(range(num_ops))
        source, target = g.dependencies()
        assert set(zip(source.tolist(), target.tolist(), strict=True)) == set(
            zip(a.source.tolist(), a.target.tolist(), strict=True)
        )
        assert len(source) == len(a.source)
        assert g.tensor_bytes.tolist() == a.output_bytes.tolist()
        assert g.workspace_bytes.tolist() == a.parameter_bytes.tolist()
        assert (g.runtime == 1).all()


@pytest.mark.parametrize("num_ops", [25, 100, 500, 1000])
def test_layer_sizes_are_within_eq_12(num_ops: int) -> None:
    for seed in SEEDS:
        sizes = sizes_of(layered_arrays(num_ops, seed))
        assert sizes.sum() == num_ops
        assert sizes[0] == sizes[-1] == 1
        fits = []
        for layers in range(math.ceil(math.sqrt(num_ops)), math.ceil(math.sqrt(3 * num_ops)) + 1):  # W = 0.5 to 0.25
            mean = num_ops / layers
            inner = sizes[1:-1]
            low, high = math.ceil(mean * 0.25), math.floor(mean * 1.75)
            fits.append((inner[:-1] >= low).all() and (inner <= high).all())
        assert any(fits)


def test_the_width_factor_decides_the_number_of_layers() -> None:
    for width in (0.25, 0.4, 0.5):
        p = Layered(least_width=width, most_width=width)
        counts = [len(sizes_of(layered_arrays(1000, seed, p))) - 2 for seed in SEEDS]
        assert np.mean(counts) == pytest.approx(math.ceil(math.sqrt(1000 * (1 / width - 1))), rel=0.05)


def test_adjacent_layers_have_the_edges_of_eq_13() -> None:
    for seed in SEEDS:
        a = layered_arrays(500, seed)
        sizes = sizes_of(a)
        adjacent = np.bincount(a.layer[a.source][span(a) == 1], minlength=len(sizes) - 1)
        for first, second, count in zip(sizes[:-1], sizes[1:], adjacent, strict=True):
            assert count == round(0.2 * first * second + 0.8 * max(first, second))


def test_edges_spread_in_cones_from_the_larger_layer_and_from_the_later_of_equal_ones() -> None:
    equal = 0
    for seed in SEEDS:
        a = layered_arrays(500, seed)
        sizes = sizes_of(a)
        start = np.cumsum(sizes) - sizes
        for k, (first, second) in enumerate(itertools.pairwise(sizes.tolist())):
            chosen = (span(a) == 1) & (a.layer[a.source] == k)
            ends = a.source[chosen] - start[k], a.target[chosen] - start[k + 1]
            large, small = ends if first > second else ends[::-1]
            equal += first == second > 1
            counts = np.bincount(large, minlength=max(first, second))
            assert counts.max() - counts.min() <= 1
            for node, count in enumerate(counts.tolist()):
                cone = np.sort(small[large == node])
                assert (np.diff(cone) == 1).all()
                centre = round(node * (min(first, second) - 1) / max(1, max(first, second) - 1))
                lowest = centre - (count - 1) // 2
                assert cone[0] == min(max(lowest, 0), min(first, second) - count)
    assert equal > 10


def test_every_op_has_an_edge_to_both_neighbouring_layers() -> None:
    for seed in SEEDS:
        a = layered_arrays(100, seed)
        adjacent = span(a) == 1
        assert set(a.source[adjacent].tolist()) == set(range(99))
        assert set(a.target[adjacent].tolist()) == set(range(1, 100))


def test_skips_are_the_share_of_eq_14_and_leave_source_and_target_alone() -> None:
    distinct = drawn = 0
    for seed in SEEDS:
        a = layered_arrays(500, seed)
        skips = span(a) > 1
        distinct += int(skips.sum())
        drawn += math.ceil((~skips).sum() * 0.14 / 0.86)
        assert a.source[skips].min() > 0
        assert a.target[skips].max() < 499
        sizes = sizes_of(a)
        start = np.cumsum(sizes) - sizes
        x, y = ((ops - start[a.layer[ops]]) / sizes[a.layer[ops]] for ops in (a.source[skips], a.target[skips]))
        width = 1 / sizes[a.layer[a.source[skips]]], 1 / sizes[a.layer[a.target[skips]]]
        assert (y + width[1] > x - 1e-9).all()  # below the source op or up to a fifth to the right
        assert (y < x + width[0] + 0.2).all()
    assert 0.92 * drawn < distinct < drawn  # equal ones are merged: 331 of 347 in a published graph of 500 nodes


# of random_layered_n{100,250,500,1000} of github.com/haoming-codes/moccasin, ff7ad8b: layers, skip edges
PUBLISHED = {100: (19, 33), 250: (22, 129), 500: (31, 331), 1000: (49, 813)}


@pytest.mark.parametrize("num_ops", PUBLISHED)
def test_published_graphs_are_among_those_that_are_drawn(num_ops: int) -> None:
    graphs = [layered_arrays(num_ops, seed) for seed in range(60)]
    drawn = np.array([(a.layer[-1] - 1, (span(a) > 1).sum()) for a in graphs])
    low, high = np.quantile(drawn, (0.01, 0.99), axis=0)
    assert (low <= PUBLISHED[num_ops]).all()
    assert (PUBLISHED[num_ops] <= high).all()


def mixture_distribution(x: np.ndarray) -> np.ndarray:
    """Share of positive draws up to x: every component is drawn again until it is positive."""

    def normal(z: np.ndarray) -> np.ndarray:
        return np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z.tolist()])

    p = Layered()
    total = np.zeros(len(x))
    for weight, mean, deviation in zip(p.weights, p.means, p.deviations, strict=True):
        below = normal(np.array([-mean / deviation]))
        total += weight * (normal((x - mean) / deviation) - below) / (1 - below)
    return total


@pytest.mark.parametrize("which", ["output_bytes", "parameter_bytes"])
def test_costs_are_the_mixture_drawn_again_until_positive(which: str) -> None:
    drawn = np.concatenate([getattr(layered_arrays(500, seed, PER_NODE), which) for seed in range(12)])
    costs = np.sort(drawn) / 1000
    assert costs.min() > 0
    gap = np.abs(mixture_distribution(costs) - np.arange(1, len(costs) + 1) / len(costs)).max()
    assert gap < 1.36 / math.sqrt(len(costs))  # Kolmogorov-Smirnov, 5%


def test_costs_are_equal_within_a_layer_unless_asked_for_per_node() -> None:
    a, b = layered_arrays(500, 0), layered_arrays(500, 0, PER_NODE)
    layers = a.layer.max() + 1
    for costs in (a.output_bytes, a.parameter_bytes):
        assert len(np.unique(np.stack([a.layer, costs]), axis=1).T) == layers
        assert len(np.unique(costs)) > 0.9 * layers
    assert len(np.unique(b.output_bytes)) > 400
    assert (a.source == b.source).all()
    assert (a.target == b.target).all()


def test_without_parameter_cost_the_rest_is_the_same() -> None:
    a, b = layered_arrays(100, 0), layered_arrays(100, 0, Layered(parameter_cost=False))
    assert (b.parameter_bytes == 0).all()
    assert (a.parameter_bytes > 0).all()
    assert (a.output_bytes == b.output_bytes).all()
    assert (a.source == b.source).all()


@pytest.mark.parametrize(
    ("num_ops", "seed", "fault"),
    [
        (2, 0, "num_ops is 2: must be an integer of at least 3"),
        (50, -1, "seed is -1: must be an integer of at least 0"),
        (50.0, 0, "num_ops is 50"),
    ],
)
def test_errors(num_ops: int, seed: int, fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        layered(num_ops, seed)


def test_errors_of_parameters() -> None:
    with pytest.raises(ProblemError, match=r"widths are 0\.5 to 0\.25"):
        Layered(least_width=0.5, most_width=0.25)
    with pytest.raises(ProblemError, match="cost_per is 'op'"):
        Layered(cost_per="op")  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="skips: below 1"):
        Layered(skip_density=1.0)
