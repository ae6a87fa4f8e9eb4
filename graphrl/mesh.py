"""Meshes: the devices that share the graphs of a batch, along one axis."""

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from graphrl.errors import ProblemError

AXIS = "graphs"
_GRAPHS = "graphs a batch"


def make_mesh(count: int, devices: Sequence[jax.Device] | None = None, *, what: str = _GRAPHS) -> Mesh:
    """Makes a mesh of devices, by default those of all processes, that share `count` graphs per batch, or other items.

    Raises:
      ProblemError: the devices cannot share the items equally.
    """
    devices = jax.devices() if devices is None else devices
    check_shares(count, len(devices), what)
    # not the default axis type: gathers on an array that is sharded over an explicit axis are errors
    return jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)


def check_shares(count: int, devices: int, what: str = _GRAPHS) -> None:
    """Checks that the devices can share `count` items equally.

    Raises:
      ProblemError: they cannot; the message has the nearest possible counts.
    """
    if count % devices:
        below = count // devices * devices
        near = " or ".join(str(number) for number in (below, below + devices) if number)
        raise ProblemError(f"{count} {what}: must be a multiple of the {devices} devices, as {near}")


def most_that_share(count: int, devices: int) -> int:
    """Returns the largest number of devices, up to `devices`, that can share `count` graphs equally."""
    return max(number for number in range(1, devices + 1) if count % number == 0)
