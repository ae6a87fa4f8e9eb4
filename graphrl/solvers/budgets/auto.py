"""What measured best: greedy choices from all starts, then annealing from the best of them."""

import time

from graphrl.solvers.budgets.anneal import Found, anneal
from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.greedy import greedy
from graphrl.solvers.budgets.level import Gradient
from graphrl.solvers.budgets.starts import starts

EVALUATIONS = 30_000  # of annealing, at most


def solve(gradient: Gradient, goal: Goal, *, seed: int, seconds: float) -> tuple[Found, Pricing]:
    """The best choice found in the time, and its pricing."""
    begin, pricing = time.monotonic(), Pricing(gradient)
    begun = list(starts(gradient))
    states = list(begun)
    for state in begun:
        if time.monotonic() - begin > 0.6 * seconds:
            break
        states.append(greedy(pricing, goal, state))
    left = max(0.1 * seconds, seconds - (time.monotonic() - begin))
    return anneal(pricing, goal, states, seed=seed, evaluations=EVALUATIONS, seconds=left), pricing
