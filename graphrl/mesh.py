"""Meshes: the devices that share the graphs of a batch, along one axis."""

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from graphrl.errors import ProblemError

AXIS = "graphs"
_GRAPHS = "graphs a batch"


def make_mesh(count: int, devices: Sequence[jax.Device] | None = None, *, what: str = _GRAPHS) -> Mesh:
    """The mesh of devices that share `count` graphs a batch, or else; by default it has all devices, of all processes.

    Raises:
      ProblemError: they cannot share so many graphs equally.
    """
    devices = jax.devices() if devices is None else devices
    check_shares(count, len(devices), what)
    # not the default axis type: gathers on an array that is spread over an explicit axis are errors
    return jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)


def check_shares(count: int, devices: int, what: str = _GRAPHS) -> None:
    """Looks whether so many devices can share them.

    Raises:
      ProblemError: they cannot; the message says how many they could.
    """
    if count % devices:
        below = count // devices * devices
        near = " or ".join(str(number) for number in (below, below + devices) if number)
        raise ProblemError(f"{count} {what}: must be a multiple of the {devices} devices, as {near}")


def most_that_share(count: int, devices: int) -> int:
    """The most of so many devices that can share so many graphs."""
    return max(number for number in range(1, devices + 1) if count % number == 0)
