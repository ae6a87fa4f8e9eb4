"""Random graphs whose optimum is known: the least peak memory on one device, or the least makespan.

- `in_tree`, `out_tree`, `series_parallel`: graphs with their least peak. Every edge is a separate tensor with one
  reader, of random size; ops have a random workspace and run times of 1 to 9 seconds. Sizes are whole bytes,
  log-uniform, so that a few large ones dominate as they do in real graphs.
- `op_segment`, `series`, `parallel`: the exact algorithm for the least peak of such graphs.
- `planted`: instances of P|prec|Cmax with a planted optimum.

**Least peak.** An op of such a graph changes the live bytes by a fixed amount in every order: it needs `hill` bytes
above the level (the live bytes) at its start and changes the level by `net`. Minimising the highest level over
series-parallel precedences is polynomial (Abdel-Wahab and Kameda 1978; Monma and Sidney 1979). Trees (Liu 1987, "An
application of generalized tree pebbling to sparse matrix factorization") and two-terminal series-parallel graphs
(Kayaaslan, Lambert, Marchal and Ucar, TCS 707, 2018) are cases of it:

- A *segment* is a run of ops that are consecutive in some best order, with the hill and the net of the run.
- Of two segments that may run in either order, this one goes first: one that frees (net < 0) before one that does not;
  of two that free, the one of lower hill; of two that do not, the one of larger hill - net. This is Liu's rule. Applied
  backwards it is the rule for segments that free. Kayaaslan et al. treat the segments before the minimum cut of a
  parallel composition in this way, which free more than they write; those after the cut do not.
- In series, where the order is given, neighbours that this rule would exchange become one segment.

The best orders of parts are parts of a best order of the whole, so a graph is solved from the inside out with `series`
and `parallel`. Ops are plain numbers; a segment's ops are stored as a tree of pairs, so that joining costs nothing.

An in-tree ends in its root: every other op writes one tensor, which its parent reads. An out-tree starts at its root
and writes one tensor for each child: it is a reversed in-tree, and has the same optimum. Out-trees whose ops write a
single tensor for all children are another problem, and are not generated here.

**Least makespan.** `planted` generates the RGPOS graphs of Kwok and Ahmad (1999), in our form. The time lines of all
devices are filled from 0 to the makespan without idle time and cut into ops; edges are added that this schedule
respects. The makespan equals the bound work / devices, so the schedule is optimal under transfers "free", if no
transfer takes longer than the slack between its ends. Every other plan is at least as long in all transfer models.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.seeds import check_count, generator
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

Ops = int | tuple["Ops", "Ops"]

Edges = list[tuple[int, int]]  # (source op, target op), a separate tensor each

_MAX_BRANCHES = 4

Series = tuple["Part", int, "Part"]  # the part before an op, the op, the part after it
Part = None | Series | list["Part"]  # the ops between two terminals: empty, in series, or branches in parallel

_MEAN_SECONDS = 50
_MAX_BYTES = 100
_MAX_INPUTS = 1000


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Distribution of tensor sizes: log-uniform from `least` to `most` bytes.

    Attributes:
      least, most: limits in bytes, at least 1.
      workspace: probability that an op has a workspace (of the same distribution), 0 bytes otherwise.

    Raises:
      ProblemError: a value is out of range.
    """

    least: int = 16
    most: int = 2048
    workspace: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= 2**40:
            raise ProblemError(f"bytes are from {self.least} to {self.most}: must be from 1 to 2^40, ascending")
        if not 0 <= self.workspace <= 1:
            raise ProblemError(f"workspace is {self.workspace}: must be from 0 to 1")


LOG_UNIFORM = Bytes()


class KnownPeak(NamedTuple):
    """A graph, and its optimum: the least peak memory over all orders on one device, in bytes."""

    graph: ComputationGraph
    peak: int  # bytes, the lower bound of every order
    order: np.ndarray  # [n] int64, ops in an order of that peak


def in_tree(num_ops: int, seed: int, window: int | None = None, sizes: Bytes = LOG_UNIFORM) -> KnownPeak:
    """Generates a random in-tree: every op's output is read by one parent, and the root runs last.

    Args:
      num_ops: at least 1.
      seed: at least 0; trees of different sizes and seeds are independent.
      window: each op's parent is drawn uniformly from this many adjacent ops on the root's side: 1 gives a chain, small
        numbers long thin trees; None draws from all of them (expected depth: log of the number).
      sizes: distribution of the bytes of tensors and workspaces.

    Raises:
      ProblemError: too few ops, a window below 1, or a bad seed.
    """
    rng = generator("in-tree", seed, num_ops, 0 if window is None else window)
    parent = recursive_tree(num_ops, window, rng).tolist()
    last = num_ops - 1  # op i of the recursive tree gets the number last - i, so that the root comes last
    edges = [(last - i, last - p) for i, p in enumerate(parent, start=1)]
    weights = Weights.draw(num_ops, len(edges), sizes, rng)
    own = weights.segments(num_ops, edges)
    parts: list[list[list[Segment]]] = [[] for _ in range(num_ops)]
    for child, target in reversed(edges):
        parts[target].append(series(parallel(parts[child]), [own[child]]))
        parts[child].clear()
    segments = series(parallel(parts[last]), [own[last]])
    return known_peak(f"in-tree-{num_ops}-{seed}", num_ops, edges, weights, segments)


def out_tree(num_ops: int, seed: int, window: int | None = None, sizes: Bytes = LOG_UNIFORM) -> KnownPeak:
    """Generates a random out-tree: the root runs first. For arguments and errors see `in_tree`."""
    rng = generator("out-tree", seed, num_ops, 0 if window is None else window)
    parent = recursive_tree(num_ops, window, rng).tolist()
    edges = list(zip(parent, range(1, num_ops), strict=True))
    weights = Weights.draw(num_ops, len(edges), sizes, rng)
    own = weights.segments(num_ops, edges)
    parts: list[list[list[Segment]]] = [[] for _ in range(num_ops)]
    for source, child in reversed(edges):
        parts[source].append(series([own[child]], parallel(parts[child])))
        parts[child].clear()
    segments = series([own[0]], parallel(parts[0]))
    return known_peak(f"out-tree-{num_ops}-{seed}", num_ops, edges, weights, segments)


def series_parallel(num_ops: int, seed: int, branching: float = 0.5, sizes: Bytes = LOG_UNIFORM) -> KnownPeak:
    """Generates a random series-parallel graph from one source to one sink.

    Two or more ops between two terminals are split into 2 to 4 parallel branches with probability `branching`. Else
    they are in series: one op, drawn uniformly, divides them into the ops before and after it. A branch is not branched
    again directly. A part without ops is an edge.

    Args:
      num_ops: number of ops, including source and sink; at least 2.
      seed: at least 0; graphs of different sizes and seeds are independent.
      branching: probability of a split into branches, see above.
      sizes: distribution of the bytes of tensors and workspaces.

    Raises:
      ProblemError: too few ops, `branching` is not a probability, or a bad seed.
    """
    check_count("num_ops", num_ops, 2)
    if not 0 <= branching <= 1:
        raise ProblemError(f"branching is {branching}: must be from 0 to 1")
    rng = generator("series-parallel", seed, num_ops)
    inner = _draw(range(1, num_ops - 1), branching, rng)
    edges: Edges = []
    _add_edges(inner, 0, num_ops - 1, edges)
    weights = Weights.draw(num_ops, len(edges), sizes, rng)
    own = weights.segments(num_ops, edges)
    segments = series([own[0]], _solve(inner, own), [own[-1]])
    return known_peak(f"series-parallel-{num_ops}-{seed}", num_ops, edges, weights, segments)


def recursive_tree(num_ops: int, window: int | None, rng: np.random.Generator) -> np.ndarray:
    """Draws a random recursive tree: returns the parents (smaller numbers) of ops 1 to n - 1; `window` as in `in_tree`.

    Raises:
      ProblemError: too few ops, or a window below 1.
    """
    check_count("num_ops", num_ops, 1)
    check_count("window", num_ops if window is None else window, 1)
    op = np.arange(1, num_ops)
    return rng.integers(np.zeros_like(op) if window is None else np.maximum(0, op - window), op)


class Planted(NamedTuple):
    """A graph of n ops, and a plan that has the least makespan."""

    graph: ComputationGraph
    makespan: float  # seconds; exact, because all times are integers
    placement: np.ndarray  # [n] int64, device of each op
    order: np.ndarray  # [m] int64, node ids of the ops and the needed transfers (costs/exact), for `Plan.from_order`


def planted(num_ops: int, devices: int, seed: int, inputs: float = 2.0, window: int = 3) -> Planted:
    """Generates a random graph with a planted optimal schedule; each op writes one tensor.

    A tensor that is read on another device has at most as many bytes as there are seconds between producer and reader.
    The optimum therefore also holds for "free" transfers of no latency and at least 1 byte per second.

    Args:
      num_ops: number of ops, at least `devices`.
      devices: number of devices, at least 1.
      seed: at least 0; instances of different sizes and seeds are independent.
      inputs: mean number of tensors that an op reads (Poisson; equal draws are merged).
      window: inputs are drawn uniformly from the window * devices ops that ended last before the reader starts: a
        smaller window leaves fewer good plans.

    Raises:
      ProblemError: a number is out of range.
    """
    check_count("devices", devices, 1)
    check_count("num_ops", num_ops, devices)
    check_count("window", window, 1)
    if not 0 <= inputs <= _MAX_INPUTS:
        raise ProblemError(f"inputs is {inputs}: must be from 0 to {_MAX_INPUTS}")
    rng = generator("planted", seed, num_ops, devices)
    start, end, placement = _schedule(num_ops, devices, rng)
    sources, targets = _edges(start, end, inputs, window * devices, rng)
    slack = np.where(placement[sources] == placement[targets], _MAX_BYTES, start[targets] - end[sources])
    most = np.full(num_ops, _MAX_BYTES)
    np.minimum.at(most, sources, slack)
    num_bytes = rng.integers(0, most + 1)
    reads: list[list[str]] = [[] for _ in range(num_ops)]
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        reads[target].append(f"t{source}")
    ops = tuple(
        Op(f"op{i}", "", float(end[i] - start[i]), tuple(reads[i]), (Tensor(f"t{i}", int(num_bytes[i])),))
        for i in range(num_ops)
    )
    graph = ComputationGraph(f"planted-{num_ops}-{devices}-{seed}", ops)
    return Planted(graph, float(end.max()), placement, _order(num_ops, devices, placement, sources, targets))


class Segment(NamedTuple):
    """A run of consecutive ops: its peak above the live bytes at its start, and its change of the live bytes."""

    hill: int
    net: int
    ops: Ops

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key: segments that may run in any order run by ascending rank."""
        return (True, self.net - self.hill) if self.net >= 0 else (False, self.hill)


def op_segment(op: int, reads: int, writes: int, workspace: int) -> Segment:
    """Returns one op's segment, from bytes: `reads` are live before and freed after it, `writes` stay live."""
    return Segment(writes + workspace, writes - reads, op)


def series(*parts: Iterable[Segment]) -> list[Segment]:
    """Joins the segments of parts that run one after the other; returns segments of ascending rank."""
    joined: list[Segment] = []
    for part in parts:
        for segment in part:
            while joined and joined[-1].rank >= segment.rank:
                before = joined.pop()
                hill = max(before.hill, before.net + segment.hill)
                segment = Segment(hill, before.net + segment.net, (before.ops, segment.ops))
            joined.append(segment)
    return joined


def parallel(parts: Iterable[list[Segment]]) -> list[Segment]:
    """Merges segments of parts that do not depend on one another, each part a result of `series` or `parallel`."""
    return sorted((segment for part in parts for segment in part), key=lambda segment: segment.rank)


def peak(segments: Iterable[Segment]) -> int:
    """Computes the highest number of live bytes that the segments reach, starting from 0."""
    level = highest = 0
    for segment in segments:
        highest = max(highest, level + segment.hill)
        level += segment.net
    return highest


def order(segments: Iterable[Segment]) -> list[int]:
    """Lists the ops of the segments, in the order in which they run."""
    ops: list[int] = []
    for segment in segments:
        left: list[Ops] = [segment.ops]
        while left:  # trees of pairs can be deeper than Python's stack
            item = left.pop()
            if isinstance(item, int):
                ops.append(item)
            else:
                left += (item[1], item[0])
    return ops


class Weights(NamedTuple):
    """Random sizes of the n ops and e edges of a graph."""

    edge_bytes: np.ndarray  # [e] int64
    workspace: np.ndarray  # [n] int64, bytes
    runtime: np.ndarray  # [n] int64, seconds

    @classmethod
    def draw(cls, num_ops: int, num_edges: int, sizes: Bytes, rng: np.random.Generator) -> "Weights":
        """Draws sizes for the given numbers of ops and edges."""
        lowest, highest = np.log(sizes.least), np.log(sizes.most + 1)
        drawn = np.exp(rng.uniform(lowest, highest, num_edges + num_ops)).astype(np.int64)
        drawn = np.clip(drawn, sizes.least, sizes.most)
        has_workspace = rng.random(num_ops) < sizes.workspace
        return cls(drawn[:num_edges], drawn[num_edges:] * has_workspace, rng.integers(1, 10, num_ops))

    def segments(self, num_ops: int, edges: Edges) -> list[Segment]:
        """Returns the segment of each op: `[num_ops]`."""
        reads, writes = [0] * num_ops, [0] * num_ops
        for (source, target), size in zip(edges, self.edge_bytes.tolist(), strict=True):
            writes[source] += size
            reads[target] += size
        sizes = enumerate(zip(reads, writes, self.workspace.tolist(), strict=True))
        return [op_segment(op, *own) for op, own in sizes]


def known_peak(name: str, num_ops: int, edges: Edges, weights: Weights, segments: list[Segment]) -> KnownPeak:
    """Builds the graph of the edges, with the optimum given by `segments` (of the whole graph).

    Ops are numbered in a topological order by the caller; their names are op0, op1 and so on.
    """
    inputs: list[list[str]] = [[] for _ in range(num_ops)]
    outputs: list[list[Tensor]] = [[] for _ in range(num_ops)]
    for k, ((source, target), size) in enumerate(zip(edges, weights.edge_bytes.tolist(), strict=True)):
        inputs[target].append(f"t{k}")
        outputs[source].append(Tensor(f"t{k}", size))
    ops = tuple(
        Op(f"op{i}", "", float(seconds), tuple(inputs[i]), tuple(outputs[i]), workspace_bytes=workspace)
        for i, (seconds, workspace) in enumerate(zip(weights.runtime.tolist(), weights.workspace.tolist(), strict=True))
    )
    graph = ComputationGraph(name, ops)
    return KnownPeak(graph, peak(segments), np.array(order(segments), np.int64))


def _draw(ops: range, branching: float, rng: np.random.Generator, in_branch: bool = False) -> Part:
    """Draws a random part of the ops `ops`, in a topological order. A branch is not branched again directly."""
    if not ops:
        return None
    if len(ops) > 1 and not in_branch and rng.random() < branching:
        branches = int(rng.integers(2, min(_MAX_BRANCHES, len(ops)) + 1))
        cuts = np.sort(rng.choice(np.arange(1, len(ops)), branches - 1, replace=False)).tolist()
        return [_draw(ops[a:b], branching, rng, True) for a, b in zip([0, *cuts], [*cuts, len(ops)], strict=True)]
    middle = int(rng.integers(len(ops)))
    return _draw(ops[:middle], branching, rng), ops[middle], _draw(ops[middle + 1 :], branching, rng)


def _add_edges(part: Part, source: int, target: int, edges: Edges) -> None:
    if part is None:
        edges.append((source, target))
    elif isinstance(part, list):
        for branch in part:
            _add_edges(branch, source, target, edges)
    else:
        before, op, after = part
        _add_edges(before, source, op, edges)
        _add_edges(after, op, target, edges)


def _solve(part: Part, own: list[Segment]) -> list[Segment]:
    """Computes the segments of a part in its best order, given the segments of single ops."""
    if part is None:
        return []
    if isinstance(part, list):
        return parallel(_solve(branch, own) for branch in part)
    before, op, after = part
    return series(_solve(before, own), [own[op]], _solve(after, own))


def _schedule(num_ops: int, devices: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws start and end (whole seconds) and device of every op, by ascending start: three `[n] int64`."""
    counts = 1 + rng.multinomial(num_ops - devices, np.full(devices, 1 / devices))
    makespan = max(int(counts.max()), round(_MEAN_SECONDS * num_ops / devices))
    by_device = []
    for device, count in enumerate(counts.tolist()):
        cuts = np.sort(rng.choice(np.arange(1, makespan), count - 1, replace=False))
        ends = np.append(cuts, makespan)
        by_device.append(np.stack([np.insert(cuts, 0, 0), ends, np.full(count, device)]))
    pieces = np.concatenate(by_device, axis=1).astype(np.int64)
    start, end, placement = pieces[:, np.argsort(pieces[0], kind="stable")]
    return start, end, placement


def _edges(
    start: np.ndarray, end: np.ndarray, inputs: float, window: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws distinct edges from ops to ops that start at their end or later: two `[e] int64`, sorted by target."""
    by_end = np.argsort(end, kind="stable")
    ended = np.searchsorted(end[by_end], start, side="right")  # [n] number of ops that may come before each
    targets = np.repeat(np.arange(len(start)), rng.poisson(inputs, len(start)) * (ended > 0))
    back = rng.integers(np.minimum(window, ended[targets]))
    sources = by_end[ended[targets] - 1 - back]
    pairs = np.unique(targets * len(start) + sources)
    return pairs % len(start), pairs // len(start)


def _order(num_ops: int, devices: int, placement: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the ops by their starts, each followed by the transfers of its tensor: `[m] int64` node ids."""
    away = placement[sources] != placement[targets]
    transfers = np.unique(sources[away] * devices + placement[targets[away]])  # tensor i is op i's
    nodes = np.concatenate([np.arange(num_ops), num_ops + transfers])
    return nodes[np.argsort(np.concatenate([np.arange(num_ops), transfers // devices]), kind="stable")]
