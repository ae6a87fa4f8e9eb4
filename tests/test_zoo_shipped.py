"""The model zoo: what the script traces, and what is shipped."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reproduce.zoo import architecture, trace
from reproduce.zoo.registry import ARCHITECTURES

from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.zoo import catalogue, storage


def test_the_script_traces_an_architecture(tmp_path: Path) -> None:
    def fn(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ weights["a"]) @ weights["b"])

    weights = {key: architecture.floats(64, 64) for key in "ab"}
    tiny = architecture.Architecture(
        "tiny",
        "mixer",
        lambda: architecture.Function(fn, weights),
        architecture.floats(64),
        (1, 4),
        (2, 8),
        keras=False,
    )
    assert len(trace.missing_files(tiny, tmp_path)) == 4
    trace.trace(tiny, tmp_path)
    assert trace.missing_files(tiny, tmp_path) == []
    assert len(catalogue.write_index(tmp_path)) == 8
    inference = zoo.load("tiny/inference/b4/jaxpr", folder=tmp_path)
    assert [op.type for op in inference.graph.ops] == ["dot_general", "tanh"] * 2
    assert inference.graph.arrays.weight_bytes.sum() == 2 * 64 * 64 * 4
    assert inference.split == "test"
    step = zoo.load("tiny/training/b8/hlo", folder=tmp_path)
    assert step.schedules.keys() == step.temp_bytes.keys() == {"default", "memory"}
    assert step.versions.keys() == {"jax", "jaxlib"}
    assert min(step.temp_bytes.values()) >= 8 * 64 * 4


def test_every_architecture_is_in_one_split() -> None:
    assert len(ARCHITECTURES) >= 50
    assert {one.family for one in ARCHITECTURES.values()} == zoo.SPLITS.keys()
    assert all(name == one.name for name, one in ARCHITECTURES.items())


def test_the_zoo_is_shipped() -> None:
    """At least 50 architectures, inference and training step at two batch sizes each, in less than 10 MB."""
    entries = zoo.entries()
    architectures = {entry.architecture for entry in entries}
    assert len(architectures) >= 50
    assert {entry.family for entry in entries} <= zoo.SPLITS.keys()
    for name in architectures:
        for kind in zoo.KINDS:
            assert len(zoo.select(f"{name}/{kind}/jaxpr")) >= 2
    assert sum(len(zoo.select(f"{kind}/hlo")) >= 80 for kind in zoo.KINDS) == 2
    assert sum(path.stat().st_size for path in zoo.DATA.iterdir()) < 10e6
    sizes = {name: len([e for e in entries if e.split == name]) / len(entries) for name in ("train", "valid", "test")}
    assert sizes["train"] > 0.4
    assert min(sizes.values()) > 0.1


@pytest.mark.parametrize("name", ["efficientnetb0/training/b8/hlo", "nasnetmobile/inference/b16/hlo"])
def test_shipped_programs_have_both_schedules_of_xla(name: str) -> None:
    program = zoo.load(name)
    n, (source, target) = len(program.graph.ops), program.graph.arrays.dependencies()
    assert program.schedules["default"].tolist() == list(range(n))
    for order in program.schedules.values():
        place = np.empty(n, int)
        place[order] = np.arange(n)
        assert sorted(order.tolist()) == list(range(n))
        assert (place[source] < place[target]).all()
    assert program.temp_bytes["memory"] < program.temp_bytes["default"]


def test_the_largest_shipped_graph_loads_soon() -> None:
    largest = max(zoo.entries(), key=lambda entry: entry.ops)
    storage._content.cache_clear()
    start = time.process_time()
    assert len(zoo.load(largest.name).graph.ops) == largest.ops
    assert time.process_time() - start < 3  # 0.6 s on a quiet core
