"""Programs in separate processes, which find the graphrl under test, not the one of a checkout."""

import os
import subprocess
import sys
from pathlib import Path

import graphrl

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(graphrl.__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """Environment of a process that finds the graphrl under test, and the modules that test files share."""
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(PACKAGE), str(Path(__file__).parent)))} | more


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a folder with these arguments until it ends."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def run_script(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the repository."""
    return run_python(folder, str(ROOT / "scripts" / f"{name}.py"), *arguments)


def check_fault(done: subprocess.CompletedProcess[str], fault: str) -> None:
    """Checks that the process failed, and that its last line names the fault."""
    assert done.returncode != 0
    assert fault in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
