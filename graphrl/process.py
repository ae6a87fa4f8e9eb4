"""This process: its cores, its garbage collector, its memory maps, its cache of compiled programs, and its version."""

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from graphrl.files import cache_folder

_MAPS, _MAX_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_LOCK = threading.Lock()
_CONTEXTS: set[object] = set()  # contexts in which the collector is off; if empty, it is in the user's state


def count_cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Context manager that disables the garbage collector, in all threads, until the last such context ends.

    For code that creates many long-lived objects, such as traces of programs: the collector scans all of them
    repeatedly, which takes a tenth to a fifth of the time.
    """
    context = object()
    try:
        with _LOCK:
            if gc.isenabled() or _CONTEXTS:
                _CONTEXTS.add(context)
            gc.disable()
        yield
    finally:
        with _LOCK:
            if context in _CONTEXTS:
                _CONTEXTS.remove(context)
                if not _CONTEXTS:
                    gc.enable()


def enable_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache for this process and its children, if none is set.

    The folder is `$XDG_CACHE_HOME/graphrl/jax` (by default ~/.cache/graphrl/jax). Commands and `graphrl.training` call
    this; other functions leave it to the program that imports them. JAX itself is not imported: not every search needs
    it. JAX_ENABLE_COMPILATION_CACHE=0 turns the cache off. If the folder cannot be written, programs are compiled again
    in each process.
    """
    folder, seconds = str(cache_folder("jax")), "0.2"
    if "jax" not in sys.modules:
        if os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder) == folder:
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", seconds)
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))
        compilation_cache.reset_cache()  # a program may have been compiled without it


def installed_version() -> str | None:
    """Returns graphrl's version as `pip` knows it, such as "0.2.0"; None if graphrl runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("graphrl")
    except PackageNotFoundError:
        return None


def near_mmap_limit(share: float = 0.5) -> bool:
    """True if this process has more than this share of the memory maps that Linux allows it (65,530 by default).

    Every compiled program takes some while it is kept; at the limit LLVM aborts the process. False on other systems.
    """
    try:
        limit = int(_MAX_MAPS.read_text())
        with _MAPS.open("rb") as file:
            return sum(1 for _ in file) > share * limit
    except OSError:
        return False
