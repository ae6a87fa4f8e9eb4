"""The folder of a run: what a run that never began leaves there, and what it must not take away."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_agent import TinyPolicy, train_tiny

from graphrl.agents import AGENTS
from graphrl.cli import main
from graphrl.errors import GraphrlError
from graphrl.training.folder import has_run, owned

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


def test_a_folder_is_one_process_s(tmp_path: Path) -> None:
    with (
        owned(tmp_path / "run", resume=False),
        pytest.raises(GraphrlError, match="another process trains there"),
        owned(tmp_path / "run", resume=False),
    ):
        pass
    assert (tmp_path / "run").is_dir()
