"""How searches on the host are compiled: by numba, once for all sizes and problems, and kept on disk.

What is compiled lies in `$XDG_CACHE_HOME/graphrl/numba` (by default ~/.cache/graphrl/numba), or where NUMBA_CACHE_DIR
says, in a folder of its own for the sources, numba and processor: numba alone would take a function for unchanged whose
file is, though it calls another that has changed. So a compiled function calls only those of its own folder and of this
one. A cache that cannot be written costs nothing but the compilation.

Compiled functions get all their arrays and make none: without numba's reference counts (`_nrt`) they compile and run
several times faster.
"""

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np

from graphrl.files import cache_folder, shown

# What numba's types leave out: the setting, and the keyword `_nrt`.
config, njit = cast(Any, numba.config), cast(Any, numba.njit)
integer: Any = np.int64  # what literals and int32 become before they are passed on: numba compiles for each type
F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = {"_nrt": False, "error_model": "numpy"}


def entry(function: F) -> F:
    """A compiled function for Python to call: other threads run beside it, and it is kept on disk with its parts."""
    users, here = config.CACHE_DIR, folder(function)
    config.CACHE_DIR = str(here)
    try:
        return cast(F, njit(cache=_is_writable(here), nogil=True, **OPTIONS)(function))
    finally:
        config.CACHE_DIR = users


def part(function: F) -> F:
    """A function for compiled ones alone: what Python would need to call it takes longer to compile than itself."""
    return cast(F, njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)(function))


def inlined(function: F) -> F:
    """A small one that becomes a part of those that call it: a call passes every array's parts."""
    return cast(F, njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **OPTIONS)(function))


def folder(function: Callable[..., Any]) -> Path:
    """Where a function is kept."""
    function = getattr(function, "py_func", function)
    return _folder(Path(function.__code__.co_filename).parent)


@functools.cache
def _folder(sources: Path) -> Path:
    parts = [path.read_bytes() for place in (sources, Path(__file__).parent) for path in sorted(place.glob("*.py"))]
    parts += [numba.__version__.encode(), llvmlite.binding.get_host_cpu_name().encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return Path(config.CACHE_DIR or cache_folder("numba")) / digest


def _is_writable(path: Path) -> bool:
    """Whether a folder is there and can be written: where it cannot, numba would write beside the sources."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK)


@contextlib.contextmanager
def announced(function: Callable[..., Any], what: str) -> Iterator[None]:
    """Says in one line on standard error that a function is compiled in it, unless it was before from these sources.

    Args:
      function: an `entry`.
      what: it is: a method, and the kind of problem if it is compiled for several.
    """
    here = folder(function)
    ready = here / f"{what}.ready"
    if not ready.exists():
        when = "once" if _is_writable(here) else f"again in each run: {shown(here)} cannot be written"
        print(f"graphrl: compiling {what} for this machine (some 10 s), {when}", file=sys.stderr, flush=True)
    yield
    with contextlib.suppress(OSError):
        ready.touch()
