"""Programs that a changed schedule could spoil: whether `graphrl.jit` shows what `jax.jit` does.

They are tests, `tests/xla/same_results`; the table is of a run of them.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from reproduce.real_programs.settings import Settings
from reproduce.results import Table, bullets, here

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests" / "xla" / "same_results"
COLUMNS = ("programs", "planned", "lost")
_QUICK = "ordered_debug_callbacks or cholesky or states_in_loops"


def same_results(settings: Settings) -> Iterator[Table]:
    """One table, a line a file of tests, and the cases by name."""
    kinds = _run(*(["-k", _QUICK] if settings.quick else []))
    headings = ["kind", "cases", "wrong", "programs", "in graphrl's order", "donation lost", "wrong ones"]
    how = (
        "A case is some programs and all that a user sees of them: results to the bit with types and shardings, "
        "effects and their order, errors, warnings, which arguments are deleted. It runs by `jax.jit` and by "
        "`graphrl.jit`, and is wrong if these differ or if one fails. Effects that jax leaves unordered may come "
        "in any order. Donation is lost where an argument is kept that `jax.jit` deletes, which the plan's bytes hold."
    )
    lines = [[kind, *_cells(cases)] for kind, cases in kinds.items()]
    lines.append(["all", *_cells([case for cases in kinds.values() for case in cases])])
    names = [f"{kind}: {', '.join(map(_name, cases))}" for kind, cases in kinds.items()]
    lost = [f"donation lost: {_name(case)}" for cases in kinds.values() for case in cases if _count([case], "lost")]
    yield Table("The same results", here(), (how, markdown(headings, lines), bullets(names), bullets(lost)))


def _run(*options: str) -> dict[str, list[xml.Element]]:
    """The cases of each file, as pytest reports them.

    Raises:
      GraphrlError: pytest could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            str(TESTS),
            f"--config-file={ROOT / 'pyproject.toml'}",
            *options,
        ]
        command += [f"--junitxml={report}", "--override-ini=junit_family=xunit1"]  # which has properties of cases
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode > 1:  # 1: a test failed
            raise GraphrlError(f"pytest: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        kinds: dict[str, list[xml.Element]] = {}
        for case in xml.parse(report).iter("testcase"):
            if case.find("properties") is not None or _is_wrong(case):
                kinds.setdefault(case.get("classname", "").rpartition("test_same_")[2], []).append(case)
        return kinds


def _cells(cases: Sequence[xml.Element]) -> list[str]:
    wrong = [_name(case) for case in cases if _is_wrong(case)]
    counts = [str(_count(cases, column)) for column in COLUMNS]
    return [str(len(cases)), str(len(wrong)), *counts, ", ".join(wrong) or "none"]


def _is_wrong(case: xml.Element) -> bool:
    return any(case.find(kind) is not None for kind in ("failure", "error"))


def _count(cases: Sequence[xml.Element], column: str) -> int:
    return sum(int(one.get("value", 0)) for case in cases for one in case.iter("property") if one.get("name") == column)


def _name(case: xml.Element) -> str:
    return case.get("name", "").removeprefix("test_").replace("_", " ")
