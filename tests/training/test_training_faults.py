"""What may befall a run: kills, a full disk, broken checkpoints, a second process, refusals before it begins."""

import contextlib
import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_agent import TinyPolicy, train_tiny
from training_processes import assert_same, final_state, start

from graphrl.agents import AGENTS
from graphrl.cli import main
from graphrl.errors import GraphrlError
from graphrl.training import checkpoints
from graphrl.training.checkpoints import Checkpoints, find, read_info
from graphrl.training.data import Data
from graphrl.training.folder import MetricsLog, has_run, owned, read_metrics
from graphrl.training.run import TrainingError

SCRIPT = str(Path(__file__).resolve().parents[1] / "helpers/killed_training.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train_tiny(folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))


def losses(folder: Path) -> list[Any]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def assert_gone_on_with(folder: Path, whole: Path) -> None:
    """That the run comes to the end that it would have come to by itself, and leaves nothing half-done behind."""
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
    assert warnings[0].endswith(f"going on from {run}/step-00000010")
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
    """kill -9 before, between and after what is written, in the middle of the run and at its end."""
    process = start([SCRIPT, str(tmp_path), moment, str(step)], JAX_NUM_CPU_DEVICES="2")  # as `whole`
    _, err = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, err
    latest = Checkpoints(tmp_path, 1).latest()
    assert latest is not None
    assert read_info(latest).step == last
    assert_gone_on_with(tmp_path, whole)


# A full disk


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As a full disk: no file of this process grows beyond so many bytes."""
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


# Two in one folder


def test_a_second_training_in_a_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(AGENTS, "tiny", "tiny_agent")
    run = str(tmp_path / "run")
    with owned(Path(run), resume=False):
        assert main(["train", "tiny", "--out", run]) == 1
        assert main(["train", "tiny", "--out", run, "--resume"]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert errors == [f"graphrl: error: {run}: another process trains there now: name another --out"] * 2
    assert main(["train", "tiny", "--out", run, "--set", "training.steps=1"]) == 0


# Refusals before a run begins

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
        patched.setattr(TinyPolicy, "start", refuse)
        with pytest.raises(GraphrlError, match="no policy there"):
            train_tiny(tmp_path / "tensorboard" / "run", "agent.start=there")
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
    """Also one that was killed before its first checkpoint: its settings are there."""
    train_tiny(tmp_path, "training.steps=1")
    for path in tmp_path.glob("step-*"):
        shutil.rmtree(path)
    monkeypatch.setattr(TinyPolicy, "initial", refuse)
    with pytest.raises(GraphrlError):
        train_tiny(tmp_path, resume=True)
    assert has_run(tmp_path)


# The device is not waited for


def test_the_device_has_updates_ahead_and_every_one_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    batch, update = Data.batch, MetricsLog.update

    def noted_batch(self: Data, step: int) -> Any:
        events.append(f"batch {step}")
        return batch(self, step)

    def noted_update(self: MetricsLog, step: int, *rest: Any) -> None:
        events.append(f"metrics {step}")
        update(self, step, *rest)

    monkeypatch.setattr(Data, "batch", noted_batch)
    monkeypatch.setattr(MetricsLog, "update", noted_update)
    late = ("data.ahead=0", "training.validate_every=100", "training.checkpoint_every=4", "training.steps=5")
    train_tiny(tmp_path / "late", *late, "training.ahead=2")
    assert events == [
        f"{what} {step}"
        for what, step in zip(
            ["batch"] * 3 + ["metrics", "batch", "metrics", "metrics", "metrics", "batch", "metrics"],
            [1, 2, 3, 1, 4, 2, 3, 4, 5, 5],
            strict=True,
        )
    ]
    train_tiny(tmp_path / "waiting", *late, "training.ahead=0")
    assert losses(tmp_path / "late") == losses(tmp_path / "waiting")


def test_a_number_that_is_none_is_found_before_another_checkpoint(tmp_path: Path) -> None:
    settings = ("agent.poisoned=9", "training.ahead=100", "training.checkpoint_every=4")
    with pytest.raises(TrainingError, match=r"step 9: loss is not finite on layered-.*step-00000008$"):
        train_tiny(tmp_path, *settings, "training.validate_every=4")
    assert read_metrics(tmp_path)[-1]["step"] == 8
    with pytest.raises(TrainingError, match="step 9: loss is not finite"):
        train_tiny(tmp_path, "training.ahead=1", resume=True)
    assert not [path for path in tmp_path.glob("step-*") if read_info(path).step > 8]
    assert read_info(find(tmp_path)).agent in TinyPolicy.agents
    assert os.path.islink(tmp_path / "best")
    assert checkpoints.restore(find(tmp_path) / "state")
