"""`graphrl bench --decisions`: a small run that must work; nothing here says how fast."""

import dataclasses
import json

import pytest

from graphrl.agents.go.config import GoConfig
from graphrl.bench import decisions
from graphrl.cli import main

SMALL = GoConfig(width=8, rounds=1, layers=0, heads=1, superposition="none", coupling="none")


@pytest.mark.slow
def test_rows_of_deciding_and_learning(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "CONFIG", dataclasses.replace(decisions.CONFIG, network=SMALL))
    arguments = ["--decisions", "1", "--sizes", "40,1100", "--threads", "1", "--quick", "--json"]
    assert main(["bench", *arguments]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["n"], row["work"]) for row in rows] == [(40, "deciding"), (40, "learning"), (1100, "deciding")]
    assert all(row["per_s"] > 0 for row in rows)


def test_what_does_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--decisions", "--transfers", "link"]) == 1
    assert "--transfers does not go with --decisions" in capsys.readouterr().err
