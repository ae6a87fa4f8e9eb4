"""The training loop: parameters do not depend on the number of devices, and runs survive faults.

Faults: kills, a full disk, broken checkpoints, a second process, and refusals before the run starts.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_agent import TINY, TinyPolicy, tiny_learner, train_tiny
from training_processes import assert_same, final_state, finish, start, start_together

from graphrl.agents import AGENTS
from graphrl.cli import main
from graphrl.errors import GraphrlError, ProblemError
from graphrl.training import checkpoints
from graphrl.training.checkpoints import Checkpoints, find, read, read_info
from graphrl.training.folder import has_run, locked_folder, read_metrics
from graphrl.training.loop import TrainingError

SCRIPT = str(Path(__file__).resolve().parents[1] / "helpers/tiny_agent.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    outcome = train_tiny(folder).outcome
    assert (outcome.step, outcome.interrupted) == (12, False)
    return folder


def test_it_learns_and_records_every_update_once(whole: Path) -> None:
    lines = read_metrics(whole)
    errors = [-line["validation"]["negative_error"] for line in lines if "validation" in line]
    assert errors[-1] < errors[0] / 2
    assert len(errors) == 4  # before training, after 5 and 10, and at the end
    updates = [line for line in lines if "loss" in line]
    assert [line["step"] for line in updates] == list(range(1, 13))
    assert [line["env_steps"] for line in updates] == list(range(4, 52, 4)), "a step for each of 4 graphs"
    assert all(line["env_steps_per_second"] > 0 for line in updates)
    assert list((whole / "tensorboard").glob("events*"))


def test_a_score_that_evaluate_does_not_return_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiny_agent.tiny_learner", lambda config: tiny_learner(config)._replace(score="speed"))
    with pytest.raises(ProblemError, match="evaluate returns negative_error: must have 'speed', the score"):
        train_tiny(tmp_path)


def test_a_resumed_run_shows_its_last_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny(tmp_path, "training.steps=3")
    capsys.readouterr()
    validations = train_tiny(tmp_path, "training.steps=4", resume=True).outcome.validation
    (row,) = (line.split() for line in capsys.readouterr().err.splitlines() if line.strip().startswith("4/4"))
    assert f"{validations[-2]['negative_error']:.4g}" in row


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
    """Lines after the checkpoint, also partial ones, are cut."""
    train_tiny(tmp_path, "training.steps=7")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "loss": 1.0}\n{"step": 9, "lo')
    train_tiny(tmp_path, "training.steps=12", resume=True)
    assert_same(final_state(tmp_path), final_state(whole))
    assert losses(tmp_path) == losses(whole)
    assert all(isinstance(look["step"], int) for look in read(tmp_path).info.validation)


def test_a_run_with_old_names_of_settings_and_metrics_goes_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("checkpoints", "folder"):
        monkeypatch.setattr(f"graphrl.training.{module}.RENAMED_FOR", {"tiny"})
    run = tmp_path / "run"
    train_tiny(run, "training.steps=7")
    for path in (run / "run.json", *run.glob("step-*/checkpoint.json"), run / "metrics.jsonl"):
        text = path.read_text()
        for new, old in (("max_in_flight", "ahead"), ("prefetch", "ahead"), ("init_checkpoint", "start")):
            text = text.replace(f'"{new}"', f'"{old}"')
        path.write_text(text.replace('"negative_error"', '"speedup_least"'))
    capsys.readouterr()
    assert [look["speedup_min"] for look in read(run).info.validation]
    assert "speedup_min" in read_metrics(run)[0]["validation"]
    assert read(run).info.config["data"]["prefetch"] == 2
    train_tiny(run, "training.steps=12", resume=True)
    assert f"graphrl: {run}/run.json: deprecated names of settings: agent.start is now" in capsys.readouterr().err
    assert_same(final_state(run), final_state(whole))
    assert read_metrics(run)[-2]["env_steps"] == 48, "it counts on"
    assert '"prefetch"' in (run / "run.json").read_text()


def test_a_run_is_not_begun_twice_and_keeps_its_settings(whole: Path) -> None:
    with pytest.raises(ProblemError, match="has a run"):
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
    train_tiny(run, f"agent.init_checkpoint={other}", "training.steps=3", "training.keep=9")
    begun = read(run / "step-00000000").state["params"]
    jax.tree.map(np.testing.assert_array_equal, begun, read(other).state["params"])
    shutil.rmtree(other)
    assert train_tiny(run, "training.steps=5", resume=True).outcome.step == 5
    with pytest.raises(GraphrlError, match="cannot read"):
        train_tiny(tmp_path / "new", f"agent.init_checkpoint={other}")


def test_a_broken_checkpoint_is_one_line(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(find(whole), broken)
    arrays = sorted(path for path in (broken / "state").rglob("*") if path.name == ".zarray")
    for path in arrays:
        path.write_bytes(path.read_bytes()[:3])
    for _ in range(5):  # reads that run next to the first broken array end late: the error must not mention them
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
    """kill -9 at a random moment, mostly while a checkpoint is written, as checkpoints are frequent."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    often = ("training.steps=150", "training.checkpoint_every=1", "training.validate_every=50")
    process = start([SCRIPT, str(killed), *often], JAX_NUM_CPU_DEVICES="2")  # two devices, as in this process
    while process.poll() is None and _lines(killed) < 30:
        time.sleep(0.01)
    time.sleep(random.Random(0).random() / 4)
    process.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    train_tiny(whole, *often)  # after the kill: the other process could end in the meantime
    assert train_tiny(killed, *often, resume=True).outcome.step == 150
    assert_same(final_state(killed), final_state(whole))
    assert losses(killed) == losses(whole)


def _lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def losses(folder: Path) -> list[Any]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@pytest.mark.slow
def test_two_processes_and_two_devices_give_what_one_gives(whole: Path, tmp_path: Path) -> None:
    """`whole` ran on the two devices of the test process."""
    one, two = tmp_path / "one", tmp_path / "two"
    alone = start([SCRIPT, str(one)], JAX_NUM_CPU_DEVICES="1")
    assert finish(alone, *start_together([SCRIPT, str(two), "--distributed"])) == "12"
    assert_same(final_state(one), final_state(whole), 1e-5)
    assert_same(final_state(two), final_state(whole), 1e-5)
    assert json.loads((two / "run.json").read_text())["agent"] == "tiny"
    assert TINY.data.graphs == 4


KILLED = str(Path(__file__).resolve().parents[1] / "helpers/killed_training.py")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of `whole`."""
    return Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))


def assert_gone_on_with(folder: Path, whole: Path) -> None:
    """Checks that the resumed run ends like the undisturbed one, and that no partial checkpoint is left."""
    assert train_tiny(folder, resume=True).outcome.step == 12
    assert_same(final_state(folder), final_state(whole))
    assert losses(folder) == losses(whole)
    assert not list(folder.glob(".step*"))
    assert (folder / "best").resolve() == find(folder).resolve()


# Broken checkpoints


def cut_array(checkpoint: Path) -> None:
    array = next(path for path in sorted((checkpoint / "state").rglob("*")) if path.name == ".zarray")
    array.write_bytes(array.read_bytes()[:3])


def cut_info(checkpoint: Path) -> None:
    info = checkpoint / "checkpoint.json"
    info.write_bytes(info.read_bytes()[:100])


def changed(checkpoint: Path, **values: Any) -> None:
    info = json.loads((checkpoint / "checkpoint.json").read_text())
    (checkpoint / "checkpoint.json").write_text(json.dumps(info | values))


@pytest.mark.parametrize(
    "harm",
    [
        cut_array,
        cut_info,
        lambda checkpoint: shutil.rmtree(checkpoint / "state"),
        lambda checkpoint: changed(checkpoint, key=[-1]),
    ],
)
def test_a_run_goes_on_from_the_last_whole_checkpoint(
    run: Path, whole: Path, harm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(run / "step-00000012")
    assert_gone_on_with(run, whole)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("graphrl:")]
    assert len(warnings) == 1
    assert "step-00000012" in warnings[0] or "step 12" in warnings[0]
    assert warnings[0].endswith(f"continuing from {run}/step-00000010")
    assert (run / "broken-step-00000012").is_dir()


def test_without_any_whole_checkpoint_a_run_does_not_go_on(run: Path) -> None:
    for path in run.glob("step-*"):
        cut_info(path)
    with pytest.raises(GraphrlError, match=r"step-00000012/checkpoint\.json: is no graphrl-checkpoint: ") as fault:
        train_tiny(run, resume=True)
    assert "\n" not in str(fault.value)
    assert len(list(run.glob("step-*"))) >= 2


def test_a_broken_checkpoint_among_the_old_ones_stops_nothing(run: Path) -> None:
    cut_info(run / "step-00000010")
    assert train_tiny(run, "training.steps=14", resume=True).outcome.step == 14


DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
WRONG = {"agent": ["tiny"], "config": [1], "version": "1", "format": None, "step": {"a": 1}}


@pytest.mark.parametrize("name", ["checkpoint.json", "run.json"])
def test_files_of_wrong_types_and_files_nested_too_deep_are_one_line(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(AGENTS, "tiny", "tiny_agent")
    path = find(run) / name if name == "checkpoint.json" else run / name
    command = ["evaluate", str(run)] if name == "checkpoint.json" else ["train", "tiny", "--resume", "--out", str(run)]
    stored = json.loads(path.read_text())
    texts = {f"$.{field}": json.dumps(stored | {field: WRONG[field]}) for field in WRONG.keys() & stored.keys()}
    in_a_field = json.dumps(stored | {"config": 0}).replace('"config": 0', f'"config": {DEEP}')
    for fault, text in [*texts.items(), ("", DEEP), ("", in_a_field)]:
        path.write_text(text)
        assert main(command) == 1
        err = capsys.readouterr().err
        assert (err.count("\n"), fault in err) == (1, True)


# Kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "step", "last"),
    [("half", 6, 5), ("all", 12, 10), ("renamed", 12, 12)],
)
def test_a_kill_while_a_checkpoint_is_written_changes_nothing(
    whole: Path, tmp_path: Path, moment: str, step: int, last: int
) -> None:
    """kill -9 before, between and after the writes, in the middle of the run and at its end."""
    process = start([KILLED, str(tmp_path), moment, str(step)], JAX_NUM_CPU_DEVICES="2")  # two devices, as for `whole`
    _, err = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, err
    latest = Checkpoints(tmp_path, 1).latest()
    assert latest is not None
    assert read_info(latest).step == last
    assert_gone_on_with(tmp_path, whole)


# A full disk


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Simulates a full disk: no file of this process grows beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_in_the_middle_of_a_run_is_one_line(tmp_path: Path) -> None:
    disturbed, whole, steps = tmp_path / "disturbed", tmp_path / "whole", "training.steps=40"
    with files_of_at_most(200), pytest.raises(GraphrlError, match=r"cannot write .*/run\.json: File too large"):
        train_tiny(disturbed, steps)
    assert not list(tmp_path.iterdir())
    with files_of_at_most(1500), pytest.raises(GraphrlError, match=r"cannot write .*: File too large") as fault:
        train_tiny(disturbed, steps)
    assert "\n" not in str(fault.value)
    latest = Checkpoints(disturbed, 1).latest()
    assert latest is not None
    assert 0 < read_info(latest).step < 40
    for folder in (disturbed, whole):
        assert train_tiny(folder, steps, resume=True).outcome.step == 40
    assert_same(final_state(disturbed), final_state(whole))
    assert losses(disturbed) == losses(whole)


def test_a_state_that_does_not_fit_is_one_line_and_takes_no_room(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.rglob("*"))
    state = {"large": np.random.default_rng(0).normal(size=100_000).astype(np.float32)}
    info = read_info(run / "step-00000012")
    with (
        files_of_at_most(100_000),
        pytest.raises(GraphrlError, match=r"^cannot write [^ ]*/step-00000013: File too large$"),
    ):
        Checkpoints(run, 2).save(type(info)(**(vars(info) | {"step": 13})), state)
    assert sorted(run.rglob("*")) == before
    assert capfd.readouterr() == ("", "")


# Two runs in one folder


def test_a_second_training_in_a_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(AGENTS, "tiny", "tiny_agent")
    run = str(tmp_path / "run")
    with locked_folder(Path(run), resume=False):
        assert main(["train", "tiny", "--out", run]) == 1
        assert main(["train", "tiny", "--out", run, "--resume"]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert errors == [f"graphrl: error: {run}: another process is training there: choose another --out"] * 2
    assert main(["train", "tiny", "--out", run, "--set", "training.steps=1"]) == 0


# Refusals before a run starts

REFUSED = "data.train=no/such/file.json"


def refuse(*_: Any) -> Any:
    raise GraphrlError("no policy there")


def test_a_refused_set_of_graphs_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(AGENTS, "tiny", "tiny_agent")
    assert main(["train", "tiny", "--out", str(tmp_path / "out" / "run"), "--set", REFUSED]) == 1
    assert "no/such/file.json" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_refusal_after_the_record_was_begun_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(TinyPolicy, "load_params", refuse)
        with pytest.raises(GraphrlError, match="no policy there"):
            train_tiny(tmp_path / "tensorboard" / "run", "agent.init_checkpoint=there")
    assert not list(tmp_path.iterdir())
    assert train_tiny(tmp_path / "tensorboard" / "run", "training.steps=1").outcome.step == 1


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    for name in ("notes.txt", "tensorboard/events"):
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(GraphrlError):
        train_tiny(tmp_path, REFUSED)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_to_go_on_with_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a run killed before its first checkpoint: its settings are there."""
    train_tiny(tmp_path, "training.steps=1")
    for path in tmp_path.glob("step-*"):
        shutil.rmtree(path)
    monkeypatch.setattr(TinyPolicy, "initial", refuse)
    with pytest.raises(GraphrlError):
        train_tiny(tmp_path, resume=True)
    assert has_run(tmp_path)


# The loop does not wait for the device


def test_updates_that_are_ahead_of_their_record_are_recorded_all_the_same(tmp_path: Path) -> None:
    late = ("data.prefetch=0", "training.validate_every=100", "training.checkpoint_every=4", "training.steps=5")
    for ahead in (0, 2):
        train_tiny(tmp_path / str(ahead), *late, f"training.max_in_flight={ahead}")
    assert len(losses(tmp_path / "0")) == 5
    assert losses(tmp_path / "0") == losses(tmp_path / "2")


def test_a_number_that_is_none_is_found_before_another_checkpoint(tmp_path: Path) -> None:
    settings = ("agent.poisoned=9", "training.max_in_flight=100", "training.checkpoint_every=4")
    with pytest.raises(TrainingError, match=r"step 9: loss is not finite on layered-.*step-00000008$"):
        train_tiny(tmp_path, *settings, "training.validate_every=4")
    assert read_metrics(tmp_path)[-1]["step"] == 8
    with pytest.raises(TrainingError, match="step 9: loss is not finite"):
        train_tiny(tmp_path, "training.max_in_flight=1", resume=True)
    assert not [path for path in tmp_path.glob("step-*") if read_info(path).step > 8]
    assert read_info(find(tmp_path)).agent in TinyPolicy.agents
    assert os.path.islink(tmp_path / "best")
    assert checkpoints.restore(find(tmp_path) / "state")
