"""Meshes: the devices that share the graphs of a batch, along one axis."""

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from graphrl.errors import ProblemError

AXIS = "graphs"


def make_mesh(graphs: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of devices that share batches of `graphs` graphs; by default it has all devices, of all processes.

    Raises:
      ProblemError: they cannot share so many graphs equally.
    """
    devices = jax.devices() if devices is None else devices
    check_shares(graphs, len(devices))
    # not the default axis type: gathers on an array that is spread over an explicit axis are errors
    return jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)


def check_shares(graphs: int, devices: int) -> None:
    """Looks whether so many devices can share a batch.

    Raises:
      ProblemError: they cannot; the message says how many graphs they could.
    """
    if graphs % devices:
        below = graphs // devices * devices
        near = " or ".join(str(number) for number in (below, below + devices) if number)
        raise ProblemError(f"{graphs} graphs a batch: must be a multiple of the {devices} devices, as {near}")


def most_that_share(graphs: int, devices: int) -> int:
    """The most of so many devices that can share a batch."""
    return max(count for count in range(1, devices + 1) if graphs % count == 0)
