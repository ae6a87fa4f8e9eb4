"""Random layered graphs, as in "Neural Topological Ordering for Computation Graphs" (Topoformer; Gagrani et al. 2022).

Sources: appendix A, algorithms 1-3 and eqs 11-16. Where the text leaves a choice, four published graphs of this family
decide (random_layered_n100 to n1000 of Moccasin, a scheduler of the same group). All 125 of their pairs of adjacent
layers agree with these rules:

- the number of nodes includes one source and one target, each in a separate layer;
- of two adjacent layers the larger one spreads cones of edges over the other, the later one if they are equal (text of
  algorithm 2: the earlier one); halves are rounded to even; edges are simple (its loop over i repeats them);
- skip edges neither leave the source nor enter the target; equal ones are merged; |E| of eq. (14) counts all edges
  between adjacent layers, including those of source and target;
- a cost that is not positive is drawn again from the same component of the mixture;
- the last layer before the target has the remaining nodes.

Deviation: costs are whole numbers of bytes, `bytes_per_cost` times the drawn cost, rounded, at least 1.
"""

import dataclasses
from typing import Literal

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.seeds import check_count, generator
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


@dataclasses.dataclass(frozen=True)
class Layered:
    """Distribution of layered graphs; the defaults are those of Topoformer's experiments.

    Attributes:
      least_width, most_width: range of the uniformly distributed width factor W of eq. (11), inside (0, 1).
      size_variability: sigma_N of eq. (12), in [0, 1].
      edge_density: rho_E of eq. (13), in [0, 1].
      skip_density: rho_S of eq. (14), in [0, 1).
      means, deviations, weights: parameters of each normal distribution in the mixture of eq. (16).
      cost_per: "layer": all ops of a layer have the same costs, as in the paper's text; "node": each op has separate
        costs, as in the published graphs.
      parameter_cost: True if ops have a parameter cost p (`workspace_bytes`); the published graphs have none.
      bytes_per_cost: bytes for a cost of 1.

    Raises:
      ProblemError: a value is out of range.
    """

    least_width: float = 0.25
    most_width: float = 0.5
    size_variability: float = 0.75
    edge_density: float = 0.2
    skip_density: float = 0.14
    means: tuple[float, ...] = (0.5, 1.0, 3.0, 5.0)
    deviations: tuple[float, ...] = (0.5, 1.0, 1.0, 1.0)
    weights: tuple[float, ...] = (0.3, 0.3, 0.3, 0.1)
    cost_per: Literal["layer", "node"] = "layer"
    parameter_cost: bool = True
    bytes_per_cost: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.least_width <= self.most_width < 1:
            raise ProblemError(f"widths are {self.least_width} to {self.most_width}: must be inside 0 to 1, ascending")
        if not (0 <= self.size_variability <= 1 and 0 <= self.edge_density <= 1 and 0 <= self.skip_density < 1):
            raise ProblemError("size_variability, edge_density and skip_density must be from 0 to 1 (skips: below 1)")
        if self.cost_per not in ("layer", "node"):
            raise ProblemError(f"cost_per is {self.cost_per!r}: must be layer or node")
        parts = len(self.weights), len(self.means), len(self.deviations)
        if len(set(parts)) > 1 or min(self.weights, default=-1) < 0 or abs(sum(self.weights) - 1) > 1e-9:
            raise ProblemError(f"weights are {self.weights}: must be at least 0, with the sum 1, one for each mean")
        if min(self.means) <= 0 or min(self.deviations) < 0:
            raise ProblemError(
                f"means are {self.means}: must be above 0, and the deviations, {self.deviations}, at least 0"
            )
        if self.bytes_per_cost < 1:
            raise ProblemError(f"bytes_per_cost is {self.bytes_per_cost}: must be at least 1")


@dataclasses.dataclass(frozen=True, eq=False)
class LayeredArrays:
    """A layered graph of n ops and e edges as arrays: ops in the order of layers, 0 the source, n - 1 the target."""

    layer: np.ndarray  # [n] int32, ascending; 0 for the source
    source: np.ndarray  # [e] int32, ops; sorted by (target, source)
    target: np.ndarray  # [e] int32
    output_bytes: np.ndarray  # [n] int64, m
    parameter_bytes: np.ndarray  # [n] int64, p; zeros without parameter cost


def layered(num_ops: int, seed: int, parameters: Layered = Layered()) -> ComputationGraph:
    """Generates a layered graph: each op writes one tensor (output cost m) and has workspace (parameter cost p), bytes.

    The paper (Topoformer) has no run times: every op takes 1 s.

    Args:
      num_ops: number of ops, including source and target; at least 3.
      seed: graphs of different sizes and seeds are independent; at least 0.
      parameters: see `Layered`.

    Raises:
      ProblemError: too few ops, or a bad seed.
    """
    arrays = layered_arrays(num_ops, seed, parameters)
    inputs: list[list[str]] = [[] for _ in range(num_ops)]
    names = [f"t{i}" for i in range(num_ops)]
    for source, target in zip(arrays.source.tolist(), arrays.target.tolist(), strict=True):
        inputs[target].append(names[source])
    costs = zip(arrays.output_bytes.tolist(), arrays.parameter_bytes.tolist(), strict=True)
    ops = tuple(
        Op(f"op{i}", "", 1.0, tuple(inputs[i]), (Tensor(names[i], output),), workspace_bytes=parameter)
        for i, (output, parameter) in enumerate(costs)
    )
    return ComputationGraph(f"layered-{num_ops}-{seed}", ops)


def layered_arrays(num_ops: int, seed: int, parameters: Layered = Layered()) -> LayeredArrays:
    """Generates the graph of `layered` as arrays, about ten times as fast; with the same arguments and errors."""
    check_count("num_ops", num_ops, 3)
    rng = generator("layered", seed, num_ops)
    layer, source, target = layered_edges(num_ops, parameters, rng)
    output_bytes = _costs(layer, parameters, rng)
    parameter_bytes = _costs(layer, parameters, rng) * int(parameters.parameter_cost)
    return LayeredArrays(
        layer.astype(np.int32), source.astype(np.int32), target.astype(np.int32), output_bytes, parameter_bytes
    )


def layered_edges(
    num_ops: int, parameters: Layered, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws the layer of each op `[n]`, and the source and target ops of the edges, two `[e]`; int64, sorted by target.

    Args:
      num_ops: at least 3.
      parameters: see `Layered`; the costs are not used.
      rng: random numbers.
    """
    sizes = _layer_sizes(num_ops, parameters, rng)
    source, target = _adjacent_edges(sizes, parameters, rng)
    skip_source, skip_target = _skip_edges(sizes, len(source), parameters, rng)
    codes = np.concatenate([target, skip_target]) * num_ops + np.concatenate([source, skip_source])
    codes = np.unique(codes)
    return np.repeat(np.arange(len(sizes)), sizes), codes % num_ops, codes // num_ops


def _layer_sizes(num_ops: int, p: Layered, rng: np.random.Generator) -> np.ndarray:
    """Draws the number of ops of each layer (algorithm 1), including source and target: `[layers]`."""
    width = rng.uniform(p.least_width, p.most_width)
    mean = num_ops / np.ceil(np.sqrt(num_ops * (1 / width - 1)))
    least = max(1, int(np.ceil(mean * (1 - p.size_variability))))
    most = max(least, int(np.floor(mean * (1 + p.size_variability))))
    inner = num_ops - 2
    ends = np.cumsum(rng.integers(least, most + 1, size=-(-inner // least)))
    ends = np.minimum(ends[: np.searchsorted(ends, inner) + 1], inner)
    return np.concatenate([[1], np.diff(ends, prepend=0), [1]])


def _adjacent_edges(sizes: np.ndarray, p: Layered, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws edges between all adjacent layers in one batch (algorithm 2): source and target ops, two `[e]` int64."""
    first, second = sizes[:-1], sizes[1:]
    spreads_down = first > second  # the earlier layer is the larger one
    large, small = np.maximum(first, second), np.minimum(first, second)
    count = np.rint(first * second * p.edge_density + (1 - p.edge_density) * large).astype(np.int64)  # eq. (13)
    pair = np.repeat(np.arange(len(large)), large)  # every node of every larger layer
    begin = np.cumsum(large) - large
    place = np.arange(len(pair)) - begin[pair]
    shuffled = np.lexsort((rng.random(len(pair)), pair))
    rank = np.empty(len(pair), np.int64)
    rank[shuffled] = place
    cone = (count // large)[pair] + (rank < (count % large)[pair])
    last = small[pair] - 1
    centre = np.rint(place * last / np.maximum(1, large[pair] - 1)).astype(np.int64)
    lowest = np.clip(centre - (cone - 1) // 2, 0, last + 1 - cone)
    node = np.repeat(np.arange(len(pair)), cone)
    within = np.arange(len(node)) - (np.cumsum(cone) - cone)[node]
    in_large, in_small, above = place[node], lowest[node] + within, pair[node]
    down = spreads_down[above]
    start = np.cumsum(sizes) - sizes
    source = start[above] + np.where(down, in_large, in_small)
    return source, start[above + 1] + np.where(down, in_small, in_large)


def _skip_edges(sizes: np.ndarray, edges: int, p: Layered, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws skip edges (algorithm 3), repetitions included: source and target ops, two `[s]` int64."""
    last = len(sizes) - 2  # inner layers are 1 to last
    if last < 3:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    count = int(np.ceil(edges * p.skip_density / (1 - p.skip_density)))  # eq. (14)
    above = rng.integers(1, last - 1, size=count)
    below = rng.integers(above + 2, last + 1)
    x = rng.random(count)
    x_below = np.minimum(x + 0.2 * rng.random(count), 0.999)
    start = np.cumsum(sizes) - sizes
    source = start[above] + np.floor(x * sizes[above]).astype(np.int64)
    return source, start[below] + np.floor(x_below * sizes[below]).astype(np.int64)


def _costs(layer: np.ndarray, p: Layered, rng: np.random.Generator) -> np.ndarray:
    """Draws the costs of all ops, eq. (16): `[n] int64` bytes."""
    count = int(layer[-1]) + 1 if p.cost_per == "layer" else len(layer)
    component = rng.choice(len(p.weights), size=count, p=p.weights)
    means, deviations = np.array(p.means)[component], np.array(p.deviations)[component]
    costs = rng.normal(means, deviations)
    while (invalid := np.flatnonzero(costs <= 0)).size:
        costs[invalid] = rng.normal(means[invalid], deviations[invalid])
    num_bytes = np.maximum(1, np.rint(p.bytes_per_cost * costs)).astype(np.int64)
    return num_bytes[layer] if p.cost_per == "layer" else num_bytes
