"""`graphrl.compile`: less memory, the same results, never worse, and a report that states it."""

import functools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_programs import N, branches, chain, plans, temporaries, vector

import graphrl
from graphrl.errors import GraphrlError, PlanError, ProblemError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import callback, hook
from graphrl.xla import jit as compiling
from graphrl.xla.callback import Unplanned
from graphrl.xla.planning import planner, temp_search
from graphrl.xla.planning.cache import DecisionCache, places_of
from graphrl.xla.settings import Settings

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans"]

compiled = functools.partial(graphrl.compile, seconds=0.3)


def xla(fn: Callable[..., Any], *args: Any) -> jax.stages.Compiled:
    return jax.jit(fn).lower(*args).compile()


@functools.cache
def planned_branches() -> graphrl.Executable:
    """The plan of `branches`, by its argument's shape."""
    return compiled(branches, jax.ShapeDtypeStruct((N,), jnp.float32))


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "decide", lambda *_: pytest.fail("searched"))


def test_report_for_people_and_machines() -> None:
    ours, theirs = planned_branches(), xla(branches, vector())
    report = ours.report()
    assert report.planned
    assert not report.reason
    assert (report.graphrl_bytes, report.xla_bytes) == (temporaries(ours), temporaries(theirs))
    assert np.array_equal(ours(vector()), theirs(vector()))
    options: dict[str, str | bool] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    memory = jax.jit(branches).lower(vector()).compile(compiler_options=options)
    assert report.memory_bytes == temporaries(memory)
    assert report.memory_measured
    assert report.bound is not None
    assert 0 < report.bound <= temporaries(ours)
    assert json.loads(json.dumps(report.to_dict()))["temp_bytes"] == temporaries(ours)
    first, default, memory_row, planned, bound, seconds = str(report).splitlines()
    assert first.split() == ["jit_branches", "total", "temporaries", "step"]
    assert "1.00 MiB" in default
    assert memory_row.startswith("XLA, memory scheduler")
    assert "(-75%)" in planned
    assert bound.startswith("lower bound")
    assert seconds.endswith("by method 'auto', in a new search")


def test_step_times_with_given_arguments_which_stay_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_SECONDS", 0.0)
    x = vector()
    report = compiled(jax.jit(branches, donate_argnums=0), x).report(x)
    assert report.xla_step_seconds is not None
    assert report.graphrl_step_seconds is not None
    assert 0 < report.graphrl_step_seconds < 5 * report.xla_step_seconds
    assert not x.is_deleted()


def test_plan_is_the_graph_s_and_checks(tmp_path: Path) -> None:
    executable = planned_branches()
    plan = executable.plan
    assert plan is not None
    assert plan.value == pytest.approx(temporaries(executable), rel=0.02)
    assert plan.graph == "jit_branches"
    plan.save(tmp_path / "plan.json")
    plan.trace(tmp_path / "trace.json")
    assert graphrl.Plan.load(tmp_path / "plan.json").value == plan.value
    assert executable.plan is plan


def test_executable_has_the_attributes_of_jax_s() -> None:
    executable, theirs = planned_branches(), xla(branches, vector())
    assert executable.cost_analysis() == theirs.cost_analysis()
    assert "is_scheduled=true" in executable.as_text()
    assert executable.input_shardings == theirs.input_shardings
    assert "memory_analysis" in dir(executable)
    with pytest.raises(AttributeError, match="'Compiled' object has no attribute 'no_such_thing'"):
        _ = executable.no_such_thing
    assert re.fullmatch(
        r"<graphrl.compile of 'jit_branches': \d+ KiB of temporaries, in graphrl's order \(.+\)>", repr(executable)
    )


def test_a_program_with_one_order_is_not_searched_and_not_worse() -> None:
    x, predictions = vector(), list[int]()
    executable = graphrl.compile(chain, x, progress=lambda evaluations, *_: predictions.append(evaluations))
    theirs, report = xla(chain, x), executable.report()
    assert executable.plan is None
    assert not predictions
    assert not report.planned
    assert temporaries(executable) == report.temp_bytes == temporaries(theirs)
    assert report.bound is not None
    assert report.xla_bytes is not None
    assert 0.95 * report.xla_bytes <= report.bound <= report.xla_bytes
    assert report.search_seconds < 5  # of the 10 that it may take
    assert "XLA's schedule is used: no order needs less than" in str(report)
    assert np.array_equal(executable(x), theirs(x))


def test_seconds_of_xla_s_first_pass_are_deducted(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered, seconds_left = jax.jit(branches).lower(vector()), []

    def search_orders(base: Any, targets: Any, starts: Any, settings: Any, end: float, least: float) -> Any:
        seconds_left.append(end - time.perf_counter())
        return temp_search.OrderResult("", starts[0], 0)

    def unplanned(module: HloModule) -> None:
        raise Unplanned(module)

    monkeypatch.setattr(planner, "search_orders", search_orders)
    with pytest.raises(Unplanned) as raised:
        hook.compile_by(lowered, unplanned)
    assert raised.value.seconds > 0
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    for taken, left in ((40.0, 60.0), (500.0, 25.0)):
        raised.value.seconds = taken
        planner.decide(lowered, raised.value, Settings(seconds=100, cache=False), None)
        assert left - 20 < seconds_left.pop() <= left


@pytest.mark.usefixtures("no_search")
def test_small_programs_are_left_alone() -> None:
    def small(x: jax.Array) -> jax.Array:
        return branches(x[:8])

    executable = compiled(small, vector())
    assert executable.plan is None
    reason = "not planned: too small to gain anything"
    assert str(executable.report()) == f"jit_small: {reason}"
    assert repr(executable) == f"<graphrl.compile of 'jit_small': in XLA's order: {reason}>"

    def deep(x: jax.Array) -> jax.Array:
        for _ in range(60):
            x = jnp.sin(x.sum() + x[::-1])
        return x

    assert compiled(deep, jnp.ones(10_000)).report().reason == reason  # it needs little memory, whatever it computes


def test_static_arguments_keywords_and_pytrees() -> None:
    @functools.partial(jax.jit, static_argnames="axis")
    def program(tree: dict[str, jax.Array], *, scale: jax.Array, axis: int) -> dict[str, Any]:
        return {"out": [branches(tree["x"]) * scale, tree["y"].sum(axis)]}

    tree = {"x": vector(), "y": jnp.ones((2, 3))}
    executable = compiled(program, tree, kwargs={"scale": jnp.float32(2), "axis": 1})
    assert executable.plan is not None
    assert np.array_equal(
        executable(tree, scale=jnp.float32(2))["out"][0], program(tree, scale=jnp.float32(2), axis=1)["out"][0]
    )


def test_lowered_jitted_and_planned_functions_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(branches, vector())
    monkeypatch.setattr(planner, "decide", lambda *_: pytest.fail("searched"))
    for program in (jax.jit(branches), graphrl.jit(branches, seconds=0.3)):
        assert compiled(program, vector()).plan is not None
    assert compiled(jax.jit(branches).lower(vector())).plan is not None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"objective": "makespan"}, "objective is 'makespan': must be 'peak_memory'.*graphrl.optimize"),
        ({"seconds": 0}, "seconds is 0: must be a finite number above 0"),
        ({"seed": -1}, "seed is -1: must be an integer"),
        ({"method": "magic"}, "unknown method 'magic': the nearest of"),
        ({"seconds": None}, "seconds is None: must be a finite number above 0"),
        ({"cache": "no"}, "cache is 'no': must be True or False"),
        ({"progress": 3}, "progress is of type int: must be a function"),
    ],
)
def test_options_are_checked_before_tracing(options: dict[str, Any], text: str) -> None:
    def never(x: jax.Array) -> jax.Array:
        pytest.fail("traced")

    with pytest.raises(ProblemError, match=text):
        graphrl.compile(never, vector(), **options)
    with pytest.raises(ProblemError, match=text):
        graphrl.jit(never, **options)


def test_other_objects_than_functions_are_refused() -> None:
    with pytest.raises(ProblemError, match="fn is of type int: must be a function"):
        compiled(3)
    with pytest.raises(ProblemError, match="fn is of type int: must be a function"):
        graphrl.jit(3)  # type: ignore[call-overload]
    with pytest.raises(ProblemError, match="kwargs is of type int: must be a dict"):
        compiled(branches, vector(), kwargs=3)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="a lowered program already has its arguments"):
        compiled(jax.jit(branches).lower(vector()), vector())


def scanned(x: jax.Array) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.tanh(branches(c)), c.sum()), x, None, length=3)


def nested(x: jax.Array) -> Any:
    def outer(carry: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(branches(c)), carry))

    return jax.lax.while_loop(lambda c: c[0] > 2.0, outer, x), branches(x)


def chosen(x: jax.Array) -> Any:
    return jax.lax.cond(x[0] > 0, lambda y: branches(y), lambda y: branches(y * 2.0) + 1.0, x)


def learned(x: jax.Array) -> Any:
    return jax.grad(lambda y: scanned(y)[0].sum())(x)


@pytest.mark.parametrize("function", [nested, chosen, learned])
def test_bodies_of_loops_and_branches_are_planned_too(function: Callable[[jax.Array], Any]) -> None:
    x = vector()
    ours, theirs = graphrl.compile(function, x, seconds=0.5), jax.jit(function).lower(x).compile()
    memory = hook.compile_in_order(jax.jit(function).lower(x), "memory", quick=True)
    assert temporaries(ours) < 0.75 * temporaries(theirs)
    assert temporaries(ours) <= temporaries(memory)
    assert ours.report().graphrl_bytes == temporaries(ours)
    for a, b in zip(jax.tree.leaves(ours(x)), jax.tree.leaves(theirs(x)), strict=True):
        assert np.array_equal(a, b)


def test_the_next_process_finds_the_orders_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    once = temporaries(graphrl.compile(scanned, vector(), seconds=0.5))
    monkeypatch.setattr(planner, "_SHARED", DecisionCache(on_disk=True))
    monkeypatch.setattr(planner, "decide", lambda *_: pytest.fail("searched"))
    assert temporaries(graphrl.compile(scanned, vector(), seconds=0.5)) == once


# The hook into XLA: the modules that it shows, its removal, and no effect on other compilations


def lowered() -> jax.stages.Lowered:
    return jax.jit(branches).lower(vector())


def test_xla_runs_the_order_that_it_is_given() -> None:
    program, x = lowered(), vector()
    memory = hook.captured(program, "memory")
    wide, narrow = (
        hook.compile_in_order(program),
        hook.compile_in_order(program, places_of(memory)),
    )
    assert temporaries(narrow) < 0.5 * temporaries(wide)
    assert temporaries(narrow) == temporaries(hook.compile_in_order(program, "memory"))
    assert np.array_equal(narrow(x), wide(x))
    final = parse_module(narrow)
    names = [name for name in final.order(final.entry) if name in memory.entry.by_name]
    assert names == [name for name in memory.order(memory.entry) if name in final.entry.by_name]


def test_quick_compilation_has_the_same_buffers() -> None:
    program = lowered()
    assert temporaries(hook.compile_in_order(program, quick=True)) == temporaries(program.compile())


def test_other_compilations_are_left_alone() -> None:
    program = lowered()
    before = temporaries(jax.jit(branches).lower(vector()).compile())
    memory = hook.captured(program, "memory")
    hook.compile_in_order(program, places_of(memory))
    assert temporaries(jax.jit(lambda x: branches(x)).lower(vector()).compile()) == before


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda names: names[:-1], "must be each of the [0-9]+ of computation 'main.* once"),
        (lambda names: [*names[:-1], names[0]], "must be each of the"),
        (lambda names: names[::-1], "jit_branches: the schedule has '.*' before '.*', its input"),
    ],
)
def test_orders_of_other_modules_are_refused(spoil: Callable[[list[str]], list[str]], text: str) -> None:
    program = lowered()
    module = hook.captured(program)
    with pytest.raises(PlanError, match=text):
        hook.compile_by(program, lambda _: {module.entry.name: spoil(list(module.order(module.entry)))})


def test_errors_of_rules_are_raised_and_do_not_affect_the_next_compilation() -> None:
    def rule(module: HloModule) -> None:
        raise KeyError(module.name)

    program = lowered()
    with pytest.raises(KeyError, match="jit_branches"):
        hook.compile_by(program, rule)
    assert temporaries(hook.compile_in_order(program)) > 0
    assert not callback._reasons


def test_other_platforms_and_several_processes_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hook.why_unavailable("cpu") is None
    assert str(hook.why_unavailable("tpu")) == "XLA's own order is used on tpu: graphrl plans programs for cpu only"
    for name in ("gpu", "cuda", "rocm"):
        assert "own order is used on GPUs: it needs close to the least memory" in str(hook.why_unavailable(name))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert "for one process" in str(hook.why_unavailable("cpu"))


def test_another_jaxlib_has_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    def register() -> None:
        raise NotImplementedError("register_hlo_module_transformation requires jaxlib version >= 0.10.2")

    program = lowered()
    monkeypatch.setattr(callback, "register", register)
    with pytest.raises(GraphrlError, match=r"has no hook for schedules .*from 0.10.2.* requires jaxlib"):
        hook.compile_in_order(program)
