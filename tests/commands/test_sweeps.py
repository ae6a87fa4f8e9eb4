"""`graphrl train --seeds --sweep`, and `graphrl plot` of what it trains."""

import argparse
import dataclasses
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_agent
from command_line import fault
from training_processes import assert_same, final_state

from graphrl.agents import AGENTS
from graphrl.cli import main
from graphrl.commands.train import _report_sweep
from graphrl.learning.learner import Learner
from graphrl.training import checkpoints
from graphrl.training.checkpoints import find, read_info
from graphrl.training.folder import read_metrics
from graphrl.training.sweep import parse_seeds, parse_values

SHORT = ("training.steps=4", "training.validate_every=2")
SWEPT = ("--seeds", "0,2", "--sweep", "agent.rate=5e-2,0.01")
RUNS = [f"agent.rate={rate}/seed-{seed}" for rate in ("0.05", "0.01") for seed in (0, 2)]


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    """Registers the agent of tests/helpers/tiny_agent.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGENTS, "tiny", "tiny_agent")
        yield


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep of two settings and two seeds."""
    folder = tmp_path_factory.mktemp("sweeps") / "swept"
    assert main(["train", "tiny", *SHORT, *SWEPT, "--out", str(folder)]) == 0
    return folder


def runs_in(folder: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("run.json"))


def test_each_run_of_a_sweep_is_a_run_as_any_other(swept: Path, tmp_path: Path) -> None:
    assert runs_in(swept) == sorted(RUNS)
    assert main(["train", "tiny", *SHORT, "agent.rate=0.01", "--seed", "2", "--out", str(tmp_path)]) == 0
    in_sweep = swept / "agent.rate=0.01/seed-2"
    assert_same(final_state(in_sweep), final_state(tmp_path))
    losses = [[line.get("loss") for line in read_metrics(folder)] for folder in (in_sweep, tmp_path)]
    assert losses[0] == losses[1]
    others = [final_state(swept / run) for run in RUNS]
    assert len({str(sorted(state.items())) for state in others}) == len(RUNS)


def test_a_finished_sweep_is_summarised_without_training(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {run: read_metrics(swept / run) for run in RUNS}
    assert main(["train", "tiny", "--out", str(swept), "--resume", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert (printed.err, summary["metric"], summary["interrupted"]) == ("", "negative_error", False)
    assert [setting["setting"] for setting in summary["settings"]] == ["agent.rate=0.05", "agent.rate=0.01"]
    for setting in summary["settings"]:
        scores = [read_info(find(swept / setting["setting"] / f"seed-{seed}")).score for seed in (0, 2)]
        assert [run["best_score"] for run in setting["runs"]] == scores
        assert setting["mean"] == pytest.approx(sum(scores) / 2)  # type: ignore[arg-type]
        assert (setting["low"], setting["high"]) == pytest.approx((min(scores), max(scores)))  # type: ignore[type-var]
    assert main(["train", "tiny", "--out", str(swept), "--resume"]) == 0
    printed = capsys.readouterr()
    best = max(summary["settings"], key=lambda setting: setting["mean"])["setting"]
    head = r"best held-out negative_error +runs +updates +mean +95% interval\n"
    assert re.search(rf"{head}(.*\n)+best setting: {best}\n", printed.out)
    overlap = min(setting["high"] for setting in summary["settings"]) >= max(s["low"] for s in summary["settings"])
    assert ("caution: its interval overlaps another" in printed.out) == overlap
    assert before == {run: read_metrics(swept / run) for run in RUNS}


class Killed(BaseException):
    """A fault that nothing catches."""


def test_a_killed_sweep_is_resumed_with_its_settings(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the second run, while a checkpoint is written."""
    folder, save = tmp_path / "run", checkpoints.save

    def kill(path: Path, state: Any) -> None:
        if "seed-2/.step-00000004" in str(path):
            raise Killed
        save(path, state)

    monkeypatch.setattr(checkpoints, "save", kill)
    with pytest.raises(Killed):
        main(["train", "tiny", *SHORT, *SWEPT, "--out", str(folder)])
    monkeypatch.undo()
    monkeypatch.setitem(AGENTS, "tiny", "tiny_agent")
    assert runs_in(folder) == [RUNS[0], RUNS[1]]
    capsys.readouterr()
    assert main(["train", "tiny", "--resume", "--out", str(folder)]) == 0
    assert re.findall(r"run (\d) of 4: (\S+)", capsys.readouterr().err) == [
        (str(number), str(folder / run)) for number, run in enumerate(RUNS, 1) if number > 1
    ]
    for run in RUNS:
        assert_same(final_state(folder / run), final_state(swept / run))


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("step", [2, 4])  # within the first run, and at its end
def test_a_signal_ends_a_sweep(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, save = tmp_path / "run", checkpoints.save

    def interrupt(path: Path, state: Any) -> None:
        if f"step-0000000{step}" in str(path):
            signal.raise_signal(signal.SIGINT)
        save(path, state)

    monkeypatch.setattr(checkpoints, "save", interrupt)
    assert main(["train", "tiny", *SHORT, "--seeds", "0,2", "--out", str(folder)]) == 1
    assert f"graphrl: stopped; resume with: graphrl train tiny --out {folder} --resume" in capfd.readouterr().err
    assert runs_in(folder) == ["seed-0"]
    assert read_info(folder / f"seed-0/step-0000000{step}").step == step


def test_seeds_share_compiled_programs_and_are_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces: list[int] = []

    def learner(config: Any, mesh: Any, data: Any) -> Learner:
        functions = tiny_agent.tiny_learner(config)

        def update(*args: Any) -> Any:
            traces.append(1)
            return functions.update(*args)

        return functions._replace(update=update)

    monkeypatch.setattr(tiny_agent, "AGENT", dataclasses.replace(tiny_agent.AGENT, learner=learner))
    command = ["train", "tiny", "data.buckets=1", *SHORT]
    assert main([*command, "--seeds", "5", "--out", str(tmp_path / "one")]) == 0
    of_one = len(traces)
    assert main([*command, "--seeds", "5-7", "--out", str(tmp_path / "three")]) == 0
    assert len(traces) == 2 * of_one
    capsys.readouterr()
    assert main(["train", "tiny", "--seeds", "6", "--out", str(tmp_path / "one"), "--resume"]) == 0
    assert re.findall(r"^seed-\d", capsys.readouterr().out, re.MULTILINE) == ["seed-6"]
    assert main(["train", "tiny", "--out", str(tmp_path / "one"), "--resume"]) == 0
    rows = re.findall(r"^(seed-\d|all) +(\d)", capsys.readouterr().out, re.MULTILINE)
    assert rows == [("seed-5", "1"), ("seed-6", "1"), ("all", "2")]
    assert_same(final_state(tmp_path / "one/seed-6"), final_state(tmp_path / "three/seed-6"))


def test_a_resumed_sweep_gets_further_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path), "--resume", "--json")
    for values in ("5e-2", "0.05,0.1"):
        assert main(["train", "tiny", "training.steps=1", "--sweep", f"agent.rate={values}", *out]) == 0
    assert capsys.readouterr().err.count("run 2 of 2") == 1
    assert main(["train", "tiny", *out]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert [setting["setting"] for setting in settings] == ["agent.rate=0.05", "agent.rate=0.1"] == runs_in(tmp_path)
    for steps, rows in ((3, [("0.05", "3"), ("0.1", "3")]), (1, [("0.05", "3"), ("0.1", "3"), ("0.2", "1")])):
        values = ",".join(rate for rate, _ in rows)
        command = ["train", "tiny", f"training.steps={steps}", "--sweep", f"agent.rate={values}", *out[:-1]]
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert re.findall(r"^agent.rate=(\S+) +1 +(\d) ", printed, re.MULTILINE) == rows
        unequal = "caution: the runs have 1 to 3 updates: --resume training.steps=3 makes them equal\n"
        assert (unequal in printed) == (steps == 1)
        assert "caution: one run of a setting has no interval" in printed


def test_a_run_whose_numbers_are_not_finite_ends_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "tiny", *SHORT, "--sweep", "agent.poisoned=3,none", "--out", str(tmp_path / "runs")]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "agent.poisoned=3: step 3: loss is not finite" in printed.err
    assert read_info(tmp_path / "runs/agent.poisoned=none/step-00000004").step == 4
    assert "best setting: agent.poisoned=" in printed.out


def test_faults_of_sweeps_are_one_line(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path / "none"))
    assert main(["train", "tiny", "training.steps=1", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    for arguments, text in (
        (("--seeds", "4-0", *out), "'4-0' are no seeds: write for example 0-4 or 0,3,7"),
        (("--seeds", "0-1", "seed=3", *out), "seed and --seeds both choose seeds"),
        (("--seeds", "0-1", "--sweep", "seed=1,2", *out), "--sweep seed and --seeds both choose seeds"),
        (("--sweep", "agent.rat=1,2", *out), "there is no setting 'agent.rat': did you mean agent.rate"),
        (("--sweep", "agent.rate", *out), "'agent.rate' is not KEY=VALUE,VALUE"),
        (("--sweep", "agent.rate=1,x", *out), "agent.rate is 'x': must be a number"),
        (("--sweep", "agent.rate=0.1,1e-1", *out), "agent.rate=0.1 is swept twice"),
        (("--seeds", "0-1", "--out", str(swept)), "has runs: continue them (--resume), or choose another --out"),
        (("--seeds", "0-1", "--out", str(tmp_path / "run"), "--resume"), "has a run: choose another --out"),
        (("--out", str(swept)), "has runs: continue them (--resume), or choose another --out"),
        (("--out", str(swept), "--resume", "agent.width=3"), "was started with another agent.width"),
        (("--out", str(swept), "--resume", "--sweep", "agent.width=3,4"), "has runs for each of agent.rate, seeds"),
        (("--seeds", "0", "data.train=nowhere/", *out), "nowhere"),
    ):
        code, err = fault(capsys, "train", "tiny", *arguments)
        assert code in (1, 2)
        assert text in err, err
    assert not (tmp_path / "none").exists()


def test_values_are_parsed() -> None:
    assert parse_seeds("0-2, 7,1") == [0, 1, 2, 7]
    assert parse_values(["data.train=[a,b],[c]", "agent.rate=1, 2"]) == {
        "data.train": ["a,b", "c"], "agent.rate": ["1", "2"]
    }  # fmt: skip


def test_plot_of_a_sweep(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, values = tmp_path / "curves.svg", tmp_path / "curves.json"
    assert main(["plot", str(swept), "--output", str(picture), "--json", str(values)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"validation/negative_error +runs +updates +mean +95% interval\n", out)
    assert re.findall(r"^(\S+) +2 +4 ", out, re.MULTILINE) == ["agent.rate=0.01", "agent.rate=0.05"]
    assert b"</svg>" in picture.read_bytes()
    tasks = json.loads(values.read_text())["graphrl"]
    (task,) = tasks
    assert task == "makespan layered:20x4,layered:30x5"
    run = tasks[task]["agent.rate=0.05"]["seed_2"]
    scores = {
        line["step"]: line["validation"]["negative_error"]
        for line in read_metrics(swept / RUNS[1])
        if "validation" in line
    }
    assert [step["step_count"] for name, step in run.items() if name.startswith("step_")] == [0, 2, 4]
    assert run["step_1"]["validation/negative_error"] == [scores[2]]
    assert run["absolute_metrics"] == {"validation/negative_error": [max(scores.values())]}
    assert run["step_0"]["elapsed_time"] == 0 < run["step_2"]["elapsed_time"]


def test_plot_of_incomplete_runs_in_their_folder(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (Path(shutil.copytree(swept / run, tmp_path / run[-6:], symlinks=True)) for run in RUNS[:2])
    lines = (second / "metrics.jsonl").read_text().splitlines(keepends=True)
    (second / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:9])  # until update 2
    assert main(["plot", str(tmp_path), "--metric", "loss", "--aggregate", "iqm", "--x", "seconds"]) == 0
    assert re.search(r"loss +runs +seconds +iqm +95% interval\n\S+ +2 ", capsys.readouterr().out)
    assert (tmp_path / "loss.png").stat().st_size
    assert main(["plot", str(first), str(second), "--names", "one,two"]) == 0
    assert re.findall(r"^(one|two) +1 +\d", capsys.readouterr().out, re.MULTILINE) == ["one", "two"]
    assert (first / "validation-negative_error.png").stat().st_size


def test_faults_of_plots_are_one_line(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(swept / RUNS[0])
    for arguments, text in (
        ((str(tmp_path),), "has no training run: name a folder of graphrl train"),
        ((run, "--metric", "los"), "has no metric 'los': known are validation/negative_error, env_steps, loss"),
        ((run, "--x", "episodes"), "does not record 'episodes': choose updates or seconds"),
        ((run, "--metric", "loss", "--x", "loss"), "loss also decreases in seed-0: choose updates or seconds"),
        ((run, run), "the same folder is given twice"),
        ((run, "--names", "a,b"), "--names has 2 names: must be 1"),
        ((run, "--output", "curves.txt"), "its ending must be one of"),
        ((run, "--json", "curves.png"), "must end in .json"),
    ):
        code, err = fault(capsys, "plot", *arguments)
        assert code in (1, 2)
        assert text in err, err


@pytest.mark.parametrize(
    ("means", "best_step", "line"),
    [
        ((3.0, 3.0), 5, "no setting is better: their means are equal"),
        ((3.0, 2.0), 5, "best setting: agent.rate=0"),
        ((3.0, 3.0), 0, "no run improved on step 0"),
    ],
)
def test_the_end_of_a_sweep_names_no_best_setting_where_there_is_none(
    means: tuple[float, float], best_step: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [{"folder": "seed-0", "step": 5, "best_step": best_step, "best_score": mean} for mean in means]
    settings = [
        {"setting": f"agent.rate={number}", "mean": run["best_score"], "low": 0.0, "high": 4.0, "runs": [run, run]}
        for number, run in enumerate(runs)
    ]
    summary = {"metric": "gain", "title": "gain (%)", "interrupted": False, "settings": settings}
    _report_sweep(summary, argparse.Namespace(json=False, agent="tiny"), tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("best held-out gain (%)")
    assert [one for one in printed if one.startswith(("best setting", "no "))] == [line]
