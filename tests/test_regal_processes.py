"""REGAL's own learner in several processes (`graphrl train regal --distributed`)."""

from pathlib import Path

import pytest
from training_processes import assert_same, final_state, finish, start_together

from graphrl.cli import main

SETTINGS = (
    "data.train=regal-like:12x4@10000",
    "data.validation=regal-like:12x2@5000",
    "data.graphs=2",
    "data.buckets=1",
    "agent.evaluations=16",
    "agent.parameters.population=10",
    "agent.parameters.elites=2",
    "agent.parameters.mutants=4",
    "agent.actions=2",
    "agent.rounds=1",
    "agent.width=8",
    "training.steps=3",
)


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    """The gradient is a sum over processes (Gloo), and each makes only its own graphs of a batch."""
    command = ["train", "regal", *(word for setting in SETTINGS for word in ("--set", setting))]
    for process in start_together(["-m", "graphrl", *command, "--out", str(tmp_path / "two"), "--distributed"]):
        finish(process)
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    one, two = final_state(tmp_path / "one"), final_state(tmp_path / "two")
    assert any(leaf.any() for name, leaf in one.items() if "optimiser" in name)
    assert_same(one, two, 1e-5)
