"""The page of the environments' steps a second."""

import json
from pathlib import Path

from environment_steps import page, read

from graphrl.bench.steps import StepRow


def row(env: str, envs: int, **rates: object) -> StepRow:
    machine = {"threads": 1, "pinned": True, "device_kind": "chip", "jax": "1", "repeats": 3, "clock": "cpu"}
    cell = {"what": "steps", "env": env, "policy": "random", "size": 64, "n": 57, "envs": envs, "steps": 1}
    return StepRow(**machine, **cell, **rates)  # type: ignore[arg-type]


def test_the_page_has_all_rows_in_order_and_quotes_the_best(tmp_path: Path) -> None:
    rows = [
        row("MemoryMap-v0", 16, steps_per_s=1234567.0, s_per_million_steps=0.81, compile_s=2.0),
        row("MemoryMap-v0", 1, steps_per_s=1000.0, s_per_million_steps=1000.0, compile_s=2.0),
        row("Ordering-v0", 16, skipped="needs 3 GiB of memory"),
    ]
    path = tmp_path / "bench.jsonl"
    path.write_text("".join(json.dumps(one.to_dict()) + "\n" for one in rows))
    text = page(read(path), ["bench", "--envs", "all"])
    assert "ops: 1,230,000 of `MemoryMap-v0` (16 in parallel)." in text
    assert "Command: `graphrl bench --envs all`." in text
    assert "Hardware: chip, one core." in text
    lines = "needs 3 GiB of memory", "MemoryMap-v0 | 57 | 1 | random | 1,000 |", "MemoryMap-v0 | 57 | 16 | random |"
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
