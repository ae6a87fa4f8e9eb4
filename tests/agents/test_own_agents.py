"""Agents of other packages: `register`, entry points, and the commands."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphrl import agents
from graphrl.agents import AGENTS, find_agent, register
from graphrl.cli import main
from graphrl.errors import GraphrlError
from graphrl.methods import find_solver
from graphrl.solvers.solver import SOLVERS

OWN = '''
"""The tiny agent under another name, with a method."""

import dataclasses

from tiny_agent import TINY, TinyPolicy

from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.rules.simple import solve_given
from graphrl.solvers.solver import solver

NUMBER = 5


class MinePolicy(TinyPolicy):
    agents = ("mine",)


@solver("mine-order", "the given order", digest=MinePolicy.digest_of)
def solve(task: Task, *, checkpoint: str = "") -> Plan:
    MinePolicy.load(checkpoint)
    return solve_given(task)


AGENT = dataclasses.replace(TINY, policy=MinePolicy, methods=lambda _: ("mine-order",), opponents=("list",))
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `own_agent`; registrations and methods are removed afterwards."""
    (tmp_path / "own_agent.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(AGENTS)
    yield
    AGENTS.clear()
    AGENTS.update(before)
    SOLVERS.pop("mine-order", None)
    sys.modules.pop("own_agent", None)


@pytest.mark.usefixtures("own")
def test_commands_train_and_evaluate_a_registered_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register("mine", "own_agent:AGENT")
    run = tmp_path / "run"
    assert main(["train", "mine", "training.steps=4", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "layered:9x2@77"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ mine-order +", out, re.MULTILINE)
    assert re.search(r"^ list +", out, re.MULTILINE)
    assert main(["train", "--help"]) == 0
    assert "topoformer, mine" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("own")
def test_entry_points_of_installed_packages_are_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points as pip installs them: in a folder NAME.dist-info on the path."""
    info = tmp_path / "own_agent-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-agent\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[graphrl.agents]\nmine = own_agent:AGENT\nregal = own_agent:AGENT\n")
    importlib.invalidate_caches()
    monkeypatch.setattr(agents, "installed", agents.installed.__wrapped__)
    assert find_solver("mine-order:checkpoint=run").help == "the given order"  # also where no command found the agent
    assert find_agent("mine").policy.agents == ("mine",)
    assert find_agent("regal").policy.agents == ("regal",)  # graphrl's own names stay
    with pytest.raises(GraphrlError, match="'mine' is registered already, as own_agent:AGENT"):
        register("mine", "other:AGENT")


@pytest.mark.parametrize(
    ("name", "entry_point", "message"),
    [
        ("regal", "own_agent:AGENT", "'regal' is registered already, as graphrl.agents.regal.agent"),
        ("my agent", "own_agent:AGENT", "'my agent': its name must have only letters"),
        ("mine", "own_agent.py", None),
        ("mine", "own_agent:", "must be 'module:ATTRIBUTE'"),
        ("mine", "", "must be 'module:ATTRIBUTE'"),
        ("mine", "no_such_module:AGENT", None),
        ("mine", "own_agent:OTHER", None),
        ("mine", "own_agent:NUMBER", None),
        ("other", "own_agent:AGENT", None),
    ],
)
@pytest.mark.usefixtures("own")
def test_bad_entry_points_are_one_line(
    name: str, entry_point: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if message is not None:
        with pytest.raises(GraphrlError, match=re.escape(message)):
            register(name, entry_point)
        return
    register(name, entry_point)
    assert main(["train", name, "--out", str(tmp_path / "run")]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"agent {name!r}: entry point {entry_point!r}" in err
