"""`graphrl.jit` is `jax.jit` with less memory: it accepts all of jax.jit's arguments, under transformations and
threads.
"""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import util
from jax.sharding import NamedSharding, PartitionSpec
from jit_searches import jit, same, searches
from xla_programs import N, branches, chain, plans, temporaries, vector

import graphrl
from graphrl.errors import GraphError, ProblemError
from graphrl.xla import callback, hook
from graphrl.xla.planning import planner

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans", "searches"]


def test_less_memory_the_same_bits_and_one_search(searches: list[str]) -> None:
    traced = []

    def program(x: jax.Array) -> jax.Array:
        traced.append(x)
        return branches(x)

    fn, x = jit(program), vector()
    assert all(same(fn(x), jax.jit(branches)(x)) for _ in range(3))
    assert searches == ["jit_program"]
    assert len(traced) == 1
    (report,) = fn.reports
    assert report.planned
    assert report.xla_bytes is not None
    assert report.temp_bytes is not None
    assert report.temp_bytes < 0.3 * report.xla_bytes
    assert temporaries(fn._call.lower(x).compile()) == report.temp_bytes
    assert temporaries(fn.lower(x).compile()) == report.xla_bytes  # `lower` returns jax's own stages
    assert same(fn(vector(1)), jax.jit(branches)(vector(1)))
    fn(jnp.concatenate([x, x]))
    assert len(searches) == 2


def test_calls_of_planned_programs_take_jax_s_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, events = jit(branches), list[str]()
    fn(vector())
    monkeypatch.setattr(util, "test_event", lambda name, *_: events.append(name))
    fn(vector(1))
    assert events == []
    assert [report.planned for report in fn.reports] == [True]
    fn(jnp.ones(3))  # too small to plan
    assert "jit_cpp_cache_miss" in events


def test_decorators_with_and_without_arguments() -> None:
    @graphrl.jit
    def plain(x: jax.Array) -> jax.Array:
        """Doubles."""
        return x * 2

    @graphrl.jit(seconds=0.2, static_argnames="k")
    def scaled(x: jax.Array, k: int) -> jax.Array:
        return x * k

    assert plain(jnp.int32(2)) == 4
    assert scaled(jnp.int32(2), k=3) == 6
    assert scaled(jnp.int32(2), 5) == 10
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Doubles."
    assert isinstance(plain, jax.stages.Wrapped)


def test_pytrees_keywords_weak_types_and_numpy() -> None:
    def program(tree: dict[str, Any], *, scale: Any) -> dict[str, Any]:
        return {"a": [branches(tree["x"]) * scale], "b": (tree["n"] + 1, None)}

    fn, plain = jit(program), jax.jit(program)
    tree = {"x": np.asarray(vector()), "n": 3}
    ours, theirs = fn(tree, scale=2.0), plain(tree, scale=2.0)
    assert same(ours, theirs)
    assert ours["b"][0].weak_type == theirs["b"][0].weak_type
    assert [report.planned for report in fn.reports] == [True]


def test_shardings() -> None:
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    rows, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())

    def program(xs: jax.Array) -> jax.Array:
        return jax.vmap(branches)(xs).sum(0)

    xs = jax.device_put(jnp.stack([vector(k) for k in range(2)]), rows)
    fn = jit(program, in_shardings=(rows,), out_shardings=whole)
    ours = fn(xs)
    assert same(ours, jax.jit(program, in_shardings=(rows,), out_shardings=whole)(xs))
    assert ours.sharding == whole
    assert [report.planned for report in fn.reports] == [True]


def test_transformations_are_jax_s_and_search_nothing(searches: list[str]) -> None:
    def wave(x: jax.Array) -> jax.Array:
        """Not small: [N, N] intermediates that a dot keeps apart."""
        for k in range(1, 4):
            x = jnp.sin(jnp.outer(x, x) @ jnp.outer(x, x) * k).sum(0)
        return x

    fn, x = jit(wave), vector()
    jax.vmap(fn)(x[None])
    jax.jit(fn)(x)
    assert jax.eval_shape(fn, x).shape == (N,)
    assert not searches
    step = jit(jax.grad(lambda x: fn(x).sum()))
    assert same(step(x), jax.jit(jax.grad(lambda x: wave(x).sum()))(x))
    assert len(searches) == 1


def test_threads_with_one_program_and_with_others(searches: list[str]) -> None:
    fn, other, results = jit(branches), jit(chain), {}

    def work(k: int) -> None:
        results[k] = fn(vector(k)) if k % 2 else other(vector(k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(searches) == ["jit_branches", "jit_chain"]
    assert all(same(results[k], jax.jit(branches if k % 2 else chain)(vector(k))) for k in range(4))
    assert not callback._reasons


def test_rules_go_with_their_functions() -> None:
    before = len(callback._rules)
    fn = jit(lambda x: x + 1)
    fn(vector())
    assert len(callback._rules) == before + 1
    del fn
    assert len(callback._rules) == before


def test_ctrl_c_in_the_search_leaves_a_function_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(*_: Any) -> None:
        raise KeyboardInterrupt

    fn, state = jit(branches, donate_argnums=0), vector()
    with monkeypatch.context() as patch:
        patch.setattr(planner, "decide", decide)
        with pytest.raises(KeyboardInterrupt):
            fn(state)
    assert not state.is_deleted()
    assert not fn.reports
    assert same(fn(state), jax.jit(branches)(vector()))
    assert [report.planned for report in fn.reports] == [True]


def test_errors_of_the_function_pass_through() -> None:
    def wrong(x: jax.Array) -> jax.Array:
        raise LookupError("the user's own")

    with pytest.raises(LookupError, match="the user's own"):
        jit(wrong)(vector())
    with pytest.raises(TypeError, match="rror interpreting argument"):
        jit(branches)("text")


def test_missing_hook_is_one_warning_and_plain_jit(monkeypatch: pytest.MonkeyPatch, searches: list[str]) -> None:
    def register() -> None:
        raise NotImplementedError("no such thing in this jaxlib")

    monkeypatch.setattr(callback, "register", register)
    monkeypatch.setattr(hook, "_warned", set())
    fn = jit(branches)
    with pytest.warns(UserWarning, match="graphrl.jit: jax .* has no hook .* runs under plain jax.jit") as warned:
        fn(vector())
    fn(vector(1))  # a second warning would be an error
    assert len(warned) == 1
    assert same(fn(vector()), jax.jit(branches)(vector()))
    assert not searches
    assert ["has no hook for schedules" in report.reason for report in fn.reports] == [True]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GraphError("an instruction from the future"), "an instruction from the future"),
        (IndexError("out of range"), "IndexError: out of range"),
    ],
)
def test_the_program_runs_after_any_failure_of_planning(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(*_: Any) -> None:
        raise error

    monkeypatch.setattr(planner, "decide", decide)
    monkeypatch.setattr(hook, "_warned", set())
    fn, plain = jit(branches), jax.jit(branches)
    with pytest.warns(UserWarning, match=f"graphrl.jit: {text}; branches runs under plain jax.jit"):
        assert same(fn(vector()), plain(vector()))
    fn(vector(1))  # a second warning would be an error
    with pytest.warns(UserWarning, match=f"graphrl.compile: {text}; XLA's schedule is used"):
        executable = graphrl.compile(branches, vector())
    assert same(executable(vector()), plain(vector()))
    assert executable.plan is None
    assert text in str(executable.report())


def test_an_invalid_method_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(*_: Any) -> None:
        raise ProblemError("the method is none for programs")

    monkeypatch.setattr(planner, "decide", decide)
    with pytest.raises(ProblemError, match="none for programs"):
        jit(branches)(vector())
    with pytest.raises(ProblemError, match="none for programs"):
        graphrl.compile(branches, vector())


def test_arguments_on_the_cpu_of_a_machine_with_an_accelerator_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "cuda")
    monkeypatch.setattr(hook, "_warned", set())
    cpu = jax.devices("cpu")[0]
    fn = jit(branches)
    assert same(fn(jax.device_put(vector(), cpu)), jax.jit(branches)(vector()))
    assert [report.planned for report in fn.reports] == [True]
    with jax.default_device(cpu):
        fn = jit(branches)
        fn(vector())
    assert [report.planned for report in fn.reports] == [True]


def test_on_a_gpu_xla_s_order_is_used_and_the_report_has_the_reason(
    monkeypatch: pytest.MonkeyPatch, searches: list[str]
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(hook, "_warned", set())
    monkeypatch.setattr(callback, "register", lambda: pytest.fail("the hook is not asked for"))
    fn, twice = jit(branches), jit(branches)
    with pytest.warns(UserWarning, match=r"graphrl\.jit: XLA's own order is used on GPUs: .*under plain") as warned:
        assert same(fn(vector()), jax.jit(branches)(vector()))
    twice(vector())
    assert len(warned) == 1
    (report,) = fn.reports
    assert not report.planned
    assert str(report).startswith("branches: XLA's own order is used on GPUs: it needs close to the least memory")
    monkeypatch.setattr(hook, "platform_of", lambda lowered: "gpu")
    with pytest.warns(UserWarning, match=r"graphrl\.compile: XLA's own order is used on GPUs"):
        executable = graphrl.compile(branches, vector())
    assert same(executable(vector()), jax.jit(branches)(vector()))
    assert "own order is used on GPUs" in executable.report().reason
    assert executable.plan is None
    assert not searches
