"""Runs the command in the process of the tests."""

import pytest

from graphrl.cli import main
from graphrl.solvers.rules.plan_builder import prepare


@pytest.fixture(autouse=True, scope="module")
def compiled_lists() -> None:
    """Compiles list schedules first, so that neither tests nor their processes print lines about it."""
    prepare()


def check_failure(arguments: list[str], code: int, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the command and checks its exit code, one line on stderr that names the fault, and an empty stdout."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphrl")
    assert err.count("\n") == 1
    assert fault in err
    assert "Traceback" not in err


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def fault(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line of standard error."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return code, err
