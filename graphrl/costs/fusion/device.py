"""Fusion in pure JAX: problems as fixed-size arrays, the ops that priorities inline, and run times of kernels.

Functions take one problem; `jax.vmap` over problems or over priorities.

Letters used in shapes: N ops, T tensors and S steps, padded; at most R tensors that an op reads, and M ops and A
arguments of a kernel; g problems in a batch.

Only ops whose kernels can compute other ops have turns on the device. A turn has a **step** for each tensor that the op
reads from an op that may be inlined, at least one. A round of turns is a scan over steps. It carries a row of at most M
members and one of at most A arguments for each op, and writes them in place. So memory is linear in ops. At its turn an
op takes in the inlined ops that it reads, one a step, from the highest priority down. It remembers the last state that,
with the remaining ones as arguments, keeps the limits. Members and arguments only grow, so a full row stays too large.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.indexing import filled, put, take
from graphrl.costs.fusion.problem import GATHERING, FusionProblem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import bucket

_HIGHEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class FusionSizes:
    """Array sizes of a padded problem: problems of equal sizes and limits share one compiled program."""

    ops: int
    tensors: int  # tensors that ops write
    externals: int
    steps: int
    reads: int

    def covers(self, other: "FusionSizes") -> bool:
        """True if a problem of sizes `other` fits."""
        return all(a >= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedFusion:
    """One problem or, with a leading axis g on every field, a batch of problems, as arrays; NumPy before first use.

    Of T tensors the first are those that ops write, and external inputs follow after their padding. Op N and tensor T
    mean none. Seconds are float32.
    """

    launch: jax.Array  # [] float32, seconds
    legal: jax.Array  # [N + 1] bool, True if the op may be inlined; False for padding
    works: jax.Array  # [N + 1] bool, True if the op does more than rename
    compute: jax.Array  # [N + 1] float32, seconds of its operations
    write: jax.Array  # [N + 1] float32, seconds that writing its outputs takes
    alone: jax.Array  # [N] float32, seconds of a kernel of this op alone; 0 for padding
    read: jax.Array  # [T + 1] float32, seconds that reading a tensor takes; 0 for padding
    producer: jax.Array  # [T + 1] int32, op; N for external inputs and padding
    reads: jax.Array  # [N + 1, R] int32, tensors, for ops that have a turn; T for padding
    step_op: jax.Array  # [S] int32, op that has the turn, in topological order; N for padding
    step_first: jax.Array  # [S] bool, True for the first step of a turn
    step_last: jax.Array  # [S] bool, True for the last step of a turn
    max_ops: int = dataclasses.field(metadata={"static": True})
    max_arguments: int = dataclasses.field(metadata={"static": True})


def sizes(problem: FusionProblem) -> FusionSizes:
    """Returns the real sizes of a problem."""
    turns, count = _turns(problem)
    reads = np.diff(problem.read_start)[turns].max(initial=0)
    tensors = problem.graph.arrays.num_tensors
    externals = len(problem.producer) - tensors
    return FusionSizes(problem.num_ops, tensors, externals, int(count.sum()), int(reads))


def common_sizes(problems: Sequence[FusionProblem]) -> FusionSizes:
    """Returns the bucketed sizes that fit all given problems."""
    columns = zip(*(dataclasses.astuple(sizes(problem)) for problem in problems), strict=True)
    return FusionSizes(*(bucket(max(column)) for column in columns))


def pad(problem: FusionProblem, to: FusionSizes | None = None) -> PaddedFusion:
    """Converts a problem to fixed-size NumPy arrays.

    Args:
      to: sizes to pad to; by default the problem's own buckets.

    Raises:
      ProblemError: `to` is too small for the problem.
    """
    to = common_sizes([problem]) if to is None else to
    if not to.covers(sizes(problem)):
        raise ProblemError(
            f"graph {problem.graph.name!r} has fusion sizes {sizes(problem)}, more than the {to} it is padded to"
        )
    chip, tensors = problem.chip, problem.graph.arrays.num_tensors
    every = to.tensors + to.externals
    place = np.arange(len(problem.producer)) + (np.arange(len(problem.producer)) >= tensors) * (to.tensors - tensors)
    read, producer = np.zeros(every + 1), np.full(every + 1, to.ops)
    read[place] = problem.tensor_bytes / chip.bytes_per_second
    producer[place] = np.where(problem.producer < 0, to.ops, problem.producer)
    turns, count = _turns(problem)
    reads = np.full((to.ops + 1, to.reads), every)
    for op in turns.tolist():
        of_op = place[problem.read(op)]
        reads[op, : len(of_op)] = of_op
    steps = int(count.sum())
    step_op = np.full(to.steps, to.ops)
    step_op[:steps] = np.repeat(turns, count)
    changes = step_op[1:] != step_op[:-1]

    compute = problem.flops / chip.flops_per_second
    moved = np.zeros(problem.num_ops)
    np.add.at(
        moved, np.repeat(np.arange(problem.num_ops), np.diff(problem.read_start)), read[place[problem.read_tensor]]
    )
    write = problem.output_bytes / chip.bytes_per_second
    alone = np.where(problem.renames, 0.0, chip.launch_seconds + np.maximum(compute, moved + write))
    fields: dict[str, np.ndarray | np.generic] = dict(  # noqa: C408  (reads as the constructor that it fills)
        launch=np.float32(chip.launch_seconds),
        legal=filled(problem.legal, to.ops + 1, np.bool_),
        works=filled(~problem.renames, to.ops + 1, np.bool_),
        compute=filled(compute, to.ops + 1, np.float32),
        write=filled(write, to.ops + 1, np.float32),
        alone=filled(alone, to.ops, np.float32),
        read=read.astype(np.float32),
        producer=producer.astype(np.int32),
        reads=reads.astype(np.int32),
        step_op=step_op.astype(np.int32),
        step_first=np.append(True, changes),
        step_last=np.append(changes, True),
    )
    # jax accepts NumPy arrays in place of its own
    return PaddedFusion(**fields, max_ops=problem.max_ops, max_arguments=problem.max_arguments)  # type: ignore[arg-type]


def pad_batch(problems: Sequence[FusionProblem], to: FusionSizes | None = None) -> PaddedFusion:
    """Pads problems of equal limits to common sizes, and stacks them along a new leading axis g."""
    to = common_sizes(problems) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(pad(problem, to) for problem in problems))


def _turns(problem: FusionProblem) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ops with a turn on the device, in topological order, and their numbers of steps: two `[k]` int64."""
    source = problem.producer[problem.read_tensor]
    inside = (source >= 0) & problem.legal[source]
    steps = np.bincount(_readers(problem)[inside], minlength=problem.num_ops)
    gathers = np.array([op.type in GATHERING for op in problem.graph.ops], bool)
    gathers &= np.diff(problem.read_start) <= problem.max_arguments
    turns = problem.graph.arrays.topological.astype(np.int64)
    turns = turns[(gathers & ((steps > 0) | problem.legal))[turns]]
    return turns, np.maximum(1, steps[turns])


def _readers(problem: FusionProblem) -> np.ndarray:
    """Returns the op of each entry of `read_tensor`: `[e]` int64."""
    return np.repeat(np.arange(problem.num_ops), np.diff(problem.read_start))


class DeviceKernels(NamedTuple):
    """Kernels of one problem, by root; rows of inlined ops, and of ops that take no other op in, are meaningless."""

    inlined: jax.Array  # [N] bool
    seconds: jax.Array  # [N] float32, of the kernel of each root; 0 for inlined ops and padding
    members: jax.Array  # [N, M] int32, ops; N where there are no more
    arguments: jax.Array  # [N, A] int32, tensors; T where there are no more


class _Gathered(NamedTuple):
    """Members and arguments that an op gathers at its turn."""

    members: jax.Array  # [M] int32, then N
    arguments: jax.Array  # [A] int32, then T
    num_members: jax.Array  # [] int32, exact as long as all fit
    num_arguments: jax.Array  # [] int32, exact as long as all fit
    compute: jax.Array  # [] float32, seconds of all operations
    read: jax.Array  # [] float32, seconds that reading the arguments takes
    works: jax.Array  # [] bool, True if a member does more than rename
    least: jax.Array  # [] int32, rank of the op that was taken in last: the least so far


class _Round(NamedTuple):
    """State of a round of turns.

    The decisions of a turn are written at the start of the next one, before any read: XLA copies an array that is read
    before it is written, if the written values do not depend on the reads.
    """

    inlined: jax.Array  # [N + 1] bool
    members: jax.Array  # [N + 1, M] int32
    arguments: jax.Array  # [N + 1, A] int32
    seconds: jax.Array  # [N + 1] float32
    now: _Gathered
    best: _Gathered  # the last state that keeps the limits
    done: jax.Array  # [] int32, the op whose turn is over and not written yet; N for none
    new_kernels: jax.Array  # [R] int32, the ops that this turn makes kernels; N for none


def fuse(problem: PaddedFusion, priorities: jax.Array) -> DeviceKernels:
    """Decides the kernels by priorities.

    Args:
      problem: one problem.
      priorities: `[N]` int32 of at least 0; anything for padding.
    """
    n = priorities.shape[0]
    rank = jnp.zeros(n, jnp.int32).at[jnp.argsort(priorities, stable=True)].set(jnp.arange(n, dtype=jnp.int32))
    start = _start(problem, problem.legal & jnp.append(priorities > 0, False))

    def next_round(state: tuple[jax.Array, _Round]) -> tuple[jax.Array, _Round]:
        after = _one_round(problem, jnp.append(rank, 0), state[1].inlined)
        return (after.inlined != state[1].inlined).any(), after

    _, last = lax.while_loop(lambda state: state[0], next_round, (jnp.bool_(True), start))
    inlined = last.inlined[:n]
    seconds = jnp.where(inlined, 0.0, last.seconds[:n])
    return DeviceKernels(inlined, seconds, last.members[:n], last.arguments[:n])


def _start(problem: PaddedFusion, inlined: jax.Array) -> _Round:
    """Returns a round before its first turn; `inlined` `[N + 1]` marks the ops that are inlined so far."""
    n, t = inlined.shape[0] - 1, problem.read.shape[0] - 1
    empty = _gathered(problem, jnp.int32(n), jnp.full(problem.max_arguments, t, jnp.int32), jnp.int32(0))
    return _Round(
        inlined=inlined,
        members=jnp.full((n + 1, problem.max_ops), n, jnp.int32),
        arguments=jnp.full((n + 1, problem.max_arguments), t, jnp.int32),
        seconds=jnp.append(problem.alone, 0.0),
        now=empty,
        best=empty,
        done=jnp.int32(n),
        new_kernels=jnp.full(problem.reads.shape[-1], n, jnp.int32),
    )


def _one_round(problem: PaddedFusion, rank: jax.Array, inlined: jax.Array) -> _Round:
    """Lets every op take its turn. `rank` `[N + 1]` ascends with priority; `inlined` `[N + 1]` is the state so far."""

    def step(state: _Round, now: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[_Round, None]:
        return _step(problem, rank, _written(problem, state), *now), None

    steps = problem.step_op, problem.step_first, problem.step_last
    return _written(problem, lax.scan(step, _start(problem, inlined), steps)[0])


def _written(problem: PaddedFusion, state: _Round) -> _Round:
    """Writes the decisions of the last turn; the rows of op N stay empty, its other entries are meaningless."""
    n, t, best = state.inlined.shape[0] - 1, problem.read.shape[0] - 1, state.best
    real = state.done < n
    taken = jnp.maximum(best.compute, best.read + take(problem.write, state.done))
    seconds = jnp.where(best.works, problem.launch + taken, 0.0)

    def write(array: jax.Array, value: jax.Array) -> jax.Array:
        return lax.dynamic_update_index_in_dim(array, value, state.done, 0)

    return state._replace(
        inlined=put(state.inlined, state.new_kernels, jnp.zeros_like(state.new_kernels, jnp.bool_)),
        members=write(state.members, jnp.where(real, best.members, n)),
        arguments=write(state.arguments, jnp.where(real, best.arguments, t)),
        seconds=write(state.seconds, seconds),
    )


def _gathered(problem: PaddedFusion, op: jax.Array, arguments: jax.Array, count: jax.Array) -> _Gathered:
    """Returns the state of an op that has taken no other op in: it reads `count` arguments `[A]`."""
    n = problem.producer[-1]
    return _Gathered(
        members=jnp.where(jnp.arange(problem.max_ops, dtype=jnp.int32) == 0, op, n),
        arguments=arguments,
        num_members=jnp.int32(1),
        num_arguments=count,
        compute=take(problem.compute, op),
        read=take(problem.read, arguments).sum(),
        works=take(problem.works, op),
        least=jnp.int32(_HIGHEST),
    )


def _step(
    problem: PaddedFusion, rank: jax.Array, state: _Round, op: jax.Array, first: jax.Array, last: jax.Array
) -> _Round:
    """Takes one op in; the last step of a turn decides what the op has gathered and which ops become kernels."""
    n, t = rank.shape[0] - 1, problem.read.shape[0] - 1
    reads = take(problem.reads, op)
    source = take(problem.producer, reads)
    inside = take(state.inlined, source)
    ranks = take(rank, source)
    outside = jnp.where(inside, t, reads)
    alone = _gathered(problem, op, *_appended(jnp.full(problem.max_arguments, t, jnp.int32), jnp.int32(0), outside, t))
    now = jax.tree.map(lambda fresh, current: jnp.where(first, fresh, current), alone, state.now)
    best = jax.tree.map(lambda fresh, current: jnp.where(first, fresh, current), alone, state.best)

    candidates = inside & (ranks < now.least)
    best_rank = jnp.where(candidates, ranks, -1).max(initial=-1)
    inner = jnp.where(candidates & (ranks == best_rank), source, 0).sum(dtype=jnp.int32)
    row = jnp.where(best_rank >= 0, inner, n)
    now = _merged(problem, now, take(state.members, row), take(state.arguments, row), best_rank)
    pending = (inside & (ranks < best_rank)).sum(dtype=jnp.int32)
    fits = (best_rank >= 0) & (now.num_members <= problem.max_ops)
    fits &= now.num_arguments + pending <= problem.max_arguments
    best = jax.tree.map(lambda new, old: jnp.where(fits, new, old), now, best)

    becomes_kernel = last & inside & (ranks < best.least)
    arguments, _ = _appended(best.arguments, best.num_arguments, jnp.where(becomes_kernel, reads, t), t)
    read = best.read + jnp.where(becomes_kernel, take(problem.read, reads), 0.0).sum()
    return state._replace(
        now=now,
        best=best._replace(arguments=arguments, read=read),
        done=jnp.where(last, op, n),
        new_kernels=jnp.where(becomes_kernel, source, n),
    )


def _merged(
    problem: PaddedFusion, now: _Gathered, members: jax.Array, arguments: jax.Array, least: jax.Array
) -> _Gathered:
    """Adds members and arguments to a gathered state."""
    n, t = problem.compute.shape[0] - 1, problem.read.shape[0] - 1
    members = jnp.where((members[:, None] == now.members[None]).any(1), n, members)
    arguments = jnp.where((arguments[:, None] == now.arguments[None]).any(1), t, arguments)
    all_members, num_members = _appended(now.members, now.num_members, members, n)
    all_arguments, num_arguments = _appended(now.arguments, now.num_arguments, arguments, t)
    return _Gathered(
        members=all_members,
        arguments=all_arguments,
        num_members=num_members,
        num_arguments=num_arguments,
        compute=now.compute + take(problem.compute, members).sum(),
        read=now.read + take(problem.read, arguments).sum(),
        works=now.works | take(problem.works, members).any(),
        least=least,
    )


def _appended(row: jax.Array, count: jax.Array, more: jax.Array, none: int) -> tuple[jax.Array, jax.Array]:
    """Appends the numbers of `more` that are not `none` to a row of `count` numbers; returns the row and the new count.

    Numbers that do not fit are left out of the row, but counted.
    """
    new = more < none
    place = jnp.where(new, count + jnp.cumsum(new, dtype=jnp.int32) - 1, row.shape[0])
    return row.at[place].set(more, mode="drop"), count + new.sum(dtype=jnp.int32)
