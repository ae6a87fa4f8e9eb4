"""Cases with all kinds of arrays: types, sizes, pytrees, and results that are no computation's."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from reproduce.real_programs.cases.compiler import Compiler, N, branches, matrix, named, vector, wide


def _of_type(by: Compiler, dtype: Any) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * jnp.asarray(k, dtype)) for k in range(1, 7)]
        return wide(x), sum((w @ w for w in waves), jnp.zeros((N, N), dtype)), jax.grad(lambda y: wide(y).sum())(x)

    return by.jit(program)(vector().astype(dtype))


def bfloat16(by: Compiler) -> Any:
    return _of_type(by, jnp.bfloat16)


def float16(by: Compiler) -> Any:
    return _of_type(by, jnp.float16)


def float64(by: Compiler) -> Any:
    with jax.enable_x64(True):
        return _of_type(by, jnp.float64)


def types_with_x64_on_and_off(by: Compiler) -> Any:
    def program(x: Any, k: Any) -> Any:
        return jnp.cumsum(wide(jnp.asarray(x)))[: N // 2], jnp.arange(5), jnp.asarray(k) + 1, jnp.ones(3).sum()

    step, numbers = by.jit(program), np.linspace(0, 1, N)
    off = step(numbers, 2**31 - 2)
    with jax.enable_x64(True):
        on = step(numbers, 2**31 - 2)
    return off, on, step(numbers, 3)


def _complex(by: Compiler, dtype: Any) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.exp(1j * jnp.outer(x, x) * k).astype(dtype) for k in range(1, 5)]
        return [(w @ w.conj().T, w.real.sum(), jnp.abs(w).max(0), jnp.angle(w[0])) for w in waves]

    return by.jit(program)(vector())


def complex64(by: Compiler) -> Any:
    return _complex(by, jnp.complex64)


def complex128(by: Compiler) -> Any:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return _complex(by, jnp.complex128)


def whole_numbers(by: Compiler) -> Any:
    def program(x: jax.Array, u: jax.Array) -> Any:
        waves = [jnp.outer(x, x) * jnp.int8(k) for k in range(1, 9)]
        wider = [w.astype(jnp.int32) @ w.astype(jnp.int32) for w in waves]
        hashes = [(u[:, None] * u[None] + jnp.uint32(k)) >> 3 ^ u[None] for k in range(4)]
        return sum(wider, jnp.zeros((N, N), jnp.int32)), waves[3], [h @ h for h in hashes], jax.lax.population_count(u)

    return by.jit(program)(jnp.arange(N).astype(jnp.int8), jnp.arange(N, dtype=jnp.uint32) * np.uint32(2654435761))


def truth_values(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        masks = [jnp.sin(jnp.outer(x, x) * k) > 0.3 for k in range(1, 9)]
        both = jax.tree.reduce(jnp.logical_xor, masks)
        return both, both.any(0), both.all(), [mask.sum() for mask in masks], jnp.where(both, x[None], x[:, None])

    return by.jit(program)(vector())


def small_types(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        eighths = [w.astype(jnp.float8_e4m3fn).astype(jnp.float32) @ w for w in waves]
        return eighths, [(w * 7).astype(jnp.int4) for w in waves], [w.astype(jnp.float8_e5m2) for w in waves]

    return by.jit(program)(vector())


def numbers_that_are_none(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        y = wide(x)
        odd = jnp.where(x > 0, jnp.nan, jnp.where(x < -1, jnp.inf, -0.0))
        return y / 0.0, odd * y, jnp.sqrt(-y), jnp.maximum(odd, y), (x * 1e-38) * (y * 1e-3), jnp.signbit(odd)

    return by.jit(program)(vector())


def empty_arrays(by: Compiler) -> Any:
    def program(x: jax.Array, none: jax.Array, flat: jax.Array) -> Any:
        y = wide(x)
        return y, none, none @ flat, flat.sum(0), jnp.concatenate([none.T, flat], 1), y[:0], none.sum(), flat.T @ none.T

    return by.jit(program)(vector(), jnp.zeros((3, 0)), jnp.zeros((0, 5)))


def sizes_of_zero_in_loops(by: Compiler) -> Any:
    def program(x: jax.Array, none: jax.Array) -> Any:
        def body(state: Any, row: jax.Array) -> Any:
            return (jnp.tanh(wide(state[0])), state[1] * 2), row

        return jax.lax.scan(body, (x, none), jnp.zeros((3, 0, 2))), jax.vmap(wide)(jnp.zeros((0, N)))

    return by.jit(program)(vector(), jnp.zeros((0, 4)))


def literal_results(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return 3, 2.5, True, None, jnp.zeros(4), np.arange(3), wide(x), (), {"k": jnp.int8(1)}, 1j

    return by.jit(program)(vector())


def results_without_arguments(by: Compiler) -> Any:
    def program() -> Any:
        x = jnp.linspace(0.0, 1.0, N)
        return wide(x), x, jnp.eye(3)

    return by.jit(program)()


def arguments_that_come_back(by: Compiler) -> Any:
    def program(x: jax.Array, y: jax.Array, tree: Any) -> Any:
        return x, wide(x), y, {"again": x, "tree": tree}, tree["b"]

    x, y, tree = vector(), jnp.arange(5), {"a": matrix(), "b": jnp.float32(2)}
    results = by.jit(program)(x, y, tree)
    same = [a.unsafe_buffer_pointer() == b.unsafe_buffer_pointer() for a, b in ((results[0], x), (results[2], y))]
    return results, same, by.compile(by.jit(program), x, y, tree)(x, y, tree)


def results_that_are_given_twice(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        y = wide(x)
        return y, y, [y, {"y": y}], y + 0, (x, x)

    return by.jit(program)(vector())


class Pair(NamedTuple):
    """A named tuple is a pytree of its own."""

    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Held:
    """A class with data and what is no data."""

    data: Any
    name: str = dataclasses.field(metadata={"static": True})


def pytrees(by: Compiler) -> Any:
    def program(tree: Any, *rest: Any, **named: Any) -> Any:
        y = wide(tree["x"].first)
        held = Held([y, named["b"].data], named["b"].name + "!")
        return Pair(held, {"z": y, "a": rest, "none": None}), [*rest, (), {}], named

    tree = {"x": Pair(vector(), None), "n": 3}
    return by.jit(program)(tree, vector(1), [2.0], a=np.float32(1), b=Held(vector(2), "name"))


def weak_types(by: Compiler) -> Any:
    def program(x: jax.Array, k: Any, f: Any) -> Any:
        return wide(x) * f, k + 1, f * 2.0, jnp.float32(2) * f, jnp.asarray(k), x[0] * 0 + 1, k * 1.5

    step = by.jit(program)
    with jax.numpy_dtype_promotion("standard"):
        return step(vector(), 3, 2.0), step(vector(), jnp.int32(3), jnp.float32(2)), step(vector(), np.int16(3), True)


def large_constants(by: Compiler) -> Any:
    weights = [np.asarray(matrix(k)) for k in range(4)]
    held = jnp.asarray(weights[0])

    def program(x: jax.Array) -> jax.Array:
        waves = [jnp.sin(jnp.outer(x, x) @ w) for w in weights]
        return sum((w @ held for w in waves), jnp.zeros((N, N)))

    return by.jit(program)(vector())


def arguments_that_nobody_reads(by: Compiler) -> Any:
    def program(x: jax.Array, *others: jax.Array) -> Any:
        return wide(x), others[3] * 2

    others = [matrix(k) for k in range(6)]
    return by.jit(program)(vector(), *others), by.jit(program, keep_unused=True)(vector(), *others)


def hundreds_of_arguments(by: Compiler) -> Any:
    def program(xs: list[jax.Array], x: jax.Array) -> Any:
        y = wide(x)
        return [a + y[k] for k, a in enumerate(xs)]

    xs = [jnp.full(k % 7 + 1, k, jnp.float32) for k in range(300)]
    step = by.jit(program, donate_argnums=0)
    for _ in range(2):
        xs = step(xs, vector())
    return xs


def many_branches(by: Compiler) -> Any:
    return by.jit(lambda x: branches(x, 24))(vector())


CASES = named(
    bfloat16, float16, float64, types_with_x64_on_and_off, complex64, complex128, whole_numbers, truth_values,
    small_types, numbers_that_are_none, empty_arrays, sizes_of_zero_in_loops, literal_results,
    results_without_arguments, arguments_that_come_back, results_that_are_given_twice, pytrees, weak_types,
    large_constants, arguments_that_nobody_reads, hundreds_of_arguments, many_branches,
)  # fmt: skip
