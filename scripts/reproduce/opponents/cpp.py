"""Annealings of others to compare with, given as C++ sources."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

from graphrl.errors import GraphrlError


def load_cpp(source: Path) -> ctypes.CDLL:
    """One C++ file, compiled for this machine by $CXX or c++.

    Raises:
      GraphrlError: there is no such compiler, or it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "compiled.so"
        compiler = os.environ.get("CXX", "c++")
        flags = "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-o"
        try:
            done = subprocess.run(
                [compiler, str(source), *flags, str(built)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise GraphrlError(f"{compiler} cannot be started: {error.strerror}") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
            raise GraphrlError(f"{compiler} failed on {source.name}: {lines[0]}")
        return ctypes.CDLL(str(built))
