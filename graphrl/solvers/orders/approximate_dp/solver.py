"""Method "approximate-dp": dynamic programming over sets of ops with a beam, for the peak memory of one device.

Topoformer, appendix C.3, "Approximate DP". A state is the set of ops that have run; of all orders of a set only one of
least peak is kept. Step t expands the sets of t ops to those of t + 1 and keeps the `width` best. If no set was cut
off, or only sets with a peak of at least the answer's, the answer is optimal, and the plan has it as its bound.

The paper does not define how to break ties, which decide most cuts. Here each set draws a random number at every step,
however many orders lead to it (on graphs of 2,000 ops at width 2,000 peaks are 2% lower than by order of insertion).

With rank "live" states are ranked by live memory, under a hard cap on the peak (cf. SERENITY's soft budgeting, Ahn et
al. 2020): the first cap is below the best plain order, and each answer's peak sets the next, until no order is found.

Where an output's `reuses` is smaller than the buffer that it takes over, or where bytes do not fit in int32 units, the
search uses a model that underestimates (`model.py`). The plan's costs are still exact, and the bound is valid.

`BeamSearch` runs several beams over one graph, in chunks that report progress and check the time. The answer is the
best order of all beams.
"""

import math
import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import REPORT_SECONDS, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.approximate_dp.model import LAST, Rule, model
from graphrl.solvers.orders.approximate_dp.program import Beam, advance, begin, best_order
from graphrl.solvers.rules.memory_orders import greedy, memory_orders
from graphrl.solvers.solver import solver

_MEMORY_SHARE = 0.75  # largest share of the machine's memory for a beam


class Outcome(NamedTuple):
    """Result of a beam."""

    proven: bool  # True if no order is better than the best so far or, with a cap, no order is within the cap
    compiled: float  # seconds of its first chunk, which compiles
    seconds: float  # seconds of the other chunks


class BeamSearch:
    """Runs beams and keeps the best order.

    Attributes:
      task: the search and its graph.
      best: the best order of ops so far; empty before the first one.
      best_peak: its exact peak in bytes, without resident weights.
      bound: lower bound of the peak of all orders, in bytes; None if nothing was proven.
    """

    def __init__(self, task: Task, rule: Rule) -> None:
        self.task = task
        self.flow = Flow(task.graph)
        self.best: list[int] = []
        self.best_peak: float = math.inf
        self.bound: int | None = None
        self.evaluations = 0
        self._rule = rule
        self._model = model(self.flow, task.seed)
        self._partial: list[int] | None = None  # the ops of the best state of the running beam

    def keep(self, order: list[int]) -> bool:
        """Keeps an order if it is the best so far; returns True if it is."""
        peak = self.flow.peak(order)
        if peak >= self.best_peak:
            return False
        self.best, self.best_peak = order, peak
        self.task.best = self.plan
        return True

    def run(self, width: int, cap: int | None = None) -> Outcome:
        """Runs a beam of `width` states; only orders of peaks up to `cap` bytes count, if it is given.

        If time runs out, the greedy rule of `memory_orders.py` finishes the best state.
        """
        tables, unit = self._model.tables, self._model.unit
        start = time.perf_counter()
        before = self.evaluations
        cap_units = LAST - 1 if cap is None else min(cap // unit, LAST - 1)
        arguments = tables, jnp.int32(cap_units), jnp.uint32(self.task.seed % 2**32)
        beam, steps, compiled = begin(tables, width), 1, 0.0
        while True:
            chunk_start = time.perf_counter()
            beam = advance(beam, *arguments, steps, rule=self._rule)
            done, count, best, peak = self._best_state(beam)
            now = time.perf_counter()
            compiled = compiled or now - chunk_start
            self.evaluations = before + max(1, width * done // self.flow.num_ops)
            if count == 0 or done == self.flow.num_ops or now >= self.task.end:
                break
            self._partial = best
            self.task.best = self.plan
            if self.task.progress is not None:
                self.task.report(self.evaluations, self._value())
            pace = (now - chunk_start) / steps if steps > 1 or done > 1 else 0.0
            steps = max(1, int(min(REPORT_SECONDS, self.task.end - now) / pace)) if pace else 1
        finished = count > 0 and done == self.flow.num_ops
        if count > 0:
            self.keep(best if finished else greedy(self.flow, best))
        self._partial = None  # not before: Ctrl-C may come while the greedy rule works
        reached = peak if finished else cap_units + 1
        proven = (finished or count == 0) and int(beam.least_cut) >= reached
        if proven:
            self.bound = max(self.bound or 0, reached * unit)
        return Outcome(proven, compiled, time.perf_counter() - start - compiled)

    def _best_state(self, beam: Beam) -> tuple[int, int, list[int], int]:
        """Returns the number of ops that have run and of states, the ops of the best state, and its peak in units."""
        order, peak = best_order(beam)
        done = int(beam.step)
        ops = self._model.ops[np.asarray(order)[:done]] if int(beam.states.size) else self._model.ops[:0]
        return done, int(beam.states.size), ops.tolist(), int(peak)

    def _value(self) -> float:
        """Returns the objective of the best order so far, else of the best state completed by the greedy rule."""
        partial = self._partial if not self.best else None
        peak = self.best_peak if partial is None else self.flow.peak(greedy(self.flow, partial))
        return self.task.order_value(peak)

    def plan(self) -> Plan:
        """Returns the plan of the best order so far; the greedy rule completes the best state of a running beam."""
        orders = [self.best] if self.best else []
        if self._partial is not None:
            orders.append(greedy(self.flow, self._partial))
        bound = None
        if self.bound is not None and self.task.problem.objective == "peak_memory":
            bound = self.task.order_value(min(self.bound, self.best_peak))
        return self.task.plan(None, self.flow.least_peak(orders), evaluations=self.evaluations, bound=bound)

    def require_memory(self, width: int) -> None:
        """Checks that a beam of this width fits.

        Raises:
          ProblemError: it does not; the message states the largest width that would.
        """
        t = self._model.tables
        history = 8 * t.allocated.shape[0]
        sets = t.waits.size + t.users.size
        lists = 3 * t.waits.shape[0] + 3 * t.users.shape[0] + 3 * t.freed_buffer.shape[0]
        each = history + 4 * (3 * sets + lists) + 512
        room = int(_MEMORY_SHARE * _memory_bytes())
        if width * each > room:
            raise ProblemError(
                f"a beam of width {width} needs about {width * each / 2**30:.1f} GiB for {self.flow.num_ops} ops, and "
                f"{room / 2**30:.1f} GiB are available: width must be at most {room // each}"
            )


def _memory_bytes() -> float:
    """Returns the bytes of memory of the device that jax computes on."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


MAX_WIDTH = 2**22  # counts of candidates are float32 in places
_SMALL = 128  # number of ops up to which narrow beams are tried first: they are often enough
_FIRST_SMALL, _FIRST = 256, 1024  # width of the first beam: for small graphs, and under a limit of seconds
_WIDER = 16  # factor between the widths of a small graph's beams
_SHRINK = 4  # divisor of the cap's steps after one that found no order
_FIRST_GAP, _LAST_GAP = 64, 2048  # the cap is below the best order by the peak divided by this, first and last


@solver(
    "approximate-dp",
    "dynamic programming over sets of ops, the `width` best of each size (Gagrani et al. 2022, C.3)",
    one_device=True,
)
def solve(task: Task, *, width: int = 10_000, tie: str = "random", rank: str = "peak") -> Plan:
    """Dynamic programming with a beam (see the module).

    An evaluation is a beam's state taken through all steps: a beam of k states spends k. A beam is at most as wide as
    the evaluations that are left. Graphs of up to 128 ops start with 256 states, and a wider beam follows only if some
    were cut off. Under a limit of seconds a beam of 1,024 comes first; the next width is estimated from its time.

    Args:
      width: number of states kept at each step.
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
    """Runs beams ranked by peak, each wider than the one before."""
    width = _first_width(search, widest)
    while width:
        outcome = search.run(width)
        width = 0 if outcome.proven else _next_width(search, outcome, width, _affordable(search, widest))


def _lower_caps(search: BeamSearch, widest: int) -> None:
    """Runs beams ranked by live memory, with the cap below the best order so far."""
    search.keep(memory_orders(search.flow)[0].tolist())
    width, gap = _first_width(search, widest), _FIRST_GAP
    while width and search.best_peak > 0 and not search.task.is_spent(search.evaluations):
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
    """Returns the width, or the number of evaluations left if that is less."""
    limit = search.task.budget.evaluations
    return width if limit is None else min(width, limit - search.evaluations)


def _first_width(search: BeamSearch, widest: int) -> int:
    widest = _affordable(search, widest)
    if search.flow.num_ops <= _SMALL:
        return min(widest, _FIRST_SMALL)
    return widest if search.task.budget.seconds is None else min(widest, _FIRST)


def _next_width(search: BeamSearch, outcome: Outcome, width: int, widest: int) -> int:
    """Returns the next width; 0 if no wider beam is allowed or affordable."""
    wider = min(widest, _WIDER * width) if search.flow.num_ops <= _SMALL else widest
    left = search.task.end - time.perf_counter() - outcome.compiled
    affordable = left / max(outcome.seconds, 1e-3) * width
    if wider > affordable:  # powers of two: few programs to compile
        wider = 1 << max(0, int(affordable).bit_length() - 1) if affordable >= 1 else 0
    return wider if wider > width else 0
