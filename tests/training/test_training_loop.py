"""The training loop: the same parameters however often it is stopped, and on however many devices."""

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_agent import TINY, train_tiny
from training_processes import assert_same, final_state, finish, start, start_together

from graphrl.errors import GraphrlError, ProblemError
from graphrl.training.checkpoints import find, read
from graphrl.training.folder import read_metrics

SCRIPT = str(Path(__file__).resolve().parents[1] / "helpers/tiny_agent.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    outcome = train_tiny(folder).outcome
    assert (outcome.step, outcome.interrupted) == (12, False)
    return folder


def test_it_learns_and_records_every_update_once(whole: Path) -> None:
    lines = read_metrics(whole)
    errors = [-line["validation"]["negative_error"] for line in lines if "validation" in line]  # type: ignore[index]
    assert errors[-1] < errors[0] / 2
    assert len(errors) == 4  # before training, after 5 and 10, and at the end
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert list((whole / "tensorboard").glob("events*"))


def test_the_folder_holds_the_last_and_the_best(whole: Path) -> None:
    kept = sorted(path.name for path in whole.glob("step-*"))
    scores = {path.name: read(path).info.score for path in whole.glob("step-*")}
    best = find(whole).name
    assert kept[-2:] == ["step-00000010", "step-00000012"]
    assert len(kept) == 2 + (best not in kept[-2:])
    assert scores[best] == max(score for score in scores.values() if score is not None)
    assert not list(whole.glob(".step*"))


def test_a_checkpoint_says_where_it_comes_from(whole: Path) -> None:
    info = read(whole).info
    assert (info.agent, info.config["agent"]["layers"], info.config["training"]["steps"]) == ("tiny", [4, 4], 12)
    assert info.versions["jax"] == jax.__version__
    assert [look["step"] for look in info.validation] == [0, 5, 10, 12][: len(info.validation)]


def test_more_steps_go_on_as_if_they_had_been_asked_for_at_once(whole: Path, tmp_path: Path) -> None:
    """Lines after the checkpoint, also half a one, are cut."""
    train_tiny(tmp_path, "training.steps=7")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "loss": 1.0}\n{"step": 9, "lo')
    train_tiny(tmp_path, "training.steps=12", resume=True)
    assert_same(final_state(tmp_path), final_state(whole))
    assert _losses(tmp_path) == _losses(whole)
    assert all(isinstance(look["step"], int) for look in read(tmp_path).info.validation)


def test_a_run_is_not_begun_twice_and_keeps_its_settings(whole: Path) -> None:
    with pytest.raises(ProblemError, match="holds a run"):
        train_tiny(whole)
    with pytest.raises(ProblemError, match=r"another agent\.rate"):
        train_tiny(whole, "agent.rate=0.5", resume=True)


def test_a_checkpoint_of_another_shape_is_refused(whole: Path) -> None:
    checkpoint = read(whole)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leaf.shape, 2), leaf.dtype), checkpoint.state)
    with pytest.raises(GraphrlError, match="does not fit its settings"):
        read(whole, like)


def test_a_run_that_began_with_another_goes_on_without_it(whole: Path, tmp_path: Path) -> None:
    other, run = tmp_path / "other", tmp_path / "run"
    shutil.copytree(whole, other, symlinks=True)
    train_tiny(run, f"agent.start={other}", "training.steps=3", "training.keep=9")
    begun = read(run / "step-00000000").state["params"]
    jax.tree.map(np.testing.assert_array_equal, begun, read(other).state["params"])
    shutil.rmtree(other)
    assert train_tiny(run, "training.steps=5", resume=True).outcome.step == 5
    with pytest.raises(GraphrlError, match="cannot read"):
        train_tiny(tmp_path / "new", f"agent.start={other}")


def test_a_broken_checkpoint_is_one_line(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(find(whole), broken)
    arrays = sorted(path for path in (broken / "state").rglob("*") if path.name == ".zarray")
    for path in arrays:
        path.write_bytes(path.read_bytes()[:3])
    for _ in range(5):  # what is read beside the first broken array ends late: it must not be told of
        with pytest.raises(GraphrlError, match="the checkpoint is broken") as fault:
            read(broken)
        assert "\n" not in str(fault.value)
        assert "tensorstore_spec" not in str(fault.value)
    shutil.rmtree(broken / "state")
    (broken / "state").mkdir()
    with pytest.raises(GraphrlError, match="the checkpoint is broken: it has no arrays"):
        read(broken)
    assert capfd.readouterr().err == ""


def test_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GraphrlError, match="no checkpoint"):
        find(tmp_path / "nowhere")


@pytest.mark.slow
def test_a_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    """kill -9 at a random moment, most of which fall into writing checkpoints, as these are frequent."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    often = ("training.steps=150", "training.checkpoint_every=1", "training.validate_every=50")
    process = start([SCRIPT, str(killed), *often], JAX_NUM_CPU_DEVICES="2")  # as here
    train_tiny(whole, *often)
    while process.poll() is None and _lines(killed) < 30:
        time.sleep(0.01)
    time.sleep(random.Random(0).random() / 4)
    process.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    assert train_tiny(killed, *often, resume=True).outcome.step == 150
    assert_same(final_state(killed), final_state(whole))
    assert _losses(killed) == _losses(whole)


def _lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def _losses(folder: Path) -> list[Any]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@pytest.mark.slow
def test_two_processes_and_two_devices_give_what_one_gives(whole: Path, tmp_path: Path) -> None:
    """`whole` ran on the two devices of the tests."""
    one, two = tmp_path / "one", tmp_path / "two"
    alone = start([SCRIPT, str(one)], JAX_NUM_CPU_DEVICES="1")
    assert finish(alone, *start_together([SCRIPT, str(two), "--distributed"])) == "12"
    assert_same(final_state(one), final_state(whole), 1e-5)
    assert_same(final_state(two), final_state(whole), 1e-5)
    assert json.loads((two / "run.json").read_text())["agent"] == "tiny"
    assert TINY.data.graphs == 4
