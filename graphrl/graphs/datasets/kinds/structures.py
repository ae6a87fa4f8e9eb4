"""Structures of the family `kinds`: random DAGs, layered graphs, trees, unrolled recurrences, networks of blocks.

A `Structure` has ops, tensors and edges as arrays, without run times and bytes. Ops that compute the same (an op of a
cell, in all time steps) share a class, and so do tensors of one shape: the costs are drawn per class.

`mirrored` makes a training step of a structure: every op has a counterpart in the backward pass, in reverse order.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from graphrl.graphs.datasets.known_optima import recursive_tree
from graphrl.graphs.datasets.layered import Layered, layered_edges
from graphrl.graphs.datasets.regal_like import barabasi_albert, erdos_renyi, stochastic_block, watts_strogatz
from graphrl.graphs.datasets.seeds import log_uniform
from graphrl.graphs.topology import distinct

_MANY = 300  # ops from which the edges per op decrease, so that a large graph is generated in milliseconds
_BIDIRECTIONAL = 0.3  # probability
_MOST_CELL = 24  # ops of a recurrent cell
_BRANCHES, _LENGTH = (2, 5), (1, 6)  # ranges of the branches of a block, and of the ops of a branch


class Structure(NamedTuple):
    """Ops in a topological order, and their tensors: n ops, t tensors, e uses, f control edges.

    Attributes:
      producer: `[t]` op that writes each tensor, ascending.
      use_tensor, use_op: `[e]` each, the tensor and the reader of each use; no pair twice.
      control_source, control_target: `[f]` each, ops.
      op_class: `[n]`; ops of one class have the same run time, workspace and weights.
      tensor_class: `[t]`; tensors of one class have the same bytes.
      first: `[n]` bool, False for the repetitions of an op that share its weights.
    """

    producer: np.ndarray
    use_tensor: np.ndarray
    use_op: np.ndarray
    control_source: np.ndarray
    control_target: np.ndarray
    op_class: np.ndarray
    tensor_class: np.ndarray
    first: np.ndarray


def random_dag(n: int, rng: np.random.Generator) -> Structure:
    """Draws a graph of one of the four models of `regal-like`, directed by a random order or by its own numbering.

    Half of the graphs have a source and a sink, as in `regal-like`.
    """
    has_ends = bool(rng.random() < 0.5)
    inner = n - 2 * has_ends
    degree = log_uniform(rng, 2.0, max(3.0, 12.0 * min(1.0, (_MANY / n) ** 0.5)))
    half = max(1, round(degree / 2))
    model = int(rng.integers(4))
    if model == 0:
        pairs = erdos_renyi(inner, min(1.0, degree / inner), rng)
    elif model == 1:
        pairs = barabasi_albert(inner, min(half, inner - 1), rng)
    elif model == 2:
        pairs = watts_strogatz(inner, min(2 * half, inner - 1), rng.uniform(0.0, 0.5), rng)
    else:
        blocks, within = int(rng.integers(2, 9)), rng.uniform(0.6, 0.98)
        inside, outside = inner / blocks, inner - inner / blocks
        probability = min(1.0, degree * within / inside)
        pairs = stochastic_block(inner, blocks, probability, min(1.0, degree * (1 - within) / outside), rng)
    number = rng.permutation(inner) if rng.random() < 0.75 else np.arange(inner)
    pairs = np.sort(number[pairs], axis=1) + has_ends
    source, target = pairs[:, 0], pairs[:, 1]
    if has_ends:
        ops = np.arange(1, n - 1)
        heads, tails = (ops[np.bincount(side, minlength=n)[1 : n - 1] == 0] for side in (target, source))
        source = np.concatenate([np.zeros(len(heads), np.int64), source, tails])
        target = np.concatenate([heads, target, np.full(len(tails), n - 1)])
    most = int(rng.integers(1, 4)) if rng.random() < 0.5 else 0
    return joined(n, source, target, rng, most_tensors=most)


def layered(n: int, rng: np.random.Generator) -> Structure:
    """Draws the edges of a layered graph (`layered.py`) of random width and density; half have costs per layer."""
    width = rng.uniform(0.05, 0.6)
    parameters = Layered(
        least_width=width,
        most_width=width,
        size_variability=rng.uniform(0.0, 1.0),
        edge_density=log_uniform(rng, 0.01, 0.3) * min(1.0, (_MANY / n) ** 0.5),
        skip_density=rng.uniform(0.0, 0.3),
    )
    layer, source, target = layered_edges(n, parameters, rng)
    return joined(n, source, target, rng, layer if rng.random() < 0.5 else None)


def in_tree(n: int, rng: np.random.Generator) -> Structure:
    """Draws an in-tree, thin or wide: every op's output has one reader."""
    parent = recursive_tree(n, max(1, round(log_uniform(rng, 1.5, n))), rng)
    return joined(n, np.arange(n - 2, -1, -1), n - 1 - parent, rng)


def out_tree(n: int, rng: np.random.Generator) -> Structure:
    """Draws an out-tree, thin or wide; an op's children read one tensor, or each a separate one."""
    parent = recursive_tree(n, max(1, round(log_uniform(rng, 1.5, n))), rng)
    return joined(n, parent, np.arange(1, n), rng, separate=bool(rng.random() < 0.5))


def recurrent(n: int, rng: np.random.Generator) -> Structure:
    """Draws an unrolled recurrence: stacked layers of cells of a few random ops, one after the other in time.

    A cell reads the output of the layer below at its time and one or two states of its layer. Layers are bidirectional
    in some graphs: one direction runs backwards in time, and the layer above reads both. Ops are listed by layer or,
    with one direction, by time. The last steps are cut off where the number of ops is reached.
    """
    directions = 2 if rng.random() < _BIDIRECTIONAL else 1
    stack = int(rng.integers(1, 5))
    size = int(rng.integers(2, max(3, min(_MOST_CELL, n // (2 * stack * directions)) + 1)))
    steps = max(2, -(-n // (stack * directions * size)))
    states = int(rng.integers(1, 3))
    cell = _cell(size, states, rng)
    by_time = directions == 1 and rng.random() < 0.5
    shape = (steps, stack, 1, size) if by_time else (stack, steps, directions, size)
    op = np.arange(np.prod(shape)).reshape(shape)  # [stack, directions, steps, size] after the transposition
    op = op.transpose(1, 2, 0, 3) if by_time else op.transpose(0, 2, 1, 3)
    state = [size - 1, int(rng.integers(size))]
    edges = []
    for reader, reads in enumerate(cell):
        for read in reads:
            if read >= 0:
                edges.append((op[..., read], op[..., reader]))
            elif read == -1:  # the layer below, at the same time
                for one, other in itertools.product(range(directions), repeat=2):
                    below = op[:-1, one, :: 1 if one == other else -1, -1]
                    edges.append((below, op[1:, other, :, reader]))
            else:
                edges.append((op[:, :, :-1, state[-2 - read]], op[:, :, 1:, reader]))
    source, target = (np.concatenate([side.ravel() for side in sides]) for sides in zip(*edges, strict=True))
    kind = np.broadcast_to(np.arange(stack * directions * size).reshape(stack, directions, 1, size), op.shape)
    first = np.broadcast_to((np.arange(steps) == 0)[:, None], op.shape)
    by_op = np.argsort(op, axis=None)[:n]
    inside = target < n
    drawn = joined(n, source[inside], target[inside], rng, kind.ravel()[by_op])
    return drawn._replace(first=first.ravel()[by_op])


def blocks(n: int, rng: np.random.Generator) -> Structure:
    """Draws a chain of blocks of parallel branches with edges across the branches, and skips over blocks.

    Of the first block, and most others, one op of a branch is also read by a later op of another one, so that the graph
    is not series-parallel.
    """
    crossing, skipping = rng.uniform(0.5, 1.0), rng.uniform(0.0, 0.5)
    edges: list[tuple[int, int]] = []
    joins = [0]
    end = 1  # number of ops
    while end < n:
        fork = joins[-1]
        lengths = rng.integers(_LENGTH[0], _LENGTH[1] + 1, int(rng.integers(_BRANCHES[0], _BRANCHES[1] + 1))).tolist()
        is_first = len(joins) == 1
        if is_first or rng.random() < crossing:
            lengths[:2] = (2, 2) if is_first else (max(2, length) for length in lengths[:2])
        starts = [end + sum(lengths[:i]) for i in range(len(lengths))]
        join = end + sum(lengths)
        for start, length in zip(starts, lengths, strict=True):
            edges += itertools.pairwise([fork, *range(start, start + length), join])
        if min(lengths[:2]) >= 2 and (is_first or rng.random() < crossing):
            edges.append((starts[0] + int(rng.integers(lengths[0] - 1)), starts[1] + int(rng.integers(1, lengths[1]))))
        if rng.random() < skipping:
            edges.append((joins[int(rng.integers(len(joins)))], join))
        joins.append(join)
        end = join + 1
    source, target = np.array([edge for edge in dict.fromkeys(edges) if edge[1] < n]).T
    return joined(n, source, target, rng)


def mirrored(forward: Structure, n: int, rng: np.random.Generator) -> Structure:
    """Makes a training step of n ops from the structure of its forward pass, which has n / 2 ops, rounded up.

    The backward op of v reads a gradient of each of v's outputs from each reader's backward op, and some of the tensors
    that v reads (its activations); it writes a gradient for each of these, of the same bytes. The backward op of an op
    without readers reads what this op writes. If n is odd, the first op has no counterpart.
    """
    f, t, e = len(forward.op_class), len(forward.producer), len(forward.use_op)
    back = 2 * f - 1 - np.arange(f)
    by_writer = np.argsort(back[forward.use_op], kind="stable")  # uses, in the order of their gradients' writers
    tensor, reader = forward.use_tensor[by_writer], forward.use_op[by_writer]
    gradient, writer = t + np.arange(e), forward.producer[tensor]
    saved = rng.random(int(forward.op_class.max()) + 1) < rng.uniform(0.3, 1.0)
    is_saved = saved[forward.op_class[reader]]
    is_end = np.bincount(forward.use_tensor, minlength=t) == 0  # [t], tensors without readers
    alone = np.setdiff1d(np.arange(f), np.concatenate([forward.producer, forward.control_source]))
    ends = np.flatnonzero(is_end)
    return _up_to(
        n,
        Structure(
            np.concatenate([forward.producer, back[reader]]),
            np.concatenate([forward.use_tensor, gradient, tensor[is_saved], ends]),
            np.concatenate([forward.use_op, back[np.concatenate([writer, reader[is_saved], forward.producer[ends]])]]),
            np.concatenate([forward.control_source, back[forward.control_target], alone]),
            np.concatenate([forward.control_target, back[forward.control_source], back[alone]]),
            np.concatenate([forward.op_class, forward.op_class[::-1] + 1 + forward.op_class.max(initial=0)]),
            np.concatenate([forward.tensor_class, forward.tensor_class[tensor]]),
            np.concatenate([forward.first, np.zeros(f, bool)]),
        ),
    )


def joined(
    n: int,
    source: np.ndarray,
    target: np.ndarray,
    rng: np.random.Generator,
    op_class: np.ndarray | None = None,
    *,
    most_tensors: int = 0,
    separate: bool = False,
) -> Structure:
    """Draws tensors for the edges of a graph; some edges become control edges in some graphs.

    Args:
      n: number of ops, in a topological order.
      source, target: `[e]` ops of each edge, in any order; equal edges are merged.
      rng: random numbers.
      op_class: see `Structure`; None for a class of each op.
      most_tensors: if above 0, an op writes 0 to this many tensors, and an edge reads a random one of them.
      separate: True for a separate tensor for each edge.
    """
    codes = distinct(source.astype(np.int64) * n + target)
    source, target = codes // n, codes % n
    control = rng.uniform(0.0, 0.2) if rng.random() < 0.25 else 0.0
    count = rng.integers(most_tensors + 1, size=n) if most_tensors else np.ones(n, np.int64)
    count[0] = max(1, count[0])  # at least one tensor
    if separate:
        count = np.maximum(1, np.bincount(source, minlength=n))
    begin = np.cumsum(count) - count
    if separate:
        port = np.arange(len(source)) - np.searchsorted(source, source)
    else:
        port = rng.integers(np.maximum(1, count[source]))
    is_control = (count[source] == 0) | (rng.random(len(source)) < control)
    producer = np.repeat(np.arange(n), count)
    op_class = np.arange(n) if op_class is None else op_class
    is_data = ~is_control
    return Structure(
        producer,
        (begin[source] + port)[is_data],
        target[is_data],
        source[is_control],
        target[is_control],
        op_class,
        op_class[producer] if op_class.max() < n - 1 else np.arange(len(producer)),
        np.ones(n, bool),
    )


def _up_to(n: int, whole: Structure) -> Structure:
    """Returns the first n ops of a structure."""
    tensors, data, control = whole.producer < n, whole.use_op < n, whole.control_target < n
    return Structure(
        whole.producer[tensors],
        whole.use_tensor[data],
        whole.use_op[data],
        whole.control_source[control],
        whole.control_target[control],
        whole.op_class[:n],
        whole.tensor_class[tensors],
        whole.first[:n],
    )


def _cell(size: int, states: int, rng: np.random.Generator) -> list[list[int]]:
    """Draws the reads of each op of a cell: earlier ops, -1 for the input, -2 and -3 for the states.

    The first op reads the input and a state. The last op reads all ops that no other one reads.
    """
    reads = [[-1, -2]]
    for op in range(1, size):
        least = -1 - states if rng.random() < 0.3 else 0
        reads.append(sorted({int(read) for read in rng.integers(least, op, int(rng.integers(1, 3)))}))
    unread = set(range(size - 1)) - {read for row in reads for read in row}
    reads[-1] = sorted(unread.union(reads[-1]))
    return reads


STRUCTURES: dict[str, Callable[[int, np.random.Generator], Structure]] = {
    "random": random_dag,
    "layered": layered,
    "in-tree": in_tree,
    "out-tree": out_tree,
    "recurrent": recurrent,
    "blocks": blocks,
}
