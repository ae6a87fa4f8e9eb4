"""Solvers of memory budgets on gradients small enough to price every choice; limits of time."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from checkpoint_programs import WEIGHTS, X, mlp, scanned
from hypothesis import given, settings
from hypothesis import strategies as st
from random_gradients import chain, gradients

import graphrl
from graphrl.errors import ProblemError
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.solvers.anneal import anneal
from graphrl.xla.checkpoint.solvers.auto import SOLVERS, Solver, auto, find_solver
from graphrl.xla.checkpoint.solvers.choice import Choice, Cut, Price, Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Goal, Solution, search_timed
from graphrl.xla.checkpoint.solvers.integer_programs import solve_cp_sat, unit_of
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, KEPT, MOVED, RECOMPUTED, Gradient, Level
from graphrl.xla.checkpoint.solvers.starts import greedy, moved_states, starts

NEAR = 2e-3  # of energy: annealing accepts this much for fewer segments


def choices(gradient: Gradient) -> Iterator[tuple[Cut, ...]]:
    """All choices for a gradient without moved values."""
    loops = gradient.stretchable()
    kinds = [cuts(level, loops[k].stretches if k in loops else (1,)) for k, level in enumerate(gradient.levels)]
    return itertools.product(*kinds)


def cuts(level: Level, stretches: Sequence[int]) -> Iterator[Cut]:
    """All choices for a level without moved values."""
    p = len(level.separate)
    free = np.flatnonzero(level.named & ~level.free & (level.place != ARGUMENT))
    for begins in itertools.product([0, 1], repeat=p - 1):
        segment = np.cumsum([0, *begins])
        for computed in itertools.product([False, True], repeat=int(segment[-1]) + 1):
            if any(level.separate[place] and computed[segment[place]] for place in range(p)):
                continue
            for kinds in itertools.product([RECOMPUTED, KEPT], repeat=len(free)):
                keep = np.zeros(len(level.bytes), np.int64)
                keep[free] = kinds
                for stretch in stretches:
                    yield Cut(keep, segment, np.array(computed), stretch)


def least(pricing: Pricing, goal: Goal) -> float:
    """The lowest rank of all choices."""
    return min(goal.rank(pricing, pricing(choice)) for choice in choices(pricing.gradient))


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Gradient, Goal]:
    """A gradient, and a limit between zero and jax's own figure."""
    gradient = draw(gradients(values=4, places=3, kernels=4))
    plain = Pricing(gradient).plain
    part = draw(st.sampled_from([0.25, 0.5, 0.75]))
    limits = [Goal(kept=part * plain.kept), Goal(peak=part * plain.peak), Goal(slowdown=part / 2)]
    return gradient, draw(st.sampled_from(limits))


def small_tasks(count: int) -> Iterator[tuple[Pricing, Goal]]:
    """Chains with limits of every kind."""
    for seed in range(count):
        pricing, part = Pricing(chain(np.random.default_rng(seed), 6, 3)), (0.3, 0.5, 0.8)[seed % 3]
        plain = pricing.plain
        goals = Goal(kept=part * plain.kept), Goal(peak=part * plain.peak), Goal(slowdown=part / 3)
        yield pricing, goals[seed // 3 % 3]


def test_auto_finds_the_best_of_all_choices() -> None:
    reached = []
    for pricing, goal in small_tasks(18):
        solution = auto(pricing, goal, seed=0, seconds=0.08)
        assert solution.price == pricing(solution.choice)
        best, ours = least(pricing, goal), goal.rank(pricing, solution.price)
        assert ours >= best - 1e-9
        if goal.rank(pricing, pricing.plain) > best + NEAR:
            reached.append(ours <= best + NEAR)
    assert len(reached) > 10
    assert np.mean(reached) >= 0.85  # measured: all


@pytest.mark.parametrize("name", ["anneal", "cp-sat", "greedy", "knapsack", "min-cut", "regular"])
def test_no_solver_beats_all_choices_or_auto(name: str) -> None:
    for pricing, goal in small_tasks(6):
        solution = find_solver(name)(pricing, goal, seed=0, seconds=0.05)
        assert solution.price == pricing(solution.choice)
        assert solution.rank >= least(pricing, goal) - 1e-9
        assert solution.evaluations >= 1
        both = auto(pricing, goal, seed=0, seconds=0.05)
        assert goal.rank(pricing, both.price) <= goal.rank(pricing, solution.price) + NEAR


def test_a_budget_just_below_a_faster_choice_is_met() -> None:
    for pricing, _ in small_tasks(6):
        peaks = sorted({pricing(choice).peak for choice in choices(pricing.gradient)})
        for limit in peaks[1::4]:
            goal = Goal(peak=limit * (1 - 1e-5))
            solution = anneal(pricing, goal, list(starts(pricing.gradient)), seed=0, evaluations=4_000, seconds=1e9)
            assert goal.excess(pricing, solution.price) == 0.0


@pytest.mark.parametrize(("solve", "count", "seconds"), [(solve_cp_sat, 9, 2.0), (auto, 3, 0.5)])
def test_the_constraint_program_s_bound_is_below_all_choices(solve: Solver, count: int, seconds: float) -> None:
    for pricing, goal in small_tasks(count):
        prices = [pricing(choice) for choice in choices(pricing.gradient)]
        bound = solve(pricing, goal, seed=0, seconds=seconds).bound
        if pricing.gradient.stretchable():
            assert bound is None
            continue
        assert bound is not None
        within = [price for price in prices if goal.excess(pricing, price) == 0.0]
        values = [price.kept if goal.slowdown is not None else price.seconds for price in within]
        assert bound <= min(values, default=np.inf) + 1e-6
        assert bound > 0.0 or min(values, default=0.0) < 1e-6 or goal.slowdown is None
        moving = dataclasses.replace(goal, moves=True)  # no constraint covers moved values
        assert solve(pricing, moving, seed=0, seconds=0.1).bound is None


def test_solvers_have_names() -> None:
    with pytest.raises(ProblemError, match="method is 'luck': must be one of auto, anneal, cp-sat, greedy,"):
        find_solver("luck")


@given(tasks())
@settings(max_examples=20)
def test_annealing_and_greedy_choices_are_no_worse_than_their_start(task: tuple[Gradient, Goal]) -> None:
    gradient, goal = task
    pricing = Pricing(gradient)
    for state in starts(gradient):
        begin = goal.rank(pricing, pricing(state.choice()))
        assert goal.rank(pricing, pricing(greedy(pricing, goal, state, math.inf).choice())) <= begin + 1e-9
    plain = State.plain(gradient)
    solution = anneal(pricing, goal, [plain], seed=3, evaluations=200, seconds=1e9)
    assert solution.evaluations == 200
    assert goal.rank(pricing, solution.price) <= goal.rank(pricing, pricing(plain.choice())) + NEAR
    for cut, level in zip(solution.choice, gradient.levels, strict=True):
        assert not cut.recomputed[cut.segment[level.separate]].any()


@given(tasks(), st.integers(0, 5))
@settings(max_examples=15)
def test_the_same_seed_gives_the_same_choice(task: tuple[Gradient, Goal], seed: int) -> None:
    gradient, goal = task
    states = list(starts(gradient))
    first, again = (anneal(Pricing(gradient), goal, states, seed=seed, evaluations=300, seconds=1e9) for _ in range(2))
    assert (first.price, first.rank, first.evaluations) == (again.price, again.rank, again.evaluations)
    for one, other in zip(first.choice, again.choice, strict=True):
        assert one.stretch == other.stretch
        assert all(np.array_equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


@given(tasks())
@settings(max_examples=15)
def test_only_offloading_moves(task: tuple[Gradient, Goal]) -> None:
    gradient, goal = task
    pricing = Pricing(gradient)
    for moves in (False, True):
        linked = Goal(goal.kept, goal.peak, goal.slowdown, moves)
        solution = anneal(pricing, linked, list(starts(gradient)), seed=0, evaluations=300, seconds=1e9)
        assert moves or solution.price.moved == 0.0


@given(tasks())
@settings(max_examples=15)
def test_moved_values_lower_the_rank(task: tuple[Gradient, Goal]) -> None:
    gradient, goal = task
    pricing, goal = Pricing(gradient), dataclasses.replace(goal, moves=True)
    for state in moved_states(pricing, goal, [State.plain(gradient)], 0.0):
        kept = State([np.where(keep == MOVED, KEPT, keep) for keep in state.keep], state.starts)
        assert goal.rank(pricing, pricing(state.choice())) <= goal.rank(pricing, pricing(kept.choice())) + NEAR


def test_goals_have_one_limit_and_count_the_excess() -> None:
    several: list[dict[str, Any]] = [{}, {"kept": 1.0, "peak": 1.0}]
    for limits in several:
        with pytest.raises(ProblemError, match="a goal has one limit: kept, peak or slowdown"):
            Goal(**limits)
    pricing = Pricing(chain(np.random.default_rng(0), 4, 2))
    assert Goal(kept=100.0).excess(pricing, Price(125.0, 0.0, 0.0, 0.0)) == pytest.approx(0.25)
    assert Goal(kept=100.0).excess(pricing, Price(100.0, 0.0, 999.0, 9.0)) == 0.0
    assert Goal(peak=100.0).excess(pricing, Price(0.0, 0.0, 150.0, 0.0)) == pytest.approx(0.5)


@given(st.lists(st.floats(0.0, 1e40), max_size=8), st.integers(1, 2**50))
def test_units_are_powers_of_two_as_large_as_need_be(amounts: list[float], most: int) -> None:
    unit, total = unit_of(np.array(amounts), most), float(np.array(amounts).sum())
    assert math.frexp(unit)[0] == 0.5
    assert total / unit < most
    assert total / unit >= most / 2 or total / most < 1e-300


@st.composite
def extremes(draw: st.DrawFn) -> tuple[Gradient, Goal]:
    """A gradient of bytes up to 2^60 and seconds up to 10^36, extreme values next to small ones, and a limit of any
    kind.
    """
    gradient = chain(np.random.default_rng(draw(st.integers(0, 9))), 8, 4)
    level = gradient.levels[0]
    sizes = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0**30, 2.0**60]), min_size=8, max_size=8))
    times = draw(st.lists(st.sampled_from([0.0, 1e-300, 1e-30, 1e-6, 1e30, 1e36]), min_size=8, max_size=8))
    level = level._replace(bytes=np.array(sizes), seconds=np.where(level.materialized, times, 0.0))
    level = level._replace(forward_seconds=float(level.seconds.sum()), keep_seconds=0.1 * level.seconds[::-1])
    gradient = gradient._replace(levels=(level,))
    limits = Goal(kept=draw(st.sampled_from([0.0, 1.0, 2.0**61]))), Goal(peak=2.0**50), Goal(slowdown=0.2)
    return gradient, draw(st.sampled_from(limits))


@pytest.mark.parametrize("name", SOLVERS)
@given(extremes())
@settings(max_examples=8)
def test_all_solvers_plan_extreme_gradients(name: str, task: tuple[Gradient, Goal]) -> None:
    pricing, goal = Pricing(task[0]), task[1]
    solution = find_solver(name)(pricing, goal, seed=0, seconds=0.05)
    assert solution.price == pricing(solution.choice)
    assert all(math.isfinite(value) for value in (*dataclasses.astuple(solution.price), solution.rank))
    assert solution.rank <= goal.rank(pricing, pricing.plain) + NEAR or name == "cp-sat"


# Limits of time, kept by a finer measure than the search's own

NEVER = 1e9  # seconds that no search reaches


def measure(pricing: Pricing, factor: float, more: float) -> Any:
    """A slowdown of `factor` times the pricing's own, plus `more` for every choice that computes a segment again."""

    def measured(choice: Choice) -> float:
        own = Goal(slowdown=0.0).slowdown_of(pricing, pricing(choice))
        return factor * own + more * any(cut.recomputed.any() for cut in choice)

    return measured


def annealed(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution:
    """Result of a search of 1500 evaluations; `seconds` limits it too."""
    return anneal(pricing, goal, list(starts(pricing.gradient)), seed=seed, evaluations=1500, seconds=seconds)


@pytest.mark.parametrize(("factor", "more"), [(1.7, 0.0), (0.4, 0.0), (1.0, 0.05)])
def test_limits_are_kept_by_the_finer_measure_and_used(factor: float, more: float) -> None:
    for seed in range(6):
        pricing = Pricing(chain(np.random.default_rng(seed), 12, 6))
        measured = measure(pricing, factor, more)
        solution = search_timed(annealed, pricing, Goal(slowdown=0.25), measured, seed=0, seconds=NEVER)
        assert measured(solution.choice) <= 0.25
        assert solution.price == pricing(solution.choice)
        assert solution.price.peak < 0.95 * pricing.plain.peak  # measured: 0.90 at most


def test_a_machine_on_which_time_is_soon_over_still_has_a_plan() -> None:
    def solver(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution:
        return annealed(pricing, goal, seed=seed, seconds=NEVER)

    for seed in range(6):
        pricing = Pricing(chain(np.random.default_rng(seed), 12, 6))
        measured = measure(pricing, 1.7, 0.0)
        solution = search_timed(solver, pricing, Goal(slowdown=0.25), measured, seed=0, seconds=1e-3)
        assert measured(solution.choice) <= 0.25
        assert solution.price.peak < pricing.plain.peak


def test_gradients_that_are_always_too_slow_are_left_to_jax_soon() -> None:
    pricing, began = Pricing(chain(np.random.default_rng(0), 12, 6)), time.monotonic()
    solution = search_timed(annealed, pricing, Goal(slowdown=0.1), measure(pricing, 1.0, 0.15), seed=0, seconds=0.5)
    assert solution.price == pricing.plain
    assert time.monotonic() - began < 5


def test_remaining_time_makes_the_lowest_choice_faster() -> None:
    limit, gains = Goal(slowdown=0.5), []
    for seed in range(6):
        pricing = Pricing(chain(np.random.default_rng(seed), 40, 15))
        states = list(starts(pricing.gradient))
        rough = anneal(pricing, limit, states, seed=0, evaluations=300, seconds=NEVER)

        def solver(pricing: Pricing, goal: Goal, *, rough: Solution = rough, **given: Any) -> Solution:
            if goal.peak is None:
                return rough
            return anneal(pricing, goal, [State.of(rough.choice)], evaluations=3000, **given)

        measured = measure(pricing, 1.0, 0.0)
        solution = search_timed(solver, pricing, limit, measured, seed=0, seconds=NEVER)
        assert solution.price == pricing(solution.choice)
        assert solution.price.peak <= rough.price.peak
        gains.append(measured(rough.choice) - measured(solution.choice))
    assert min(gains) >= 0.0
    assert sum(gains) > 0.2  # measured: 0.27


@pytest.mark.parametrize("loss", [mlp, scanned])
def test_reports_give_the_seconds_of_the_traced_gradient(loss: Any) -> None:
    fn = graphrl.checkpoint(loss, slowdown=0.3, chip="h200", seconds=0.2, cache=False)
    plain, own = (
        gradient_seconds(jax.make_jaxpr(jax.value_and_grad(f, (0, 1)))(WEIGHTS, X), "h200") for f in (loss, fn)
    )
    report = fn.report()
    assert report.plain.seconds == pytest.approx(plain, rel=0.02)
    assert report.planned.seconds == pytest.approx(own, rel=0.02)
    assert report.slowdown <= 0.3
