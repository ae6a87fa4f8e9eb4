"""Cases with effects: callbacks in all kinds and places, which happen once each, in order where one is asked for."""

import contextlib
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, io_callback

from reproduce.real_programs.cases.compiler import Compiler, N, branches, fates, named, raised, vector, wide

_VECTOR = jax.ShapeDtypeStruct((N,), jnp.float32)


def ordered_debug_callbacks(by: Compiler) -> Any:
    log: list[Any] = []

    def program(x: jax.Array) -> jax.Array:
        parts = branches(x)
        for part in parts:
            jax.debug.callback(lambda value: log.append(np.array(value)), part, ordered=True)
        return sum(parts, jnp.zeros_like(x))

    step = by.jit(program)
    return step(vector()), step(vector(1)), jax.effects_barrier(), log


def unordered_debug_callbacks(by: Compiler) -> Any:
    log: list[float] = []

    def program(x: jax.Array) -> jax.Array:
        parts = branches(x)
        for part in parts:
            jax.debug.callback(lambda value: log.append(float(value)), part.sum())
        return sum(parts, jnp.zeros_like(x))

    step = by.jit(program)
    results = step(vector()), step(vector(1))
    jax.effects_barrier()
    return results, sorted(log)


def _printed(by: Compiler, ordered: bool) -> Any:
    def program(x: jax.Array) -> jax.Array:
        parts = branches(x)
        for k, part in enumerate(parts):
            jax.debug.print("branch {k}: {value}", k=k, value=part.sum(), ordered=ordered)
        return sum(parts, jnp.zeros_like(x))

    with contextlib.redirect_stdout(io.StringIO()) as text:
        results = by.jit(program)(vector())
        jax.effects_barrier()
    lines = text.getvalue().splitlines()
    return results, lines if ordered else sorted(lines)


def ordered_debug_print(by: Compiler) -> Any:
    return _printed(by, ordered=True)


def unordered_debug_print(by: Compiler) -> Any:
    return _printed(by, ordered=False)


def ordered_io_callbacks_with_state(by: Compiler) -> Any:
    count = 0

    def draw(value: Any) -> np.ndarray:
        nonlocal count
        count += 1
        return np.float32(count) * np.asarray(value)

    def program(x: jax.Array) -> jax.Array:
        return sum((io_callback(draw, _VECTOR, part, ordered=True) for part in branches(x)), jnp.zeros_like(x))

    step = by.jit(program)
    return step(vector()), step(vector(1)), count


def unordered_io_callbacks(by: Compiler) -> Any:
    log: list[float] = []

    def note(value: Any) -> np.ndarray:
        log.append(float(np.sum(value)))
        return np.asarray(value) * np.float32(2)

    def program(x: jax.Array) -> jax.Array:
        return sum((io_callback(note, _VECTOR, part) for part in branches(x)), jnp.zeros_like(x))

    return by.jit(program)(vector()), sorted(log)


def pure_callbacks_with_pytrees(by: Compiler) -> Any:
    def host(tree: Any) -> Any:
        return {"double": tree["a"] * np.float32(2), "shape": np.int32(tree["b"].size)}

    shape = {"double": _VECTOR, "shape": jax.ShapeDtypeStruct((), jnp.int32)}

    def program(x: jax.Array) -> Any:
        first = jax.pure_callback(host, shape, {"a": wide(x), "b": jnp.outer(x, x)})
        return first, jax.pure_callback(host, shape, {"a": wide(first["double"]), "b": x})

    return by.jit(program)(vector())


def pure_callbacks_under_vmap(by: Compiler) -> Any:
    def program(xs: jax.Array) -> Any:
        def each(x: jax.Array) -> Any:
            loop = jax.pure_callback(np.cumsum, _VECTOR, wide(x), vmap_method="sequential")
            return loop + jax.pure_callback(np.negative, _VECTOR, x, vmap_method="broadcast_all")

        return jax.vmap(each)(xs)

    return by.jit(program)(jnp.stack([vector(0), vector(1)]))


def ordered_io_callbacks_in_a_scan(by: Compiler) -> Any:
    log: list[Any] = []

    def note(value: Any) -> np.ndarray:
        log.append(float(value))
        return np.array(len(log), np.float32)

    def program(x: jax.Array) -> Any:
        def body(x: jax.Array, _: None) -> Any:
            places = [io_callback(note, jax.ShapeDtypeStruct((), jnp.float32), p.sum(), ordered=True)
                      for p in branches(x)]  # fmt: skip
            return jnp.tanh(wide(x)), jnp.stack(places)

        return jax.lax.scan(body, x, None, length=3)

    return by.jit(program)(vector()), log


def callbacks_in_the_condition_of_a_loop(by: Compiler) -> Any:
    log: list[float] = []

    def program(x: jax.Array) -> jax.Array:
        def goes_on(state: Any) -> jax.Array:
            jax.debug.callback(lambda k: log.append(float(k)), state[0])
            return state[0] < 4

        return jax.lax.while_loop(goes_on, lambda s: (s[0] + 1, jnp.tanh(wide(s[1]))), (0, x))[1]

    results = by.jit(program)(vector())
    jax.effects_barrier()
    return results, sorted(log)


def ordered_callbacks_in_branches(by: Compiler) -> Any:
    log: list[Any] = []

    def program(x: jax.Array, which: jax.Array) -> jax.Array:
        def branch(k: int) -> Any:
            def run(x: jax.Array) -> jax.Array:
                jax.debug.callback(lambda v: log.append((k, float(v))), x.sum(), ordered=True)
                return wide(x) * (k + 1.0)

            return run

        y = jax.lax.switch(which, [branch(k) for k in range(3)], x)
        return jax.lax.cond(y[0] > 0, branch(7), branch(8), y)

    step = by.jit(program)
    results = [step(vector(k), jnp.int32(k)) for k in range(3)]
    jax.effects_barrier()
    return results, log


def callbacks_under_grad(by: Compiler) -> Any:
    log: list[float] = []

    @jax.custom_vjp
    def noted(x: jax.Array) -> jax.Array:
        return x

    def forward(x: jax.Array) -> Any:
        return x, x

    def backward(x: jax.Array, slope: jax.Array) -> Any:
        jax.debug.callback(lambda v: log.append(float(v)), slope.sum(), ordered=True)
        return (slope * x,)

    noted.defvjp(forward, backward)

    def loss(x: jax.Array) -> jax.Array:
        return sum((noted(part).sum() for part in branches(x)), jnp.zeros(()))

    results = by.jit(jax.value_and_grad(loss))(vector())
    jax.effects_barrier()
    return results, log


def callbacks_that_raise(by: Compiler) -> Any:
    log: list[float] = []

    def note(value: Any) -> np.ndarray:
        log.append(float(np.sum(value)))
        if len(log) == 2:
            raise LookupError("the user's own")
        return np.asarray(value)

    step = by.jit(lambda x: jax.pure_callback(note, _VECTOR, wide(x)))
    return step(vector()), raised(lambda: step(vector())) == "nothing", step(vector(1)), log


def effects_of_two_functions_in_turns(by: Compiler) -> Any:
    log: list[Any] = []

    def make(name: str) -> Any:
        def program(x: jax.Array) -> jax.Array:
            jax.debug.callback(lambda v: log.append((name, float(v))), wide(x).sum(), ordered=True)
            return jnp.tanh(wide(x))

        return by.jit(program)

    first, second = make("first"), make("second")
    x = vector()
    for _ in range(3):
        x = second(first(x))
    jax.effects_barrier()
    return x, log


def effects_that_no_result_needs(by: Compiler) -> Any:
    log: list[float] = []

    def program(x: jax.Array) -> None:
        jax.debug.callback(lambda v: log.append(float(v)), wide(x).sum(), ordered=True)
        io_callback(lambda v: log.append(float(v)), None, wide(x * 2).sum(), ordered=True)

    results = by.jit(program)(vector())
    jax.effects_barrier()
    return results, log


def effects_with_donated_arguments(by: Compiler) -> Any:
    log: list[float] = []

    def program(state: jax.Array, x: jax.Array) -> jax.Array:
        for part in branches(x):
            jax.debug.callback(lambda v: log.append(float(v)), (part + state[0]).sum(), ordered=True)
        more = io_callback(lambda v: np.asarray(v) * np.float32(3), _VECTOR, wide(x), ordered=True)
        return state * 0.5 + more[None]

    step = by.jit(program, donate_argnums=0)
    states = [jnp.ones((N, N))]
    for _ in range(3):
        states.append(step(states[-1], vector()))
    jax.effects_barrier()
    return states[-1], fates(states), log


def checked_errors(by: Compiler) -> Any:
    def program(x: jax.Array) -> jax.Array:
        y = wide(x)
        checkify.check(y[0] > 1e6, "too small: {y}", y=y[0])
        return jnp.log(y)

    error, results = by.jit(checkify.checkify(program, errors=checkify.float_checks | checkify.user_checks))(vector())
    return results, error.get()


def what_tracing_prints(by: Compiler) -> Any:
    log: list[str] = []

    def program(x: jax.Array) -> jax.Array:
        log.append(str(x.dtype))
        return wide(x)

    step = by.jit(program)
    return [step(vector(k)) for k in range(3)], log, step(vector().astype(jnp.bfloat16)), log


def large_arguments_of_callbacks(by: Compiler) -> Any:
    log: list[Any] = []

    def program(x: jax.Array) -> jax.Array:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        for wave in waves:
            jax.debug.callback(lambda v: log.append(np.array(v)), wave, ordered=True)
        return sum((wave @ wave for wave in waves), jnp.zeros((N, N)))

    results = by.jit(program)(vector())
    jax.effects_barrier()
    return results, log


CASES = named(
    ordered_debug_callbacks, unordered_debug_callbacks, ordered_debug_print, unordered_debug_print,
    ordered_io_callbacks_with_state, unordered_io_callbacks, pure_callbacks_with_pytrees, pure_callbacks_under_vmap,
    ordered_io_callbacks_in_a_scan, callbacks_in_the_condition_of_a_loop, ordered_callbacks_in_branches,
    callbacks_under_grad, callbacks_that_raise, effects_of_two_functions_in_turns, effects_that_no_result_needs,
    effects_with_donated_arguments, checked_errors, what_tracing_prints, large_arguments_of_callbacks,
)  # fmt: skip
