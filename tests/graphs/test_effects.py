"""Instructions with effects keep XLA's order in graphs and schedules, and run once; random numbers are those of jax."""

from pathlib import Path

from broken import refusal
from hlo_programs import module_of, program_of
from processes import run_python

from graphrl.xla.recompute.candidates import repeatable

TEXT = """
HloModule effects, is_scheduled=true

%body (s: f32[256]) -> f32[256] {
  %s = f32[256]{0} parameter(0)
  %noted = f32[256]{0} custom-call(%s), custom_call_target="note", custom_call_has_side_effect=true
  ROOT %sum = f32[256]{0} add(%noted, %s)
}

%pure (v: f32[256]) -> f32[256] {
  %v = f32[256]{0} parameter(0)
  ROOT %sum.1 = f32[256]{0} add(%v, %v)
}

%random (r: f32[]) -> f32[256] {
  %r = f32[] parameter(0)
  ROOT %numbers = f32[256]{0} rng(%r, %r), distribution=rng_uniform
}

ENTRY %main (p: f32[256], q: f32[]) -> (f32[256], f32[256], f32[256], f32[256]) {
  %p = f32[256]{0} parameter(0)
  %q = f32[] parameter(1)
  %start = token[] after-all()
  %note = f32[256]{0} custom-call(%p), custom_call_target="note", custom_call_has_side_effect=true
  %infeed = (f32[256]{0}, token[]) infeed(%start)
  %fed = f32[256]{0} get-tuple-element(%infeed), index=0
  %plain = f32[256]{0} custom-call(%p), custom_call_target="sort"
  %state = u64[2]{0} rng-get-and-update-state(), delta=1
  %fusion = f32[256]{0} fusion(%q), kind=kLoop, calls=%random
  %call = f32[256]{0} call(%fed), to_apply=%body
  %quiet = f32[256]{0} call(%note), to_apply=%pure
  %sine = f32[256]{0} sine(%p)
  %outfeed = token[] outfeed(%sine, %start), outfeed_shape=f32[256]{0}
  ROOT %results = (f32[256]{0}, f32[256]{0}, f32[256]{0}, f32[256]{0}) tuple(%plain, %fusion, %call, %quiet)
}
"""


def test_effects_wait_for_the_one_before_them() -> None:
    after = {op.name: op.after for op in program_of(TEXT).graph.ops}
    assert after == {
        "note": (),
        "infeed": ("note",),
        "plain": (),
        "state": ("infeed",),
        "fusion": ("state",),
        "call": ("fusion",),
        "quiet": (),
        "sine": (),
        "outfeed": ("call",),
    }


def test_no_schedule_has_them_in_another_order() -> None:
    program = program_of(TEXT)
    place = {op.name: k for k, op in enumerate(program.graph.ops)}
    order = program.schedule.tolist()
    order[place["note"]], order[place["infeed"]] = order[place["infeed"]], order[place["note"]]
    assert "'infeed' before what it waits for" in refusal(lambda: program.sequence(order))


def test_their_order_is_part_of_the_program() -> None:
    note, state = (next(line for line in TEXT.splitlines() if line.startswith(f"  %{i} =")) for i in ("note", "state"))
    lines = TEXT.replace(f"{state}\n", "")
    moved = lines.replace(note, f"{note}\n{state}"), lines.replace(note, f"{state}\n{note}")
    earlier, first = (module_of(text).fingerprint for text in moved)
    assert earlier != first


def test_they_are_computed_once() -> None:
    program = program_of(TEXT)
    again = repeatable(program, expensive=True)
    assert [op.name for op, yes in zip(program.graph.ops, again, strict=True) if yes] == ["sine"]


RANDOM = """
import sys
import jax
import jax.numpy as jnp
from jax import lax
import graphrl

jax.config.update("jax_enable_compilation_cache", False)  # what is loaded draws other numbers than what is compiled

def program(x):
    total = x
    for k in range(3):
        big = jnp.sort(jnp.sin(jnp.outer(x, x) * k) + lax.rng_uniform(0.0, 1.0, (256, 256)), axis=0)
        total = total + jnp.sort(big * 2.0, axis=1).sum(0)
    return total

def other(x):
    return x + lax.rng_uniform(0.0, 1.0, x.shape)

jit = {"jax": jax.jit, "graphrl": graphrl.jit}[sys.argv[1]]
first, second = jit(program), jit(other)
x = jnp.arange(256.0)
print([values.tolist() for values in (first(x), first(x), second(x))])
"""


def test_random_numbers_are_those_of_jax(tmp_path: Path) -> None:
    """In separate processes: XLA draws other numbers whenever a process compiles a program again."""
    jax_s, ours = (run_python(tmp_path, "-c", RANDOM, which) for which in ("jax", "graphrl"))
    assert (jax_s.returncode, ours.returncode, ours.stderr) == (0, 0, "")
    assert jax_s.stdout == ours.stdout
