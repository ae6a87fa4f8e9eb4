"""Which devices train: all of them along one mesh axis, in one process or in several (`jax.distributed`).

Every process runs the same loop on the same steps. The state is replicated; of a batch each process makes and loads
only the graphs of its own devices. The first process alone writes files, so that the folder of the run must be one
that every process can read when it resumes.
"""

import contextlib
import os
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.errors import ProblemError
from graphrl.mesh import AXIS, most_that_share
from graphrl.process import count_cores
from graphrl.signals import handlers_kept

_LEAVING = 15.0  # seconds, within the 30 that a cluster gives after SIGTERM


def start(count: int, what: str = "graphs a batch", *, distributed: bool = False) -> None:
    """Gives JAX CPU devices to share `count` graphs a batch, or `what` else it is, and with `distributed` joins the
    other processes; before JAX is first used.

    A search on a CPU device runs on about one core, so that graphs spread over as many devices keep all busy; a line on
    standard error says where some stay idle. Processes together have a device a core. Where they are: JAX asks the
    cluster (Slurm, Open MPI, Kubernetes, Cloud TPU); without one, the environment says JAX_COORDINATOR_ADDRESS
    (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID.

    Raises:
      ProblemError: the environment does not say enough, or the other processes cannot be reached.
    """
    cores = count_cores()
    share = cores if distributed else most_that_share(count, cores)
    with contextlib.suppress(RuntimeError):  # JAX is in use already, with the devices that its user wanted
        if jax.config.values["jax_num_cpu_devices"] < 1:
            jax.config.update("jax_num_cpu_devices", share)
            if share < min(cores, count) and jax.default_backend() == "cpu":
                all_busy = f"{count // cores * cores + cores} would keep all busy"
                print(f"graphrl: {count} {what} share {share} of {cores} cores: {all_busy}", file=sys.stderr)
    if not distributed or jax.distributed.is_initialized():
        return
    processes, number = (_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    try:
        with handlers_kept():
            jax.distributed.initialize(num_processes=processes, process_id=number)
    except (ValueError, RuntimeError) as error:
        raise ProblemError(
            "cannot join other processes: set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID "
            f"({' '.join(str(error).split())[:200]})"
        ) from None


def leave() -> None:
    """Leaves the other processes, as soon as they leave too, or after 15 seconds.

    The end of the first process aborts those that have not left: one that still compiles cannot answer its signal.
    """
    if jax.distributed.is_initialized():
        leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        leaving.start()
        leaving.join(_LEAVING)


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise ProblemError(f"{name} is {text!r}: must be a whole number")
    return int(text)


def meet(mesh: Mesh) -> None:
    """Connects the processes of a mesh, while none of them has anything else to do.

    Gloo, which joins CPUs, does it with the first sum, and gives up when a process is 30 seconds late: as one may be
    that has other graphs to make, or compiles on a busier machine.
    """
    if jax.process_count() == 1:
        return
    everywhere, apart = PartitionSpec(), PartitionSpec(AXIS)
    total = jax.shard_map(lambda ones: jax.lax.psum(ones, AXIS), mesh=mesh, in_specs=apart, out_specs=everywhere)
    ones = shard(np.ones(len(mesh.local_devices), np.float32), mesh, mesh.size)
    jax.block_until_ready(jax.jit(total)(ones))


def own_rows(mesh: Mesh, graphs: int) -> range:
    """The graphs of a batch that this process makes: those of its devices, which stand together in the mesh."""
    mine = [place for place, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    share = graphs // mesh.size
    return range(mine[0] * share, (mine[-1] + 1) * share)


def shard(rows: Any, mesh: Mesh, graphs: int) -> Any:
    """The whole batch, spread over the mesh, from this process's rows of it.

    Args:
      rows: pytree of NumPy arrays `[own, ...]`, the rows of `own_rows`.
      mesh: of `mesh.make_mesh`.
      graphs: g of the whole batch.
    """
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def spread(leaf: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, np.asarray(leaf), (graphs, *np.shape(leaf)[1:]))

    return jax.tree.map(spread, rows)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """A pytree of arrays (typed keys too) that every process has alike, on every device of the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def copy(leaf: Any) -> jax.Array:
        if jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
            data = copy(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(leaf)))
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(copy, tree)


def is_main() -> bool:
    """Whether this process writes the files and shows progress."""
    return jax.process_index() == 0


def anywhere(flag: bool) -> bool:
    """Whether the flag is set in any process: all must ask at the same point of the loop."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
