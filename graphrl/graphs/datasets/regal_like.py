"""Random graphs in the manner of REGAL's synthetic data (Paliwal et al., ICLR 2020, A.1.4): ours, not REGAL's.

The paper describes "topologies from several classical random graph models; op running times and tensor sizes from
Gaussian distributions". `RegalLike` defines everything else. Its defaults are recalled from an appendix that is not
available to us. The released set is moreover selected to leave BRKGA room to improve:
solvers/chromosomes/room_filter.py.

The four classical random graphs are undirected and simple: `[m, 2]` int64 pairs of nodes 0 to n - 1. Their definitions
are networkx's (gnp_random_graph, barabasi_albert_graph, watts_strogatz_graph, stochastic_block_model), except for the
random numbers.
"""

import dataclasses
import math
from typing import Literal, get_args

import numpy as np

from graphrl.errors import ProblemError, suggest
from graphrl.graphs.datasets.seeds import check_count, generator
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


def erdos_renyi(n: int, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Draws an Erdos-Renyi graph: every pair of nodes is joined with the same probability, independently."""
    first, second = np.divmod(_chosen(n * n, probability, rng), n)
    return np.stack([first, second], 1)[first < second]


def barabasi_albert(n: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Draws a preferential-attachment graph: each new node joins `edges` old ones, in proportion to their degrees.

    The old nodes are distinct. The initial graph is a star of `edges` + 1 nodes.
    """
    pairs = [(0, leaf) for leaf in range(1, edges + 1)]
    ends = [node for pair in pairs for node in pair]  # every node repeated by its degree
    for node in range(edges + 1, n):
        chosen: set[int] = set()
        while len(chosen) < edges:
            chosen.add(ends[int(rng.integers(len(ends)))])
        for other in sorted(chosen):
            pairs.append((other, node))
            ends += [other, node]
    return np.array(pairs, np.int64).reshape(-1, 2)


def watts_strogatz(n: int, neighbours: int, rewired: float, rng: np.random.Generator) -> np.ndarray:
    """Draws a small-world graph: a ring of nodes joined to their `neighbours` nearest ones, randomly rewired.

    Each edge's far end moves with probability `rewired` to a random node, excluding nodes that would make a loop or a
    double edge.
    """
    joined: list[set[int]] = [set() for _ in range(n)]
    ring = [(node, (node + step) % n) for step in range(1, neighbours // 2 + 1) for node in range(n)]
    for a, b in ring:
        joined[a].add(b)
        joined[b].add(a)
    for a, b in ring:
        if rng.random() >= rewired or len(joined[a]) >= n - 1:
            continue
        other = int(rng.integers(n))
        while other == a or other in joined[a]:
            other = int(rng.integers(n))
        joined[a].remove(b)
        joined[b].remove(a)
        joined[a].add(other)
        joined[other].add(a)
    return np.array([(a, b) for a in range(n) for b in sorted(joined[a]) if a < b], np.int64).reshape(-1, 2)


def stochastic_block(n: int, blocks: int, within: float, across: float, rng: np.random.Generator) -> np.ndarray:
    """Draws a graph of `blocks` equal blocks; pairs are joined with probability `within` a block, `across` two."""
    pairs = []
    parts = np.array_split(np.arange(n), blocks)
    for i, part in enumerate(parts):
        first, second = np.divmod(_chosen(len(part) ** 2, within, rng), max(1, len(part)))
        pairs.append(np.stack([part[first], part[second]], 1)[first < second])
        for other in parts[i + 1 :]:
            first, second = np.divmod(_chosen(len(part) * len(other), across, rng), max(1, len(other)))
            pairs.append(np.stack([part[first], other[second]], 1))
    return np.concatenate(pairs)


def _chosen(count: int, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Draws a sorted random subset of 0 to count - 1, each with `probability`, without an array of `count` numbers."""
    return np.sort(rng.choice(count, int(rng.binomial(count, probability)), replace=False, shuffle=False))


Model = Literal["er", "ba", "ws", "sbm"]
MODELS: tuple[Model, ...] = get_args(Model)


@dataclasses.dataclass(frozen=True)
class RegalLike:
    """Distribution of REGAL-like graphs.

    Attributes:
      least_ops, most_ops: range of the uniform distribution of the number of ops, without source and sink.
      er_probability: Erdos-Renyi: probability of each edge.
      ba_edges: Barabasi-Albert: number of edges of each new node.
      ws_neighbours, ws_rewired: Watts-Strogatz: degree of the ring, probability that an edge is rewired.
      sbm_blocks, sbm_within, sbm_across: stochastic block model: number of blocks, probabilities of edges.
      most_tensors: an op writes 0 to this many tensors, uniformly.
      control: probability that an edge is a control edge although its source writes tensors.
      mean, deviation: normal distribution of bytes and of seconds, which are rounded to whole numbers of at least 1.

    Raises:
      ProblemError: a value is out of range.
    """

    least_ops: int = 50
    most_ops: int = 200
    er_probability: float = 0.05
    ba_edges: int = 2
    ws_neighbours: int = 4
    ws_rewired: float = 0.3
    sbm_blocks: int = 4
    sbm_within: float = 0.3
    sbm_across: float = 0.01
    most_tensors: int = 2
    control: float = 0.1
    mean: float = 50.0
    deviation: float = 10.0

    def __post_init__(self) -> None:
        for name in ("least_ops", "ba_edges", "sbm_blocks"):
            check_count(name, getattr(self, name), 1)
        check_count("most_ops", self.most_ops, self.least_ops)
        for name in ("ws_neighbours", "most_tensors"):
            check_count(name, getattr(self, name), 0)
        for name in ("er_probability", "ws_rewired", "sbm_within", "sbm_across", "control"):
            if not 0 <= getattr(self, name) <= 1:
                raise ProblemError(f"{name} is {getattr(self, name)}: must be from 0 to 1")
        if not (abs(self.mean) < math.inf and 0 <= self.deviation < math.inf):
            raise ProblemError(
                f"mean is {self.mean} and deviation is {self.deviation}: must be finite, and the deviation at least 0"
            )


def regal_like(
    seed: int, model: Model | None = None, num_ops: int | None = None, parameters: RegalLike = RegalLike()
) -> ComputationGraph:
    """Generates a random graph of `num_ops` ops, a source and a sink.

    A random order of the ops directs an undirected random graph; the ops are listed in this order. The source (0 s, no
    tensors) comes before all ops without predecessors, the sink (0 s, no tensors) after all without successors; the
    sink's edges are drawn like any others. A data edge reads one tensor of its source, drawn uniformly. Tensors without
    readers are freed as soon as their op ends.

    Args:
      seed: seed of all draws, at least 0. Passing the model or the number that the seed draws changes nothing.
      model: "er", "ba", "ws" or "sbm"; None draws one.
      num_ops: number of ops without source and sink; None draws it from `parameters`.
      parameters: see `RegalLike`.

    Raises:
      ProblemError: unknown model, too few ops for the models, or a bad seed.
    """
    if model is not None and model not in MODELS:
        raise ProblemError(f"unknown random graph model {model!r}: {suggest(model, MODELS)}")
    rng = generator("regal-like", seed)
    drawn_ops, drawn_model = int(rng.integers(parameters.least_ops, parameters.most_ops + 1)), int(rng.integers(4))
    n = drawn_ops if num_ops is None else num_ops
    check_count("num_ops", n, max(parameters.ws_neighbours, parameters.ba_edges) + 1)
    model = MODELS[drawn_model] if model is None else model
    pairs = _undirected(model, n, parameters, rng)
    pairs = np.sort(rng.permutation(n)[pairs], axis=1)  # an op's index in a random order is its number
    edges = pairs[np.lexsort(pairs.T)]
    return ComputationGraph(f"regal-like-{model}-{n}-{seed}", _ops(n, edges, parameters, rng))


def _undirected(model: Model, n: int, p: RegalLike, rng: np.random.Generator) -> np.ndarray:
    if model == "er":
        return erdos_renyi(n, p.er_probability, rng)
    if model == "ba":
        return barabasi_albert(n, p.ba_edges, rng)
    if model == "ws":
        return watts_strogatz(n, p.ws_neighbours, p.ws_rewired, rng)
    return stochastic_block(n, p.sbm_blocks, p.sbm_within, p.sbm_across, rng)


def _ops(n: int, edges: np.ndarray, p: RegalLike, rng: np.random.Generator) -> tuple[Op, ...]:
    """Builds the source, the n ops and the sink, joined by `edges` (`[m, 2]` op indices) and to both ends."""
    names = [f"op{i}" for i in range(n)]
    num_tensors = rng.integers(p.most_tensors + 1, size=n)
    num_bytes = _whole_normal(p, (n, p.most_tensors), rng)
    seconds = _whole_normal(p, (n,), rng)
    tails = np.flatnonzero(np.bincount(edges[:, 0], minlength=n) == 0)
    edges = np.concatenate([edges, np.stack([tails, np.full(len(tails), n)], 1)])
    port = rng.integers(np.maximum(1, num_tensors[edges[:, 0]]))
    is_control = (num_tensors[edges[:, 0]] == 0) | (rng.random(len(edges)) < p.control)
    inputs: list[list[str]] = [[] for _ in range(n + 1)]
    after: list[list[str]] = [[] for _ in range(n + 1)]
    for (source, target), k, control in zip(edges.tolist(), port.tolist(), is_control.tolist(), strict=True):
        (after if control else inputs)[target].append(names[source] if control else f"op{source}.{k}")
    ops = [Op("source", "source")]
    for i, name in enumerate(names):
        outputs = tuple(Tensor(f"{name}.{k}", int(num_bytes[i, k])) for k in range(int(num_tensors[i])))
        before = tuple(after[i]) if inputs[i] or after[i] else ("source",)
        ops.append(Op(name, "op", float(seconds[i]), tuple(inputs[i]), outputs, before))
    ops.append(Op("sink", "sink", inputs=tuple(inputs[n]), after=tuple(after[n])))
    return tuple(ops)


def _whole_normal(p: RegalLike, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.maximum(1, np.rint(rng.normal(p.mean, p.deviation, shape))).astype(np.int64)
