"""What choices come to under the instance's objective: its value, whether the plan is valid, and what it did.

The objective enters the environment here alone: the type of an instance's `problem` says which it is.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.loads import PaddedPipeline
from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.envs.compile.loaded import DEVICE_LOADS, OP_LOADS, loaded
from graphrl.envs.compile.played import DEVICE_TIMES, OP_TIMES, Played, played
from graphrl.envs.compile.run import Sends, run


class Outcome(NamedTuple):
    """Of one plan."""

    seconds: jax.Array  # [] float32, second units: the makespan, or the largest load
    valid: jax.Array  # [] bool, every device stays within the memory limit, and kernels have room
    played: Played  # what it did, by op; rows of padding mean nothing


def outcome(params: CompileParams, chosen: Choices, sends: Sends) -> Outcome:
    """Of choices that are `possible`. Args: see `run`."""
    if isinstance(params.problem, PaddedPipeline):
        return Outcome(*loaded(params.problem, jnp.asarray(chosen.placement)))
    ran = run(params, chosen, sends)
    times = played(ran.graph, ran.placement, ran.place, ran.end, params.runs_on.shape[1])
    by_op = jax.tree.map(lambda of: jnp.zeros_like(of).at[ran.op].set(of, mode="drop"), times)
    return Outcome(ran.makespan, ran.valid, by_op)


def nothing_played(params: CompileParams) -> Played:
    """As if nothing had run."""
    pipelined, rows = isinstance(params.problem, PaddedPipeline), params.runs_on.shape
    of_op, of_device = (OP_LOADS, DEVICE_LOADS) if pipelined else (OP_TIMES, DEVICE_TIMES)
    return Played(jnp.zeros((rows[0], of_op)), jnp.zeros((*rows, of_device)))
