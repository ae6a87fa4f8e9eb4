"""Latest ends and longest paths after the ops of a schedule, compiled for CPUs.

One pass over the ops from the last to the first. XLA's loop over edges takes most of the time of a step of `Compile-v0`
on a CPU, and this pass a hundredth of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import (
    MANY,
    count_outer,
    custom_call,
    data,
    operand,
    own_address,
    part_of,
    result,
    run_items,
    size,
    typed,
)
from graphrl.compiled.pointers import array

RUNTIME, PLACE, FOLLOWING = 0, 1, 2  # operands: [n] float32, [n] int32, [n] int32
SOURCE, TARGET = 3, 4  # operands: [m] int32
LATEST, TAIL = 0, 1  # results: [n] float32
FEW = 50_000  # ops of all instances that one thread walks alone
I32, F32 = np.int32, np.float32


def compiled_backwards(
    runtime: jax.Array, place: jax.Array, following: jax.Array, source: jax.Array, target: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Walks a schedule backwards.

    Args:
      runtime: `[n]` float32, relative to the makespan.
      place: `[n]` int32, position of each op in the order; n for padding.
      following: `[n]` int32, the next op on the op's device; n for none.
      source, target: `[m]` int32, ops that edges lead from and to; n for padding.

    Returns:
      Latest end of each op and the longest path of run times after it, `[n]` float32 each.
    """
    shape = jax.ShapeDtypeStruct(runtime.shape, jnp.float32)
    n, m = runtime.shape, source.shape
    operands = [
        *typed(np.float32, n, runtime),
        *typed(np.int32, n, place, following),
        *typed(np.int32, m, source, target),
    ]
    latest, tail = backwards_of_schedules([shape, shape], *operands)
    return latest, tail


@custom_call("graphrl_backwards", "features of schedules", 2)
def backwards_of_schedules(pointer: Any) -> Any:
    """Walks all schedules of a batch, with the operands and results above."""
    return run_items(pointer, own_address(), _plan, _walk)


@inlined
def _plan(call: int) -> tuple[int, int, int]:
    """Number of schedules, largest number of threads, and bytes that a thread needs."""
    like = result(call, LATEST)
    schedules, n, m = count_outer(like, 1), size(like, -1), size(operand(call, SOURCE), -1)
    return schedules, integer(1 if schedules * n < FEW else MANY), 4 * (2 * n + 1 + m)


@part
def _walk(call: int, item: int, memory: int) -> None:
    """Walks one schedule; `memory` has room for 2 n + 1 + m int32."""
    like = result(call, LATEST)
    n, m = size(like, -1), size(operand(call, SOURCE), -1)
    runtime = array(part_of(call, RUNTIME, integer(1), item, like), n, F32)
    place = array(part_of(call, PLACE, integer(1), item, like), n, I32)
    following = array(part_of(call, FOLLOWING, integer(1), item, like), n, I32)
    source = array(part_of(call, SOURCE, integer(1), item, like), m, I32)
    target = array(part_of(call, TARGET, integer(1), item, like), m, I32)
    order, begins = array(memory, n, I32), array(memory + 4 * n, n + 1, I32)
    targets = array(memory + 4 * (2 * n + 1), m, I32)
    latest = array(data(result(call, LATEST)) + 4 * n * item, n, F32)
    tail = array(data(result(call, TAIL)) + 4 * n * item, n, F32)
    for v in range(n):
        order[v], begins[v], latest[v], tail[v] = -1, 0, F32(1), F32(0)
    begins[n] = 0
    for v in range(n):
        if 0 <= place[v] < n:
            order[place[v]] = v
    _fill_rows(source, target, n, begins, targets)
    for at in range(n - 1, -1, -1):
        v = order[at]
        if v < 0:
            continue
        late, after = F32(1), F32(0)
        if 0 <= following[v] < n:
            late = min(late, latest[following[v]] - runtime[following[v]])
        for e in range(begins[v - 1] if v > 0 else 0, begins[v]):
            late = min(late, latest[targets[e]] - runtime[targets[e]])
            after = max(after, tail[targets[e]] + runtime[targets[e]])
        latest[v], tail[v] = late, after


@inlined
def _fill_rows(source: np.ndarray, target: np.ndarray, n: int, begins: np.ndarray, targets: np.ndarray) -> None:
    """Groups targets by source; `begins` `[n + 1]`, 0 before, becomes the end of each row."""
    for e in range(len(source)):
        if 0 <= source[e] < n and 0 <= target[e] < n:
            begins[source[e] + 1] += 1
    for v in range(n):
        begins[v + 1] += begins[v]
    for e in range(len(source)):  # this moves the start of each row to its end
        if 0 <= source[e] < n and 0 <= target[e] < n:
            targets[begins[source[e]]] = target[e]
            begins[source[e]] += 1
