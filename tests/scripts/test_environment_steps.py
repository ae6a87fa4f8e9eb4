"""The page of the environments' steps a second."""

import dataclasses
import itertools
import json
from pathlib import Path

from environment_steps import COUNTS, GRAPHS, models, models_page, page, read

from graphrl.bench.steps import StepRow
from graphrl.graphs.datasets.sets import load_graph


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


def test_the_page_of_models_has_a_line_for_each(tmp_path: Path) -> None:
    names = models(tmp_path)
    assert len(load_graph(next(iter(names))).ops) > 20
    rates = {("random", 1): 10.0, ("random", 64): 20.0, ("random", 1024): 30.0, ("gymnasium", 1): 5.0}
    rates["gymnasium", 64] = 50.0
    rows = [
        dataclasses.replace(row(env, count), model=model, policy=policy, steps_per_s=rates.get((policy, count)))
        for env, model, policy, count in itertools.product(GRAPHS, names, ("random", "gymnasium"), COUNTS)
    ]
    text = models_page(rows, names, "python x.py")
    assert "perceptron): 50 of `Ordering-v0` (10 times those of one), " in text
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == 1 + len(GRAPHS) * len(names)  # and the line below the head
    assert "| Ordering-v0 | an ONNX file (ResNet-50) | 57 | 10 | 20 | 30 | 5 | 50 | - | - |" in lines
