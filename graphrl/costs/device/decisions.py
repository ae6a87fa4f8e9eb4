"""Decisions and problems as arrays, for a population of candidate solutions of every graph in a batch.

`Decisions` are laid out genes first, lanes last (`[k, g, p]`), as chromosomes are: XLA:CPU vectorises across the minor
axis, and the decoder's state has one lane for each chromosome.

In a `DeviceProblem` only fields that shape a program are static. Numeric fields are traced, so one compiled program
serves every latency, bandwidth and memory limit.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.problem import SCHEDULED, Objective, Problem, Transfer
from graphrl.errors import ProblemError
from graphrl.graphs.padding import Sizes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decisions:
    """Placement and keys of p candidate solutions of each of g graphs on d devices."""

    placement: jax.Array  # [n, g, p] int32, device of each op
    op_keys: jax.Array  # [n, g, p] float32 in [0, 1): the ready node with the largest key runs first
    transfer_keys: jax.Array  # [d, t, g, p] float32 in [0, 1), keys of the transfers of each tensor to each device


def num_genes(sizes: Sizes, devices: int) -> int:
    """Returns the number of genes: d affinities and a key per op, a key per (device, tensor) (REGAL, BACKGROUND)."""
    return (devices + 1) * sizes.ops + devices * sizes.tensors


def from_genes(genes: jax.Array, sizes: Sizes, devices: int) -> Decisions:
    """Decodes chromosomes into decisions: an op goes to the device of its largest affinity, ties to the lower device.

    Args:
      genes: `[k, g, p]` float32 in [0, 1): affinities by device, then op keys, then transfer keys by device.
      sizes: array sizes of the padded graphs.
      devices: d.

    Returns:
      Decisions of shapes `[n, g, p]`, `[n, g, p]` and `[d, t, g, p]`.
    """
    n, lanes = sizes.ops, genes.shape[1:]
    affinities = genes[: devices * n].reshape(devices, n, *lanes)
    if devices == 2:  # one comparison is cheaper than an argmax, and equivalent
        placement = (affinities[1] > affinities[0]).astype(jnp.int32)
    else:
        placement = jnp.argmax(affinities, axis=0).astype(jnp.int32)
    op_keys = genes[devices * n : (devices + 1) * n]
    return Decisions(placement, op_keys, genes[(devices + 1) * n :].reshape(devices, sizes.tensors, *lanes))


def to_genes(decisions: Decisions, devices: int) -> jax.Array:
    """Returns genes `[k, g, p]` float32 that decode to the decisions: affinity 0.75 of the chosen device, else 0.25."""
    chosen = decisions.placement[None] == jnp.arange(devices, dtype=jnp.int32)[:, None, None, None]
    affinities = jnp.where(chosen, jnp.float32(0.75), jnp.float32(0.25))
    parts = (affinities, decisions.op_keys, decisions.transfer_keys)
    return jnp.concatenate([part.reshape(-1, *decisions.op_keys.shape[1:]) for part in parts])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceProblem:
    """`Problem` as a pytree. Its arrays are `[]` (one value for all graphs of a batch) or `[g]` (one per graph)."""

    latency: jax.Array | np.ndarray  # float32, seconds
    seconds_per_byte: jax.Array | np.ndarray  # float32; 0 where the bandwidth is infinite
    memory_limit: jax.Array | np.ndarray | None  # float32, bytes; None: no limit
    objective: Objective = dataclasses.field(metadata={"static": True})
    devices: int = dataclasses.field(metadata={"static": True})
    transfer: Transfer = dataclasses.field(metadata={"static": True})
    resident_weights: bool = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, problem: Problem) -> "DeviceProblem":
        """Returns the problem as host arrays, which any program can take as an argument.

        Raises:
          ProblemError: its objective does not depend on an order (see `device/loads.py`).
        """
        if problem.objective not in SCHEDULED:
            raise ProblemError(f"objective is {problem.objective!r}: must be one of {', '.join(SCHEDULED)}")
        limit = problem.memory_limit
        return cls(
            latency=np.asarray(problem.latency, np.float32),
            seconds_per_byte=1 / np.asarray(problem.bandwidth, np.float32),
            memory_limit=None if limit is None else np.asarray(limit, np.float32),
            objective=problem.objective,
            devices=problem.devices,
            transfer=problem.transfer,
            resident_weights=problem.resident_weights,
        )
