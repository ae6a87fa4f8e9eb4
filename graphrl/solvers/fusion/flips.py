"""Local search over fusions: descent and annealing by flips of one op, compiled for the host.

A flip inlines one op or stops inlining it. The search costs the kernels that compute the op, and minimises the total
seconds of all kernels. `Kernels` is a fusion as compiled code changes it.
"""

import functools
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, inlined, integer, part
from graphrl.compiled.structures import below, uniform
from graphrl.costs.fusion.exact import Fusion, fuse, fusion_of
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.graphs.graph import ComputationGraph, Op

LAUNCH, PEAK, BANDWIDTH = range(3)  # indices of `Kernels.chip`
MAX_OPS, MAX_ARGUMENTS, MAX_BYTES = range(3)  # indices of `Kernels.limits`
UNLIMITED = 2**62  # bytes
MIN_GAIN = 1e-12  # relative to the time of all kernels: less is rounding
HOT, COLD = 1e-3, 1e-7  # first and last temperature of annealing, relative to the time of all kernels


def anneal_from(fusion: Fusion, moves: int, seed: int = 0) -> Fusion:
    """Simulated annealing from a fusion, followed by a descent."""
    prepare()
    problem = fusion.problem
    legal, best = np.flatnonzero(problem.legal), fusion.inlined.copy()
    if len(legal):
        rng = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        hot, cold = HOT * fusion.seconds, COLD * fusion.seconds
        _anneal(kernels_of(fusion), legal, best, rng, moves, hot, cold)
    return descend_from(fusion_of(problem, best))


def descend_from(fusion: Fusion, max_bytes: int = UNLIMITED) -> Fusion:
    """Descends from a fusion until no flip of one op improves it.

    Ops are tried from the last in topological order to the first, so that readers are decided before their inputs.

    Args:
      fusion: fusion to start from.
      max_bytes: most bytes that a kernel of several ops may read and write; those of `fusion` do not exceed it.
    """
    prepare()
    problem = fusion.problem
    order = problem.graph.arrays.topological[::-1].astype(np.int64)
    state = kernels_of(fusion, max_bytes)
    _descend(state, np.ascontiguousarray(order[problem.legal[order]]), MIN_GAIN * fusion.seconds)
    return fusion_of(problem, state.inlined)


def flip_costs(fusion: Fusion) -> np.ndarray:
    """Returns by how many seconds all kernels take longer if one op alone is flipped: `[n]` float64; infinite if that
    breaks a limit or the op may not be inlined.
    """
    legal = np.flatnonzero(fusion.problem.legal)
    costs, increase = np.full(fusion.problem.num_ops, np.inf), np.zeros(len(legal))
    _flip_each(kernels_of(fusion), legal, increase)
    costs[legal] = increase
    return costs


@functools.cache
def prepare() -> None:
    """Compiles flipping, or loads it, once per process."""
    problem = fusion_problem(ComputationGraph("one", (Op("a"),)))
    with announced(_descend, "fusion", seconds=3):
        state = kernels_of(fuse(problem, np.zeros(1, np.int64)))
        _descend(state, np.zeros(0, np.int64), 0.0)
        _anneal(state, np.zeros(1, np.int64), state.inlined.copy(), np.zeros(1, np.uint64), 0, 1.0, 1.0)


class Kernels(NamedTuple):
    """A fusion of n ops, t tensors (with external inputs), e reads and f pairs of an op and a reader of its outputs."""

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
    seconds: np.ndarray  # [n] float64, time of each root's kernel; 0 for inlined ops
    roots: np.ndarray  # [n + 1] int64, the roots that the last flip affects
    changed: np.ndarray  # [n + 1] float64, seconds of their kernels after it
    op_mark: np.ndarray  # [n] int64, number of the last walk that visited it
    tensor_mark: np.ndarray  # [t] int64, number of the last walk that visited it
    walks: np.ndarray  # [1] int64, number of walks so far
    stack: np.ndarray  # [n + 1] int64


@entry
def _anneal(
    k: Kernels, ops: np.ndarray, best: np.ndarray, rng: np.ndarray, moves: int, hot: float, cold: float
) -> None:
    """Flips ops drawn from `ops` `[m]` by Metropolis' rule, while the temperature, seconds, falls geometrically. Writes
    the inlined ops of the fusion of least time into `best` `[n]`.
    """
    time = least = 0.0  # relative to the start
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    for _ in range(integer(moves)):
        hot *= cooling
        op = ops[below(rng, len(ops))]
        count, increase = flip(k, op)
        if increase > -hot * np.log(uniform(rng)):
            undo(k, op)
            continue
        keep(k, count)
        time += increase
        if time < least - COLD * hot:
            least = time
            for i in range(len(best)):
                best[i] = k.inlined[i]


def kernels_of(fusion: Fusion, max_bytes: int = UNLIMITED) -> Kernels:
    """Returns the arrays of a fusion; kernels of several ops may read and write at most `max_bytes`."""
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


@entry
def _descend(k: Kernels, ops: np.ndarray, least: float) -> None:
    """Flips ops `[m]` in their order, repeatedly, until none of them gains more than `least` seconds."""
    since = 0
    while since < len(ops):
        for op in ops:
            if since >= len(ops):
                break
            count, increase = flip(k, op)
            if increase < -least:
                keep(k, count)
                since = 0
            else:
                undo(k, op)
                since += 1


@entry
def _flip_each(k: Kernels, ops: np.ndarray, increase: np.ndarray) -> None:
    """Writes, for each of the ops `[m]`, the increase in seconds of all kernels if it is flipped: `increase` `[m]`."""
    for i in range(len(ops)):
        increase[i] = flip(k, ops[i])[1]
        undo(k, ops[i])


@part
def flip(k: Kernels, op: int) -> tuple[int, float]:
    """Inlines an op, or stops inlining it. Returns the number of affected roots and the increase in seconds of all
    kernels, infinite if a limit is broken. `keep` or `undo` follows.
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
def undo(k: Kernels, op: int) -> None:
    """Undoes the last flip, of an op."""
    k.inlined[op] = not k.inlined[op]


@inlined
def keep(k: Kernels, count: int) -> None:
    """Accepts the last flip, which affected `count` roots."""
    for i in range(count):
        k.seconds[k.roots[i]] = k.changed[i]


def _chip(problem: FusionProblem) -> np.ndarray:
    chip = problem.chip
    return np.array([chip.launch_seconds, chip.flops_per_second, chip.bytes_per_second])


@part
def _set_roots(k: Kernels, op: int) -> int:
    """Writes the roots of the kernels that compute an op, or would if it were inlined; returns their number."""
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
def _kernel_seconds(k: Kernels, root: int) -> float:
    """Returns the seconds of a root's kernel; infinite if the kernel exceeds a limit."""
    k.walks[0] += 1
    walk, ops, arguments, waiting = k.walks[0], 1, 0, 1
    flops, moved, works = 0.0, k.output_bytes[root], False
    k.stack[0] = root
    k.op_mark[root] = walk
    while waiting > 0:
        waiting -= 1
        op = k.stack[waiting]
        flops += k.flops[op]
        works |= not k.renames[op]
        for i in range(k.read_start[op], k.read_start[op + 1]):
            tensor = k.read_tensor[i]
            source = k.producer[tensor]
            if source >= 0 and k.inlined[source]:
                if k.op_mark[source] != walk:
                    k.op_mark[source] = walk
                    k.stack[waiting] = source
                    waiting += 1
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
