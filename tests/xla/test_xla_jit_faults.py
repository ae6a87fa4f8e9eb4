"""`graphrl.jit` where something fails: Ctrl-C, the function's own errors, no hook, modules that cannot be read."""

from typing import Any

import jax
import pytest
from jit_searches import jit, same, searches
from xla_programs import branches, plans, vector

import graphrl
from graphrl.errors import GraphError, ProblemError
from graphrl.xla import callback, hook
from graphrl.xla.planning import planner

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans", "searches"]


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
    monkeypatch.setattr(hook, "_said", set())
    fn = jit(branches)
    with pytest.warns(UserWarning, match="graphrl.jit: jax .* has no hook .* runs under plain jax.jit") as seen:
        fn(vector())
    fn(vector(1))  # a second warning would be an error
    assert len(seen) == 1
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
def test_whatever_fails_in_planning_the_program_runs(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(*_: Any) -> None:
        raise error

    monkeypatch.setattr(planner, "decide", decide)
    monkeypatch.setattr(hook, "_said", set())
    fn, plain = jit(branches), jax.jit(branches)
    with pytest.warns(UserWarning, match=f"graphrl.jit: {text}; branches runs under plain jax.jit"):
        assert same(fn(vector()), plain(vector()))
    fn(vector(1))  # a second warning would be an error
    with pytest.warns(UserWarning, match=f"graphrl.compile: {text}; XLA's schedule stays"):
        executable = graphrl.compile(branches, vector())
    assert same(executable(vector()), plain(vector()))
    assert executable.plan is None
    assert text in str(executable.report())


def test_an_option_that_does_not_fit_is_said_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(*_: Any) -> None:
        raise ProblemError("the method is none for programs")

    monkeypatch.setattr(planner, "decide", decide)
    with pytest.raises(ProblemError, match="none for programs"):
        jit(branches)(vector())
    with pytest.raises(ProblemError, match="none for programs"):
        graphrl.compile(branches, vector())


def test_what_is_put_on_the_cpu_of_a_machine_with_an_accelerator_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "cuda")
    monkeypatch.setattr(hook, "_said", set())
    cpu = jax.devices("cpu")[0]
    fn = jit(branches)
    assert same(fn(jax.device_put(vector(), cpu)), jax.jit(branches)(vector()))
    assert [report.planned for report in fn.reports] == [True]
    with jax.default_device(cpu):
        fn = jit(branches)
        fn(vector())
    assert [report.planned for report in fn.reports] == [True]


def test_on_a_gpu_xla_s_order_stands_and_the_report_says_why(
    monkeypatch: pytest.MonkeyPatch, searches: list[str]
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(hook, "_said", set())
    monkeypatch.setattr(callback, "register", lambda: pytest.fail("the hook is not asked for"))
    fn, twice = jit(branches), jit(branches)
    with pytest.warns(UserWarning, match=r"graphrl\.jit: XLA's own order stands on GPUs: .*runs under plain") as seen:
        assert same(fn(vector()), jax.jit(branches)(vector()))
    twice(vector())
    assert len(seen) == 1
    (report,) = fn.reports
    assert not report.planned
    assert str(report).startswith("branches: XLA's own order stands on GPUs: it is near the least memory already")
    assert not searches


def test_a_program_compiled_for_a_gpu_has_a_report_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "platform_of", lambda lowered: "gpu")
    monkeypatch.setattr(hook, "_said", set())
    with pytest.warns(UserWarning, match=r"graphrl\.compile: XLA's own order stands on GPUs"):
        executable = graphrl.compile(branches, vector())
    assert same(executable(vector()), jax.jit(branches)(vector()))
    assert "own order stands on GPUs" in executable.report().reason
    assert executable.plan is None
