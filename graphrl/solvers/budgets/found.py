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
      rank: by the goal; see `Goal.rank`.
      evaluations: choices that were priced.
      bound: below every choice within the limit, where a solver proved one: `Price.seconds` where bytes are limited,
        `Price.kept` where seconds are.
    """

    choice: Choice
    price: Price
    rank: float
    evaluations: int
    bound: float | None = None


def best_of(pricing: Pricing, goal: Goal, states: Iterable[State]) -> Found:
    """The best of at least one state."""
    best: Found | None = None
    count = 0
    for state in states:
        price = pricing(state.choice())
        count += 1
        rank = goal.rank(pricing, price)
        if best is None or rank < best.rank:
            best = Found(state.copy().choice(), price, rank, count)
    assert best is not None
    return best._replace(evaluations=count)
