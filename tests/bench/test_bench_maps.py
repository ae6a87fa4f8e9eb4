"""`graphrl bench --maps`: small runs that must work; nothing here says how fast."""

import json
from pathlib import Path

import pytest
from map_problems import WORKED_CHIP, WORKED_GRAPH
from processes import run_python

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.bench.maps import KERNEL, MAPS, MapRow, generation_program
from graphrl.costs.maps.problem import map_problem


def test_command_measures_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--maps", "2,6", "--quick", "--sizes", "80,108", "--threads", "2", "--json", "--output", "out"]
    done = run_python(tmp_path, "-m", "graphrl", "bench", *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.jsonl").read_text() == done.stdout
    rows = [MapRow(**json.loads(line)) for line in done.stdout.splitlines()]
    assert [(row.work, row.n, row.maps) for row in rows] == [(KERNEL, n, maps) for n in (80, 108) for maps in (2, 6)]
    assert rows[-1].graph == "resnet101"
    assert all(row.maps_per_s > 0 and row.ratio_to_host > 0 for row in rows)
    MAPS.table.print(rows)
    assert "maps / s" in capsys.readouterr().out


def test_generations_follow_each_other() -> None:
    config = EgrlConfig(width=8, depth=0, population=4, boltzmann=0.5)
    program = generation_program(map_problem(WORKED_GRAPH, WORKED_CHIP), config, 0)
    assert program.run(2).evaluations == 2 * config.settings.rollouts
    assert program.compile_s > 0
