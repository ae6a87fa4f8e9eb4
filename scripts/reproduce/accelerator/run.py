"""Runs the parts in sequence, each in a process that ends at its limit, and keeps the page up to date."""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import jax

from graphrl.errors import GraphrlError
from graphrl.files import make_folder, write_atomically
from reproduce.accelerator.job import Job, Row
from reproduce.accelerator.page import page_text, write_curves

SHARES = {"costs": 50.0, "rollouts": 95.0, "search": 45.0, "training": 60.0, "cpu": 45.0}  # of the time; for each agent
MARGIN = 0.97  # shared part of the remaining time: processes take a while to end
# Compilation takes half of the time, and programs run several times slower. jax 0.11 has only one kind of fusions.
LITTLE_EFFORT = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    LITTLE_EFFORT += " --xla_cpu_use_fusion_emitters=false"


def run(args: argparse.Namespace, started: float) -> int:
    """Measures the sections of the command line. Returns the exit code: 1 if some could not be tried.

    Args:
      args: parsed command line.
      started: start of the time limit, by `time.time`.
    """
    rows: list[Row] = []
    try:
        make_folder(args.output.parent)
        with tempfile.TemporaryDirectory(prefix="graphrl-compiled-") as compiled:
            for job in _jobs(args, started + args.seconds):
                for row in _rows(job, compiled):
                    if "absent" in row:
                        raise GraphrlError(
                            f"{row['absent']}: --platform cpu --seconds 60 tries everything at small sizes"
                        )
                    rows.append(row)
                    print(f"accelerator: {json.dumps(row)}", file=sys.stderr, flush=True)
                    _write(args, rows)
    except (GraphrlError, OSError) as error:
        print(f"accelerator: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("accelerator: interrupted: the page has what was measured until then", file=sys.stderr)
        return 1
    print(f"written: {args.output}", file=sys.stderr)
    return 0


def _jobs(args: argparse.Namespace, ends: float) -> Iterator[Job]:
    """Yields the parts of the measurements, each with its share of the time left at that point."""
    parts = [name.split(":") for name in args.parts]
    for number, (section, *part) in enumerate(parts):
        share = SHARES[section] / sum(SHARES[name] for name, *_ in parts[number:])
        limit = max(1.0, MARGIN * (ends - time.time()) * share)
        platform = "cpu" if section == "cpu" else args.platform
        yield Job(section, "".join(part), platform, time.time() + limit, args.small, args.seed)


def _write(args: argparse.Namespace, rows: list[Row]) -> None:
    """Writes the page with all figures so far, and the picture."""
    picture = args.output.with_suffix(".png")
    has_curves = write_curves(rows, picture)
    text = page_text(rows, args, picture.name if has_curves else "")
    write_atomically(args.output, lambda file: file.write(text))


def _rows(job: Job, compiled: str) -> Iterator[Row]:
    """Runs a part; yields its rows as they arrive, and a last one if its process was cut or failed."""
    limit = job.left
    command = [sys.executable, "-m", "reproduce.accelerator.job", json.dumps(dataclasses.asdict(job))]
    environment = _environment(job, compiled)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            for line in process.stdout or ():
                if line.endswith(b"\n"):  # else the process was cut while it wrote
                    yield json.loads(line)
        except BaseException:  # Ctrl-C, or the page cannot be written
            process.kill()
            raise
    if process.returncode:
        was_cut = process.returncode == -signal.SIGALRM
        why = f"cut at its limit of {limit:.0f} s" if was_cut else f"its process ended with code {process.returncode}"
        yield {"section": job.section, "part": job.part, "cut": why}


def _environment(job: Job, compiled: str) -> dict[str, str]:
    """Returns the environment variables for a part's process.

    It imports from this process's paths, in the same order, and sees the platform to measure. With small sizes,
    processes share a compilation cache.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    variables.pop("JAX_PLATFORMS", None)  # jax takes an accelerator if there is one
    if job.small:
        variables.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
        variables.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    if job.platform == "cpu":
        variables["JAX_PLATFORMS"] = "cpu"
        if job.small:
            variables.setdefault("XLA_FLAGS", LITTLE_EFFORT)
    return variables
