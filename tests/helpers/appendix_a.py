"""Layered graphs once more, written down as Topoformer's appendix A has them: what `layered` is tested by.

Nothing is shared with `graphrl.graphs.datasets.layered` but what a graph is handed back as, and nothing is fast. Where
the text leaves a choice, that module's docstring says which one is made.
"""

import itertools
import math

import numpy as np

from graphrl.graphs.datasets.layered import LayeredArrays

SIZE_VARIABILITY, EDGE_DENSITY, SKIP_DENSITY = 0.75, 0.2, 0.14
MEANS, DEVIATIONS, WEIGHTS = (0.5, 1.0, 3.0, 5.0), (0.5, 1.0, 1.0, 1.0), (0.3, 0.3, 0.3, 0.1)
BYTES = 1000  # a cost of 1

Edge = tuple[int, int]


def drawn(num_ops: int, rng: np.random.Generator) -> LayeredArrays:
    """One graph; `num_ops` counts the source and the target."""
    layers = [[0], *_nodes(num_ops, rng), [num_ops - 1]]  # algorithm 1
    edges: set[Edge] = set()
    for first, second in itertools.pairwise(layers):
        edges |= _between(first, second, rng)
    edges |= _skips(layers[1:-1], len(edges), rng)
    ordered = np.array(sorted(edges, key=lambda edge: (edge[1], edge[0])), np.int32)
    layer = np.repeat(np.arange(len(layers)), [len(nodes) for nodes in layers])
    costs = [np.array([BYTES * _cost(rng) for _ in layers]).round().astype(np.int64)[layer] for _ in range(2)]
    return LayeredArrays(layer.astype(np.int32), ordered[:, 0], ordered[:, 1], *costs)


def cost_distribution(x: np.ndarray) -> np.ndarray:
    """Share of costs up to `x`, eq. (16): of each component what is positive."""

    def below(value: float, mean: float, deviation: float) -> float:
        return 0.5 * (1 + math.erf((value - mean) / (deviation * math.sqrt(2))))

    total = np.zeros(len(x))
    for weight, mean, deviation in zip(WEIGHTS, MEANS, DEVIATIONS, strict=True):
        refused = below(0.0, mean, deviation)
        total += weight * np.array([below(value, mean, deviation) - refused for value in x.tolist()]) / (1 - refused)
    return total


def _nodes(num_ops: int, rng: np.random.Generator) -> list[list[int]]:
    """Algorithm 1 between source and target: the nodes of each layer."""
    width = rng.uniform(0.25, 0.5)
    mean = num_ops / math.ceil(math.sqrt(num_ops * (1 / width - 1)))  # eq. (11)
    layers, node = [], 1
    while node < num_ops - 1:
        wanted = rng.integers(math.ceil(mean * (1 - SIZE_VARIABILITY)), math.floor(mean * (1 + SIZE_VARIABILITY)) + 1)
        layer = []
        for _ in range(wanted):
            if node >= num_ops - 1:
                break
            layer.append(node)
            node += 1
        layers.append(layer)
    return layers


def _between(first: list[int], second: list[int], rng: np.random.Generator) -> set[Edge]:
    """Algorithm 2 for one pair of layers."""
    large, small = (first, second) if len(first) > len(second) else (second, first)
    budget = round(len(first) * len(second) * EDGE_DENSITY + (1 - EDGE_DENSITY) * len(large))  # eq. (13)
    counts = [0] * len(large)
    least: list[int] = []  # those with the smallest count, in the order in which ties are broken
    for _ in range(budget):
        least = least or rng.permutation(len(large)).tolist()
        counts[least.pop()] += 1
    edges = set()
    for node, count in enumerate(counts):
        centre = 0 if len(large) == 1 else round(node * (len(small) - 1) / (len(large) - 1))
        lowest = min(max(centre - (count - 1) // 2, 0), len(small) - count)
        for other in range(lowest, lowest + count):
            pair = large[node], small[other]
            edges.add(pair if large is first else pair[::-1])
    return edges


def _skips(layers: list[list[int]], edges: int, rng: np.random.Generator) -> set[Edge]:
    """Algorithm 3; edges that are drawn twice count once."""
    if len(layers) < 3:
        return set()
    skips = set()
    for _ in range(math.ceil(edges * SKIP_DENSITY / (1 - SKIP_DENSITY))):  # eq. (14)
        above = rng.integers(0, len(layers) - 2)
        source, target = layers[above], layers[rng.integers(above + 2, len(layers))]
        x = rng.uniform()
        x_below = min(x + 0.2 * rng.uniform(), 0.999)
        skips.add((source[math.floor(x * len(source))], target[math.floor(x_below * len(target))]))
    return skips


def _cost(rng: np.random.Generator) -> float:
    """Eq. (16): drawn again from the same component until it is positive."""
    component = rng.choice(len(WEIGHTS), p=WEIGHTS)
    while (value := rng.normal(MEANS[component], DEVIATIONS[component])) <= 0:
        pass
    return float(value)
