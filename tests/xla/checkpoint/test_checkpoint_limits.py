"""Limits of time, kept by a finer measure than the search's own; cuts between layers, which searches begin with."""

import dataclasses
import functools
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_programs import WEIGHTS, X, mlp, scanned
from random_gradients import chain

import graphrl
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.search import search
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.solvers import goal as timed
from graphrl.xla.checkpoint.solvers.anneal import anneal
from graphrl.xla.checkpoint.solvers.choice import AGAIN, INSIDE, PLAIN, Choice, Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Found, Goal, best_of, search_timed
from graphrl.xla.checkpoint.solvers.starts import cuts, starts

LAYERS, WIDTH = 5, 16
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


@dataclasses.dataclass
class Turns:
    """Searches that take just the seconds that they are given, and measurements that take `once`.

    Attributes:
      pricing: of the gradient.
      once: seconds.
      slow: searches whose choices are measured as too slow, from the first one on.
      now: the time.
      asked: of each search, the limit and its seconds.
    """

    pricing: Pricing
    once: float
    slow: int = 0
    now: float = 0.0
    asked: list[tuple[float | None, float]] = dataclasses.field(default_factory=list)

    def solver(self, pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Found:
        self.asked.append((goal.slowdown, seconds))
        self.now += seconds
        return annealed(pricing, goal, seed=seed, seconds=NEVER)

    def measured(self, choice: Choice) -> float:
        self.now += self.once
        return measure(self.pricing, 1.0, 0.15 if len(self.asked) <= self.slow else 0.01)(choice)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    own = Turns(Pricing(chain(np.random.default_rng(0), 12, 6)), once=0.5)
    monkeypatch.setattr(timed, "time", types.SimpleNamespace(monotonic=lambda: own.now))
    return own


@pytest.mark.parametrize(("late", "begun"), [(0.0, False), (2.0, True)])
def test_what_is_always_too_slow_is_left_to_jax_and_not_tried_for_ever(turns: Turns, late: float, begun: bool) -> None:
    turns.slow = 99
    plain = best_of(turns.pricing, Goal(slowdown=0.1), [State.plain(turns.pricing.gradient)])
    options: dict[str, Any] = {"seconds": 4.0, "late": late, "once": 0.5, "begun": plain if begun else None}
    found = search_timed(turns.solver, turns.pricing, Goal(slowdown=0.1), turns.measured, seed=0, **options)
    assert found.price == turns.pricing.plain
    assert len(turns.asked) > 1
    assert turns.now <= 4.0 + late


def test_a_late_turn_may_find_what_is_within_the_limit(turns: Turns) -> None:
    turns.slow = 1
    for late, has_some in ((0.0, False), (0.6, True)):
        turns.now, turns.asked = 0.0, []
        found = search_timed(
            turns.solver, turns.pricing, Goal(slowdown=0.3), turns.measured, seed=0, seconds=1.0, late=late, once=0.5
        )
        assert (found.price.peak < turns.pricing.plain.peak) == has_some
        assert turns.now <= 1.0 + late
        assert len(turns.asked) == 1 + has_some


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


def test_slowdowns_are_shares_of_the_step_as_it_is_measured() -> None:
    program = program_of(jax.make_jaxpr(mlp)(WEIGHTS, X))
    settings, goal = Settings(slowdown=0.3, seconds=0.2), Goal(slowdown=0.3)
    named = gradient_of(program, [True, True], settings.figures)
    pricing = Pricing(named.gradient)
    price, own = dataclasses.replace(pricing.plain, seconds=pricing.plain.seconds + 1.0), pricing.step_seconds
    assert goal.slowdown_of(pricing, price) == pytest.approx(1.0 / own)
    search("mlp", named, pricing, settings, time.monotonic(), lambda _: 8.0)
    assert goal.slowdown_of(pricing, price) == pytest.approx(1.0 / 8.0)
    assert goal.slowdown_of(pricing, pricing.plain) == 0.0


def layered(weights: jax.Array, head: jax.Array, x: jax.Array) -> jax.Array:
    """Layers between an entry that none of them is like and a wide head."""
    x = jnp.tanh(x) @ weights[0] * 3.0
    for k in range(LAYERS):
        x = x + jax.nn.gelu(x @ weights[k]) @ weights[k].T
    return jax.nn.logsumexp(x @ head, axis=-1).sum()


@functools.cache
def layered_level() -> tuple[Any, list[int]]:
    """The level of `layered`, and the places where its layers begin and the last one ends."""
    shapes = (LAYERS, WIDTH, WIDTH), (WIDTH, 8 * WIDTH), (32, WIDTH)
    closed = jax.make_jaxpr(layered)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    program = program_of(closed)
    names = [eqn.primitive.name for eqn in program.equations]
    ends = [
        place + 1
        for place, eqn in enumerate(program.equations)
        if names[place] == "add" and eqn.outvars[0].aval.shape == (32, WIDTH) and names[place - 1] == "dot_general"
    ]
    assert len(ends) == LAYERS
    step = ends[1] - ends[0]
    level = gradient_of(program, [True, True, False], Settings(budget=0.5).figures).gradient.levels[0]
    return level, [ends[0] - step, *ends]


def test_some_cuts_are_between_all_layers_and_leave_the_ends_to_jax() -> None:
    level, places = layered_level()
    kinds = list(cuts(level))
    begun = [tuple(np.flatnonzero(kind != INSIDE)[1:].tolist()) for kind in kinds]
    between = [kind for kind, at in zip(kinds, begun, strict=True) if at == tuple(places)]
    assert [kind[0] for kind in between] == [AGAIN, PLAIN]
    for kind in between:
        assert (kind[places[:-1]] == AGAIN).all()
    assert between[1][places[-1]] == PLAIN
    assert len({tuple(kind.tolist()) for kind in kinds}) == len(kinds)


def test_starts_of_nothing_and_of_one_op() -> None:
    for fn in (lambda x: x, lambda x: jnp.sin(x)):
        program = program_of(jax.make_jaxpr(fn)(1.0))
        gradient = gradient_of(program, [True], Settings(budget=0.5).figures).gradient
        assert len(list(starts(gradient))) >= 1
