"""Op-by-op evaluation: the graph's memory rules are exact to the byte in any order, and so is `jax.live_arrays`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from op_by_op import OpByOp

import graphrl
from graphrl.costs.problem import Problem
from graphrl.plan import Plan
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.random_orders import Drawing

Params = dict[str, jax.Array]
CHANNELS, BLOCKS = 8, 5


def parameters() -> Params:
    """Parameters of `cell`: point-wise and depth-wise kernels of every block, and a classifier."""
    keys = iter(jax.random.split(jax.random.key(0), 2 * BLOCKS + 1))
    shapes: dict[str, tuple[int, ...]] = {f"point{i}": (1, 1, CHANNELS, CHANNELS) for i in range(BLOCKS)}
    shapes |= {f"depth{i}": (3, 3, 1, CHANNELS) for i in range(BLOCKS)} | {"head": (CHANNELS * (BLOCKS + 2), 4)}
    return {name: 0.3 * jax.random.normal(next(keys), size) for name, size in shapes.items()}


def convolve(x: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)


def cell(params: Params, x: jax.Array) -> jax.Array:
    """A NASNet cell: separable convolutions and poolings of earlier values, all concatenated."""
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


def live() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def test_live_bytes_of_a_training_step_are_those_predicted_and_every_order_gives_the_same_bits() -> None:
    arguments = parameters(), jax.random.normal(jax.random.key(1), (2, 12, 12, CHANNELS))
    graph = graphrl.from_jax(step, *arguments, weights_argnums=0)
    n = len(graph.ops)
    assert 200 < n < 600
    drawn = Drawing(Flow(graph)).draw(np.random.default_rng(0), 1, by_priority=False)
    assert drawn is not None
    planned = graphrl.optimize(graph, evaluations=100).decisions(graph)[1]
    evaluator, results, peaks = OpByOp(step, arguments), [], []
    for order in (np.arange(n), drawn[0], planned):
        zeros = np.zeros(n, int)
        plan = Plan.from_order(graph, Problem(), zeros, order, method="", seconds=0, evaluations=1, seed=0)
        before, seen = live(), list[int]()
        results.append(evaluator.run(order.tolist(), lambda: seen.append(live() - before)))  # noqa: B023
        np.testing.assert_array_equal(evaluator.live_bytes, plan.check(graph).memory_changes[0][1:, 1])
        np.testing.assert_array_equal(evaluator.live_bytes, seen)
        assert live() - before >= sum(array.nbytes for array in jax.tree.leaves(results[-1]))
        peaks.append(max(seen))
        assert peaks[-1] == plan.value
        jax.tree.map(np.testing.assert_array_equal, results[-1], results[0])
    assert peaks[2] < peaks[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), results[0], step(*arguments))
