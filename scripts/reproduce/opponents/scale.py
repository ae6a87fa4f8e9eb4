"""What large graphs cost, end to end: read, planned and written by `graphrl optimize`, each in a process of its own.

Layered graphs of growing size, of edge density 0.01: 2 to 4 uses an op. "Whole" is the wall clock from the start of
the process to its end, "planning" what the method took of it, memory the most that the process held.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import graphrl
from graphrl.compare.report import markdown
from graphrl.graphs.datasets.families import sample
from reproduce.opponents.settings import Settings
from reproduce.results import Table, here

METHODS = ("list", "anneal", "auto")
HEADINGS = ("ops", "objective", "method", "value", "planning [s]", "whole [s]", "whole [ms/op]", "memory [GB]")
_SECONDS = 45.0  # with reading, exact costs and writing a minute at 100,000 ops
_DEVICES = 8  # for makespan
_EDGE_DENSITY = 0.01

# The memory of a process is asked of a small parent: a child's peak counts from what its parent held when it forked.
_MEASURE = """
import resource, subprocess, sys
with open(sys.argv[1], "wb") as output:
    code = subprocess.call(sys.argv[2:], stdout=output)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(code)
"""


class Measured(NamedTuple):
    """One process."""

    value: float  # bytes or seconds
    planning: float  # seconds
    whole: float  # seconds
    memory: int  # bytes


def scale(settings: Settings) -> Iterator[Table]:
    """One table. A method that cannot take an objective, or fails, has no numbers in its line."""
    folder = settings.out / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for ops in (300, 1000) if settings.quick else (1000, 10_000, 100_000):
        model = folder / f"layered-{ops}.json"
        graphrl.write_json(sample("layered", ops, 0, {"edge_density": _EDGE_DENSITY})[0], model)
        for objective in ("peak_memory", "makespan"):
            for method in settings.among(METHODS):
                try:
                    measured = _measure(model, method, objective, 1.0 if settings.quick else _SECONDS)
                    lines.append([f"{ops:,}", objective, method, *_cells(measured, ops)])
                except graphrl.GraphrlError as error:
                    print(error, file=sys.stderr)
                    lines.append([f"{ops:,}", objective, method, *["-"] * 5])
                print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    how = (
        f"Peak memory on 1 device, makespan on {_DEVICES}, `rendezvous`, at no cost of a transfer's own; methods that "
        f"search have {_SECONDS:g} s. Each is one process of `graphrl optimize`: whole is its wall clock, memory the "
        "most that it held; `-` where a method does not take the objective."
    )
    yield Table("Scale: layered graphs, read, planned and written", here(), [how, markdown(HEADINGS, lines)])


def _measure(model: Path, method: str, objective: str, seconds: float) -> Measured:
    """Optimises a graph file in a new process, on 1 device for peak memory and on 8 for makespan.

    Raises:
      GraphrlError: the process fails.
    """
    stem = f"{model.with_suffix('')}-{method}-{objective}"
    devices = 1 if objective == "peak_memory" else _DEVICES
    arguments = [sys.executable, "-m", "graphrl", "optimize", str(model), "--method", method, "--objective", objective]
    arguments += ["--devices", str(devices), "--seconds", str(seconds), "--output", f"{stem}.plan.json", "--json"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, f"{stem}.summary.json", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    whole = time.perf_counter() - started
    if done.returncode != 0:
        raise graphrl.GraphrlError(f"{method} on {model}: {(done.stderr.strip().splitlines() or ['it died'])[-1]}")
    summary = json.loads(Path(f"{stem}.summary.json").read_text(encoding="utf-8"))
    return Measured(summary["value"], summary["seconds"], whole, int(done.stdout))


def _cells(measured: Measured, ops: int) -> list[str]:
    times = f"{measured.planning:.3g}", f"{measured.whole:.3g}", f"{1000 * measured.whole / ops:.3g}"
    return [f"{measured.value:,.6g}", *times, f"{measured.memory / 1e9:.2f}"]
