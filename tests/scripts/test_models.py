"""Models of every kind as functions with abstract arguments, for inference and for a training step."""

import importlib.util
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reproduce.models.programs import Program, inference, mean_square, training_step

from graphrl import from_jax

IMAGE = jax.ShapeDtypeStruct((4,), "float32")
WEIGHTS = {"w": jax.ShapeDtypeStruct((4, 3), "float32")}


def linear(weights: dict[str, jax.Array], x: jax.Array, scale: float = 1.0) -> jax.Array:
    return scale * (x @ weights["w"])


def example(program: Program) -> tuple[Any, ...]:
    """Concrete arguments: 0.1, 0.2, 0.3, ... in every floating array, zeros in the others."""

    def fill(x: jax.ShapeDtypeStruct) -> jax.Array:
        values = np.arange(1, 1 + int(np.prod(x.shape))).reshape(x.shape) / 10
        return jnp.asarray(values if jnp.issubdtype(x.dtype, jnp.floating) else 0 * values, x.dtype)

    return jax.tree_util.tree_map(fill, program.args)


def shapes(tree: Any) -> Any:
    """The tree with the shape of each array."""
    return jax.tree_util.tree_map(lambda x: x.shape, tree)


def test_inference_of_a_function() -> None:
    program = inference(linear, IMAGE, batch=2, weights=WEIGHTS, scale=2.0)
    assert program.weights == (0, 1)
    weights, state, x = example(program)
    assert x.shape == (2, 4)
    np.testing.assert_allclose(program.fn(weights, state, x), 2 * x @ weights["w"], rtol=1e-6)


def test_a_training_step_is_loss_and_gradients() -> None:
    program = training_step(linear, IMAGE, batch=2, weights=WEIGHTS)
    weights, state, x = example(program)
    (value, renewed), gradients = program.fn(weights, state, x)
    y = x @ weights["w"]
    assert renewed == {}
    np.testing.assert_allclose(value, np.mean(np.square(y)), rtol=1e-6)
    np.testing.assert_allclose(gradients["w"], 2 / y.size * x.T @ y, rtol=1e-6)
    assert len(from_jax(program.fn, *program.args, weights_argnums=program.weights).ops) > 3


def test_the_loss_is_the_sum_of_mean_squares_of_all_outputs() -> None:
    assert mean_square([jnp.full(3, 2.0), {"a": jnp.full(2, 3.0, jnp.bfloat16)}]) == 13.0


def test_a_flax_module_keeps_its_statistics_and_drops_out() -> None:
    pytest.importorskip("flax")
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(3)(x))
            return linen.Dropout(0.5, deterministic=not train)(x)

    program = inference(Net(), IMAGE, batch=2)
    assert jax.eval_shape(program.fn, *program.args).shape == (2, 3)
    step = training_step(Net(), IMAGE, batch=2, train=True)
    (loss, state), gradients = jax.eval_shape(step.fn, *step.args)
    assert loss.shape == ()
    assert shapes(gradients) == shapes(step.args[0])
    assert shapes(state) == shapes(step.args[1])
    weights, before, x = example(step)
    (_, after), _ = step.fn(weights, before, x)
    assert not np.array_equal(after["key"], before["key"])
    assert not np.array_equal(*(s["variables"]["batch_stats"]["BatchNorm_0"]["mean"] for s in (before, after)))


@pytest.fixture(scope="module")
def keras() -> Any:
    """Keras on JAX, where it is installed."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    return keras


def test_a_keras_model_without_memory_is_the_program_of_one_with(keras: Any) -> None:
    from reproduce.models.programs import abstract_variables

    def build() -> Any:
        keras.backend.clear_session()
        layers = [keras.layers.Dense(30), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        return keras.Sequential([keras.Input((4,)), *layers])

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        real = build()
        with abstract_variables():
            model = build()
        assert [v._value is None for v in model.trainable_variables] == [True, False, False, False]
        program = inference(model, IMAGE, batch=2)
        x = example(program)[2]
        values = [[v.value for v in kind] for kind in (real.trainable_variables, real.non_trainable_variables)]
        np.testing.assert_allclose(program.fn(*values, x), real(x), rtol=1e-6)
        step = training_step(model, IMAGE, batch=2)
        (loss, state), gradients = jax.eval_shape(step.fn, *step.args)
        graph = from_jax(step.fn, *step.args, weights_argnums=step.weights)
    assert loss.shape == ()
    assert [g.shape for g in gradients] == [v.shape for v in real.trainable_variables]
    assert [s.shape for s in state] == [v.shape for v in real.non_trainable_variables]
    assert {"dot_general", "rsqrt"} <= {op.type for op in graph.ops}


def test_variables_have_values_again_after_an_error(keras: Any) -> None:
    from reproduce.models.programs import abstract_variables

    with pytest.raises(ZeroDivisionError), abstract_variables():
        raise ZeroDivisionError
    layer = keras.layers.Dense(30)
    layer.build((None, 4))
    assert layer.kernel.value.shape == (4, 30)
