"""ResNet-50: its published size and work, that its graphs say the same, and that the code really runs."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reproduce.real_programs import resnet

from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph

TRAINABLE = 25_557_032
STATISTICS = 2 * 26_560
MATRIX_OPS = ("conv_general_dilated", "dot_general")


def count(tree: object) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def multiply_adds(graph: ComputationGraph) -> float:
    return sum(op.flops for op in graph.ops if op.type in MATRIX_OPS) / 2


@pytest.fixture(scope="module")
def inference() -> ComputationGraph:
    return resnet.resnet50(batch=2)


@pytest.fixture(scope="module")
def training() -> ComputationGraph:
    return resnet.resnet50(training=True, batch=2)


def test_parameters_are_the_published_number_and_take_no_memory() -> None:
    params, statistics = resnet.resnet50_shapes()
    assert count(params) == TRAINABLE
    assert count(statistics) == STATISTICS
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves((params, statistics)))


def test_inference_graph_has_the_published_work_and_weights(inference: ComputationGraph) -> None:
    assert multiply_adds(inference) / 2 == pytest.approx(4.089e9, rel=1e-3)
    assert sum(op.type == "conv_general_dilated" for op in inference.ops) == 53
    assert sum(op.weight_bytes for op in inference.ops) == 4 * (TRAINABLE + STATISTICS)
    assert len(inference.outputs) == 1


def test_training_graph_has_three_times_the_work_less_the_image_gradient(
    inference: ComputationGraph, training: ComputationGraph
) -> None:
    stem = 2 * 112 * 112 * 7 * 7 * 3 * 64
    assert multiply_adds(training) == 3 * multiply_adds(inference) - stem
    assert sum(op.weight_bytes for op in training.ops) == 4 * (2 * TRAINABLE + STATISTICS)
    params, statistics = resnet.resnet50_shapes()
    kept = 2 * len(jax.tree.leaves(params)) + len(jax.tree.leaves(statistics)) + 1
    assert len(training.outputs) == kept


def test_scopes_name_the_ops(training: ComputationGraph) -> None:
    names = [op.name for op in training.ops]
    assert any("stage3_block6" in name and "expand" in name for name in names)
    assert any(name.startswith("transpose(") for name in names)
    assert any(name.startswith("sgd/") for name in names)


def test_a_training_step_converts_in_seconds() -> None:
    start = time.perf_counter()
    graph = resnet.resnet50(training=True, batch=4)
    assert len(graph.ops) > 3000
    assert time.perf_counter() - start < 15  # about 0.7 s on an idle core


def test_work_grows_with_the_batch_and_weights_do_not(inference: ComputationGraph) -> None:
    double = resnet.resnet50(batch=4)
    assert multiply_adds(double) == 2 * multiply_adds(inference)
    assert [op.weight_bytes for op in double.ops] == [op.weight_bytes for op in inference.ops]


@pytest.mark.parametrize("options", [{"batch": 0}, {"image": 0}, {"chip": "abacus"}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(GraphrlError):
        resnet.resnet50(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_network_runs_and_a_small_step_lowers_the_loss() -> None:
    params, statistics = resnet.init(jax.random.key(0), classes=4)
    assert count(params) == TRAINABLE - 996 * 2049
    images = jax.random.normal(jax.random.key(1), (4, 64, 64, 3))
    labels = jnp.arange(4, dtype=jnp.int32)
    momentum = jax.tree.map(np.zeros_like, params)
    step = jax.jit(resnet.train_step)
    losses = []  # steps are tiny: normalised over 16 values in the last stage, the fresh network has steep gradients
    for _ in range(2):
        params, momentum, statistics, loss = step(params, momentum, statistics, images, labels, jnp.float32(1e-6))
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(4), abs=0.2)  # four classes, a classifier near zero
    assert losses[1] < losses[0]
    logits, unchanged = jax.jit(resnet.apply, static_argnames="training")(params, statistics, images, training=False)
    assert logits.shape == (4, 4)
    assert np.isfinite(np.asarray(logits)).all()
    jax.tree.map(np.testing.assert_array_equal, unchanged, statistics)


def test_batch_statistics_move_towards_the_batch_in_training() -> None:
    params, statistics = resnet._init_layer(jax.random.key(0), 3, 2, 5)
    images = jax.random.normal(jax.random.key(1), (3, 8, 8, 2))
    outputs, updated = resnet._layer(params, statistics, images, stride=1, training=True)
    np.testing.assert_allclose(np.asarray(outputs).mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(np.asarray(outputs).var((0, 1, 2)), 1, rtol=1e-3)
    raw, _ = resnet._layer(params, statistics, images, stride=1, training=False)  # mean 0, variance 1: as convolved
    np.testing.assert_allclose(updated["mean"], 0.1 * np.asarray(raw).mean((0, 1, 2)), atol=1e-5)
    np.testing.assert_allclose(updated["variance"], 0.9 + 0.1 * np.asarray(raw).var((0, 1, 2)), rtol=1e-4)
