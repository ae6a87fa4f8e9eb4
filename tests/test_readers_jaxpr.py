"""Graphs of traced JAX functions: structure, sizes, work, and every kind of equation that needs care."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from graphrl.errors import GraphError, GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.readers.jaxpr import from_jax
from graphrl.graphs.readers.jaxpr_flops import array_bytes
from graphrl.graphs.roofline import Chip, runtime

# One second an operation or byte, whichever are more, and no launch: run times in whole seconds.
TOY = Chip("toy", flops_per_second=1.0, bytes_per_second=1.0)


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def types(graph: ComputationGraph) -> list[str]:
    return [op.type for op in graph.ops]


def only(graph: ComputationGraph, kind: str) -> Op:
    (op,) = [op for op in graph.ops if op.type == kind]
    return op


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
    assert Counter(dots) == Counter([*forward, *forward, forward[1]])  # no gradient of x
    assert sum(op.weight_bytes for op in graph.ops) == 4 * (8 * 16 + 16 * 4)


def test_scan_costs_its_body_times_its_length() -> None:
    w = np.ones((4, 4), np.float32)

    def f(x: jax.Array, ys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.scan(lambda c, y: (jnp.sin(c @ w) + y, 2 * c), x, ys)

    graph = from_jax(f, shape(4), shape(10, 4), chip=TOY)
    scan = only(graph, "scan")
    assert scan.flops == 10 * (2 * 16 + 4 + 4 + 4)
    dot, sin, add, mul = (16 + 64 + 16), 32, 48, 32
    assert scan.runtime == 10 * (dot + sin + add + mul)
    # The largest moment of a step: sin's result, add's (the new carry) and nothing else, or the new carry and 2 c.
    assert scan.workspace_bytes == 32
    assert [tensor.bytes for tensor in scan.outputs] == [16, 160]
    assert scan.weight_bytes == 64
    assert set(scan.inputs) == {"constant.0", "x", "ys"}


def test_a_loop_within_a_loop_multiplies() -> None:
    def f(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, c: lax.fori_loop(0, 7, lambda j, d: jnp.sin(d), c), x)

    graph = from_jax(f, shape(1000))
    assert len(graph.ops) == 1
    assert graph.ops[0].flops == pytest.approx(5 * 7 * 1000, rel=0.01)
    assert graph.ops[0].workspace_bytes == pytest.approx(2 * 4000, rel=0.01)


@settings(max_examples=40)
@given(
    start=st.integers(-5, 20),
    stop=st.integers(-5, 20),
    step=st.integers(1, 4),
    down=st.booleans(),
    closed=st.booleans(),
)
def test_while_loops_with_known_counters_have_their_trip_count(
    start: int, stop: int, step: int, down: bool, closed: bool
) -> None:
    def ahead(i: Any) -> Any:
        if down:
            return i >= stop if closed else i > stop
        return stop >= i if closed else i < stop

    trips, i = 0, start
    while ahead(i):
        trips, i = trips + 1, i - step if down else i + step

    def body(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        return carry[0] - step if down else step + carry[0], jnp.sin(carry[1])

    def f(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda carry: ahead(carry[0]), body, (start, x))[1]

    loop = only(from_jax(f, shape(100)), "while")
    assert loop.flops == (trips + 1) + trips * 101


def test_while_loops_with_unknown_ends_count_once() -> None:
    def until_small(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: jnp.max(c) > 1, lambda c: c / 2, x)

    def given_length(x: jax.Array, n: jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, c: jnp.sin(c), x)

    assert only(from_jax(until_small, shape(100)), "while").flops == 100 + 1 + 100
    assert only(from_jax(given_length, shape(100), shape(dtype=jnp.int32)), "while").flops == 1 + 1 + 100


def test_a_bound_that_reaches_a_loop_through_a_jit_is_known() -> None:
    @jax.jit
    def repeat(x: jax.Array, n: int) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, c: jnp.sin(c), x)

    graph = from_jax(lambda x: repeat(x, 6), shape(100))
    assert only(graph, "while").flops == 7 + 6 * 101


def test_cond_costs_its_dearest_branch_and_holds_its_temporaries() -> None:
    def f(flag: jax.Array, x: jax.Array) -> jax.Array:
        return lax.cond(flag, lambda: jnp.sin(jnp.cos(x)), lambda: 2 * x)

    cond = only(from_jax(f, shape(dtype=jnp.bool_), shape(100), chip=TOY), "cond")
    assert cond.flops == 200
    assert cond.runtime == 1600
    assert cond.workspace_bytes == 400  # cos(x); the result is the op's own output
    assert from_jax(f, True, shape(100)).ops == from_jax(f, np.bool_(True), shape(100)).ops


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


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (jnp.float32, 40),
        (jnp.bfloat16, 20),
        (jnp.float8_e4m3fn, 10),
        (jnp.int4, 5),
        (jnp.uint2, 3),
        (jnp.bool_, 10),
        (jnp.complex64, 80),
        (jax.dtypes.float0, 0),
        (jax.random.key(0).dtype, 80),
        (jax.random.key(0, impl="rbg").dtype, 160),
    ],
    ids=str,
)
def test_bytes_of_every_kind_of_dtype(dtype: Any, size: int) -> None:
    assert array_bytes(jax.ShapeDtypeStruct((10,), dtype)) == size


def test_bytes_and_work_of_odd_dtypes_in_graphs() -> None:
    def f(key: jax.Array, narrow: jax.Array, flags: jax.Array) -> tuple[jax.Array, ...]:
        noise = jax.random.normal(jax.random.fold_in(key, 1), (8,), jnp.bfloat16)
        return noise, narrow.astype(jnp.int8), ~flags, jax.random.split(key, 3)

    graph = from_jax(f, jax.random.key(0), shape(8, dtype=jnp.int4), shape(8, dtype=jnp.bool_))
    assert [tensor.bytes for tensor in graph.inputs] == [8, 4, 8]
    sizes = {tensor.name: tensor.bytes for op in graph.ops for tensor in op.outputs}
    assert [sizes[name] for name in graph.outputs] == [16, 8, 8, 24]


def test_scalars_empty_arrays_and_tokens_cost_nothing_but_exist() -> None:
    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        token = lax.create_token(x)
        lax.after_all(token)
        return jnp.sum(x @ x.T), jnp.concatenate([x, x])

    graph = from_jax(f, shape(0, 3), chip=TOY)
    assert only(graph, "concatenate").runtime == 0
    assert only(graph, "reduce_sum").outputs[0].bytes == 4


LINEAR_ALGEBRA: dict[str, tuple[Callable[..., Any], float]] = {
    "cholesky": (jnp.linalg.cholesky, 1 / 3),
    "lu": (jax.scipy.linalg.lu_factor, 2 / 3),
    "qr": (jnp.linalg.qr, 8 / 3),
    "eigh": (jnp.linalg.eigh, 9),
    "svd": (jnp.linalg.svd, 21),
    "eig": (jnp.linalg.eig, 25),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_factorisations_count_their_leading_terms(name: str) -> None:
    function, factor = LINEAR_ALGEBRA[name]
    with jax.numpy_dtype_promotion("standard"):  # jax.scipy's own code
        graph = from_jax(function, shape(3, 300, 300))
    assert sum(op.flops for op in graph.ops) == pytest.approx(3 * factor * 300**3, rel=0.03)


def test_solving_and_differentiating_linear_systems() -> None:
    graph = from_jax(lambda a, b: jnp.linalg.solve(a, b), shape(50, 50), shape(50))
    solve = only(graph, "custom_linear_solve")
    assert solve.flops == pytest.approx(2 * 50 * 50, rel=0.1)
    gradient = from_jax(jax.grad(lambda a: jnp.linalg.slogdet(a)[1]), shape(6, 6))
    assert len(gradient.ops) > 5


def convolution_flops(graph: ComputationGraph) -> list[int]:
    return [op.flops for op in graph.ops if op.type == "conv_general_dilated"]


@settings(max_examples=25)
@given(
    size=st.integers(3, 12),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    groups=st.integers(1, 2),
)
def test_convolutions_count_padding_and_not_holes(size: int, kernel: int, stride: int, groups: int) -> None:
    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(kernel // 2, kernel // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    arguments = (shape(2, size, size, 4), shape(kernel, kernel, 4 // groups, 6))
    (forward,) = convolution_flops(from_jax(convolve, *arguments))
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    assert forward == 2 * 2 * out * out * kernel * kernel * (4 // groups) * 6
    backward = convolution_flops(from_jax(jax.grad(lambda x, w: convolve(x, w).sum(), (0, 1)), *arguments))
    # Each gradient repeats the forward pairs, less what the image gradient would give to the padding.
    assert len(backward) == 2
    assert all(flops <= forward for flops in backward)
    if stride == 1 or kernel > 1:
        assert all(flops >= 0.4 * forward for flops in backward)


def test_other_work_is_counted_by_rule() -> None:
    def flops(function: Callable[..., Any], *args: Any) -> int:
        return sum(op.flops for op in from_jax(function, *args).ops)

    x = shape(8, 64)
    assert flops(lambda x: jnp.sum(x, axis=0), x) == 512
    assert flops(lambda x: x.T.reshape(-1), x) == 0
    assert flops(lambda x: x**5, x) == 3 * 512
    assert flops(lambda x: jnp.cumsum(x, axis=1), x) == 512
    assert flops(lambda x: lax.sort(x, dimension=1), x) == 512 * 6
    assert flops(lambda x: lax.top_k(x, 3), x) == 512 * 2
    assert flops(jnp.fft.fft, shape(8, 64, dtype=jnp.complex64)) == 5 * 512 * 6
    assert flops(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), x) == 512
    assert flops(lambda x: x.at[0].add(jnp.ones(64)), x) == 64
    assert flops(lambda x, r: lax.ragged_dot(x, jnp.ones((2, 64, 5)), r), x, shape(2, dtype=jnp.int32)) == 2 * 512 * 5
    assert flops(lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + a, (0,)), x) == 2 * 512
    assert flops(lambda a: jax.scipy.linalg.solve_triangular(a, jnp.ones((8, 2))), shape(8, 8)) == 8 * 16


def test_gathers_and_slices_read_only_what_they_take() -> None:
    graph = from_jax(lambda table, i: table[i], shape(1000, 8), shape(4, dtype=jnp.int32), chip=TOY)
    gather = only(graph, "gather")
    assert gather.runtime <= 2 * 4 * 8 * 4 + 4 * 8


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
    with pytest.raises(GraphrlError, match="no function"):
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
