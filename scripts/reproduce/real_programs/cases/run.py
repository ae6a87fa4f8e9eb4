"""Cases in processes of their own, which have several devices and may die.

`python -m reproduce.real_programs.cases.run` reads a line of JSON for each case, `{"case", "by", "seconds"}`, and
answers with one: `{"lines", "programs", "planned"}`, or `{"error"}`.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import Any

import jax

from graphrl.errors import GraphrlError
from reproduce.real_programs.cases import arrays, calls, control, devices, donation, effects, options, randomness
from reproduce.real_programs.cases.compiler import Case, graphrl_s, jax_s, observed

KINDS: dict[str, dict[str, Case]] = {
    "effects": effects.CASES,
    "random numbers": randomness.CASES,
    "calls of libraries": calls.CASES,
    "control flow, transformations": control.CASES,
    "types, sizes, results": arrays.CASES,
    "donation": donation.CASES,
    "options, kinds of functions": options.CASES,
    "several devices": devices.CASES,
}
CASES = {name: case for cases in KINDS.values() for name, case in cases.items()}
DEVICES = 4
LIMIT = 900.0  # seconds for a case: devices may wait for each other for ever


class Observer:
    """Runs cases in a process, and in the next one if that dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def observe(self, case: str, by: str, seconds: float, *, alone: bool = False) -> dict[str, Any]:
        """What a case shows; `alone`: in a fresh process.

        Args:
          case: its name.
          by: "jax" or "graphrl".
          seconds: of each search.
          alone: in a process that has compiled nothing.

        Raises:
          GraphrlError: the case raised something, or its process died.
        """
        if alone:
            self.close()
        if self._process is None:
            self._process = _started()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"case": case, "by": by, "seconds": seconds}), file=process.stdin, flush=True)
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        answer = process.stdout.readline()
        timer.cancel()
        if not answer:
            code = process.wait()
            self.close()
            raise GraphrlError(f"under {by} the process died with exit code {code}")
        shown: dict[str, Any] = json.loads(answer)
        if "error" in shown:
            raise GraphrlError(f"under {by}: {shown['error']}")
        return shown

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _started() -> "subprocess.Popen[str]":
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # What jax's cache on disk has is compiled by nobody, and so not planned.
    environment = os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )


def _main() -> None:
    """The new process. Whatever the cases print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(_shown(**json.loads(line))), file=answers, flush=True)
        jax.clear_caches()


def _shown(case: str, by: str, seconds: float) -> dict[str, Any]:
    compiler = graphrl_s(seconds) if by == "graphrl" else jax_s()
    try:
        lines = observed(CASES[case], compiler)
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    reports = compiler.reports()
    return {"lines": lines, "programs": len(reports), "planned": sum(report.planned for report in reports)}


if __name__ == "__main__":
    _main()
