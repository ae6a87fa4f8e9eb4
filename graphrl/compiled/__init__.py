"""Compilation of host searches with numba, once for all sizes and problems, with a cache of machine code on disk.

Cache: its folder is `$XDG_CACHE_HOME/graphrl/numba` (by default ~/.cache/graphrl/numba), or NUMBA_CACHE_DIR if set.
Each set of sources, numba version and processor has a separate subfolder: numba alone reuses a function if its own file
is unchanged, even if a function that it calls has changed. So a compiled function calls only those of its own folder
and of this one. Modules from which a folder imports constants, in CAPITALS, belong to its sources. Folders that no
process has used for 30 days are deleted when a new one is created. If the cache cannot be written, functions are
compiled in each process.

Functions: they receive all their arrays as arguments and allocate none. Without numba's reference counts (`_nrt`) they
compile and run several times faster.

Parts: plain `numba.njit` optimises every function together with all its callees, and generates machine code for them:
a function at call depth four is compiled four times, and once more for itself. With `parts.py`, numba keeps a part as
it was lowered until an entry inlines it.

`background_compile` compiles two functions in parallel, one of them in another process, which stores it on disk.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numba.extending
import numpy as np

from graphrl.files import cache_folder, quote_path
from graphrl.process import count_cores, pause_gc

# numba's type hints lack this setting and the keyword `_nrt`.
config, njit = cast(Any, numba.config), cast(Any, numba.njit)
register_jitable = cast(Any, numba.extending.register_jitable)
integer: Any = np.int64  # convert literals and int32 before passing them on: numba compiles for each type
F = TypeVar("F", bound=Callable[..., Any])
TESTED = tuple(f"0.{minor}." for minor in range(64, 69))  # versions of numba that parts.py supports
OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
ENTRIES, PARTS = OPTIONS | {"nogil": True}, OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
if numba.__version__.startswith(TESTED):
    from graphrl.compiled.parts import Entry, Part, import_without_scipy

    ENTRIES["pipeline_class"], PARTS["pipeline_class"] = Entry, Part
else:  # numba's internals may differ

    def import_without_scipy() -> None:
        """Does nothing: numba imports scipy itself."""


ROOT = Path(__file__).parents[2]  # of modules
IMPORT = re.compile(r"^from (graphrl[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
CONSTANT = re.compile(r"\b[A-Z][A-Z0-9_]*\b")
FOLDER = re.compile(r"[0-9a-f]{16}")
USERS_FOLDER = config.CACHE_DIR  # by NUMBA_CACHE_DIR; "" without it
_LOCK = threading.RLock()
KEPT_SECONDS = 30 * 24 * 3600.0  # for which an unused folder is kept


def entry(function: F) -> F:
    """A compiled function that Python calls. It releases the GIL and is cached on disk with its parts."""
    with cached_in(folder(function)) as is_cached:
        return cast(F, njit(cache=is_cached, **ENTRIES)(function))


@contextlib.contextmanager
def cached_in(here: Path) -> Iterator[bool]:
    """Context, for one thread at a time, in which numba keeps machine code in a folder. Yields True if it can write."""
    with _LOCK:
        config.CACHE_DIR = str(here)
        try:
            yield is_writable(here)
        finally:
            config.CACHE_DIR = USERS_FOLDER


def late_entry(function: F) -> F:
    """An `entry` that is created and compiled at its first call, without a message.

    It is for functions that compile in less than a second, and for modules that `import graphrl` loads: an import
    creates no folder.
    """
    compile_once = functools.cache(lambda: cast(Any, entry(function)))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        compiled = compile_once()
        with contextlib.nullcontext() if compiled.overloads else unannounced():
            return compiled(*args)

    return cast(F, call)


def part(function: F) -> F:
    """A function that only compiled functions call. It has no wrappers for Python, which take longer to compile."""
    return cast(F, njit(**PARTS)(function))


def inlined(function: F) -> F:
    """A small function that is inlined into its callers, because a call passes all fields of every array."""
    return cast(F, njit(forceinline=True, **PARTS)(function))


def shared(function: F) -> F:
    """A function that Python calls uncompiled, on lists, and that is inlined into compiled callers, on arrays."""
    return cast(F, register_jitable(forceinline=True, **PARTS)(function))


def folder(function: Callable[..., Any]) -> Path:
    """The cache folder of a function."""
    function = getattr(function, "py_func", function)
    return _folder(Path(function.__code__.co_filename).parent)


def ready(function: Callable[..., Any], what: str) -> Path:
    """The marker file that `announced` creates after a function is compiled."""
    return folder(function) / f"{what}.ready"


@functools.cache
def _folder(sources: Path) -> Path:
    paths = [path for place in (sources, Path(__file__).parent) for path in sorted(place.glob("*.py"))]
    parts = [path.read_text("utf-8") for path in paths]
    constants = {module for part in parts for module, names in IMPORT.findall(part) if CONSTANT.search(names)}
    for module in sorted(module for module in constants if not f"{module}.".startswith(f"{__name__}.")):
        place = ROOT.joinpath(*module.split("."))
        package = place / "__init__.py"  # a folder without it may be left over from an older checkout
        parts.append((package if package.exists() else place.with_suffix(".py")).read_text("utf-8"))
    parts += [numba.__version__, llvmlite.binding.get_host_cpu_name()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Path(USERS_FOLDER or cache_folder("numba")) / digest


def is_writable(path: Path) -> bool:
    """Creates a folder if needed and marks it as used; True if it can be written.

    If it cannot, numba would write next to the sources.
    """
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            _remove_unused(path.parent)
        os.utime(path)
    except OSError:
        return False
    return os.access(path, os.W_OK)


def _remove_unused(caches: Path) -> None:
    """Removes folders unused for 30 days. A process that still uses one compiles again what it has not loaded yet."""
    for place in caches.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if FOLDER.fullmatch(place.name) and time.time() - place.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(place)


@contextlib.contextmanager
def announced(function: Callable[..., Any], what: str, seconds: int = 10) -> Iterator[None]:
    """Context for compiling a function, which it announces in one line on standard error.

    There is no line if the function was compiled from these sources before.

    Args:
      function: an `entry`.
      what: name of the method, and of the kind of problem if it is compiled for several.
      seconds: approximate time of the compilation.
    """
    here, mark = folder(function), ready(function, what)
    if not mark.exists():
        when = "once" if is_writable(here) else f"again in each run: {quote_path(here)} cannot be written"
        print(f"graphrl: compiling {what} for this machine (some {seconds} s), {when}", file=sys.stderr, flush=True)
    if process := _compiling.pop(mark, None):
        process.wait()
    with unannounced():
        yield
    with contextlib.suppress(OSError):
        mark.touch()


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Context for compiling without a message, and faster: without garbage collection."""
    import_without_scipy()
    with pause_gc():
        yield


@contextlib.contextmanager
def background_compile(function: Callable[..., Any], what: str, prepare: Callable[[], None]) -> Iterator[None]:
    """Context in which another process compiles a function, see `start_compile`. At exit it waits for the process."""
    process = start_compile(
        function, what, f"from {prepare.__module__} import {prepare.__name__} as prepare; prepare()"
    )
    try:
        yield
        if process:
            process.wait()
    finally:
        if process:
            process.kill()
            process.wait()


_STARTING = threading.Lock()
_compiling: dict[Path, subprocess.Popen[bytes]] = {}  # by marker file; `announced` waits for them


def start_compile(function: Callable[..., Any], what: str, code: str) -> subprocess.Popen[bytes] | None:
    """Starts a process that compiles a function and stores it on disk. If it fails, this one compiles as usual.

    It is started only if it saves time: the function is not on disk yet, its folder can be written, and there is a
    second core.

    Args:
      function: an `entry`.
      what: its name, as for `announced`.
      code: Python that compiles it.
    """
    mark, silent = ready(function, what), subprocess.DEVNULL
    with _STARTING:
        can_start = not mark.exists() and is_writable(folder(function)) and count_cores() > 1
        if mark not in _compiling and can_start:
            with contextlib.suppress(OSError):
                command = [sys.executable, "-c", code]
                _compiling[mark] = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)
        return _compiling.get(mark)
