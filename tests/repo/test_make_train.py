"""Commands of `make train`: `graphrl train` with scripts/train.toml, and `graphrl evaluate`."""

import re
from pathlib import Path

import pytest
from tiny_regal import REGAL

from graphrl.agents import find_agent
from graphrl.cli import main
from graphrl.compare.runs import fingerprint
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.training.config import read_values
from graphrl.training.run import run_config

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "scripts" / "train.toml"


def test_the_graphs_that_it_is_compared_on_are_of_no_training() -> None:
    data = run_config(find_agent("regal"), read_values(str(SETTINGS))).data
    train, validation, test = (
        {fingerprint(graph) for graph in load_graphs(names)} for names in (data.train, data.validation, data.test)
    )
    assert (len(train), len(validation), len(test)) == (300, 32, 48)
    assert not test & (train | validation)


@pytest.mark.slow
def test_the_commands_of_the_makefile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Makefile's commands, on fewer and smaller graphs, with fewer steps and evaluations."""
    monkeypatch.chdir(tmp_path)
    (recipe,) = re.findall(r"^train: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    train, evaluate = re.findall(r"graphrl (.*)", recipe.replace("\\\n", ""))
    words = train.replace("scripts/train.toml", str(SETTINGS)).replace("$(TRAIN_ARGS)", "").split()
    assert main([*words, *(word for setting in REGAL for word in ("--set", setting))]) == 0
    assert main(evaluate.split()) == 0
    out = capsys.readouterr().out
    for method in ("regal", "brkga", "list", "idrs"):
        assert f"\n {method}" in out
    assert (tmp_path / "out/train/improvements.png").exists()
