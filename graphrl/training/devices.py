"""Devices for training: all of them along one mesh axis, in one process or in several (`jax.distributed`).

Every process runs the same loop on the same steps. The state is replicated. Each process builds and loads only those
graphs of a batch that its own devices need. Only the first process writes files, so that every process must be able to
read the run's folder when it resumes.
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
from graphrl.signals import keep_handlers

_DISCONNECT_SECONDS = 15.0  # within the 30 that a cluster gives after SIGTERM


def configure(count: int, what: str = "graphs a batch", *, distributed: bool = False) -> None:
    """Configures JAX's CPU devices to share `count` items named `what`, and with `distributed` joins the other
    processes. Must be called before JAX is first used.

    A search on a CPU device uses about one core, so there is a device per core if the count of items allows it; a line
    on standard error reports cores that remain idle. With `distributed`, each process has one device per core. JAX
    finds the processes through the cluster (Slurm, Open MPI, Kubernetes, Cloud TPU); without one, through the
    environment variables JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID.

    Raises:
      ProblemError: the environment variables are incomplete or wrong, or the other processes cannot be reached.
    """
    cores = count_cores()
    used = cores if distributed else most_that_share(count, cores)
    with contextlib.suppress(RuntimeError):  # JAX is already in use: keep its devices
        if jax.config.values["jax_num_cpu_devices"] < 1:
            jax.config.update("jax_num_cpu_devices", used)
            if used < min(cores, count) and jax.default_backend() == "cpu":
                better = count // cores * cores + cores
                print(f"graphrl: {count} {what} use {used} of {cores} cores: {better} would use all", file=sys.stderr)
    if not distributed or jax.distributed.is_initialized():
        return
    processes, number = (_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    try:
        with keep_handlers():
            jax.distributed.initialize(num_processes=processes, process_id=number)
    except (ValueError, RuntimeError) as error:
        raise ProblemError(
            "cannot join other processes: set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID "
            f"({' '.join(str(error).split())[:200]})"
        ) from None


def disconnect() -> None:
    """Disconnects from the other processes; waits until they disconnect too, at most 15 seconds.

    The exit of the first process aborts all that are still connected, and a process that is compiling cannot answer its
    signal.
    """
    if jax.distributed.is_initialized():
        thread = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        thread.start()
        thread.join(_DISCONNECT_SECONDS)


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise ProblemError(f"{name} is {text!r}: must be a whole number")
    return int(text)


def barrier(mesh: Mesh) -> None:
    """Waits for all processes of a mesh, and thus connects them while all of them are idle.

    Gloo, which connects CPUs, does so at the first sum, and fails if a process is 30 seconds late. A process may be
    late because it builds other graphs, or compiles on a busier machine.
    """
    if jax.process_count() == 1:
        return
    replicated, by_device = PartitionSpec(), PartitionSpec(AXIS)
    total = jax.shard_map(lambda ones: jax.lax.psum(ones, AXIS), mesh=mesh, in_specs=by_device, out_specs=replicated)
    ones = shard(np.ones(len(mesh.local_devices), np.float32), mesh, mesh.size)
    jax.block_until_ready(jax.jit(total)(ones))


def own_rows(mesh: Mesh, graphs: int) -> range:
    """Returns the rows of a batch that this process builds: those for its devices, which are contiguous in the mesh."""
    process = jax.process_index()
    own = [place for place, device in enumerate(mesh.devices.flat) if device.process_index == process]
    share = graphs // mesh.size
    return range(own[0] * share, (own[-1] + 1) * share)


def shard(rows: Any, mesh: Mesh, graphs: int) -> Any:
    """Creates arrays of a whole batch, sharded over the mesh, from the rows that this process has built.

    Args:
      rows: pytree of NumPy arrays `[own, ...]`, the rows that `own_rows` assigns to this process.
      mesh: a mesh from `mesh.make_mesh`.
      graphs: g, the number of graphs in the whole batch.
    """
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def spread(leaf: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, np.asarray(leaf), (graphs, *np.shape(leaf)[1:]))

    return jax.tree.map(spread, rows)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copies a pytree of arrays (typed keys too), equal in every process, to every device of the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def copy(leaf: Any) -> jax.Array:
        if jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
            data = copy(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(leaf)))
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(copy, tree)


def is_main() -> bool:
    """True if this process writes the files and shows progress."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """True if the flag is set in any process; all processes must call this at the same point of the loop."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
