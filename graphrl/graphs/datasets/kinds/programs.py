"""Programs of the zoo's training split, coarsened to a number of ops, for the family `kinds`.

Ops are listed in XLA's order, and merged in rounds, the smallest first. Each round merges only pairs that cannot close
a cycle, even together: an op and the next one in the order, if it reads from it; where these would become too large, an
op and its only predecessor, or its only successor; and last, an op and the next one. The tensors of a cluster become
one for each set of readers. The number of edges per op therefore stays about that of the program.

A program is read once in a process (0.1 s), and is kept at a few sizes; a graph is coarsened from the next larger one.
"""

import functools
from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import zoo
from graphrl.graphs.topology import distinct

PROGRAMS = "hlo/train-split"  # in the zoo that ships
_LEAST = 16  # ops of the smallest size that is kept
_MOST_USES = 10  # uses per op: a few programs have more, where XLA recomputes sums of all layers' outputs
_BALANCE = 4.0  # ratio of the most ops in a cluster to the mean
_STEP = 0.6  # ratio of one size to the next larger one
_ROUND = 0.4  # of the ops that a round may merge, those that it merges: the others wait for lighter neighbours


class Program(NamedTuple):
    """A program of n ops in a topological order: t tensors, e uses, f control edges.

    Attributes:
      runtime, workspace, weights: `[n] float64` each, seconds and bytes.
      members: `[n]` number of ops of the program that each op stands for.
      producer, bytes, kept: `[t]` each: op, bytes (float64), and whether the tensor is an output of the program.
      use_tensor, use_op: `[e]` each; no pair twice.
      control_source, control_target: `[f]` each, ops; no pair twice.
    """

    runtime: np.ndarray
    workspace: np.ndarray
    weights: np.ndarray
    members: np.ndarray
    producer: np.ndarray
    bytes: np.ndarray
    kept: np.ndarray
    use_tensor: np.ndarray
    use_op: np.ndarray
    control_source: np.ndarray
    control_target: np.ndarray


def draw_program(n: int, rng: np.random.Generator) -> Program:
    """Draws a program that has at least n ops, coarsened to n.

    Raises:
      ProblemError: no program has that many ops.
    """
    if n > most_ops():
        raise ProblemError(f"num_ops is {n}: must be at most {most_ops()}, the ops of the largest program of the zoo")
    names = [entry.name for entry in _entries() if entry.ops >= n]
    for index in rng.permutation(len(names)).tolist():
        larger = min((one for one in _sizes(names[index]) if len(one.runtime) >= n), key=lambda one: len(one.runtime))
        if len(larger.use_op) <= _MOST_USES * len(larger.runtime):
            break
    return _coarsened(larger, n, rng)


def draw_costs(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws ops of a program with replacement: returns their run times, and mean bytes of a tensor, `[count]` each."""
    names = [entry.name for entry in _entries()]
    program = _sizes(names[int(rng.integers(len(names)))])[0]
    tensors = np.bincount(program.producer, minlength=len(program.runtime))
    row = rng.choice(np.flatnonzero(tensors), count)
    size = np.bincount(program.producer, program.bytes, minlength=len(tensors))[row] / tensors[row]
    return program.runtime[row], size


@functools.cache
def most_ops() -> int:
    """Returns the number of ops of the largest program."""
    return max(entry.ops for entry in _entries())


@functools.cache
def _entries() -> tuple[zoo.Entry, ...]:
    return zoo.select(PROGRAMS, zoo.DATA)  # whatever GRAPHRL_ZOO is: a seed gives one graph


@functools.cache
def _sizes(name: str) -> tuple[Program, ...]:
    """Loads a program; returns it and its coarser versions, largest first."""
    graph = zoo.load(name, folder=zoo.DATA).graph
    a = graph.arrays
    by_writer = np.argsort(a.rank[a.producer], kind="stable")
    tensor = np.empty(a.num_tensors, np.int64)
    tensor[by_writer] = np.arange(a.num_tensors)
    order = a.topological
    program = Program(
        a.runtime[order],
        a.workspace_bytes[order].astype(float),
        a.weight_bytes[order].astype(float),
        np.ones(a.num_ops, np.int64),
        a.rank[a.producer][by_writer],
        a.tensor_bytes[by_writer].astype(float),
        a.kept[by_writer],
        tensor[a.use_tensor],
        a.rank[a.use_op],
        a.rank[a.control_source],
        a.rank[a.control_target],
    )
    rng = np.random.default_rng(0)
    sizes = [program]
    while len(sizes[-1].runtime) * _STEP >= _LEAST:
        sizes.append(_coarsened(sizes[-1], int(len(sizes[-1].runtime) * _STEP), rng))
    return tuple(sizes)


def _coarsened(program: Program, n: int, rng: np.random.Generator) -> Program:
    """Merges ops, the smallest clusters first, until n are left."""
    while (excess := len(program.runtime) - n) > 0:
        program = _merged(program, _clusters(program, excess, rng))
    return program


def _clusters(program: Program, most: int, rng: np.random.Generator) -> np.ndarray:
    """Chooses at most `most` merges of one round: `[n]` the cluster of each op, numbered in a topological order."""
    n = len(program.runtime)
    codes = distinct(
        np.concatenate(
            [
                program.producer[program.use_tensor] * n + program.use_op,
                program.control_source * n + program.control_target,
            ]
        )
    )
    source, target = codes // n, codes % n
    before, after = np.bincount(target, minlength=n), np.bincount(source, minlength=n)
    op = np.arange(n - 1)
    rounds = (  # pairs of ops, and which of them may be merged, all at once
        (source, target, target == source + 1),
        (target, source, before[target] == 1),
        (source, target, after[source] == 1),
        (op, op + 1, np.ones(n - 1, bool)),
    )
    limit = _BALANCE * program.members.sum() / (n - most)  # some neighbours are below it
    for one, other, is_safe in rounds:
        one, other = one[is_safe], other[is_safe]
        size = program.members[one] + program.members[other]
        fits = np.flatnonzero(size <= limit)
        if len(fits):
            break
    lightest = fits[np.argsort(size[fits] * rng.uniform(0.5, 1.5, len(fits)))]
    chosen = lightest[: min(most, max(1, int(_ROUND * len(fits))))]
    into = np.arange(n)  # the op that each op is merged into
    into[one[chosen]] = other[chosen]
    while (further := into[into]).tolist() != into.tolist():
        into = further
    return np.unique(into, return_inverse=True)[1]


def _merged(program: Program, cluster: np.ndarray) -> Program:
    """Merges the ops of each cluster, and its tensors that have the same readers: their bytes are added.

    Tensors that only their own cluster reads are dropped.
    """
    n = int(cluster.max()) + 1
    workspace = np.zeros(n)
    np.maximum.at(workspace, cluster, program.workspace)
    writer, reader = cluster[program.producer], cluster[program.use_op]
    is_outside = writer[program.use_tensor] != reader
    t = len(writer)
    stays = program.kept | (np.bincount(program.use_tensor, minlength=t) == 0)
    stays[program.use_tensor[is_outside]] = True
    uses = distinct(program.use_tensor[is_outside] * n + reader[is_outside])
    use_tensor, use_op = uses // n, uses % n
    code = np.random.default_rng(0).integers(2**63, size=2 * n + 1, dtype=np.uint64)
    readers = code[writer] + code[2 * n] * program.kept  # [t] a hash of writer, readers and kept, modulo 2^64
    np.add.at(readers, use_tensor, code[n + use_op])
    old = np.flatnonzero(stays)
    _, first, group = np.unique(readers[old], return_index=True, return_inverse=True)
    by_writer = np.argsort(writer[old[first]], kind="stable")
    place = np.empty(len(first), np.int64)
    place[by_writer] = np.arange(len(first))
    number = np.full(t, -1)
    number[old] = place[group]
    uses = distinct(number[use_tensor] * n + use_op)
    before, after = cluster[program.control_source], cluster[program.control_target]
    control = distinct((before * n + after)[before != after])
    tensors = old[first][by_writer]
    return Program(
        np.bincount(cluster, program.runtime),
        workspace,
        np.bincount(cluster, program.weights),
        np.bincount(cluster, program.members).astype(np.int64),
        writer[tensors],
        np.bincount(number[old], program.bytes[old]),
        program.kept[tensors],
        uses // n,
        uses % n,
        control // n,
        control % n,
    )
