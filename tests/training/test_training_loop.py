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
from graphrl.training.run import TrainingError

SCRIPT = str(Path(__file__).resolve().parents[1] / "helpers/tiny_agent.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    outcome = train_tiny(folder).outcome
    assert (outcome.step, outcome.interrupted) == (12, False)
    return folder


def test_it_learns(whole: Path) -> None:
    looks = [line["validation"] for line in read_metrics(whole) if "validation" in line]
    errors = [-look["negative_error"] for look in looks]  # type: ignore[index]
    assert errors[-1] < errors[0] / 2
    assert len(errors) == 4  # before training, after 5 and 10, and at the end


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


def test_every_update_is_recorded_once(whole: Path) -> None:
    steps = [line["step"] for line in read_metrics(whole) if "loss" in line]
    assert steps == list(range(1, 13))
    assert list((whole / "tensorboard").glob("events*"))


def test_more_steps_go_on_as_if_they_had_been_asked_for_at_once(whole: Path, tmp_path: Path) -> None:
    train_tiny(tmp_path, "training.steps=7")
    train_tiny(tmp_path, "training.steps=12", resume=True)
    assert_same(final_state(tmp_path), final_state(whole))
    assert all(isinstance(look["step"], int) for look in read(tmp_path).info.validation)


def test_lines_after_the_checkpoint_are_cut(whole: Path, tmp_path: Path) -> None:
    train_tiny(tmp_path, "training.steps=5")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    train_tiny(tmp_path, "training.steps=12", resume=True)
    ours, theirs = ([line.get("loss") for line in read_metrics(f) if "loss" in line] for f in (tmp_path, whole))
    assert ours == theirs


def test_a_number_that_is_none_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"step 9: loss is not finite on layered-.*step-00000008$"):
        train_tiny(tmp_path, "agent.poisoned=9")
    assert read_metrics(tmp_path)[-1]["step"] == 8


def test_a_run_is_not_begun_twice(whole: Path) -> None:
    with pytest.raises(ProblemError, match="holds a run"):
        train_tiny(whole)


def test_a_run_keeps_its_settings(whole: Path) -> None:
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


SLOW_RUN = ("training.steps=150", "training.checkpoint_every=1", "training.validate_every=10")


@pytest.mark.slow
def test_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    """kill -9 of the process at random moments, of which most fall into writing checkpoints, as these are frequent."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finish(start([SCRIPT, str(whole), *SLOW_RUN])) == "150"
    moments = random.Random(0)
    kills = 0
    while kills < 2:
        process = start([SCRIPT, str(killed), *SLOW_RUN])
        while process.poll() is None and _lines(killed) < 1 + 60 * kills:
            time.sleep(0.01)
        time.sleep(moments.random())
        process.kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, err
        kills += 1
    assert finish(start([SCRIPT, str(killed), *SLOW_RUN])) == "150"
    assert_same(final_state(killed), final_state(whole))
    assert _losses(killed) == _losses(whole)


def _lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def _losses(folder: Path) -> list[Any]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    rarely = ("training.checkpoint_every=100000", "training.validate_every=90000")
    process = start([SCRIPT, str(tmp_path), "training.steps=100000", *rarely])
    while process.poll() is None and _lines(tmp_path) <= 5:
        time.sleep(0.02)
    process.send_signal(number)
    reached = int(finish(process))
    assert read(sorted(tmp_path.glob("step-*"))[-1]).info.step == reached == read_metrics(tmp_path)[-1]["step"]


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
