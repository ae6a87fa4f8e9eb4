"""`graphrl bench --orders` and `--decisions`: small runs that must work; nothing here says how fast."""

import dataclasses
import json
from pathlib import Path

import pytest
from processes import run_python

from graphrl.agents.go.config import GoConfig
from graphrl.bench import policies
from graphrl.bench.policies import CONFIG, DECODERS, LEARNING, ORDERS, SAMPLES, OrderRow
from graphrl.cli import main

SMALL = GoConfig(width=8, rounds=1, layers=0, heads=1, superposition="none", coupling="none")


def test_command_measures_decoders_and_learning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--orders", "2", "--quick", "--sizes", "16", "--threads", "1", "--json", "--output", "out"]
    done = run_python(tmp_path, "-m", "graphrl", *arguments)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["1/1"]
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.jsonl").read_text() == done.stdout
    rows = [OrderRow(**json.loads(line)) for line in done.stdout.splitlines()]
    assert [(row.work, row.n, row.graphs) for row in rows] == [(work, 16, 2) for work in (*DECODERS, LEARNING)]
    assert [row.orders for row in rows] == [1, SAMPLES, SAMPLES, CONFIG.samples]
    assert all(row.orders_per_s > 0 and row.ratio_to_drawing > 0 for row in rows)
    ORDERS.table.print(rows)
    assert "orders / s" in capsys.readouterr().out


@pytest.mark.slow
def test_rows_of_deciding_and_learning(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "GO", dataclasses.replace(policies.GO, network=SMALL))
    arguments = ["--decisions", "1", "--sizes", "40,1100", "--threads", "1", "--quick", "--json"]
    assert main(["bench", *arguments]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["n"], row["work"]) for row in rows] == [(40, "deciding"), (40, "learning"), (1100, "deciding")]
    assert all(row["per_s"] > 0 for row in rows)
