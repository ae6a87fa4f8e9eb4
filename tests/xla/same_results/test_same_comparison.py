"""What the comparison of cases sees; and programs with hidden state."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jit_cases import Compiler, N, differences, graphrl_s, jax_s, observed, vector, wide
from xla_programs import plans

from graphrl.xla.hook import available

__all__ = ["plans"]


def changed(results: Any) -> Compiler:
    """A compiler of functions that give other results."""
    return dataclasses.replace(jax_s(), jit=lambda fn, **_: lambda *args: results)


@pytest.mark.parametrize("results", [jnp.zeros(N).at[3].set(-0.0), jnp.zeros(N, jnp.int32), [jnp.zeros(N)], None])
def test_differences_are_seen(results: Any) -> None:
    def case(by: Compiler) -> Any:
        return by.jit(jnp.zeros_like)(vector())

    assert observed(case, jax_s()) != observed(case, changed(results))


def test_effects_errors_and_weak_types_are_seen() -> None:
    def effects(by: Compiler) -> Any:
        log: list[int] = []
        by.jit(lambda: [jax.debug.callback(lambda v: log.append(int(v)), k, ordered=True) for k in range(2)])()
        jax.effects_barrier()
        return log

    assert observed(effects, jax_s()) == ["[0] 0", "[1] 1"] != observed(effects, changed(None))
    assert observed(lambda by: by.jit(lambda x: x + 1)(2), jax_s())[0].count(" weak ") == 1


def test_a_lost_donation_is_no_wrong_result() -> None:
    pairs = [("[0] 'deleted'", "[0] 'kept'"), ("[1] float32[2] a", "[1] float32[2] b"), ("[2] 'kept'", "[2] 'deleted'")]
    assert differences(*zip(*pairs, strict=True)) == (pairs[:1], pairs[1:])


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_programs_with_xla_s_hidden_random_state_are_left_alone(plans: Any) -> None:
    by = graphrl_s(seconds=0.2)
    by.jit(lambda x: wide(x) + lax.rng_uniform(0.0, 1.0, (N,)))(vector())
    assert [report.planned for report in by.reports()] == [False]
