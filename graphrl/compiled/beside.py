"""Compiling two functions at once: one of them in another process, which leaves it on disk."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from graphrl.compiled import folder, is_writable, ready
from graphrl.cores import count_cores


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
