"""`graphrl bench --orders`: small runs that must work; nothing here says how fast."""

import json
from pathlib import Path

import pytest
from command_line import check_failure
from processes import run_python

from graphrl.bench.orders import CONFIG, DECODERS, LEARNING, SAMPLES, OrderRow, print_orders


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
    print_orders(rows)
    assert "orders / s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["--orders", "0"], 2, "orders is 0: must name numbers from 1 to 4096, each once"),
        (["--orders", "--transfers", "link"], 1, "--transfers does not go with --orders"),
        (["--orders", "--envs"], 2, "not allowed with argument"),
    ],
)
def test_command_tells_faults_in_a_line(
    arguments: list[str], code: int, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_failure(["bench", *arguments, "--threads", "1"], code, fault, capsys)
