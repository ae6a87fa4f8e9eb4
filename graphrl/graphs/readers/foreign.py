"""Runs foreign native code in a separate process with limits on time and memory.

On some files, parsers and shape inference in C++ crash, never end, or take all memory. Here each of these becomes a
one-line error. `foreign_calls.py` is the code of the process.
"""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from graphrl.errors import GraphError, ProblemError, require
from graphrl.files import MAX_UNPACKED
from graphrl.graphs.readers.foreign_calls import read_length, write_frame
from graphrl.units import format_bytes, format_seconds

_SCRIPT = Path(__file__).with_name("foreign_calls.py")
_INTERVAL = 0.02  # seconds between two checks of the process
_NAMES = {
    "hlo_proto": "XLA's parser of HLO text",
    "infer_shapes": "ONNX's shape inference",
    "shape_faults": "ONNX's shape inference",
    "inline_functions": "ONNX's inlining of functions",
}
_LIMITED = "the limit (limits=, --read-limits in commands)"


@dataclasses.dataclass(frozen=True)
class ReadLimits:
    """Limits on the time and memory for reading one file.

    Attributes:
      seconds: wall-clock time that foreign code (ONNX's shape inference, XLA's text parser) may take; or inf.
      memory: bytes that this code may allocate, and that a gzipped file may unpack to; or inf.

    Raises:
      ProblemError: a limit is out of range.
    """

    seconds: float = 60.0
    memory: float = MAX_UNPACKED

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ProblemError(f"limit of reading: {field.name} is {value!r}: must be a number above 0")


DEFAULT_LIMITS = ReadLimits()


class Foreign:
    """The separate process for foreign code, as a context manager: the first call starts it, later calls reuse it.

    Attributes:
      limits: limits on all its calls together.

    The calling process monitors it, because no system known to us limits the resident memory of one process. Address
    space is no substitute: jaxlib alone takes gigabytes of it.
    """

    def __init__(self, limits: ReadLimits) -> None:
        self.limits = limits
        self._seconds = 0.0  # sum over all calls
        self._process: subprocess.Popen[bytes] | None = None
        self._excess = ""

    def __enter__(self) -> "Foreign":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def call(self, function: str, argument: bytes, *, growth: float = math.inf) -> bytes:
        """Calls a function of `foreign_calls.py` and returns its result.

        Args:
          function: name of the function.
          argument: argument of the function, serialised.
          growth: number of bytes by which the result may be longer than the argument.

        Raises:
          GraphError: the function rejects the argument, crashes, or exceeds the limits.
          MissingExtraError: psutil is not installed.
        """
        require("psutil", "onnx", _NAMES[function])  # here, in the caller's thread, so that errors reach the caller
        if self._process is None:
            self._process = self._start()
        start, done = time.monotonic(), threading.Event()
        watch = threading.Thread(target=self._watch, args=(self._process, done), daemon=True)
        watch.start()
        try:
            answer = _exchange(self._process, function, argument, len(argument) + growth)
        finally:
            done.set()
            watch.join()
            self._seconds += time.monotonic() - start
        if answer is None:
            raise GraphError(f"{_NAMES[function]} {self._excess or _exit_reason(self._process)}")
        rejected, result = answer
        if rejected:
            raise GraphError(result.decode(errors="replace"))
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        seconds = None if self.limits.seconds > 2**31 else math.ceil(self.limits.seconds) + 1
        command = [sys.executable, "-I", "-S", os.fspath(_SCRIPT), json.dumps([[*map(str, sys.path)], seconds])]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def _watch(self, process: subprocess.Popen[bytes], done: threading.Event) -> None:
        """Kills the process if it exceeds the limits."""
        start = time.monotonic() - self._seconds
        while not done.wait(_INTERVAL):
            if time.monotonic() - start > self.limits.seconds:
                self._excess = f"takes more than {format_seconds(self.limits.seconds)}, {_LIMITED}"
            elif _resident(process.pid) > self.limits.memory:
                self._excess = f"needs more than {format_bytes(self.limits.memory)}, {_LIMITED}"
            if self._excess:
                process.kill()
                return


def _exchange(
    process: subprocess.Popen[bytes], function: str, argument: bytes, longest: float
) -> tuple[bool, bytes] | None:
    """Sends one request and reads the answer.

    Returns:
      (rejected, answer): the result or, if rejected, the reason; None if the process ended before.

    Raises:
      GraphError: the result is longer than `longest` bytes.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        write_frame(process.stdin, function.encode())
        write_frame(process.stdin, argument)
    except BrokenPipeError:
        return None
    rejected, length = process.stdout.read(1), read_length(process.stdout)
    if length is None:
        return None
    if length > longest:
        raise GraphError(f"{_NAMES[function]} makes {format_bytes(length)} of {format_bytes(len(argument))}: too much")
    result = process.stdout.read(length)
    return (rejected != b"\0", result) if len(result) == length else None


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    return f"crashes on it ({signal.Signals(-code).name})" if code < 0 else f"ends on it with exit code {code}"


def _resident(pid: int) -> int:
    """Returns the resident memory of a process in bytes; 0 once it has ended."""
    import psutil

    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
