"""Excerpts of the training steps in the zoo's training split, for the family `kinds`.

A program is coarsened a little, and a graph is a number of ops that follow each other in XLA's order. Tensors that the
rest of the program reads stay to the end; those that it writes are not among the tensors of the graph.

Ops are merged in rounds, the smallest first. Each round merges only pairs that cannot close a cycle, even together: an
op and the only one that reads from it, if it reads from no other; where these would become too large, an op and the
next one in the order, if it reads from it; then an op and its only predecessor, or its only successor; and last, an op
and the next one. The tensors of a cluster become one for each set of readers. The number of edges per op and the
parallelism therefore stay about those of the program. Programs that are coarsened more become chains.

A program is read once in a process (0.1 s).
"""

import functools
from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import zoo
from graphrl.graphs.topology import distinct

PROGRAMS = "training/hlo/train-split"  # in the zoo that ships
_SCALES = 1.0, 0.6, 0.36  # numbers of ops to which programs are coarsened, relative to their own
_FURTHER = 1.6  # ratio to which an excerpt is coarsened again, at most
_USES = 0.5, 10.0  # range of uses per op: more where XLA recomputes sums of all layers' outputs, less among constants
_BALANCE = 4.0  # ratio of the most ops in a cluster to the mean
_ROUND = 0.4  # of the pairs that a round may merge, those that it merges: the others wait for smaller neighbours


class Program(NamedTuple):
    """A program of n ops in a topological order: t tensors, e uses, f control edges.

    Attributes:
      name: name of the program in the zoo.
      runtime, workspace, weights: `[n] float64` each, seconds and bytes.
      members: `[n]` number of ops of the program that each op stands for.
      producer, bytes, kept: `[t]` each: op, bytes (float64), and whether the tensor is an output of the program.
      use_tensor, use_op: `[e]` each; no pair twice.
      control_source, control_target: `[f]` each, ops; no pair twice.
    """

    name: str
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
    """Draws an excerpt of n ops of a program.

    Raises:
      ProblemError: no program has that many ops.
    """
    if n > most_ops():
        raise ProblemError(f"num_ops is {n}: must be at most {most_ops()}, the ops of the largest program of the zoo")
    names = [entry.name for entry in _entries() if entry.ops >= n]
    for index in rng.permutation(len(names)).tolist():
        scales = [program for program in _scales(names[index]) if len(program.runtime) >= n]
        program = scales[int(rng.integers(len(scales)))]
        program = coarsened(_excerpt(program, round(n * rng.uniform(1.0, _FURTHER)), rng), n, rng)
        if _USES[0] * n <= len(program.use_op) <= _USES[1] * n:
            break
    return program


def draw_costs(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws ops of a program with replacement: returns their run times, and mean bytes of a tensor, `[count]` each."""
    names = [entry.name for entry in _entries()]
    program = _scales(names[int(rng.integers(len(names)))])[0]
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
def _scales(name: str) -> tuple[Program, ...]:
    """Loads a program at all scales, largest first."""
    program, rng = load_program(name), np.random.default_rng(0)
    return tuple(coarsened(program, int(len(program.runtime) * scale), rng) for scale in _SCALES)


def load_program(name: str) -> Program:
    """Loads a program of the zoo by its name."""
    a = zoo.load(name, folder=zoo.DATA).graph.arrays
    by_writer = np.argsort(a.rank[a.producer], kind="stable")
    tensor = np.empty(a.num_tensors, np.int64)
    tensor[by_writer] = np.arange(a.num_tensors)
    order = a.topological
    return Program(
        name,
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


def coarsened(program: Program, n: int, rng: np.random.Generator) -> Program:
    """Merges ops until at most n are left."""
    while (excess := len(program.runtime) - n) > 0:
        program = _merged(program, _clusters(program, excess, rng))
    return program


def _excerpt(program: Program, n: int, rng: np.random.Generator) -> Program:
    """Draws n ops that follow each other (all, if there are fewer)."""
    first = int(rng.integers(max(0, len(program.runtime) - n) + 1))
    ops = slice(first, first + n)
    is_inside = (program.producer >= first) & (program.producer < first + n)
    writer, reader = program.producer[program.use_tensor], program.use_op
    kept = program.kept.copy()
    kept[program.use_tensor[(writer < first + n) & (reader >= first + n)]] = True
    uses = (writer >= first) & (reader < first + n)
    control = (program.control_source >= first) & (program.control_target < first + n)
    return Program(
        program.name,
        program.runtime[ops],
        program.workspace[ops],
        program.weights[ops],
        program.members[ops],
        program.producer[is_inside] - first,
        program.bytes[is_inside],
        kept[is_inside],
        (np.cumsum(is_inside) - 1)[program.use_tensor[uses]],
        program.use_op[uses] - first,
        program.control_source[control] - first,
        program.control_target[control] - first,
    )


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
        (source, target, (after[source] == 1) & (before[target] == 1)),
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
        program.name,
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
