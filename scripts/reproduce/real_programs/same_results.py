"""Results under changed schedules against those of XLA's own schedule, bit by bit, and the time of a step.

Programs that a changed schedule could break are tests, `tests/xla/same_results`; their table reports a run of them.
"""

import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from graphrl.errors import GraphrlError
from graphrl.units import format_seconds
from graphrl.xla.planning.cache import Places
from graphrl.xla.planning.planner import memory_of
from reproduce.measurements import Figures, mebibytes
from reproduce.real_programs.memory import of_plan, planned_order
from reproduce.real_programs.process_size import random_arguments
from reproduce.real_programs.programs import IDENTICAL, Settings, Subject
from reproduce.results import Table, bullets, here, markdown

SLOWER = 1.05  # target: largest ratio of step times
_ROUNDS = 11
ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests" / "xla" / "same_results"
COLUMNS = ("programs", "planned", "lost")
_QUICK = "ordered_debug_callbacks or cholesky or states_in_loops"


def identical(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program."""
    headings = ["program", "XLA [MiB]", "plan [MiB]", "identical", "finite", "XLA's step", "plan's step", "ratio"]
    by_name = {subject.name: _figures(settings, subject) for subject in settings.subjects(IDENTICAL)}
    lines = [[name, *_cells(figures)] for name, figures in by_name.items()]
    how = (
        f"Full compilations; random weights and inputs (seed 0). Step times are medians of {_ROUNDS} runs of each, in "
        'turns; the ratio is the median over these rounds. "Finite" is the share of numbers in the results that are.'
    )
    notes = list(_summary([figures for figures in by_name.values() if figures is not None]))
    title, table = "Results and step times against XLA's own schedule", markdown(headings, lines)
    summary = f"Results under graphrl's schedules, {'; '.join(notes)}." if notes else ""
    yield settings.measurements.table(title, how, table, notes=notes, summary=summary)


def same_results(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each file of tests, and the cases by name."""
    kinds = _run(*(["-k", _QUICK] if settings.quick else []))
    headings = ["kind", "cases", "wrong", "programs", "in graphrl's order", "donation lost", "wrong cases"]
    how = (
        "A case compares all visible behaviour of some programs under `jax.jit` and `graphrl.jit`: bits, types and "
        "shardings of results, effects and their order, errors, warnings, and deleted arguments. It is wrong if these "
        "differ or if one fails. Effects that jax leaves unordered may have any order. Donation is lost where "
        "`graphrl.jit` keeps an argument that `jax.jit` deletes; the plan's bytes include it."
    )
    lines = [[kind, *_case_cells(cases)] for kind, cases in kinds.items()]
    lines.append(["all", *_case_cells([case for cases in kinds.values() for case in cases])])
    summary = f"{lines[-1][2]} of {lines[-1][1]} cases, {lines[-1][3]} programs, behave other than under `jax.jit`."
    names = [f"{kind}: {', '.join(map(_name, cases))}" for kind, cases in kinds.items()]
    lost = [f"donation lost: {_name(case)}" for cases in kinds.values() for case in cases if _count([case], "lost")]
    parts = how, markdown(headings, lines), bullets(names), bullets(lost)
    yield Table("The same results", here(), parts, summary)


def _figures(settings: Settings, subject: Subject) -> Figures | None:
    seconds = settings.times[0]
    if of_plan(settings, subject, seconds) is None:
        return None
    key = {"what": "identical", "program": subject.name, "schedule": f"graphrl-{seconds:g}s"}
    return settings.measurements.get(key, lambda: _measure(subject, planned_order(subject, seconds)))


def _cells(figures: Figures | None) -> list[str]:
    if figures is None:
        return ["-"] * 7
    same = "yes" if not figures["differing"] else f"no: {figures['differing']:,} of {figures['numbers']:,} differ"
    times = map(format_seconds, figures["step_seconds"])
    memory = map(mebibytes, figures["temp"])
    return [*memory, same, f"{100 * figures['finite']:.0f}%", *times, f"{figures['ratio']:.3f}"]


def _summary(measured: Sequence[Figures]) -> Iterator[str]:
    if not measured:
        return
    same = sum(not figures["differing"] for figures in measured)
    ratios = [figures["ratio"] for figures in measured]
    within = sum(one <= SLOWER for one in ratios)
    yield f"identical to the bit: {same} of {len(measured)}"
    yield (
        f"at most {100 * (SLOWER - 1):.0f}% slower: {within} of {len(measured)}; median ratio "
        f"{statistics.median(ratios):.3f}, worst {max(ratios):.3f}"
    )


def _run(*options: str) -> dict[str, list[xml.Element]]:
    """Runs the tests. Returns the cases of each file from pytest's report.

    Raises:
      GraphrlError: pytest could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", str(TESTS), f"--config-file={ROOT / 'pyproject.toml'}"]
        command += [f"--junitxml={report}", "--override-ini=junit_family=xunit1", *options]  # with properties of cases
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode > 1:  # 1: a test failed
            raise GraphrlError(f"pytest: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        kinds: dict[str, list[xml.Element]] = {}
        for case in xml.parse(report).iter("testcase"):
            if case.find("properties") is not None or _is_wrong(case):
                kinds.setdefault(case.get("classname", "").rpartition("test_same_")[2], []).append(case)
        return kinds


def _case_cells(cases: Sequence[xml.Element]) -> list[str]:
    wrong = [_name(case) for case in cases if _is_wrong(case)]
    counts = [str(_count(cases, column)) for column in COLUMNS]
    return [str(len(cases)), str(len(wrong)), *counts, ", ".join(wrong) or "none"]


def _name(case: xml.Element) -> str:
    return case.get("name", "").removeprefix("test_").replace("_", " ")


def _count(cases: Sequence[xml.Element], column: str) -> int:
    return sum(int(one.get("value", 0)) for case in cases for one in case.iter("property") if one.get("name") == column)


def _measure(subject: Subject, order: Places) -> Figures:
    """Measures bytes of temporaries, differing and finite numbers, and step times of XLA's schedule and the plan's."""
    executables = [subject.compiled("default"), subject.compiled(order)]
    args = random_arguments(subject.program.args)
    first = [[np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*args))] for compiled in executables]
    pairs = list(zip(*first, strict=True))
    numbers = sum(before.size for before, _ in pairs)
    floats = [before for before, _ in pairs if np.issubdtype(before.dtype, np.inexact)]
    times = np.array(list(_rounds(executables, args)))
    return {
        "temp": [memory_of(compiled)[0] for compiled in executables],
        "differing": sum(_differing(before, after) for before, after in pairs),
        "numbers": numbers,
        "finite": sum(int(np.isfinite(x).sum()) for x in floats) / max(1, sum(x.size for x in floats)),
        "step_seconds": np.median(times, axis=0).tolist(),
        "ratio": float(np.median(times[:, 1] / times[:, 0])),
    }


def _is_wrong(case: xml.Element) -> bool:
    return any(case.find(kind) is not None for kind in ("failure", "error"))


def _rounds(executables: Sequence[Any], args: Any) -> Iterator[list[float]]:
    """Yields the run times in seconds of all executables, round by round; the first one alternates between rounds."""
    for number in range(_ROUNDS):
        seconds = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            jax.block_until_ready(executables[which](*args))
            seconds[which] = time.perf_counter() - started
        yield seconds


def _differing(before: np.ndarray, after: np.ndarray) -> int:
    """Counts the elements with different bits."""
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (before, after)]
    return int((bits[0] != bits[1]).any(axis=1).sum())
