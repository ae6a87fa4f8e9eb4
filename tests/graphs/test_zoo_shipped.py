"""The model zoo: the programs that the script traces, and those shipped."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reproduce.models import zoo as architecture
from reproduce.zoo import ARCHITECTURES, missing_files, trace

from graphrl.graphs.coarsen import coarsened
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.zoo import storage
from graphrl.graphs.features import layer_features
from graphrl.graphs.layers import Layer
from graphrl.graphs.readers.jaxpr.reader import from_jax


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
    assert len(missing_files(tiny, tmp_path)) == 4
    trace(tiny, tmp_path)
    assert missing_files(tiny, tmp_path) == []
    assert len(zoo.write_index(tmp_path)) == 8
    inference = zoo.load("tiny/inference/b4/jaxpr", folder=tmp_path)
    assert [op.type for op in inference.graph.ops] == ["dot_general", "tanh"] * 2
    assert inference.graph.arrays.weight_bytes.sum() == 2 * 64 * 64 * 4
    assert inference.split == "test"
    step = zoo.load("tiny/training/b8/hlo", folder=tmp_path)
    assert step.schedules.keys() == step.temp_bytes.keys() == {"default", "memory"}
    assert step.versions.keys() == {"jax", "jaxlib"}
    assert min(step.temp_bytes.values()) >= 8 * 64 * 4


def test_stored_programs_have_the_features_of_traced_ones(tmp_path: Path) -> None:
    def fn(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        x = jax.lax.conv_general_dilated(
            x, weights["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(x).reshape(len(x), -1) @ weights["dense"]

    weights = {"kernel": architecture.floats(3, 5, 3, 4), "dense": architecture.floats(4 * 6 * 4, 7)}
    tiny = architecture.Architecture(
        "tiny",
        "mixer",
        lambda: architecture.Function(fn, weights),
        architecture.floats(8, 12, 3),
        (1, 4),
        (2,),
        ("jaxpr",),
        keras=False,
    )
    trace(tiny, tmp_path)
    zoo.write_index(tmp_path)
    for batch in (1, 4):
        stored = zoo.load(f"tiny/inference/b{batch}/jaxpr", folder=tmp_path).graph
        traced = from_jax(fn, weights, architecture.floats(batch, 8, 12, 3), weights_argnums=0)
        assert stored.ops[0].layer == Layer(batch, 12, 8, 3, 6, 4, 4, 1, 5, 3, 2, 1, 1)
        assert (layer_features(coarsened(stored)) == layer_features(coarsened(traced))).all()


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


def test_shipped_programs_have_shapes() -> None:
    """The first convolution of ResNet-50 (He et al. 2016, table 1), of an image that is padded to 230 x 230."""
    graph = zoo.load("resnet50/inference/b16/jaxpr").graph
    first = next(op for op in graph.ops if op.type == "conv_general_dilated")
    assert first.layer == Layer(16, 230, 230, 3, 112, 112, 64, 1, 7, 7, 2, 0, 1)
    for kind in zoo.KINDS:
        assert all(op.layer is not None for op in zoo.load(f"resnet50/{kind}/jaxpr/b[18]").graph.ops)


def test_the_largest_shipped_graph_loads_soon() -> None:
    largest = max(zoo.entries(), key=lambda entry: entry.ops)
    storage._content.cache_clear()
    start = time.process_time()
    assert len(zoo.load(largest.name).graph.ops) == largest.ops
    assert time.process_time() - start < 3  # 0.6 s on a quiet core
