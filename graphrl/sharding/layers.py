"""Random sharding problems: training steps of models of layers, with strategies as an auto-sharder lists them."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.sharding.problem import PROHIBITIVE, UNLIMITED, ShardingProblem, offsets, owners

FAMILY = "sharding-layers"

_MESHES = (2, 2), (2, 4), (4, 2), (4, 4), (8, 1), (8, 4)
_FLOPS = 2e5  # of a device in a nanosecond
_MEMORY = 2e3  # bytes that a device reads or writes in a nanosecond
_LINKS = np.array([300.0, 50.0])  # bytes in a nanosecond along each axis of the mesh: the first one is inside a host
_LATENCY = 2e3  # nanoseconds of a transfer along an axis
_WIDTH = 2  # bytes of a number
_KEPT = 7  # numbers that are kept for each weight, with the optimizer's
_NONE, _ROWS, _COLUMNS, _INNER = -1, 0, 1, 2  # the dimension that an axis of the mesh splits


class _Value(NamedTuple):
    """A node while a model is made: K strategies on a mesh with two axes, and a matrix that it writes."""

    node: int
    dims: tuple[int, int]
    split: np.ndarray  # [K, 2], the dimension of its value that each axis splits, or _NONE

    @property
    def size(self) -> int:
        """Bytes of the whole matrix."""
        return _WIDTH * self.dims[0] * self.dims[1]


@dataclasses.dataclass
class _Model:
    """Nodes and edges of a model while it is made. Times: a step of the forward pass, or one before the end if below 0
    (for ends also 0).
    """

    mesh: np.ndarray  # [2], devices along each axis
    nanoseconds: list[np.ndarray] = dataclasses.field(default_factory=list)  # of each node, [K]
    usage: list[np.ndarray] = dataclasses.field(default_factory=list)  # of each node, [K] bytes
    times: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # of each node
    edges: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    edge_cost: list[np.ndarray] = dataclasses.field(default_factory=list)

    def add(
        self,
        dims: tuple[int, int],
        split: np.ndarray,
        nanoseconds: np.ndarray,
        times: tuple[int, int],
        kept: float = 1,
    ) -> _Value:
        """Adds a node whose value is kept `kept` times, for some times."""
        value = _Value(len(self.usage), dims, split)
        self.nanoseconds.append(nanoseconds)
        self.usage.append(kept * value.size / self.shards(split))
        self.times.append(times)
        return value

    def read(self, source: _Value, reader: _Value, needed: np.ndarray) -> None:
        """Adds the edge of a value to a node whose strategies need it split as `[L, 2]`: resharding, both ways."""
        given, needed = source.split[:, None], needed[None]
        local = (source.size / self.shards(given))[..., None]
        moved = np.where(needed == _NONE, local * (self.mesh - 1), local * (self.mesh - 1) / self.mesh)
        each = np.where((given != _NONE) & (given != needed), moved / _LINKS + _LATENCY, 0)
        self._edge(source, reader, 2 * each.sum(-1))

    def share(self, source: _Value, other: _Value) -> None:
        """Adds the edge between two nodes that share a buffer: other splits are prohibitive."""
        unequal = (source.split[:, None] != other.split[None]).any(-1)
        self._edge(source, other, np.where(unequal, PROHIBITIVE, 0))

    def splits(self, *dims: int) -> np.ndarray:
        """Returns the dimensions that the two axes can split, or `_NONE`, if they have these sizes: `[K, 2]`."""
        options = [[_NONE, *range(len(dims))] if size > 1 else [_NONE] for size in self.mesh]
        pairs = np.array(list(itertools.product(*options)))
        divides = [size % self.shards(pairs, place) == 0 for place, size in enumerate(dims)]
        return pairs[np.all(divides, 0)]

    def shards(self, split: np.ndarray, *dims: int) -> np.ndarray:
        """Returns the number of shards that splits `[..., 2]` make, of all dimensions or of some: `[...]`."""
        is_split = np.isin(split, dims) if dims else split != _NONE
        return np.where(is_split, self.mesh, 1).prod(-1)

    def summed(self, split: np.ndarray, dim: int, num_bytes: np.ndarray) -> np.ndarray:
        """Returns the nanoseconds of sums of `[K]` bytes over the axes that split a dimension: `[K]`."""
        share = 2 * num_bytes[:, None] * (self.mesh - 1) / self.mesh
        return np.where(split == dim, share / _LINKS + _LATENCY, 0).sum(-1)

    def _edge(self, source: _Value, reader: _Value, cost: np.ndarray) -> None:
        self.edges.append((source.node, reader.node))
        self.edge_cost.append(cost.ravel())

    def problem(self, name: str, steps: int, tightness: float) -> ShardingProblem:
        """Makes the problem, for a forward pass of some steps.

        Its limit is above the peak of the least bytes by a share, `tightness`, of what each node's least cost takes
        above that.
        """
        start, end = np.array(self.times).T
        interval = np.stack([start + 2 * steps * (start < 0), end + 2 * steps * (end <= 0)], 1)
        cost, usage, edge_cost = (
            np.ceil(np.concatenate([np.zeros(0), *parts])).astype(np.int64)
            for parts in (self.nanoseconds, self.usage, self.edge_cost)
        )
        sizes, edge_sizes = (np.array([len(part) for part in parts]) for parts in (self.usage, self.edge_cost))
        edges = np.array(self.edges, np.int64).reshape(-1, 2)
        problem = ShardingProblem(
            name,
            offsets(sizes),
            cost,
            usage,
            interval.astype(np.int64),
            edges,
            offsets(edge_sizes),
            edge_cost,
            UNLIMITED,
        )
        least = problem.peak(least_bytes(problem))
        cheap = problem.peak(_first_of(problem, problem.usage, problem.cost))
        return dataclasses.replace(problem, limit=least + int(tightness * max(0, cheap - least)))


def layers(nodes: int, seed: int) -> ShardingProblem:
    """Generates a training step of a random model of layers, on a mesh of 4 to 32 devices.

    Blocks have two layers of one to three products with weights, an elementwise op after each layer, and a residual
    sum; an op takes a time unit. Each of the two axes of the mesh splits the rows (the batch) of a product, its columns
    or the contracted dimension, or nothing, where sizes allow it; of other ops it splits a dimension of their value.
    Costs are nanoseconds of a roofline model, forward and backward, with sums over devices for contracted dimensions
    and for gradients; edges cost the resharding of values. An updated weight shares its buffer with the weight: other
    splits are prohibitive. Values live until their backward step, weights always.

    Args:
      nodes: number of nodes, at least 1.
      seed: random seed; the same arguments give the same problem.
    """
    rng = np.random.default_rng([seed, nodes])
    model = _Model(np.array(_MESHES[rng.integers(len(_MESHES))]))
    batch, widths = int(2 ** rng.integers(9, 15)), 256 * rng.integers(1, 4, 3) * 2 ** rng.integers(0, 5, 3)
    dims, step = (batch, int(widths[0])), 0
    value = _elementwise(model, [], dims, step, is_norm=False)
    while len(model.usage) < nodes:
        first = value
        for columns in (int(rng.choice(widths)), dims[1]):
            ways = min(int(rng.choice([1, 1, 2, 3])), (nodes - len(model.usage)) // 3)
            products = [_product(model, value, columns, step + 1 + way) for way in range(ways)]
            step += ways
            if len(model.usage) < nodes:
                step += 1
                value = _elementwise(
                    model, products or [value], (products or [value])[0].dims, step, rng.random() < 0.3
                )
        if len(model.usage) < nodes and value.dims == first.dims:
            step += 1
            value = _elementwise(model, [first, value], value.dims, step, is_norm=False)
    return model.problem(f"{FAMILY}:{nodes}@{seed}", step + 1, rng.uniform(0.05, 0.5))


def _elementwise(model: _Model, sources: Sequence[_Value], dims: tuple[int, int], step: int, is_norm: bool) -> _Value:
    """Adds an op on matrices of equal sizes; a norm also sums over columns."""
    split = model.splits(*dims)
    shards = model.shards(split)
    nanoseconds = 2 * _WIDTH * dims[0] * dims[1] * (len(sources) + 1) / shards / _MEMORY
    if is_norm:
        nanoseconds = nanoseconds + 2 * model.summed(split, _COLUMNS, 4 * dims[0] / model.shards(split, _ROWS))
    value = model.add(dims, split, nanoseconds, (step, -step))
    for source in sources:
        model.read(source, value, split)
    return value


def _product(model: _Model, source: _Value, columns: int, step: int) -> _Value:
    """Adds a product of a matrix with weights, the weights, and their update."""
    rows, inner = source.dims
    of_weights = model.splits(inner, columns)
    weights = model.add((inner, columns), of_weights, np.zeros(len(of_weights)), (0, 0), _KEPT)
    split = model.splits(rows, columns, inner)
    size = _WIDTH * np.array([rows * columns, rows * inner, inner * columns])  # of value, input and weights
    local = size / np.stack([model.shards(split, *dims) for dims in ((0, 1), (0, 2), (1, 2))], -1)
    nanoseconds = 3 * np.maximum(
        2.0 * rows * inner * columns / model.shards(split) / _FLOPS, local.sum(-1) / _MEMORY
    ) + sum(model.summed(split, dim, local[:, place]) for place, dim in enumerate((_INNER, _COLUMNS, _ROWS)))
    value = model.add((rows, columns), _renamed(split, _ROWS, _COLUMNS), nanoseconds, (step, -step))
    model.read(source, value, _renamed(split, _ROWS, _INNER))
    model.read(weights, value, _renamed(split, _INNER, _COLUMNS))
    traffic = 3 * _KEPT * weights.size / model.shards(of_weights) / _MEMORY
    update = model.add(weights.dims, of_weights, traffic, (-step, 0))
    model.share(weights, update)
    return value


def _renamed(split: np.ndarray, first: int, second: int) -> np.ndarray:
    """Returns splits of a matrix whose dimensions are two of a product's; axes that split another one split none."""
    return np.select([split == first, split == second], [0, 1], _NONE)


def least_bytes(problem: ShardingProblem) -> np.ndarray:
    """Returns the plan in which every node takes the least bytes, and of those the least cost: `[n] int64`."""
    return _first_of(problem, problem.cost, problem.usage)


def _first_of(problem: ShardingProblem, *keys: np.ndarray) -> np.ndarray:
    """Returns the strategy of each node that is the least by keys `[S]`, the last key first: `[n] int64`."""
    return np.lexsort((*keys, owners(problem.offset)[0]))[problem.offset[:-1]] - problem.offset[:-1]
