"""Op-by-op evaluation: the graph's memory rules hold to the byte, in any order, and so does `jax.live_arrays`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, PlanError
from graphrl.graphs.readers.jaxpr.reader import Traced, trace
from graphrl.optimize import optimize
from graphrl.plan import Plan
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.random_orders import Drawing
from graphrl.xla.eager import evaluate

Params = dict[str, jax.Array]
CHANNELS, BLOCKS = 8, 5


def parameters() -> Params:
    """Of `cell`: point-wise and depth-wise kernels of every block, and a classifier."""
    keys = iter(jax.random.split(jax.random.key(0), 2 * BLOCKS + 1))
    shapes: dict[str, tuple[int, ...]] = {f"point{i}": (1, 1, CHANNELS, CHANNELS) for i in range(BLOCKS)}
    shapes |= {f"depth{i}": (3, 3, 1, CHANNELS) for i in range(BLOCKS)} | {"head": (CHANNELS * (BLOCKS + 2), 4)}
    return {name: 0.3 * jax.random.normal(next(keys), size) for name, size in shapes.items()}


def convolve(x: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)


def cell(params: Params, x: jax.Array) -> jax.Array:
    """A cell as NASNet has them: separable convolutions and poolings of earlier values, all concatenated."""
    values = [x, lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")]
    for i in range(BLOCKS):
        with jax.named_scope(f"block{i}"):
            y = convolve(jax.nn.relu(values[-2]), params[f"point{i}"])
            y = convolve(y, params[f"depth{i}"], groups=CHANNELS) + values[i]
            y -= y.mean((0, 1, 2), keepdims=True)
            values.append(y * lax.rsqrt(jnp.square(y).mean((0, 1, 2), keepdims=True) + 1e-3))
    return jnp.concatenate(values, -1).mean((1, 2)) @ params["head"]


def step(params: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    """One step of gradient descent."""
    loss, gradients = jax.value_and_grad(lambda params: jnp.mean(jnp.square(cell(params, x))))(params)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def images() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (2, 12, 12, CHANNELS))


def ordered(traced: Traced, order: Any) -> Plan:
    n = len(traced.graph.ops)
    return Plan.from_order(
        traced.graph, Problem(), np.zeros(n, int), order, method="by hand", seconds=0, evaluations=1, seed=0
    )


def predicted(traced: Traced, plan: Plan) -> np.ndarray:
    """`[n]` bytes that the memory rules compare with the peak, by place."""
    return plan.check(traced.graph).memory_changes[0][1:, 1]


def held() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.fixture(scope="module")
def training() -> Traced:
    return trace(step, (parameters(), images()), {}, weights_argnums=0)


@pytest.mark.parametrize("method", ["program", "random", "auto"])
def test_live_bytes_of_a_training_step_are_those_predicted(training: Traced, method: str) -> None:
    graph = training.graph
    assert 200 < len(graph.ops) < 600
    if method == "auto":
        plan = optimize(graph, seconds=0.5)
    elif method == "random":
        orders = Drawing(Flow(graph)).draw(np.random.default_rng(0), 1, by_priority=False)
        assert orders is not None
        plan = ordered(training, orders[0])
    else:
        plan = ordered(training, np.arange(len(graph.ops)))
    arguments = parameters(), images()
    before, seen = held(), []
    evaluation = evaluate(training, *arguments, plan=plan, watch=lambda place, live: seen.append(held() - before))
    np.testing.assert_array_equal(evaluation.live_bytes, predicted(training, plan))
    np.testing.assert_array_equal(evaluation.live_bytes, seen)
    assert evaluation.live_bytes.max() == plan.value
    assert held() - before == sum(array.nbytes for array in jax.tree.leaves(evaluation.results))


def test_every_order_gives_the_same_bits(training: Traced) -> None:
    arguments = parameters(), images()
    program, plan = evaluate(training, *arguments), optimize(training.graph, evaluations=100)
    planned = evaluate(training, *arguments, plan=plan)
    assert planned.live_bytes.max() < program.live_bytes.max()
    jax.tree.map(np.testing.assert_array_equal, planned.results, program.results)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), program.results, step(*arguments))


def test_results_of_every_kind_come_back() -> None:
    constant = np.arange(3.0, dtype=np.float32)

    def f(x: jax.Array, scale: float, mode: str, *, key: jax.Array) -> dict[str, Any]:
        total, steps = lax.scan(lambda c, y: (c + y, c * constant.sum()), x[0], x)
        noise = jax.random.normal(key, (3,))
        largest = lax.top_k(x, 1)[1]
        return {"in": x, "n": 7, "sum": [total, steps], "noise": noise, "c": scale * x + constant, mode: largest}

    x = jnp.array([1.0, 2.0, 4.0])
    traced = trace(f, (x, 2.0, "top"), {"key": jax.random.key(3)}, static_argnums=2)
    evaluation = evaluate(traced, x, 2.0, "top", key=jax.random.key(3))
    expected = jax.jit(f, static_argnums=2)(x, 2.0, "top", key=jax.random.key(3))
    assert str(jax.tree.structure(evaluation.results)) == str(jax.tree.structure(expected))
    for a, b in zip(jax.tree.leaves(evaluation.results), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert evaluation.results["in"] is x


def test_effects_keep_their_order() -> None:
    printed: list[float] = []

    def f(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)
        jax.debug.callback(lambda v: printed.append(float(v)), x[0], ordered=True)
        ref[...] += 2.0
        jax.debug.callback(lambda v: printed.append(float(v)), ref[0], ordered=True)
        return ref[...]

    x = jnp.array([1.0, 2.0])
    evaluation = evaluate(trace(f, (x,), {}), x)
    jax.effects_barrier()
    np.testing.assert_array_equal(evaluation.results, [3.0, 4.0])
    assert printed == [1.0, 3.0]


def test_faults_are_told_before_anything_runs(training: Traced) -> None:
    params, x = parameters(), images()
    with pytest.raises(GraphrlError, match=r"argument x is float32\[2,3\]: it was traced as float32\[2,12,12,8\]"):
        evaluate(training, params, jnp.zeros((2, 3)))
    with pytest.raises(GraphrlError, match="1 arrays given: step was traced with 12"):
        evaluate(training, x)
    with pytest.raises(PlanError, match="is of graph 'cell'"):
        evaluate(training, params, x, plan=optimize(trace(cell, (params, x), {}).graph, evaluations=1))
    with pytest.raises(PlanError, match="for 2 devices: op by op runs on one"):
        evaluate(training, params, x, plan=optimize(training.graph, devices=2, method="list"))
