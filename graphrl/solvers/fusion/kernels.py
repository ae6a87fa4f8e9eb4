"""A fusion as compiled code changes it: one op is inlined or no longer, and the kernels that compute it are costed."""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.costs.fusion.exact import Fusion
from graphrl.costs.fusion.problem import FusionProblem

LAUNCH, PEAK, BANDWIDTH = range(3)
MAX_OPS, MAX_ARGUMENTS, MAX_BYTES = range(3)
UNLIMITED = 2**62  # bytes


class Kernels(NamedTuple):
    """Of n ops, t tensors (external inputs included), e reads and f pairs of an op and a reader of its outputs."""

    read_start: np.ndarray  # [n + 1] int64
    read_tensor: np.ndarray  # [e] int64, as in `FusionProblem`
    producer: np.ndarray  # [t] int64, -1 for external inputs
    reader_start: np.ndarray  # [n + 1] int64
    reader: np.ndarray  # [f] int64
    tensor_bytes: np.ndarray  # [t] float64
    output_bytes: np.ndarray  # [n] float64
    flops: np.ndarray  # [n] float64
    renames: np.ndarray  # [n] bool
    chip: np.ndarray  # [3] float64: launch in seconds, operations and bytes a second
    limits: np.ndarray  # [3] int64: ops and arguments of a kernel, and bytes of its arguments and outputs
    inlined: np.ndarray  # [n] bool
    seconds: np.ndarray  # [n] float64, of the kernel of each root; 0 for inlined ops
    roots: np.ndarray  # [n + 1] int64, those that the last flip concerns
    changed: np.ndarray  # [n + 1] float64, what their kernels take after it
    op_mark: np.ndarray  # [n] int64, number of the last walk that met it
    tensor_mark: np.ndarray  # [t] int64, the same
    walks: np.ndarray  # [1] int64, how many there were
    stack: np.ndarray  # [n + 1] int64


def kernels_of(fusion: Fusion, max_bytes: int = UNLIMITED) -> Kernels:
    """The kernels of a fusion; those of several ops read and write at most so many bytes."""
    problem, a = fusion.problem, fusion.problem.graph.arrays
    n, t = problem.num_ops, len(problem.producer)
    pairs = np.unique(a.producer[a.use_tensor].astype(np.int64) * n + a.use_op)
    return Kernels(
        read_start=problem.read_start.astype(np.int64),
        read_tensor=problem.read_tensor,
        producer=problem.producer,
        reader_start=np.searchsorted(pairs // n, np.arange(n + 1)),
        reader=pairs % n,
        tensor_bytes=problem.tensor_bytes.astype(np.float64),
        output_bytes=problem.output_bytes.astype(np.float64),
        flops=problem.flops,
        renames=problem.renames,
        chip=_chip(problem),
        limits=np.array([problem.max_ops, problem.max_arguments, max_bytes]),
        inlined=fusion.inlined.copy(),
        seconds=fusion.op_seconds.copy(),
        roots=np.zeros(n + 1, np.int64),
        changed=np.zeros(n + 1),
        op_mark=np.zeros(n, np.int64),
        tensor_mark=np.zeros(t, np.int64),
        walks=np.zeros(1, np.int64),
        stack=np.zeros(n + 1, np.int64),
    )


def _chip(problem: FusionProblem) -> np.ndarray:
    chip = problem.chip
    return np.array([chip.launch_seconds, chip.flops_per_second, chip.bytes_per_second])


@part
def _kernel_seconds(k: Kernels, root: int) -> float:
    """What the kernel of a root takes; infinite if it is above a limit."""
    k.walks[0] += 1
    walk, ops, arguments, found = k.walks[0], 1, 0, 1
    flops, moved, works = 0.0, k.output_bytes[root], False
    k.stack[0] = root
    k.op_mark[root] = walk
    while found > 0:
        found -= 1
        op = k.stack[found]
        flops += k.flops[op]
        works |= not k.renames[op]
        for i in range(k.read_start[op], k.read_start[op + 1]):
            tensor = k.read_tensor[i]
            source = k.producer[tensor]
            if source >= 0 and k.inlined[source]:
                if k.op_mark[source] != walk:
                    k.op_mark[source] = walk
                    k.stack[found] = source
                    found += 1
                    ops += 1
            elif k.tensor_mark[tensor] != walk:
                k.tensor_mark[tensor] = walk
                arguments += 1
                moved += k.tensor_bytes[tensor]
        if ops > 1 and (ops > k.limits[MAX_OPS] or arguments > k.limits[MAX_ARGUMENTS] or moved > k.limits[MAX_BYTES]):
            return np.inf
    if not works:
        return 0.0
    return k.chip[LAUNCH] + max(flops / k.chip[PEAK], moved / k.chip[BANDWIDTH])


@part
def _set_roots(k: Kernels, op: int) -> int:
    """Writes the roots of the kernels that compute an op, or would if it were inlined; gives how many there are."""
    k.walks[0] += 1
    walk, waiting, count = k.walks[0], 1, 0
    k.stack[0] = op
    k.op_mark[op] = walk
    while waiting > 0:
        waiting -= 1
        writer = k.stack[waiting]
        for i in range(k.reader_start[writer], k.reader_start[writer + 1]):
            reader = k.reader[i]
            if k.op_mark[reader] != walk:
                k.op_mark[reader] = walk
                if k.inlined[reader]:
                    k.stack[waiting] = reader
                    waiting += 1
                else:
                    k.roots[count] = reader
                    count += 1
    return integer(count)


@part
def flip(k: Kernels, op: int) -> tuple[int, float]:
    """Inlines an op, or no longer; gives how many roots it concerns and by how much all kernels take longer then,
    infinite where a limit is broken. `keep` or `undo` follows.
    """
    count = _set_roots(k, op)
    before = after = 0.0
    for i in range(count):
        before += k.seconds[k.roots[i]]
    before += k.seconds[op]  # 0 if it is inlined
    k.inlined[op] = not k.inlined[op]
    k.roots[count], k.changed[count] = op, 0.0
    if not k.inlined[op]:
        k.changed[count] = _kernel_seconds(k, op)
    after += k.changed[count]
    for i in range(count):
        k.changed[i] = _kernel_seconds(k, k.roots[i])
        after += k.changed[i]
        if after == np.inf:
            break
    return integer(count + 1), after - before


@inlined
def keep(k: Kernels, count: int) -> None:
    """Makes the last flip, of so many roots, so."""
    for i in range(count):
        k.seconds[k.roots[i]] = k.changed[i]


@inlined
def undo(k: Kernels, op: int) -> None:
    """Takes the last flip, of an op, back."""
    k.inlined[op] = not k.inlined[op]
