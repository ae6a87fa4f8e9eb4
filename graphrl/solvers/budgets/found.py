"""What a search comes to."""

from collections.abc import Iterable
from typing import NamedTuple

from graphrl.solvers.budgets.choice import Choice, Price, Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State


class Found(NamedTuple):
    """The best choice of a search.

    Attributes:
      choice: it is.
      price: of it.
      energy: by the goal; see `Goal.energy`.
      evaluations: choices that were priced.
      bound: below every choice within the limit, where a solver proved one: `Price.seconds` where bytes are limited,
        `Price.kept` where seconds are.
    """

    choice: Choice
    price: Price
    energy: float
    evaluations: int
    bound: float | None = None


def best_of(pricing: Pricing, goal: Goal, states: Iterable[State]) -> Found:
    """The best of at least one state."""
    best: Found | None = None
    count = 0
    for state in states:
        price = pricing(state.choice())
        count += 1
        energy = goal.energy(pricing, price)
        if best is None or energy < best.energy:
            best = Found(state.copy().choice(), price, energy, count)
    assert best is not None
    return best._replace(evaluations=count)
