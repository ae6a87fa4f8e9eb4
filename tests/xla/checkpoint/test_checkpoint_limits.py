"""Limits of time, kept by a finer measure than the search's own; cuts between layers, which searches begin with."""

import time
from typing import Any

import jax
import numpy as np
import pytest
from checkpoint_programs import WEIGHTS, X, mlp, scanned
from random_gradients import chain

import graphrl
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.solvers.anneal import anneal
from graphrl.xla.checkpoint.solvers.choice import Choice, Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Found, Goal, search_timed
from graphrl.xla.checkpoint.solvers.starts import starts

NEVER = 1e9  # seconds that no search comes to


def measure(pricing: Pricing, factor: float, more: float) -> Any:
    """A slowdown that is `factor` times the pricing's own, and `more` for whatever is not jax's own choice."""

    def measured(choice: Choice) -> float:
        own = Goal(slowdown=0.0).slowdown_of(pricing, pricing(choice))
        return factor * own + more * any(cut.again.any() for cut in choice)

    return measured


def annealed(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Found:
    """What a search comes to in so many evaluations, however long they take."""
    return anneal(pricing, goal, list(starts(pricing.gradient)), seed=seed, evaluations=1500, seconds=seconds)


@pytest.mark.parametrize(("factor", "more"), [(1.7, 0.0), (0.4, 0.0), (1.0, 0.05)])
def test_limits_are_kept_by_the_finer_measure_and_used(factor: float, more: float) -> None:
    for seed in range(6):
        pricing = Pricing(chain(np.random.default_rng(seed), 12, 6))
        measured = measure(pricing, factor, more)
        found = search_timed(annealed, pricing, Goal(slowdown=0.25), measured, seed=0, seconds=NEVER)
        assert measured(found.choice) <= 0.25
        assert found.price == pricing(found.choice)
        assert found.price.peak < 0.95 * pricing.plain.peak  # measured: 0.90 at most


def test_what_is_always_too_slow_is_left_to_jax_and_not_tried_for_ever() -> None:
    pricing, began = Pricing(chain(np.random.default_rng(0), 12, 6)), time.monotonic()
    found = search_timed(annealed, pricing, Goal(slowdown=0.1), measure(pricing, 1.0, 0.15), seed=0, seconds=0.5)
    assert found.price == pricing.plain
    assert time.monotonic() - began < 5


def test_with_the_time_that_is_left_what_is_low_enough_is_made_faster() -> None:
    limit, gains = Goal(slowdown=0.5), []
    for seed in range(6):
        pricing = Pricing(chain(np.random.default_rng(seed), 40, 15))
        begun = list(starts(pricing.gradient))
        rough = anneal(pricing, limit, begun, seed=0, evaluations=300, seconds=NEVER)

        def solver(pricing: Pricing, goal: Goal, *, rough: Found = rough, **given: Any) -> Found:
            if goal.peak is None:
                return rough
            return anneal(pricing, goal, [State.of(rough.choice)], evaluations=3000, **given)

        measured = measure(pricing, 1.0, 0.0)
        found = search_timed(solver, pricing, limit, measured, seed=0, seconds=NEVER)
        assert found.price == pricing(found.choice)
        assert found.price.peak <= rough.price.peak
        gains.append(measured(rough.choice) - measured(found.choice))
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
