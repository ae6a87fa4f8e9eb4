"""Measures how soon training starts and how fast it is, on this machine: docs/results/throughput-training.md.

Runs `graphrl train` of each agent with its own settings, and that of `make train`, four times in processes of their
own: with empty caches, with the caches of that run, and both again in pure JAX (`GRAPHRL_LOWERING=jax`). A run ends
`--seconds` after its first update. Leave the machine alone meanwhile.

  python scripts/training_speed.py
  python scripts/training_speed.py --agents go --seconds 60
"""

import collections
import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reproduce.launcher import command
from reproduce.results import Table, here, results_text

from graphrl.commands.parser import Parser
from graphrl.compare.report import markdown
from graphrl.files import write_atomically
from graphrl.training.folder import FILE, read_metrics

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "throughput-training.md"
RUNS = {
    "make train": ("regal", "--config", str(ROOT / "scripts" / "train.toml")),
    **{name: (name,) for name in ("regal", "topoformer", "go", "egrl")},
}
LOWERINGS = {"auto": "compiled", "jax": "pure JAX"}
TITLE = "Seconds to the first update, and updates a second"
SETTING = (
    "Each line is `graphrl train AGENT` with its own settings (`make train`: scripts/train.toml). Seconds are from the "
    "start of the process until its first update is in metrics.jsonl: they include imports, graphs, the validation of "
    "the untrained policy, and compiling. Cold: no cache of numba or XLA; warm: the caches of the run before. Updates "
    "a second are those of the warm runs, without the first update of each bucket of sizes."
)


class Started(NamedTuple):
    """A measured run: seconds to its first update, and its updates a second (nan if it made no second one)."""

    first: float
    rate: float


def run(arguments: Sequence[str], cache: Path, seconds: float, lowering: str) -> Started:
    """Trains until `seconds` after the first update with this folder of caches and this lowering."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR",)}
    environment = {**kept, "XDG_CACHE_HOME": str(cache), "GRAPHRL_LOWERING": lowering}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "graphrl", "train", *arguments, "--out", str(out)]
        started, deadline, first = time.perf_counter(), float("inf"), 0.0
        with open(Path(folder, "log"), "wb") as log:
            process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        while process.poll() is None and time.perf_counter() < deadline:
            time.sleep(0.05)
            if not first and (out / FILE).is_file() and any("seconds" in line for line in read_metrics(out)):
                first = time.perf_counter() - started
                deadline = time.perf_counter() + seconds
        metrics = read_metrics(out) if first else []
        process.send_signal(signal.SIGTERM)  # it finishes its update
        process.wait()
        if not first:
            raise SystemExit(Path(folder, "log").read_text())
    return Started(first, _rate([line for line in metrics if "seconds" in line]))


def _rate(updates: Sequence[dict]) -> float:
    """Computes the updates a second: the median of each bucket, weighted by its number of updates; nan without any."""
    by_bucket = collections.defaultdict(list)
    seen = set()
    for before, after in itertools.pairwise(updates):
        seen.add(before["bucket"])
        if after["bucket"] in seen:
            by_bucket[after["bucket"]].append(after["seconds"] - before["seconds"])
    count = sum(map(len, by_bucket.values()))
    return count / sum(len(each) * statistics.median(each) for each in by_bucket.values()) if count else math.nan


def row(name: str, lowerings: Sequence[str], seconds: float) -> list[str]:
    """Measures one command; returns its row of the table."""
    cells: list[str] = []
    rates = []
    for lowering in lowerings:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (run(RUNS[name], Path(cache), wait, lowering) for wait in (0.0, seconds))
        rates.append(warm.rate)
        cells += [f"{cold.first:.1f}", f"{warm.first:.1f}", f"{warm.rate:.3g}"]
    if len(rates) > 1:
        cells.append(f"{rates[0] / rates[1]:.2f}")
    return [f"`{name}`" if name == "make train" else f"`graphrl train {name}`", *cells]


def main() -> None:
    """Measures and writes the page."""
    parser = Parser(description=__doc__, epilog=f"writes {PAGE.name}")
    parser.add_argument("--agents", default=",".join(RUNS), metavar="A,...", help=f"(default: {','.join(RUNS)})")
    parser.add_argument("--lowering", choices=tuple(LOWERINGS), help="measure only this one (default: both)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a warm run after its first update")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE.md", help=f"(default: {PAGE.name} of docs)")
    args = parser.parse_args()
    names = args.agents.split(",")
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"--agents names {unknown[0]!r}: must be among {', '.join(RUNS)}")
    lowerings = [args.lowering] if args.lowering else list(LOWERINGS)
    rows = []
    for name in names:
        rows.append(row(name, lowerings, args.seconds))
        print(" ".join(rows[-1]), flush=True)
    columns = ("cold s", "warm s", "updates / s")
    head = ["command", *(f"{LOWERINGS[each]}: {what}" for each in lowerings for what in columns)]
    head += ["ratio"] * (len(lowerings) > 1)
    soonest = ", ".join(f"{line[1]} s of {line[0]}" for line in rows)
    summary = f"From nothing to the first update: {soonest}."
    table = Table(TITLE, here(), (SETTING, markdown(head, rows)), summary)
    text = results_text(TITLE, [table], command())
    write_atomically(args.output, lambda file: file.write(text))


if __name__ == "__main__":
    main()
