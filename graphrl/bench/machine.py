"""The measured machine: its name, and the cores and devices in use."""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.sharding import Mesh

from graphrl import mesh
from graphrl.errors import ProblemError


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[bool]:
    """Pins this process to one core (the last one) within the `with` if `threads` is 1; yields True if it is pinned.

    Threads that start in the `with` stay on that core: XLA starts one thread for each core, which costs more than it
    gains.
    """
    if threads > 1 or not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


def configure(threads: int) -> None:
    """Sets the number of JAX's CPU devices to `threads`, and disables the compilation cache.

    Must be called before jax first looks for devices.

    Raises:
      ProblemError: jax has already found fewer devices.
    """
    with contextlib.suppress(RuntimeError):  # too late to set: the check below decides
        jax.config.update("jax_num_cpu_devices", threads)
    jax.config.update("jax_enable_compilation_cache", False)
    if jax.default_backend() == "cpu" and len(jax.local_devices()) < threads:
        raise ProblemError(f"{threads} threads need {threads} CPU devices, and jax has {len(jax.local_devices())}")


def make_mesh(threads: int, graphs: int) -> Mesh:
    """Returns a mesh of the largest number of devices that can share the graphs equally.

    It has at most one CPU device per thread, or all accelerators.
    """
    devices = jax.local_devices()
    most = threads if jax.default_backend() == "cpu" else len(devices)
    return mesh.make_mesh(graphs, devices[: mesh.most_that_share(graphs, most)])


def free_bytes() -> int:
    """Returns the free memory of the device that jax computes on; that of CPUs is this process's."""
    if stats := jax.local_devices()[0].memory_stats():
        return stats["bytes_limit"] - stats["bytes_in_use"]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # of a container
        folder = Path("/sys/fs/cgroup")
        most, used = (int((folder / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return free


def cpu_name() -> str:
    """Returns the processor's name."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"


def device_name() -> str:
    """Returns the name of the device that jax computes on."""
    device = jax.local_devices()[0]
    return cpu_name() if device.platform == "cpu" else device.device_kind


def clock(pinned: bool) -> str:
    """Returns the clock for reported times: "cpu" (excludes other processes) if pinned to one core, else "wall"."""
    return "cpu" if pinned and jax.default_backend() == "cpu" else "wall"
