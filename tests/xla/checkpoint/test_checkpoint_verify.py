"""`graphrl.checkpoint(..., verify=...)`: budgets of bytes hold by XLA's own figure, also on backends unknown to the
model.
"""

import dataclasses
import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_programs import assert_same
from hypothesis import given
from hypothesis import strategies as st
from random_gradients import chain

import graphrl
from graphrl.errors import GraphrlError, ProblemError
from graphrl.xla.checkpoint.report import CheckpointCurve, CheckpointReport, Figures
from graphrl.xla.checkpoint.search import TRIES, Result, verified
from graphrl.xla.checkpoint.settings import UnmetError
from graphrl.xla.checkpoint.solvers.anneal import anneal
from graphrl.xla.checkpoint.solvers.choice import Choice, Pricing, State, default_choice
from graphrl.xla.checkpoint.solvers.goal import Goal, best_of
from graphrl.xla.checkpoint.solvers.starts import starts

LAYERS, WIDTH, N = 12, 32, 1024
WEIGHTS = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, WIDTH)) / 6
X = jax.random.normal(jax.random.key(LAYERS), (N, WIDTH))


def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Loss of layers in a loop, whose kept values are in XLA's figure for the CPU too.

    XLA merges values that a straight program computes again with those that it has computed before.
    """

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.sin(jax.nn.gelu(jnp.tanh(x @ w) @ w.T)), None

    return jnp.square(jax.lax.scan(layer, x, weights)[0]).mean()


def temporaries(function: Callable[..., Any], *args: Any) -> int:
    """Bytes of temporaries by XLA for the CPU."""
    memory = jax.jit(function).lower(*args).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


class Backend:
    """XLA for the CPU with its bytes multiplied by `factor`."""

    def __init__(self, factor: float) -> None:
        self.factor, self.figures = factor, list[int]()

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        self.figures.append(int(self.factor * temporaries(function, *args)))
        return types.SimpleNamespace(memory_analysis=lambda: types.SimpleNamespace(temp_size_in_bytes=self.figures[-1]))


def planned(**options: Any) -> graphrl.CheckpointedFunction:
    return graphrl.checkpoint(loss, seconds=0.3, **({"cache": False} | options))


def straight(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Loss of layers in sequence; XLA for the CPU keeps the values that a plan computes again."""
    for w in weights[:8]:
        x = jnp.tanh(x @ w)
    return jnp.square(x).mean()


@functools.cache
def slowdown_report() -> CheckpointReport:
    """Report of a plan limited by slowdown: jax's own bytes, and those of arguments, results and gradients."""
    return planned(slowdown=0.3).report(WEIGHTS, X)


def budget(share: float) -> str:
    """A budget of this share of jax's peak, plus the bytes of arguments, results and gradients."""
    report = slowdown_report()
    return f"{report.argument_bytes + report.result_bytes + int(share * report.plain.peak_bytes)}B"


@pytest.mark.parametrize(("factor", "share"), [(1.8, 0.5), (0.9, 0.2)])
def test_budgets_of_bytes_are_kept_by_the_figure_of_xla(factor: float, share: float) -> None:
    backend, room = Backend(factor), share * slowdown_report().plain.peak_bytes
    report = planned(budget=budget(share), verify=backend).report(WEIGHTS, X)
    assert report.compiled_bytes in backend.figures
    assert (report.compiled_bytes or 0) <= room
    assert (backend.figures[0] > room) == (factor > 1)  # this took another search
    assert report.total_bytes == report.argument_bytes + report.result_bytes + (report.compiled_bytes or 0)
    off = (report.compiled_bytes or 0) / report.planned.peak_bytes - 1
    assert f" without arguments, {off:+.1%} from the prediction; " in str(report)


def test_a_budget_below_the_prediction_is_met_where_xla_needs_less() -> None:
    with pytest.raises(ProblemError, match="the least found is "):
        planned(budget=budget(0.1)).report(WEIGHTS, X)
    report = planned(budget=budget(0.1), verify=Backend(0.7)).report(WEIGHTS, X)
    room = 0.1 * slowdown_report().plain.peak_bytes
    assert (report.compiled_bytes or 0) <= room < report.planned.peak_bytes


def searched(pricing: Pricing, goal: Goal) -> Result:
    """Result of a search of 1500 evaluations, also from earlier results, with a report of its price."""
    states = [*starts(pricing.gradient), *pricing.starts]
    solution = anneal(pricing, goal, states, seed=0, evaluations=1500, seconds=1e9)
    pricing.starts.append(State.of(solution.choice))
    if goal.excess(pricing, solution.price) > 1e-6:
        raise UnmetError("it is too low", solution.price.peak)
    figures = Figures(solution.price.kept, 0.0, solution.price.peak, solution.price.seconds)
    return Result(solution.choice, dataclasses.replace(slowdown_report(), planned=figures))


def unused() -> Result:
    """Raises in place of jax's own choice, where it is not worth compiling or does not compile."""
    raise GraphrlError("it does not compile")


def never(goal: Goal) -> Result:
    """Raises in place of regular plans, which are not requested while a search's plans keep the limit."""
    raise AssertionError(goal)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.2])
def test_budgets_are_kept_and_used_whatever_the_error_of_the_model(factor: float) -> None:
    for seed in range(4):
        pricing = Pricing(chain(np.random.default_rng(seed), 12, 6))
        with pytest.raises(UnmetError) as fault:
            searched(Pricing(pricing.gradient), Goal(peak=1.0))
        least = fault.value.least or 0.0
        goal, goals = Goal(peak=max(1.25 * least, (least + pricing.plain.peak) / 2)), list[Goal]()

        def search(goal: Goal, pricing: Pricing = pricing, goals: list[Goal] = goals) -> Result:
            goals.append(goal)
            return searched(pricing, goal)

        def needed(choice: Choice, pricing: Pricing = pricing) -> int:
            return int(factor * pricing(choice).peak)

        result = verified(search, never, unused, goal, needed, str)
        assert (result.report.compiled_bytes or 0) <= (goal.peak or 0)
        assert result.report.compiled_bytes == needed(result.choice)
        assert len(goals) <= TRIES
        if factor == 1.0:
            assert len(goals) == 1
        if factor == 0.5:
            assert result.report.planned.seconds == pytest.approx(pricing.plain.seconds)
        if factor <= 1.0:
            once = searched(Pricing(pricing.gradient), goal)
            assert result.report.planned.seconds <= once.report.planned.seconds


def test_a_budget_that_xla_does_not_keep_names_the_least_that_it_needs() -> None:
    backend = Backend(3.0)
    with pytest.raises(ProblemError) as fault:
        planned(budget=budget(0.2), verify=backend).report(WEIGHTS, X)
    outside = slowdown_report().argument_bytes + slowdown_report().result_bytes
    assert len(backend.figures) > 1
    assert f"({outside + min(backend.figures):,} bytes)" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_no_plan_is_compiled_twice() -> None:
    for limit in ({"budget": 0.5}, {"slowdown": 0.3, "method": "regular"}):
        backend = Backend(1.0)
        report = planned(verify=backend, **limit).report(WEIGHTS, X)
        assert report.segments or report.stretches
        assert backend.figures == [report.compiled_bytes]


@pytest.mark.parametrize(("part", "is_better"), [(0.9, True), (0.99, False), (1.2, False)])
def test_within_a_slowdown_a_regular_plan_is_taken_where_xla_needs_clearly_less_for_it(
    part: float, is_better: bool
) -> None:
    pricing = Pricing(chain(np.random.default_rng(0), 12, 6))
    goal = Goal(slowdown=0.5)
    result = searched(pricing, goal)
    regular = best_of(pricing, Goal(peak=0.9 * pricing.plain.peak), starts(pricing.gradient))
    own = 1_000_000
    other = Result(regular.choice, dataclasses.replace(slowdown_report(), planned=Figures(0.0, 0.0, 1.1 * own, 1.0)))

    def needed(choice: Choice) -> int:
        return int(part * own) if choice is other.choice else own

    chosen = verified(lambda _: result, lambda _: other, unused, goal, needed, str)
    assert chosen.choice is (other if is_better else result).choice
    assert chosen.report.compiled_bytes == needed(chosen.choice)


@pytest.mark.parametrize(
    ("goal", "plain", "seconds", "is_alone"),
    [
        (Goal(kept=100.0), 900, 1.0, True),  # compared with a plan that needs 1000 bytes and 2 s
        (Goal(kept=100.0), 900, 2.5, False),  # the limit is on bytes, and it is slower
        (Goal(slowdown=0.5), 900, 2.5, True),
        (Goal(slowdown=-0.2), 900, 1.0, False),  # time must be saved
        (Goal(peak=950.0), 900, 1.0, True),
        (Goal(peak=950.0), 951, 1.0, False),
    ],
)
def test_no_plan_is_used_if_xla_needs_no_more_without_one(
    goal: Goal, plain: int, seconds: float, is_alone: bool
) -> None:
    gradient = chain(np.random.default_rng(0), 12, 6)
    before, after = Figures(0.0, 0.0, 5000.0, seconds), Figures(0.0, 0.0, 4000.0, 2.0)
    report = dataclasses.replace(slowdown_report(), plain=before, planned=after)
    own = Result(default_choice(gradient), dataclasses.replace(report, planned=before))
    result = Result(list(starts(gradient))[1].choice(), report)

    def search(goal: Goal) -> Result:
        if goal.peak is not None and goal.peak < 4000.0:
            raise UnmetError("it is too low", 4000.0)
        return result

    def needed(choice: Choice) -> int:
        return plain if choice is own.choice else 1000

    if goal.peak is not None and plain > goal.peak:
        with pytest.raises(UnmetError) as fault:
            verified(search, search, lambda: own, goal, needed, str)
        assert fault.value.least == plain
        return
    chosen = verified(search, search, lambda: own, goal, needed, str)
    assert (chosen.choice is own.choice) == is_alone
    assert chosen.report.compiled_bytes == needed(chosen.choice)


@pytest.mark.parametrize(
    ("program", "limits"), [(straight, {"budgets": (0.25, 0.9, 0.5)}), (loss, {"slowdowns": (0.5, 0.0, 0.2)})]
)
def test_curves_as_compiled_are_monotone(program: Callable[..., Any], limits: dict[str, Any]) -> None:
    options: dict[str, Any] = {"chip": "cpu", "seconds": 0.3, "cache": False, "verify": True}
    curve = graphrl.checkpoint_curve(program, WEIGHTS, X, **limits, **options)
    needed = [point.compiled_bytes or 0 for point in curve.points]
    assert len(needed) == 3
    assert needed == sorted(needed, reverse=True)
    # measured: 1.03 at most, as jax traces the same gradient a little differently
    assert needed[0] <= 1.05 * temporaries(jax.value_and_grad(program, (0, 1)), WEIGHTS, X)
    assert str(curve).splitlines()[0].endswith("compiled")


@given(st.data())
def test_curves_keep_their_limits_and_are_monotone_whatever_searches_find(data: st.DataObject) -> None:
    kinds, count = st.sampled_from(["slowdowns", "parts", "bytes"]), data.draw(st.integers(1, 6))
    kind, is_compiled = data.draw(kinds), data.draw(st.booleans())
    limits = sorted(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), reverse=kind != "slowdowns")
    plain = Figures(10.0, 0.0, 10.0, 100.0)
    reports = []
    for limit in limits:
        kept, peak, compiled, slower = (data.draw(st.integers(0, 9)) for _ in range(4))
        kept, peak = min(kept, limit) if kind == "parts" else kept, min(peak, limit) if kind == "bytes" else peak
        compiled = min(compiled, limit) if kind == "bytes" else compiled
        slower = min(slower, limit) if kind == "slowdowns" else slower
        own = Figures(kept, 0.0, peak, 100.0 + slower)
        figures: dict[str, Any] = {"plain": plain, "planned": own, "compiled_bytes": compiled if is_compiled else None}
        reports.append(dataclasses.replace(slowdown_report(), **figures))
    if kind == "slowdowns":
        curve = CheckpointCurve.of([limit / 100 for limit in limits], reports)
    else:
        curve = CheckpointCurve.of_budgets(
            [limit / 10 if kind == "parts" else f"{limit}B" for limit in limits], reports
        )
    figure = "compiled_bytes" if is_compiled else "kept_bytes" if kind == "parts" else "peak_bytes"
    needed, slowdowns = ([getattr(point, name) for point in curve.points] for name in (figure, "slowdown"))
    assert needed == sorted(needed, reverse=True)
    if kind == "slowdowns":
        assert all(slow <= limit / 100 + 1e-9 for slow, limit in zip(slowdowns, limits, strict=True))
    else:
        assert slowdowns == sorted(slowdowns)
        assert (kind == "parts" and is_compiled) or all(n <= limit for n, limit in zip(needed, limits, strict=True))


@pytest.mark.parametrize(
    ("fault", "limits"),
    [
        (r"slowdowns is \(\): must be a list of limits", {"slowdowns": ()}),
        (r"budgets is \[\]: must be a list of limits", {"budgets": []}),
        ("slowdowns is 0.1: must be a list", {"slowdowns": 0.1}),
        ("budgets is '1GiB': must be a list", {"budgets": "1GiB"}),
        ("slowdowns and budgets are both given", {"slowdowns": [0.1], "budgets": [0.5]}),
        ("budgets are parts and bytes: must be all parts", {"budgets": [0.5, "1GiB"]}),
        ("budget is 2: must be a part from 0 to 1", {"budgets": [0.5, 2]}),
        ("slowdown is 'x': must be a part of the step's time", {"slowdowns": [0.5, "x"]}),
        ("'much' is not bytes", {"budgets": ["much"]}),
    ],
)
def test_limits_of_curves_at_fault_are_one_line(fault: str, limits: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match=fault) as error:
        graphrl.checkpoint_curve(loss, WEIGHTS, X, **limits)
    assert "\n" not in str(error.value)


def test_the_figure_is_that_of_the_compiled_gradient() -> None:
    fn = planned(slowdown=0.1, verify=True)
    compiled = temporaries(jax.value_and_grad(fn, (0, 1)), WEIGHTS, X)
    assert fn.report().compiled_bytes == pytest.approx(compiled, rel=0.1)
    assert fn.report().compiled_bytes == pytest.approx(fn.report().planned.peak_bytes, rel=0.1)
    ours, theirs = (jax.jit(jax.value_and_grad(each, (0, 1)))(WEIGHTS, X) for each in (fn, loss))
    assert_same(ours, theirs)


def test_verified_plans_are_stored_for_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def report(verify: Any) -> CheckpointReport:
        return planned(budget=budget(0.5), verify=verify, cache=True).report(WEIGHTS, X)

    first, again = report(True), report(True)
    assert not first.from_cache
    assert again.from_cache
    assert again.to_dict() | {"from_cache": False} == first.to_dict()
    assert not report(False).from_cache  # without `verify` the question is another one
    for factor in (1.0, 3.0):  # the backend's compiler is unknown, so its figure is not cached
        backend = Backend(factor)
        assert report(backend).compiled_bytes in backend.figures


def test_cotangents_of_arrays_are_in_the_figure_and_in_the_prediction() -> None:
    def whole(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0]

    backend = Backend(1.0)
    fn = graphrl.checkpoint(whole, slowdown=0.1, verify=backend, seconds=0.3, cache=False)
    report = fn.report(WEIGHTS, X)
    assert report.compiled_bytes == backend.figures[0] + X.nbytes
    assert report.compiled_bytes == pytest.approx(report.planned.peak_bytes, rel=0.1)


def test_the_lowest_regular_plan_is_tried_if_no_search_keeps_a_budget() -> None:
    pricing = Pricing(chain(np.random.default_rng(0), 12, 6))
    regular, peaks = best_of(pricing, Goal(peak=0.0), starts(pricing.gradient)), list[float | None]()

    def needed(choice: Choice) -> int:
        """Bytes as predicted times 0.5 for the regular plan, times 3 for all others."""
        return int(pricing(choice).peak * (0.5 if pricing(choice) == regular.price else 3.0))

    def by_start(goal: Goal) -> Result:
        peaks.append(goal.peak)
        solution = best_of(pricing, goal, starts(pricing.gradient))
        if goal.excess(pricing, solution.price) > 1e-6:
            raise UnmetError("it is too low", solution.price.peak)
        figures = Figures(0.0, 0.0, solution.price.peak, 1.0)
        return Result(solution.choice, dataclasses.replace(slowdown_report(), planned=figures))

    search = functools.partial(searched, pricing)
    result = verified(search, by_start, unused, Goal(peak=0.9 * regular.price.peak), needed, str)
    assert pricing(result.choice) == regular.price
    assert result.report.compiled_bytes == needed(regular.choice)
    assert peaks == [0.0, regular.price.peak]
    with pytest.raises(UnmetError) as fault:
        verified(search, by_start, unused, Goal(peak=0.4 * regular.price.peak), needed, str)
    assert fault.value.least == needed(regular.choice)


@pytest.mark.skipif(jax.device_count() < 2, reason="one device")
def test_gradients_on_several_devices_are_refused() -> None:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))

    def shared(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.with_sharding_constraint(jnp.sin(x), spread)).sum()

    fn = graphrl.checkpoint(shared, slowdown=0.1, verify=True, seconds=0.1, cache=False)
    with pytest.raises(GraphrlError, match="the gradient uses 2 devices: give in_shardings=, or plan without verify"):
        fn.report(X)


def test_gradients_that_do_not_compile_alone_are_one_line() -> None:
    def summed(x: jax.Array) -> jax.Array:
        return jax.lax.psum(jnp.sin(x).sum(), "i")

    fn = graphrl.checkpoint(summed, slowdown=0.1, verify=True, seconds=0.1, cache=False)
    with pytest.raises(GraphrlError, match="XLA does not compile the gradient alone ") as fault:
        jax.vmap(jax.grad(fn), axis_name="i")(X)
    assert "\n" not in str(fault.value)


def test_functions_that_need_nothing_are_verified() -> None:
    fn = graphrl.checkpoint(lambda x: jnp.square(x).sum(), budget="60B", verify=True, seconds=0.1, cache=False)
    assert fn.report(jnp.ones(4)).compiled_bytes == 0


def test_backends_without_memory_figures_are_named() -> None:
    silent = types.SimpleNamespace(memory_analysis=lambda: None)
    with pytest.raises(GraphrlError, match="does not report the memory of a compiled function"):
        planned(slowdown=0.1, verify=lambda function, *args: silent).report(WEIGHTS, X)
    with pytest.raises(ProblemError, match="verify gave a Lowered: must be a "):
        planned(slowdown=0.1, verify=lambda function, *args: jax.jit(function).lower(*args)).report(WEIGHTS, X)
