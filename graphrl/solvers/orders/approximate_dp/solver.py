"""Approximate dynamic programming over sets of ops, for the peak memory of one device: states of a beam.

Topoformer, appendix C.3, "Approximate DP". A state is the set of ops that have run; of all
orders of a set only one of least peak is kept. Step t goes from the sets of t ops to those of t + 1 and keeps the
`width` best. If none was cut off, or only such that have a peak of the answer's or more, the answer is optimal, and the
plan has it as its bound.

What the paper leaves open is chosen here: ties, which are most of what a cut decides, go at random
(on graphs of 2,000 ops at width 2,000 peaks are 2% lower than by order of insertion), drawn anew at every step for each
set, however many ways lead to it.

With rank "live" states are ranked by live memory, under a hard cap on the peak (cf. SERENITY's soft budgeting, Ahn et
al. 2020): the first cap is below the best plain order, and each answer's peak sets the next, until no order is found.

Where an output's `reuses` is smaller than the buffer that it takes over, or where bytes do not fit in int32 units, the
search works with a model that is below the truth (tables.py); the plan's costs are exact all the same, and the bound is
one.
"""

import time

from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.orders.approximate_dp.keys import Rule
from graphrl.solvers.orders.approximate_dp.search import BeamSearch, Outcome
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.solver import solver

MAX_WIDTH = 2**22  # counts of candidates are float32 in places
_SMALL = 128  # ops, up to which narrow beams are tried first: they often suffice
_FIRST_SMALL, _FIRST = 256, 1024  # width of the first beam: of small graphs, and under a limit of seconds
_WIDER = 16  # by how much a small graph's next beam is wider
_SHRINK = 4  # by how much the steps of the cap shrink after one that no order was found for
_FIRST_GAP, _LAST_GAP = 64, 2048  # parts of the peak that the cap is below the best order


@solver(
    "approximate-dp",
    "dynamic programming over sets of ops, the `width` best of each size (Gagrani et al. 2022, C.3)",
    one_device=True,
)
def solve(task: Task, *, width: int = 10_000, tie: str = "random", rank: str = "peak") -> Plan:
    """See the module.

    An evaluation is a state's worth of steps: a beam of k states spends k. A beam is at most as wide as there are
    evaluations left. Graphs of up to 128 ops start with 256 states, and go on with more only if some were cut off.
    Under a limit of seconds a beam of 1,024 comes first, and the next is as wide as there seems to be time for.

    Args:
      width: states kept at each step.
      tie: "random", or "live": less live memory first.
      rank: "peak": by the peak so far, or "live": by live memory, under a cap on the peak.

    Raises:
      ProblemError: an option is out of its range, or the beam does not fit in memory.
    """
    if not 1 <= width <= MAX_WIDTH:
        raise ProblemError(f"width is {width}: must be from 1 to {MAX_WIDTH}")
    for name, value, choices in (("tie", tie, ("random", "live")), ("rank", rank, ("peak", "live"))):
        if value not in choices:
            raise ProblemError(f"{name} is {value!r}: must be {' or '.join(choices)}")
    search = BeamSearch(task, Rule(rank, "random" if rank == "live" else tie))
    search.require_memory(_affordable(search, width))
    (_widen if rank == "peak" else _lower_caps)(search, width)
    return search.plan()


def _widen(search: BeamSearch, widest: int) -> None:
    """Beams by peak, each wider than the one before."""
    width = _first_width(search, widest)
    while width:
        outcome = search.run(width)
        width = 0 if outcome.proven else _next_width(search, outcome, width, _affordable(search, widest))


def _lower_caps(search: BeamSearch, widest: int) -> None:
    """Beams by live memory, the cap below the best order so far."""
    search.learn(memory_orders(search.flow)[0].tolist())
    width, gap = _first_width(search, widest), _FIRST_GAP
    while width and search.best_peak > 0 and not search.task.over(search.evaluations):
        best = int(search.best_peak)
        if _affordable(search, width) < width:
            return
        outcome = search.run(width, cap=best - max(1, best // gap))
        if search.bound is not None and search.bound >= search.best_peak:
            return
        if search.best_peak < best:
            continue
        wider = 0 if outcome.proven else _next_width(search, outcome, width, _affordable(search, widest))
        if wider:
            width = wider
        elif gap > _LAST_GAP or best // gap <= 1:
            return
        else:
            gap *= _SHRINK


def _affordable(search: BeamSearch, width: int) -> int:
    """The width, or as many states as there are evaluations left."""
    most = search.task.budget.evaluations
    return width if most is None else min(width, most - search.evaluations)


def _first_width(search: BeamSearch, widest: int) -> int:
    widest = _affordable(search, widest)
    if search.flow.num_ops <= _SMALL:
        return min(widest, _FIRST_SMALL)
    return widest if search.task.budget.seconds is None else min(widest, _FIRST)


def _next_width(search: BeamSearch, outcome: Outcome, width: int, widest: int) -> int:
    """The width to go on with; 0 if there is none, or no time for it."""
    wider = min(widest, _WIDER * width) if search.flow.num_ops <= _SMALL else widest
    left = search.task.end - time.perf_counter() - outcome.compiled
    affordable = left / max(outcome.seconds, 1e-3) * width
    if wider > affordable:  # powers of two: few programs to compile
        wider = 1 << max(0, int(affordable).bit_length() - 1) if affordable >= 1 else 0
    return wider if wider > width else 0
