"""Cases with what `jax.jit` takes and jax's own settings, and functions of all kinds."""

import functools
import threading
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from reproduce.real_programs.cases.compiler import Compiler, N, named, raised, vector, wide


def static_arguments(by: Compiler) -> Any:
    def program(x: jax.Array, k: int, flags: Any = (), *, name: str = "sin") -> Any:
        return [wide(x) * k, getattr(jnp, name)(x), *(wide(x) for flag in flags if flag)]

    step = by.jit(program, static_argnums=(1, 2), static_argnames=("name",))
    results = [step(vector(), 2), step(vector(), 3, (True, False)), step(vector(), 2, name="cos"), step(vector(), 2)]
    return results, raised(lambda: step(vector(), [1])), raised(lambda: step(vector(), 2, name="no function"))


def compiled_ahead(by: Compiler) -> Any:
    def program(x: jax.Array, tree: Any) -> Any:
        return {"y": wide(x) + tree["k"], "x": x}, 3

    args = vector(), {"k": jnp.float32(2)}
    executable = by.compile(by.jit(program), *args)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    again = by.compile(by.jit(program), *shapes)
    wrong = raised(lambda: executable(jnp.ones(3), args[1])), raised(lambda: executable(*args, 3))
    return executable(*args), again(*args), wrong, [str(aval) for aval in jax.tree.leaves(executable.out_info)]


def functions_of_all_kinds(by: Compiler) -> Any:
    class Model:
        scale = 3.0

        def step(self, x: jax.Array) -> jax.Array:
            return wide(x) * self.scale

        def __call__(self, x: jax.Array) -> jax.Array:
            return wide(x) - self.scale

    model, x = Model(), vector()
    scaled = functools.partial(lambda k, x: wide(x) * k, 2.0)
    functions = [model.step, model, scaled, lambda x: wide(x), jnp.sin, jnp.add]
    return [by.jit(fn)(x, *([x] if fn is jnp.add else [])) for fn in functions], raised(lambda: by.jit(model)("text"))


def changes_of_shape_and_type(by: Compiler) -> Any:
    step = by.jit(lambda x: (wide(x), x.sum()))
    return [step(x) for x in (vector(), jnp.tile(vector(), 2), vector().astype(jnp.bfloat16), vector(1), vector()[:4])]


def threads(by: Compiler) -> Any:
    step, results = by.jit(lambda x: jnp.tanh(wide(x))), {}

    def work(k: int) -> None:
        results[k] = [step(vector(k)) for _ in range(3)]

    workers = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [results[k] for k in sorted(results)]


def caches_that_are_cleared(by: Compiler) -> Any:
    step = by.jit(wide)
    first = step(vector())
    step.clear_cache()
    second = step(vector())
    jax.clear_caches()
    return first, second, step(vector())


def jit_that_is_off(by: Compiler) -> Any:
    log: list[str] = []

    def program(x: jax.Array) -> jax.Array:
        log.append(type(x).__name__)
        return jnp.tanh(x) if log else x

    step = by.jit(program)
    with jax.disable_jit():
        results = [step(vector()) for _ in range(2)]
    return results, step(vector()), len(log)


def numbers_that_jax_looks_at(by: Compiler) -> Any:
    step = by.jit(lambda x: jnp.log(wide(x) * 0 + x))
    with jax.debug_nans(True):
        return step(jnp.abs(vector()) + 1), raised(lambda: step(-jnp.abs(vector())))


def precisions(by: Compiler) -> Any:
    step = by.jit(lambda x: wide(x))
    results = []
    for precision in ("bfloat16", "float32", "highest"):
        with jax.default_matmul_precision(precision):
            results.append(step(vector()))
    return results


def options_of_the_compiler(by: Compiler) -> Any:
    options = {"xla_cpu_enable_fast_math": True, "xla_cpu_enable_fast_min_max": True}
    return by.jit(lambda x: jnp.maximum(wide(x), x), compiler_options=options)(vector())


def exported_programs(by: Compiler) -> Any:
    exported = jax.export.export(by.jit(lambda x: (wide(x), x)))(vector())
    return exported.call(vector()), by.jit(exported.call)(vector()), exported.fun_name


def shapes_without_values(by: Compiler) -> Any:
    step = by.jit(lambda x: {"y": wide(x), "n": 3})
    shape = jax.eval_shape(step, vector())
    return [str(leaf) for leaf in jax.tree.leaves(shape)], str(step.trace(vector()).jaxpr), step(vector())


def functions_without_work(by: Compiler) -> Any:
    functions = [lambda x: x, lambda x: None, lambda x: x + 1, lambda x: jnp.zeros(N), lambda x: (x, x)]
    return [by.jit(fn)(vector()) for fn in functions]


CASES = named(
    static_arguments, compiled_ahead, functions_of_all_kinds, changes_of_shape_and_type, threads,
    caches_that_are_cleared, jit_that_is_off, numbers_that_jax_looks_at, precisions, options_of_the_compiler,
    exported_programs, shapes_without_values, functions_without_work,
)  # fmt: skip
