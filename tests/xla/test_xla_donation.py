"""Donation survives planning: results take the place of donated arguments, and nothing is wrong after that."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jit_cases import N as SIDE
from jit_cases import wide
from xla_programs import branches, plans, temporaries

import graphrl
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import hook
from graphrl.xla.callback import Answer
from graphrl.xla.donation import preserve_donation
from graphrl.xla.planning.cache import answer_of, named_orders, places_of

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans"]


def update(state: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Instructions that read the weights have to run before the weights are overwritten."""
    loss, slope = jax.value_and_grad(lambda w: jnp.tanh(wide(x) @ w).sum() + (w @ w).mean())(state["w"])
    momentum = 0.9 * state["m"] + slope
    return {"w": state["w"] - 0.1 * momentum, "m": momentum}, loss


def looped(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A loop works in its argument's buffer."""
    y = wide(x)
    rows = jnp.arange(4)
    return jax.lax.fori_loop(0, 3, lambda k, s: s.at[rows + k].add(jnp.cumsum(y) * s[k]), state), y


def state_of(function: Any) -> Any:
    w = jax.random.normal(jax.random.key(0), (SIDE, SIDE)) / SIDE
    return {"w": w, "m": 0.5 * w} if function is update else w


def bytes_of(compiled: Any) -> tuple[int, int]:
    """Bytes of temporaries, and of results in donated arguments."""
    return temporaries(compiled), compiled.memory_analysis().alias_size_in_bytes


X = jnp.linspace(0.0, 1.0, SIDE)


@pytest.mark.parametrize("function", [update, looped])
def test_the_same_bits_in_the_arguments_buffers(function: Any) -> None:
    plain = jax.jit(function, donate_argnums=0)
    theirs = plain.lower(state_of(function), X).compile()
    ours = graphrl.compile(plain, state_of(function), X, seconds=0.5)
    assert ours.plan is not None
    assert bytes_of(ours)[0] < 0.7 * bytes_of(theirs)[0]
    assert bytes_of(ours)[1] == bytes_of(theirs)[1] == sum(x.nbytes for x in jax.tree.leaves(state_of(function)))
    planned = graphrl.jit(function, donate_argnums=0, seconds=0.5)
    states = [state_of(function) for _ in range(3)]
    for _ in range(3):
        before = [jax.tree.map(lambda leaf: leaf, state) for state in states]
        places = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(before[1])}
        states = [step(state, X)[0] for step, state in zip((plain, ours, planned), states, strict=True)]
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert places == {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(states[1])}
    leaves = [jax.tree.leaves(state) for state in states]
    assert all(np.array_equal(a, b) and np.array_equal(a, c) for a, b, c in zip(*leaves, strict=True))
    assert [report.planned for report in planned.reports] == [True]


def test_arguments_of_the_caller_are_not_written_into() -> None:
    """XLA copies a donated argument that it does not own; here NumPy's, without a copy on the way."""
    kept = np.full((SIDE, SIDE), 0.25, np.float32)
    ours = graphrl.compile(jax.jit(looped, donate_argnums=0), jnp.asarray(kept), X, seconds=0.5)
    assert ours.plan is not None
    ours(jnp.asarray(kept), X)
    assert np.all(kept == 0.25)


def test_copies_of_donated_arguments_go() -> None:
    """XLA copies the weights at the start, since later readers may need them after they are overwritten."""
    module = hook.captured(jax.jit(update, donate_argnums=0).lower(state_of(update), X))
    donation = preserve_donation(module)
    assert len(donation.aliases) == 2
    assert not donation.lost_bytes

    def copies(program: Any) -> int:
        return sum(i.opcode == "copy" and i.shape.bytes >= 4 * SIDE for i in program.entry.instructions)

    assert copies(donation.module) < copies(module)


def test_sorts_keep_xla_s_own_donation() -> None:
    """XLA has no serialized form of sorts: the better of its schedulers runs, with all that it donates."""

    def sorted_update(state: jax.Array, x: jax.Array) -> jax.Array:
        return state + jnp.sort(wide(x))[None]

    step = jax.jit(sorted_update, donate_argnums=0)
    large = jnp.ones((3000, SIDE))
    theirs, ours = step.lower(large, X).compile(), graphrl.compile(step, large, X, seconds=0.5)
    memory = hook.compile_in_order(step.lower(large, X), "memory")
    assert bytes_of(ours)[1] == large.nbytes
    assert bytes_of(ours)[0] <= min(bytes_of(theirs)[0], bytes_of(memory)[0])
    assert np.array_equal(ours(jnp.copy(large), X), step(jnp.copy(large), X))


def test_an_order_that_saves_more_than_donation_is_taken_with_sorts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def sorted_update(state: jax.Array, x: jax.Array) -> jax.Array:
        return state + branches(x).sum()

    default = hook.captured
    monkeypatch.setattr(hook, "captured", lambda lowered, _: default(lowered))  # XLA's other scheduler is no better
    step, small = jax.jit(sorted_update, donate_argnums=0), jnp.ones(1000)
    theirs, ours = step.lower(small, X).compile(), graphrl.compile(step, small, X, seconds=0.3)
    assert ours.plan is not None
    assert ours.report().undonated_bytes == small.nbytes
    assert bytes_of(ours)[0] + small.nbytes < bytes_of(theirs)[0]
    assert bytes_of(ours)[1] == 0
    assert np.array_equal(ours(small, X), step(jnp.copy(small), X))
    assert np.all(small == 1)


def test_an_argument_that_is_read_after_all_is_not_written_over() -> None:
    """The result waits for no reader: a later reader of the argument still finds it."""

    def late(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = state * 2.0
        return new, jnp.tanh(new @ state) @ state

    module = hook.captured(jax.jit(late, donate_argnums=0).lower(state_of(looped), X))
    donation = preserve_donation(module)
    assert parse_module(donation.module.message.SerializeToString()).entry.root.name == module.entry.root.name
    ours = graphrl.compile(jax.jit(late, donate_argnums=0), state_of(looped), X, seconds=0.2)
    for a, b in zip(ours(state_of(looped), X), jax.jit(late)(state_of(looped), X), strict=True):
        assert np.array_equal(a, b)


BITCAST = """
HloModule read_twice, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }
fused {
  a = f32[4,4]{1,0} parameter(0)
  b = f32[16]{0} parameter(1)
  c = f32[16]{0} reverse(b), dimensions={0}
  d = f32[4,4]{1,0} reshape(c)
  ROOT e = f32[4,4]{1,0} add(a, d)
}
ENTRY main {
  p = f32[4,4]{1,0} parameter(0)
  b = f32[16]{0} bitcast(p)
  f = f32[4,4]{1,0} fusion(p, b), kind=kLoop, calls=fused
  ROOT t = (f32[4,4]{1,0}) tuple(f)
}
"""

LOOP = """
HloModule handed_on, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }
fused {
  a = f32[4]{0} parameter(0)
  ROOT b = f32[4]{0} negate(a)
}
body {
  t = (s32[], f32[4]{0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[4]{0} get-tuple-element(t), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT r = (s32[], f32[4]{0}) tuple(n, x)
}
condition {
  t = (s32[], f32[4]{0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  three = s32[] constant(3)
  ROOT less = pred[] compare(i, three), direction=LT
}
ENTRY main {
  p = f32[4]{0} parameter(0)
  zero = s32[] constant(0)
  start = s32[] copy(zero)
  t = (s32[], f32[4]{0}) tuple(start, p)
  w = (s32[], f32[4]{0}) while(t), condition=condition, body=body
  x = f32[4]{0} get-tuple-element(w), index=1
  f = f32[4]{0} fusion(p), kind=kLoop, calls=fused
  late = f32[4]{0} add(x, f)
  ROOT r = (f32[4]{0}, f32[4]{0}) tuple(f, late)
}
"""


@pytest.mark.parametrize("text", [BITCAST, LOOP], ids=["by the fusion, in another order", "behind a loop"])
def test_an_argument_that_is_read_under_another_name_is_not_written_over(text: str) -> None:
    donation = preserve_donation(parse_module(text))
    assert not donation.aliases
    assert donation.lost_bytes
    assert donation.module.entry.by_name.keys() == parse_module(text).entry.by_name.keys()  # nothing needs a copy
    alone = text.replace("late = f32[4]{0} add(x, f)", "late = f32[4]{0} add(f, f)").replace(
        "fusion(p, b)", "fusion(p, c)"
    )
    alone = alone.replace("  b = f32[16]{0} bitcast(p)", "  c = f32[16]{0} parameter(1)")
    assert len(preserve_donation(parse_module(alone)).aliases) == 1


def consumed(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A loop works in the argument's buffer, but the result is elsewhere: nothing can keep the donation."""
    y = wide(x)
    new = jax.lax.fori_loop(0, 3, lambda k, s: jax.lax.dynamic_update_slice(s, (s[k] * 2 + y)[None], (k, 0)), state)
    return jnp.sin(new @ jnp.ones((SIDE, SIDE))), y


def test_an_argument_that_is_not_donated_any_more_is_copied_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    small = jnp.full((8, SIDE), 0.25)
    step = jax.jit(consumed, donate_argnums=0)
    module = hook.captured(step.lower(small, X))
    donation = preserve_donation(module)
    assert donation.lost_bytes == small.nbytes
    copies = [i for i in donation.module.entry.instructions if i.name not in module.entry.by_name]
    assert [(i.opcode, i.operands) for i in copies] == [("copy", (module.entry.parameters[0].name,))]
    default = hook.captured
    monkeypatch.setattr(hook, "captured", lambda lowered, _: default(lowered))  # XLA's other scheduler is no better
    theirs, ours = step.lower(small, X).compile(), graphrl.compile(step, small, X, seconds=0.3)
    assert ours.plan is not None
    assert bytes_of(ours)[0] < 0.7 * bytes_of(theirs)[0]
    results = ours(small, X)
    assert np.all(small == 0.25)
    for a, b in zip(results, jax.jit(consumed)(small, X), strict=True):
        assert np.array_equal(a, b)


def test_a_jaxlib_that_does_not_load_its_executables_keeps_xla_s_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise IndexError("too short")

    monkeypatch.setattr(hook, "mark_donated", broken)
    plain = jax.jit(looped, donate_argnums=0)
    ours = graphrl.compile(plain, state_of(looped), X, seconds=0.2)
    assert ours.report().reason == "donated arguments cannot be kept: too short"
    assert bytes_of(ours) == bytes_of(plain.lower(state_of(looped), X).compile())
    assert ours.plan is None


@pytest.mark.parametrize(("undonated", "stays"), [(0, False), (10**9, True)])
def test_mispredicted_orders_are_compared_with_undonated_bytes(undonated: int, stays: bool) -> None:
    """It needs more than predicted, and yet less than XLA's own schedule, except for results that are no longer in
    donated arguments.
    """
    lowered = jax.jit(looped, donate_argnums=0).lower(state_of(looped), X)
    memory, savings = hook.captured(lowered, "memory"), []

    def rule(module: HloModule) -> Answer:
        donation = preserve_donation(module)
        program = donation.module.with_orders(named_orders(donation.module, places_of(memory)))
        return Answer(
            answer_of(program),
            "default",
            donation.aliases,
            1,
            undonated,
            lambda measured, own, _: savings.append(own - measured),
        )

    assert (bytes_of(hook.compile_by(lowered, rule)) == bytes_of(lowered.compile())) == stays
    assert len(savings) == 1
    assert savings[0] > 0
