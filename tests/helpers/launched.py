"""The launchers of scripts/ in this process: imports and shared programs are loaded and compiled once."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from reproduce import launcher

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Launch:
    """Runs a launcher by its system, in the test's folder with --out out; returns a process's result."""
    monkeypatch.chdir(tmp_path)

    def run(system: str, *options: str) -> subprocess.CompletedProcess[str]:
        script = importlib.import_module(f"reproduce_{system}")
        arguments = [f"{script.__name__}.py", "--out", "out", *options]
        monkeypatch.setattr(sys, "argv", arguments)
        code: str | int | None = 0
        try:
            launcher.main(system.removeprefix("real_"), str(script.__doc__), script.Settings, script.SECTIONS)
        except SystemExit as end:
            code = end.code
        out, err = capfd.readouterr()
        if isinstance(code, str):
            code, err = 1, f"{err}{code}\n"
        return subprocess.CompletedProcess(arguments, code or 0, out, err)

    return run
