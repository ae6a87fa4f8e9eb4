"""What a plan of an instance does in pipelined execution (`max_load`): the loads of devices, and what they would be
where one op stood elsewhere. The counterpart of `played.py`.

A policy that makes a plan better must know which device holds all up, what an op's tensors cost across, and where
memory is left. Loads are parts of the largest, and bytes of the memory limit (0 without one), so that units do not
matter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.load_moves import moves
from graphrl.costs.device.loads import PaddedPipeline, loads
from graphrl.costs.pipeline import CPU
from graphrl.envs.compile.played import SHARP, Played

OP_LOADS, DEVICE_LOADS = 8, 8
ORDER = 8  # of a norm of all loads, which tells plans apart that have one largest load
FULL = 2.0  # memory limits: of more bytes it does not matter how many


class Loaded(NamedTuple):
    """One plan, run for many samples."""

    largest: jax.Array  # [] float32, second units of the pipeline
    valid: jax.Array  # [] bool, every accelerator stays within the memory limit
    played: Played


@jax.jit  # one program also where the environment is not jitted
def loaded(pipeline: PaddedPipeline, placement: jax.Array) -> Loaded:
    """Of a placement `[n]` int32 that keeps groups together, with each where it can run.

    The plan as ops see it, with which their groups go; rows of padding mean nothing:

    ops: `[n, OP_LOADS]` float32, of each op
    - the load of its device, how near that is to the largest, exp(-SHARP difference), and the largest of the others;
    - the load of its device without it, its run time there, and whether that is a CPU;
    - its weights, and all that its device holds.

    devices: `[n, d, DEVICE_LOADS]` float32, of each op and device, as if it stood there
    - the load of the device, before and then, and the largest load then;
    - by how much the norm of all loads rises;
    - its run time there, and what the device pays then for its tensors, beside what it pays now;
    - the weights there, and whether they are too many.
    """
    p, cost = pipeline, loads(pipeline, placement)
    (n,), d = placement.shape, len(p.kinds)
    moved = moves(p, placement, cost.loads)
    largest, is_cpu = cost.loads.max(), (p.kinds == CPU).astype(jnp.float32)[None]
    second, byte = 1 / jnp.maximum(largest, 1e-30), (1 - is_cpu) / p.limit
    left, entered, runtime = (of * second for of in (moved.left[:, None], moved.entered, moved.runtime))
    is_home = placement[:, None] == jnp.arange(d, dtype=jnp.int32)[None]
    load, others = cost.loads[None] * second, _largest_of_others(cost.loads * second)[placement]
    weight = moved.weight[:, None]
    held = cost.resident[None] + jnp.where(is_home, 0.0, weight)
    filled, is_over = jnp.minimum(held * byte, FULL), (held > p.limit).astype(jnp.float32) * (1 - is_cpu)
    own = [load, jnp.exp(-SHARP * (1 - load)), others, is_cpu, runtime, weight * byte, filled]
    ops = [jnp.where(is_home, of, 0.0).sum(1) for of in own]
    then = jnp.where(is_home, load, jnp.maximum(left, entered))
    powers = load**ORDER
    parted = powers + jnp.where(is_home, powers, 0.0).sum(1, keepdims=True)  # of both devices, before
    total = powers.sum() - parted + left**ORDER + entered**ORDER
    rises = jnp.where(is_home, 0.0, _root(total) - _root(powers.sum()))
    pays = jnp.where(is_home, 0.0, entered - load - runtime)
    pairs = [load, entered, jnp.maximum(then, others), rises, runtime, pays, filled, is_over]
    seen = Played(jnp.stack([*ops, left[:, 0]], -1), jnp.stack([jnp.broadcast_to(of, (n, d)) for of in pairs], -1))
    return Loaded(largest, cost.excess <= 0, seen)


def _largest_of_others(load: jax.Array) -> jax.Array:
    """Of two devices the largest load of all others, 0 where there are none: `[d, d]`."""
    device = jnp.arange(len(load), dtype=jnp.int32)
    one, two, other = device[:, None, None], device[None, :, None], device[None, None]
    return jnp.where((other != one) & (other != two), load[None, None], 0.0).max(-1)


def _root(powers: jax.Array) -> jax.Array:
    """Of sums of powers of order `ORDER`, from which others were taken."""
    return jnp.maximum(powers, 0.0) ** (1 / ORDER)
