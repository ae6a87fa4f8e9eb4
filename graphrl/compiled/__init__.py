"""Compile host searches with numba, once for all sizes and problems, and keep the machine code on disk.

Cache: it is in `$XDG_CACHE_HOME/graphrl/numba` (by default ~/.cache/graphrl/numba), or where NUMBA_CACHE_DIR says. Each
set of sources, numba version and processor has its own folder, as numba alone takes a function for unchanged if its
file is, although it calls another function that has changed. So a compiled function calls only those of its own folder
and of this one. Modules from which a folder imports constants, CAPITALS, belong to its sources. Folders that no process
has used for a month are deleted when a new one is made. A cache that cannot be written costs nothing but the
compilation.

Functions: they get all their arrays as arguments and make none. Without numba's reference counts (`_nrt`) they compile
and run several times faster.

Parts: plain `numba.njit` optimises every function together with all that it calls, and makes machine code of that: a
function at call depth four is compiled four times, and once more for itself. `parts.py` has numba leave a part as it
was lowered until an entry inlines it.

`beside` compiles two functions at once, one of them in another process, which leaves it on disk.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numba.extending
import numpy as np

from graphrl.files import cache_folder, shown
from graphrl.process import count_cores, uncollected

# What numba's types leave out: the setting, and the keyword `_nrt`.
config, njit = cast(Any, numba.config), cast(Any, numba.njit)
register_jitable = cast(Any, numba.extending.register_jitable)
integer: Any = np.int64  # what literals and int32 become before they are passed on: numba compiles for each type
F = TypeVar("F", bound=Callable[..., Any])
TESTED = tuple(f"0.{minor}." for minor in range(64, 69))  # versions of numba that parts.py is made for
OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
ENTRIES, PARTS = OPTIONS | {"nogil": True}, OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
if numba.__version__.startswith(TESTED):
    from graphrl.compiled.parts import Entry, Part, import_without_scipy

    ENTRIES["pipeline_class"], PARTS["pipeline_class"] = Entry, Part
else:  # numba's internals may be others

    def import_without_scipy() -> None:
        """Leaves that to numba."""


ROOT = Path(__file__).parents[2]  # of modules
IMPORT = re.compile(r"^from (graphrl[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
CONSTANT = re.compile(r"\b[A-Z][A-Z0-9_]*\b")
FOLDER = re.compile(r"[0-9a-f]{16}")
KEPT_SECONDS = 30 * 24 * 3600.0  # for which a folder stays that is not used


def entry(function: F) -> F:
    """A compiled function for Python to call: other threads run beside it, and it is kept on disk with its parts."""
    users, here = config.CACHE_DIR, folder(function)
    config.CACHE_DIR = str(here)
    try:
        return cast(F, njit(cache=is_writable(here), **ENTRIES)(function))
    finally:
        config.CACHE_DIR = users


def late_entry(function: F) -> F:
    """An `entry` that is made one at its first call, and compiled there without a word: for what takes less than a
    second, and for what `import graphrl` loads, which writes no folder.
    """
    made = functools.cache(lambda: cast(Any, entry(function)))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        compiled = made()
        with contextlib.nullcontext() if compiled.overloads else unannounced():
            return compiled(*args)

    return cast(F, call)


def part(function: F) -> F:
    """A function for compiled ones alone: what Python would need to call it takes longer to compile than itself."""
    return cast(F, njit(**PARTS)(function))


def inlined(function: F) -> F:
    """A small one that becomes a part of those that call it: a call passes every array's parts."""
    return cast(F, njit(forceinline=True, **PARTS)(function))


def shared(function: F) -> F:
    """One that Python calls as it is, on lists, and that becomes a part of compiled ones that call it, on arrays."""
    return cast(F, register_jitable(forceinline=True, **PARTS)(function))


def folder(function: Callable[..., Any]) -> Path:
    """Where a function is kept."""
    function = getattr(function, "py_func", function)
    return _folder(Path(function.__code__.co_filename).parent)


def ready(function: Callable[..., Any], what: str) -> Path:
    """The file that tells that `announced` was left with a function compiled."""
    return folder(function) / f"{what}.ready"


@functools.cache
def _folder(sources: Path) -> Path:
    paths = [path for place in (sources, Path(__file__).parent) for path in sorted(place.glob("*.py"))]
    parts = [path.read_text("utf-8") for path in paths]
    constants = {module for part in parts for module, names in IMPORT.findall(part) if CONSTANT.search(names)}
    for module in sorted(constants):
        place = ROOT.joinpath(*module.split("."))
        package = place / "__init__.py"  # a folder alone may be what an older checkout left of a package
        parts.append((package if package.exists() else place.with_suffix(".py")).read_text("utf-8"))
    parts += [numba.__version__, llvmlite.binding.get_host_cpu_name()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Path(config.CACHE_DIR or cache_folder("numba")) / digest


def is_writable(path: Path) -> bool:
    """Whether a folder is there, now as one that is used, and can be written: where it cannot, numba would write beside
    the sources.
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
    """Removes folders of other sources. A process that has one open compiles anew what it has not loaded yet."""
    for place in caches.iterdir():
        with contextlib.suppress(OSError):  # another process removes it, too
            if FOLDER.fullmatch(place.name) and time.time() - place.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(place)


@contextlib.contextmanager
def announced(function: Callable[..., Any], what: str, seconds: int = 10) -> Iterator[None]:
    """Says in one line on standard error that a function is compiled in it, unless it was before from these sources.

    Args:
      function: an `entry`.
      what: it is: a method, and the kind of problem if it is compiled for several.
      seconds: that it takes, or so.
    """
    here, mark = folder(function), ready(function, what)
    if not mark.exists():
        when = "once" if is_writable(here) else f"again in each run: {shown(here)} cannot be written"
        print(f"graphrl: compiling {what} for this machine (some {seconds} s), {when}", file=sys.stderr, flush=True)
    with unannounced():
        yield
    with contextlib.suppress(OSError):
        mark.touch()


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Compiling in it takes less time, without garbage collection, and nobody is told."""
    import_without_scipy()
    with uncollected():
        yield


@contextlib.contextmanager
def beside(function: Callable[..., Any], what: str, prepare: Callable[[], None]) -> Iterator[None]:
    """Another process compiles a function while this one is in it, where that saves time: it is not on disk, can be
    kept there, and there is a second core. Where the other process fails, this one compiles it as without.

    Args:
      function: an `entry`.
      what: it is, as `announced` is told.
      prepare: a function of a module that compiles it.
    """
    if ready(function, what).exists() or not is_writable(folder(function)) or count_cores() < 2:
        yield
        return
    code = f"from {prepare.__module__} import {prepare.__name__} as prepare; prepare()"
    silent = subprocess.DEVNULL
    try:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=silent, stdout=silent, stderr=silent)
    except OSError:
        yield
        return
    try:
        yield
        process.wait()
    finally:
        process.kill()
        process.wait()
