"""All solvers by name, and `auto`, the best in measurements. It computes minimum cuts, knapsacks and constraint
programs (greedy choices if the gradient is too large for constraint programs), and then anneals from the best of them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from graphrl.errors import ProblemError
from graphrl.xla.checkpoint.solvers.anneal import anneal
from graphrl.xla.checkpoint.solvers.choice import Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Goal, Solution, best_of
from graphrl.xla.checkpoint.solvers.integer_programs import (
    MOST_VALUES,
    cp_sat_states,
    knapsack_states,
    min_cut_states,
    solve_cp_sat,
)
from graphrl.xla.checkpoint.solvers.starts import greedy, moved_states, starts, with_stretches

EVALUATIONS = 300_000  # most choices that annealing prices
BASES = 3  # number of choices whose kept values are moved
FIRST = 0.5  # largest share of the time before annealing


class Solver(Protocol):
    """Searches for the choice of lowest `Goal.rank`, for at most about `seconds`."""

    def __call__(self, pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution: ...


def auto(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution:
    """Returns the best choice of all methods within `seconds`. Later calls with the same pricing reuse the results."""
    begin, bound = time.monotonic(), None
    if not pricing.starts:
        states = [*min_cut_states(pricing.gradient), *knapsack_states(pricing.gradient)]
        if sum(len(level.bytes) for level in pricing.gradient.levels) <= MOST_VALUES:
            exact, bound = cp_sat_states(pricing, goal, seed=seed, seconds=FIRST * seconds)
            states += [*starts(pricing.gradient), *exact]
        else:  # the greedy states include the starts
            states += [state.copy() for state in _greedy_states(pricing, goal, begin + FIRST * seconds)]
        pricing.starts += with_stretches(pricing, states)
    if goal.moves:
        ranked = sorted(pricing.starts, key=lambda state: goal.energy(pricing, pricing(state.choice())))
        pricing.starts += moved_states(pricing, goal, ranked[:BASES], time.monotonic() + FIRST * seconds)
    left = max(0.1 * seconds, seconds - (time.monotonic() - begin))
    solution = anneal(pricing, goal, pricing.starts, seed=seed, evaluations=EVALUATIONS, seconds=left)
    pricing.starts.append(State.of(solution.choice))
    return solution._replace(bound=bound)


def anneal_alone(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution:
    """Anneals from the best start."""
    states = list(with_stretches(pricing, starts(pricing.gradient)))
    return anneal(pricing, goal, states, seed=seed, evaluations=EVALUATIONS, seconds=seconds)


def _best_of(states: Callable[[Pricing, Goal, float], Iterable[State]]) -> Solver:
    """Creates a solver that returns the best of `states(pricing, goal, until)`; `until` is a `time.monotonic()`."""

    def solve(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution:
        del seed
        return best_of(pricing, goal, states(pricing, goal, time.monotonic() + seconds))

    return solve


def _greedy_states(pricing: Pricing, goal: Goal, until: float) -> Iterator[State]:
    """Yields all starts, and greedy choices from them while there is time."""
    for state in starts(pricing.gradient):
        yield state
        if time.monotonic() < until:
            yield greedy(pricing, goal, state, until)


SOLVERS: Mapping[str, Solver] = {
    "auto": auto,
    "anneal": anneal_alone,
    "cp-sat": solve_cp_sat,
    "greedy": _best_of(_greedy_states),
    "knapsack": _best_of(lambda pricing, goal, until: knapsack_states(pricing.gradient)),
    "min-cut": _best_of(lambda pricing, goal, until: min_cut_states(pricing.gradient)),
    # treats all layers alike, like plans by hand with one rule for each layer
    "regular": _best_of(lambda pricing, goal, until: with_stretches(pricing, starts(pricing.gradient))),
}


def find_solver(name: str) -> Solver:
    """Returns the solver with this name.

    Raises:
      ProblemError: there is no such solver; the message lists all.
    """
    if name not in SOLVERS:
        raise ProblemError(f"method is {name!r}: must be one of {', '.join(SOLVERS)}")
    return SOLVERS[name]
