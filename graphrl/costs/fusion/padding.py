"""Fusion problems as fixed-size arrays: what jitted code reads.

Letters used in shapes, here and in `device.py`: N ops, T tensors and S steps, padded; R tensors that an op reads at
most; M ops and A arguments of a kernel at most; g problems in a batch.

Only ops that take others in have turns on the device. A turn has a **step** for each tensor that the op reads of an op
that may be inlined, at least one.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.costs.fusion.problem import TAKES_IN, FusionProblem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import bucket


@dataclasses.dataclass(frozen=True)
class FusionSizes:
    """Array sizes of a padded problem: problems of equal sizes and limits share one compiled program."""

    ops: int
    tensors: int  # written by ops
    externals: int
    steps: int
    reads: int

    def covers(self, other: "FusionSizes") -> bool:
        """Whether a problem of sizes `other` fits."""
        return all(a >= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedFusion:
    """One problem or, with a leading axis g on every field, a batch of problems, as arrays; NumPy before first use.

    Of T tensors the first are those that ops write, and external inputs follow after the padding of these. Op N and
    tensor T are none. Seconds are float32.
    """

    launch: jax.Array  # [] float32, seconds
    legal: jax.Array  # [N + 1] bool, whether it may be inlined; False for padding
    works: jax.Array  # [N + 1] bool, whether it does more than to rename
    compute: jax.Array  # [N + 1] float32, seconds of its operations
    write: jax.Array  # [N + 1] float32, seconds that writing its outputs takes
    alone: jax.Array  # [N] float32, seconds of a kernel of it alone; 0 for padding
    read: jax.Array  # [T + 1] float32, seconds that reading a tensor takes; 0 for padding
    producer: jax.Array  # [T + 1] int32, op; N for external inputs and padding
    reads: jax.Array  # [N + 1, R] int32, tensors, for ops that have a turn; T for padding
    step_op: jax.Array  # [S] int32, whose turn it is, in topological order; N for padding
    step_first: jax.Array  # [S] bool, whether the turn begins
    step_last: jax.Array  # [S] bool, whether it ends
    max_ops: int = dataclasses.field(metadata={"static": True})
    max_arguments: int = dataclasses.field(metadata={"static": True})


def sizes(problem: FusionProblem) -> FusionSizes:
    """The real sizes of a problem."""
    turns, count = _turns(problem)
    reads = np.diff(problem.read_start)[turns].max(initial=0)
    tensors = problem.graph.arrays.num_tensors
    externals = len(problem.producer) - tensors
    return FusionSizes(problem.num_ops, tensors, externals, int(count.sum()), int(reads))


def common_sizes(problems: Sequence[FusionProblem]) -> FusionSizes:
    """The bucketed sizes that hold all these problems."""
    columns = zip(*(dataclasses.astuple(sizes(problem)) for problem in problems), strict=True)
    return FusionSizes(*(bucket(max(column)) for column in columns))


def pad(problem: FusionProblem, to: FusionSizes | None = None) -> PaddedFusion:
    """The problem as fixed-size NumPy arrays.

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

    def by_op(values: np.ndarray, dtype: type, size: int) -> np.ndarray:
        out: np.ndarray = np.zeros(size, dtype)
        out[: len(values)] = values
        return out

    compute = problem.flops / chip.flops_per_second
    moved = np.zeros(problem.num_ops)
    np.add.at(
        moved, np.repeat(np.arange(problem.num_ops), np.diff(problem.read_start)), read[place[problem.read_tensor]]
    )
    write = problem.output_bytes / chip.bytes_per_second
    alone = np.where(problem.renames, 0.0, chip.launch_seconds + np.maximum(compute, moved + write))
    fields: dict[str, np.ndarray | np.generic] = dict(  # noqa: C408  (reads as the constructor that it fills)
        launch=np.float32(chip.launch_seconds),
        legal=by_op(problem.legal, np.bool_, to.ops + 1),
        works=by_op(~problem.renames, np.bool_, to.ops + 1),
        compute=by_op(compute, np.float32, to.ops + 1),
        write=by_op(write, np.float32, to.ops + 1),
        alone=by_op(alone, np.float32, to.ops),
        read=read.astype(np.float32),
        producer=producer.astype(np.int32),
        reads=reads.astype(np.int32),
        step_op=step_op.astype(np.int32),
        step_first=np.append(True, changes),
        step_last=np.append(changes, True),
    )
    # jax takes NumPy arrays wherever it takes its own
    return PaddedFusion(**fields, max_ops=problem.max_ops, max_arguments=problem.max_arguments)  # type: ignore[arg-type]


def pad_batch(problems: Sequence[FusionProblem], to: FusionSizes | None = None) -> PaddedFusion:
    """A batch of problems of equal limits, padded to common sizes and stacked along a new leading axis g."""
    to = common_sizes(problems) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(pad(problem, to) for problem in problems))


def _turns(problem: FusionProblem) -> tuple[np.ndarray, np.ndarray]:
    """The ops that have a turn on the device, in topological order, and the steps of each: two `[k]` int64."""
    source = problem.producer[problem.read_tensor]
    inside = (source >= 0) & problem.legal[source]
    steps = np.bincount(_readers(problem)[inside], minlength=problem.num_ops)
    takes_in = np.array([op.type in TAKES_IN for op in problem.graph.ops], bool)
    takes_in &= np.diff(problem.read_start) <= problem.max_arguments
    turns = problem.graph.arrays.topological.astype(np.int64)
    turns = turns[(takes_in & ((steps > 0) | problem.legal))[turns]]
    return turns, np.maximum(1, steps[turns])


def _readers(problem: FusionProblem) -> np.ndarray:
    """The op of each entry of `read_tensor`: `[e]` int64."""
    return np.repeat(np.arange(problem.num_ops), np.diff(problem.read_start))
