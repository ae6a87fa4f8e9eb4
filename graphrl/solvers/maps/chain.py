"""One chain of compiled annealing over maps: it asks for a few other memories, and the compiler does the rest."""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined, integer, part
from graphrl.compiled.random import below, uniform
from graphrl.costs.maps.problem import MapProblem
from graphrl.solvers.maps.evaluation import Maps, cost, maps_of

# Shares of moves, and places that a stretch has at most; measured at 4,000 and 400,000 evaluations.
STRETCH, SWAP, MORE, LONGEST = 0.6, 0.1, 0.3, 8


class Chain(NamedTuple):
    """Where a chain stands, its best map, and room for a trial. Rows are weights and then outputs."""

    maps: Maps
    places: np.ndarray  # [k] int64, places of a row that have something to place
    asked: np.ndarray  # [2n] int64, what it stands at
    trial: np.ndarray  # [2n] int64, what it may ask next
    given: np.ndarray  # [2n] int64, the compiler's map of that
    best: np.ndarray  # [2n] int64, valid
    seconds: np.ndarray  # [2] float64, latencies of `asked` and of `best`
    rng: np.ndarray  # [1] uint64
    moved: np.ndarray  # [1] int64


def start(problem: MapProblem, asked: np.ndarray, seed: np.random.SeedSequence) -> Chain:
    """A chain at a map `[2n]` that it has not evaluated."""
    row = np.ascontiguousarray(asked, np.int64)
    return Chain(
        maps=maps_of(problem),
        places=np.flatnonzero(np.concatenate([problem.has_weights, problem.has_outputs])),
        asked=row.copy(),
        trial=row.copy(),
        given=row.copy(),
        best=row.copy(),
        seconds=np.full(2, np.inf),
        rng=seed.generate_state(1, np.uint64),
        moved=np.zeros(1, np.int64),
    )


@inlined
def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies an array: numba's own way may need room."""
    for i in range(len(source)):
        target[i] = source[i]


@entry
def anneal(chain: Chain, count: int, hot: float, cold: float) -> None:
    """Evaluates maps, at a temperature that falls geometrically. The first of a new chain is where it starts.

    The chain stands at what it asked, not at what the compiler made of that: what has no room now may have it later.
    (Of 4,000 evaluations from the compiler's map this brings three times as much.)

    Args:
      count: evaluations.
      hot, cold: first and last temperature, seconds; 0 takes nothing that is slower.
    """
    cooling = (cold / hot) ** (1.0 / max(1, count)) if hot > 0 else 1.0
    for _ in range(integer(count)):
        copy(chain.asked, chain.trial)
        if chain.seconds[0] < np.inf and len(chain.places):
            _change(chain)
        seconds = cost(chain.maps, chain.trial, chain.given, chain.moved)
        hot *= cooling
        if seconds <= chain.seconds[0] - hot * np.log(uniform(chain.rng)):
            chain.seconds[0] = seconds
            copy(chain.trial, chain.asked)
            if seconds < chain.seconds[1]:
                chain.seconds[1] = seconds
                copy(chain.given, chain.best)


@part
def _change(chain: Chain) -> None:
    """Changes the trial: the same memory for a stretch of steps, two places swapped, or other memories in a few."""
    rng, trial, places = chain.rng, chain.trial, chain.places
    m, n = len(chain.maps.capacity), len(trial) // 2
    u, place = uniform(rng), places[below(rng, len(places))]
    if u < STRETCH:
        memory, end = below(rng, m), place + 1 + below(rng, LONGEST)
        for i in range(place, min(end, n if place < n else 2 * n)):
            trial[i] = memory
    elif u < STRETCH + SWAP:
        other = places[below(rng, len(places))]
        trial[place], trial[other] = trial[other], trial[place]
    else:
        trial[place] = below(rng, m)
        while uniform(rng) < MORE:
            trial[places[below(rng, len(places))]] = below(rng, m)
