"""`graphrl train` and `graphrl evaluate`: printed and written results, and refusals."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny_agent
from command_line import fault, sets
from comparison_rows import read_rows
from tiny_regal import REGAL

from graphrl.agents import AGENTS, find_agent
from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.go.config import GoSettings
from graphrl.agents.ppo import PpoConfig
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.cli import main
from graphrl.methods import METHODS
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.rules.simple import solve_given
from graphrl.solvers.solver import SOLVERS, Solver
from graphrl.training.checkpoints import find, read
from graphrl.training.config import descriptions, keys_of
from graphrl.training.run import default_config


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the agent of tests/helpers/tiny_agent.py."""
    monkeypatch.setitem(AGENTS, "tiny", "tiny_agent")


@pytest.mark.usefixtures("tiny")
def test_train_prints_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"trained: 12 steps in [0-9.]+ m?s\n", out)
    assert re.search(r"negative_error +-0\.\d+ +-", out)
    assert f"best checkpoint: {find(tmp_path)}\nlearning curve: graphrl plot {tmp_path}\n" in out  # it makes no plans


@pytest.mark.usefixtures("tiny")
def test_train_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = ["train", "tiny", "--out", str(out), "--seed", "3", "--resume", "--json", *sets("training.steps=4")]
    assert main(options) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert (summary["step"], summary["interrupted"], len(summary["validation"])) == (4, False, 2)
    assert "starting one" in printed.err
    assert read(out).info.config["seed"] == 3
    assert main(options) == 0  # there is nothing left to do
    assert json.loads(capsys.readouterr().out)["last"] == str(out / "step-00000004")


@pytest.mark.usefixtures("tiny")
def test_settings_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("[agent]\nrate = 0.5\n")
    assert main(["train", "tiny", "--config", str(config), "--settings", *sets("training.steps=4")]) == 0
    printed = capsys.readouterr().out
    settings = [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")]
    assert {"agent.rate=0.5", "training.steps=4", "agent.layers=4,4", "agent.poisoned=none", "seed=0"} <= set(settings)
    assert re.search(r"^training\.steps=4 +total number of parameter updates$", printed, re.MULTILINE)
    assert main(["train", "tiny", "--settings", *settings]) == 0
    assert capsys.readouterr().out == printed  # listed settings can be passed back


@pytest.mark.parametrize("name", AGENTS)
def test_every_setting_is_described(name: str) -> None:
    config = default_config(find_agent(name))
    described = descriptions(config)
    assert [key for key in described if not described[key]] == []
    assert list(described) == list(keys_of(config))


@pytest.mark.usefixtures("tiny")
def test_settings_stand_anywhere_after_the_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "tiny", "agent.rate=0.5", "--out", str(tmp_path), "training.steps=4", "--settings", "--json"]
    assert main([*command, "seed=3"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["agent"]["rate"], values["training"]["steps"], values["seed"]) == (0.5, 4, 3)


@pytest.mark.usefixtures("tiny")
def test_faults_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, old = tmp_path / "file", tmp_path / "old" / "step-00000001"
    file.write_text("")
    old.mkdir(parents=True)
    (old / "checkpoint.json").write_text('{"format": "graphrl-checkpoint", "version": 9}')
    agents = "egrl, gdp, go, ppo, regal, sharding, topoformer, tiny"
    for arguments, code, text in (
        (("train", "other"), 2, f"graphrl: error: unknown agent 'other': known are {agents}; register your own by"),
        (("train", "regal-hint"), 2, "graphrl: error: there is no agent 'regal-hint' any more: use 'regal'\n"),
        (("train", "tiny", "--set", "agent.rat=1"), 2, "did you mean agent.rate"),
        (("train", "tiny", "--json", "agent.rat=1"), 2, "did you mean agent.rate"),
        (("train", "tiny", "rate=1"), 2, "did you mean agent.rate"),
        (("train", "tiny", "--out", "a", "b"), 2, "'b' is not KEY=VALUE"),
        (("train", "tiny", "--step", "a=1"), 2, "unrecognized arguments: --step"),
        (("train", "tiny", "--config", str(tmp_path / "no.toml")), 1, "no.toml"),
        (("train", "tiny", "--out", str(file)), 1, "it is a file, and must be a folder"),
        (("train", "tiny", "--out", str(file / "run")), 1, "cannot make the folder"),
        (("train", "tiny", "--out", ""), 2, "graphrl: error: --out is empty: name a folder\n"),
        (("evaluate", str(tmp_path)), 1, "no checkpoint"),
        (("evaluate", str(old.parent)), 1, "must be graphrl-checkpoint version 1"),
    ):
        actual, err = fault(capsys, *arguments)
        assert (actual, text in err) == (code, True), err


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("stored", "code", "text"),
    [
        ("", 1, "has no settings of a run"),
        ('{"format": "graphrl-training", "version": 1, "agent": "tiny"}', 1, "has no settings of a run"),
        ('{"format": "graphrl-training", "version": 2, "agent": "tiny", "config": {}}', 1, "must be graphrl-training"),
        ('{"format": "graphrl-training", "version": 1, "agent": "regal", "config": {}}', 2, "has a run of 'regal'"),
    ],
)
def test_a_run_without_its_settings_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: str, code: int, text: str
) -> None:
    (tmp_path / "run.json").write_text(stored)
    actual, err = fault(capsys, "train", "tiny", "--out", str(tmp_path), "--resume")
    assert (actual, text in err) == (code, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.usefixtures("tiny")
def test_evaluate_uses_the_settings_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, rows = tmp_path / "run", tmp_path / "rows.jsonl"
    main(["train", "tiny", "--out", str(run), *sets("training.steps=1", "data.test=in-tree:9x2")])
    capsys.readouterr()
    assert main(["evaluate", str(run), "--methods", "list,random", "--output", str(rows), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("graphrl: agent 'tiny' has no methods: its policy is not in the table")
    table = json.loads(printed.out)
    assert [method["method"] for method in table["methods"]] == ["list", "random"]
    assert (table["objective"], table["model"]["devices"], table["budget"]["evaluations"]) == ("makespan", 2, 100)
    assert len({row.graph for row in read_rows(rows)}) == 2


@pytest.mark.usefixtures("tiny")
def test_evaluate_calls_the_agent_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(task: Task, *, checkpoint: str = "") -> Plan:
        return solve_given(task)

    monkeypatch.setitem(METHODS, "played", "tiny_agent")
    monkeypatch.setitem(SOLVERS, "played", Solver("played", "the given order", play))
    monkeypatch.setattr("tiny_agent.AGENT", dataclasses.replace(tiny_agent.AGENT, methods=lambda _: ("played",)))
    run, rows = tmp_path / "run", tmp_path / "rows.jsonl"
    main(["train", "tiny", "--out", str(run), *sets("training.steps=1", "data.test=in-tree:9x2")])
    assert f"compare it with other methods: graphrl evaluate {run}\n" in capsys.readouterr().out
    full = f"played:checkpoint={find(run)}"
    for others, name in (("list", "played"), ("list,played", full)):  # two lines of a table have two names
        assert main(["evaluate", str(run), "--methods", others, "--output", str(rows)]) == 0
        table = capsys.readouterr().out
        assert (f" {name} " in table.replace("\n", " "), str(run) in table) == (True, name == full)
    assert {row.method for row in read_rows(rows)} == {full, "list", "played"}
    assert main(["evaluate", str(run), "--methods", f"list,{full}", "--output", str(rows)]) == 0  # the same twice
    assert f"{full} is the checkpoint to evaluate: it has the row 'played' alone" in capsys.readouterr().err


def test_an_unknown_agent_may_be_a_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert "; register your own by an entry point or graphrl.agents.register" in fault(capsys, "train", "mine")[1]


def test_help_of_evaluate_names_the_default_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    spent = [config().evaluations for config in (RegalConfig, PpoConfig, EgrlConfig, TopoformerConfig)]
    assert "{:,} for REGAL, {:,} for GO and PPO, {:,} for EGRL, {:,} for Topoformer)".format(*spent) in text
    assert GoSettings().evaluations == PpoConfig().evaluations


@pytest.mark.usefixtures("tiny")
def test_a_broken_checkpoint_is_not_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "tiny", "--out", str(tmp_path), *sets("training.steps=1")])
    shutil.rmtree(find(tmp_path) / "state")
    capsys.readouterr()
    code, err = fault(capsys, "evaluate", str(tmp_path), "--methods", "list")
    assert (code, "the checkpoint is broken" in err) == (1, True)


@pytest.mark.slow
def test_regal_from_training_to_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real agent: a resumed run gives the same bits as an uninterrupted one, and it competes with other methods."""
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    assert main(["train", "regal", "--out", whole, *sets(*REGAL)]) == 0
    assert main(["train", "regal", "--out", parts, *sets(*REGAL, "training.steps=2")]) == 0
    assert main(["train", "regal", "--out", parts, "--resume", *sets("training.steps=3")]) == 0
    ours, theirs = (last_state(Path(folder)) for folder in (whole, parts))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    capsys.readouterr()
    assert main(["evaluate", whole, "--methods", "brkga,list", "--json"]) == 0
    names = [method["method"] for method in json.loads(capsys.readouterr().out)["methods"]]
    assert names == ["regal", "idrs", "regal-once", "brkga", "list"]


@pytest.mark.slow
def test_regal_starts_from_the_policy_of_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, then = tmp_path / "first", tmp_path / "then"
    assert main(["train", "regal", "--out", str(first), *sets(*REGAL, "training.steps=1")]) == 0
    start = f"agent.init_checkpoint={first}"
    assert main(["train", "regal", "--out", str(then), "--seed", "1", *sets(*REGAL, start, "training.steps=1")]) == 0
    begun = read(then / "step-00000000").state["params"]["policy"]
    jax.tree.map(np.testing.assert_array_equal, begun, read(first).state["params"]["policy"])
    first.rename(tmp_path / "moved")
    assert main(["train", "regal", "--out", str(then), "--resume", "--set", "training.steps=2"]) == 0
    (tmp_path / "moved").rename(first)
    capsys.readouterr()
    refused = sets(*REGAL, start, "agent.width=10")
    code, err = fault(capsys, "train", "regal", "--out", str(tmp_path / "other"), *refused)
    assert (code, "another network" in err, (tmp_path / "other").exists()) == (2, True, False)


def last_state(folder: Path) -> Any:
    """State of the last checkpoint of a run."""
    return read(sorted(folder.glob("step-*"))[-1]).state
