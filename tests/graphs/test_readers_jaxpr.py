"""JAX functions as graphs: ops, names, weights, arguments, and refusals."""

import functools
import itertools
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced import TOY, only, shape

from graphrl.errors import GraphError, GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.graphs.roofline import runtime


def types(graph: ComputationGraph) -> list[str]:
    return [op.type for op in graph.ops]


def test_a_chain_becomes_ops_with_sizes_work_and_run_times() -> None:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("layer"):
            return jnp.tanh(x @ w)

    graph = from_jax(f, shape(2, 3), shape(3, 5), chip=TOY)
    dot, tanh = graph.ops
    assert (dot.name, tanh.name) == ("layer/dot_general.0", "layer/tanh.1")
    assert dot.inputs == ("x", "w")
    assert [tensor.bytes for tensor in graph.inputs] == [24, 60]
    assert dot.flops == 2 * 2 * 3 * 5
    assert dot.runtime == max(60, 24 + 60 + 40)
    assert tanh.inputs == ("layer/dot_general.0:0",)
    assert (tanh.flops, tanh.runtime) == (10, 80)
    assert graph.outputs == ("layer/tanh.1:0",)
    assert graph.name == "f"
    assert sum(op.weight_bytes for op in graph.ops) == 0


def test_calls_are_inlined_and_their_scopes_joined() -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        with jax.named_scope("inner"):
            return jnp.sin(x)

    @jax.custom_vjp
    def custom(x: jax.Array) -> jax.Array:
        return jnp.cos(x)

    custom.defvjp(lambda x: (custom(x), x), lambda x, g: (g,))

    def f(x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            return jax.nn.relu(custom(jax.checkpoint(inner)(x)))

    graph = from_jax(f, shape(4))
    assert types(graph) == ["sin", "cos", "max"]
    assert graph.ops[0].name == "outer/inner/sin.0"


def test_dead_code_literals_and_passed_inputs_leave_no_trace() -> None:
    def f(x: jax.Array, unused: jax.Array) -> tuple[jax.Array, jax.Array, int, jax.Array]:
        jnp.exp(x)
        y = 2 * x
        return y, x, 3, y

    graph = from_jax(f, shape(4), shape(7))
    assert types(graph) == ["mul"]
    assert graph.ops[0].inputs == ("x",)
    assert graph.outputs == ("mul.0:0",)
    assert [tensor.name for tensor in graph.inputs] == ["x", "unused"]


def test_a_value_read_twice_by_one_op_moves_once() -> None:
    graph = from_jax(lambda x: x * x, shape(4), chip=TOY)
    assert [op.inputs for op in graph.ops] == [("x",)]
    assert graph.ops[0].runtime == 32


def test_arguments_are_named_by_their_paths() -> None:
    params = {"layers": [{"w": shape(3)}], "scale": shape()}
    graph = from_jax(lambda p, x, *, bias: p["layers"][0]["w"] * x + bias, params, shape(3), bias=shape(3))
    assert [tensor.name for tensor in graph.inputs] == ["p/layers/0/w", "p/scale", "x", "bias"]
    starred = from_jax(lambda *args: args[0] + args[1], shape(3), shape(3))
    assert [tensor.name for tensor in starred.inputs] == ["arg0", "arg1"]


def test_weights_are_charged_once_to_their_first_reader() -> None:
    constant = np.ones((4, 4), np.float32)

    def f(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        y = jax.jit(lambda x: x @ params["w"] @ constant)(x)
        return (y @ constant) * params["b"] + params["b"]

    arguments = ({"w": shape(4, 4), "b": shape(1, 4)}, shape(2, 4))
    graph = from_jax(f, *arguments, weights_argnums=0)
    assert [op.weight_bytes for op in graph.ops][:3] == [64, 64, 0]
    assert sum(op.weight_bytes for op in graph.ops) == 64 + 64 + 16
    assert graph.ops[1].inputs == ("dot_general.0:0", "constant.0")
    assert sum(op.weight_bytes for op in from_jax(f, *arguments).ops) == 64  # only the constant is known to stay
    assert from_jax(f, *arguments, weights_argnums=(-2,)) == graph


def test_training_steps_have_backward_ops_and_keep_every_result() -> None:
    def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(jnp.tanh(x @ params["a"]) @ params["b"]))

    def step(params: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        value, gradient = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    graph = from_jax(step, {"a": shape(8, 16), "b": shape(16, 4)}, shape(32, 8), weights_argnums=0)
    assert len(graph.outputs) == 3
    dots = [op.flops for op in graph.ops if op.type == "dot_general"]
    forward = [2 * 32 * 8 * 16, 2 * 32 * 16 * 4]
    assert Counter(dots) == Counter([*forward, *forward, forward[1]])  # no gradient by x
    assert sum(op.weight_bytes for op in graph.ops) == 4 * (8 * 16 + 16 * 4)


def test_mutable_arrays_keep_their_order() -> None:
    def f(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)
        ref[...] += 1.0
        return ref[...] * 2.0

    graph = from_jax(f, shape(3))
    touching = [op for op in graph.ops if any(name.startswith("new_ref") for name in op.inputs)]
    assert len(touching) == 3
    for first, second in itertools.pairwise(touching):
        assert second.after == (first.name,)


def test_effects_stay_and_keep_their_order() -> None:
    def f(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x, ordered=True)
        jax.debug.print("{}", jnp.sin(x), ordered=True)
        return jnp.cos(x)

    graph = from_jax(f, shape(3))
    first, second = (op for op in graph.ops if not op.outputs)
    assert second.after == (first.name,)
    assert sorted(t for t in types(graph) if t in ("sin", "cos")) == ["cos", "sin"]


def test_static_arguments_names_chips_and_partials() -> None:
    def f(mode: str, x: jax.Array, n: int) -> jax.Array:
        return jnp.sin(x) * n if mode == "sin" else x

    graph = from_jax(f, "sin", shape(3), 2, static_argnums=(0, -1), name="mine", chip="t4")
    assert (graph.name, types(graph)) == ("mine", ["sin", "mul"])
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert graph.ops[0].runtime == runtime(3, 24, "t4")
    assert from_jax(functools.partial(f, "sin", n=2), shape(3)).name == "f"


def test_nothing_is_computed_and_no_memory_taken() -> None:
    graph = from_jax(lambda x: jnp.sum(x @ x), shape(10**6, 10**6))
    assert graph.ops[0].flops == 2 * 10**18
    assert graph.ops[0].outputs[0].bytes == 4 * 10**12


@pytest.mark.parametrize("options", [{"static_argnums": 5}, {"weights_argnums": (0, 1)}, {"weights_argnums": ("x",)}])
def test_argument_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(GraphrlError, match="argnums"):
        from_jax(jnp.sin, shape(3), **options)


def test_what_cannot_be_a_graph_is_refused() -> None:
    with pytest.raises(GraphrlError, match="not a function"):
        from_jax(3)  # type: ignore[arg-type]
    with pytest.raises(GraphrlError, match="unknown chip"):
        from_jax(jnp.sin, shape(3), chip="abacus")
    with pytest.raises(GraphError, match="no ops"):
        from_jax(lambda x: x, shape(3))
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(GraphError, match="symbolic"):
        from_jax(jnp.sin, jax.ShapeDtypeStruct((size,), jnp.float32))


def test_sharded_and_pallas_kernels_are_single_ops() -> None:
    from jax.experimental import pallas
    from jax.sharding import AxisType, PartitionSpec

    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    sharded = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    op = only(from_jax(sharded, shape(100), chip=TOY), "shard_map")
    assert (op.flops, op.runtime, op.workspace_bytes) == (100, 400, 0)

    def kernel(x: Any, y: Any) -> None:
        y[...] = x[...] * 2.0

    block = pallas.BlockSpec((2, 128), lambda i: (i, 0))
    call = pallas.pallas_call(kernel, out_shape=shape(8, 128), grid=(4,), in_specs=[block], out_specs=block)
    op = only(from_jax(call, shape(8, 128), chip=TOY), "pallas_call")
    assert (op.flops, op.runtime, op.workspace_bytes) == (1024, 8192, 0)


def test_tracing_twice_gives_the_same_graph() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(jax.nn.gelu(x @ x.T)))(x)

    assert from_jax(f, shape(4, 3)) == from_jax(f, shape(4, 3))
