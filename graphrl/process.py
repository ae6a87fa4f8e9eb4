"""This process: its cores, its garbage collector, its memory maps, and the version of graphrl that it runs."""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

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
