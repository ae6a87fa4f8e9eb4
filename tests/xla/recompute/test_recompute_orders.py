"""The bits stay the same whatever may be computed again is, for each reader, in whatever order dependencies allow."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphrl.graphs.readers.hlo.module import Computation, HloModule
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.topology import least_first
from graphrl.xla import hook
from graphrl.xla.bodies import as_program, put_back
from graphrl.xla.callback import Answer
from graphrl.xla.donation import tied
from graphrl.xla.planning.cache import answer_of
from graphrl.xla.recompute.candidates import Routes, repeatable, wired
from graphrl.xla.recompute.rewrite import rewritten

SIDE = 8

Pair = tuple[jax.Array, jax.Array]


def reset(a: jax.Array, b: jax.Array) -> Any:
    """The counter and a carried value are read until after what writes over them could run."""

    def step(k: Any, carried: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        a, b, m = carried
        e = jnp.sin(a) + m
        f = jnp.exp(-e * e) @ b
        return jnp.zeros_like(a) + k, e + f, jnp.where(k % 2 == 0, e, f)

    return jax.lax.fori_loop(0, 4, step, (a, b, a))


def swapped(a: jax.Array, b: jax.Array) -> Pair:
    """Carried values change places, and one is updated in place."""

    def step(carried: Pair, k: Any) -> tuple[Pair, jax.Array]:
        a, b = carried
        e = jnp.cos(jnp.sin(a) + b)
        return (b.at[k].set(jnp.tanh(e)[k]), a * e.mean()), e @ a

    (a, b), rows = jax.lax.scan(step, (a, b), jnp.arange(5))
    return a + rows.sum(0), b


def all_again(module: HloModule, computation: Computation) -> HloModule:
    """The module with a clone of whatever may be cloned in a computation for each of its readers."""
    program = read_hlo(as_program(module, computation))
    ops, routes, may = program.graph.ops, Routes(program), repeatable(program, dear=True)
    clones = [
        (k, frozenset([reader]))
        for k, op in enumerate(ops)
        for reader, other in enumerate(ops)
        if may[k] and op.outputs[0].name in other.inputs and routes.may_read_clone(other.name, op.name)
    ]
    assert clones
    return put_back(module, rewritten(program.module, wired(program, routes, clones)[1]))


def shuffled(module: HloModule, computation: Computation, rng: np.random.Generator) -> tuple[str, ...]:
    """A random order of a computation's instructions."""
    program = read_hlo(as_program(module, computation))
    order = least_first(rng.permutation(len(program.graph.ops)), program.graph.arrays.waiting())
    return program.sequence(np.array(order))


@pytest.mark.parametrize(("function", "seed"), [(reset, 2), (swapped, 0)])
def test_the_same_bits(function: Callable[..., Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    args = [jnp.asarray(rng.normal(size=(SIDE, SIDE)), jnp.float32) for _ in range(2)]

    def rule(module: HloModule) -> Answer:
        ties = tied(module)
        again, bodies = (
            ties.module,
            {i.called[0] for c in module.sequential for i in c.instructions if i.opcode == "while"},
        )
        for name in sorted(bodies):
            again = all_again(again, again.computations[name])
        again = again.with_orders({name: shuffled(again, again.computations[name], rng) for name in sorted(bodies)})
        return Answer(answer_of(again), "default", ties.aliases)

    lowered = jax.jit(function, donate_argnums=0).lower(*args)
    theirs = jax.tree.leaves(jax.jit(function)(*args))
    ours = hook.compile_by(lowered, rule)
    for a, b in zip(jax.tree.leaves(ours(*args)), theirs, strict=True):
        assert np.array_equal(a, b)
