"""The driver of every simulated annealing on the host: clock, cooling, parallel chains, exchange.

An `Annealing` is a set of moves. It has chains, each the state of one compiled walk (`walk` makes moves of a chain at
temperatures that fall over a share of the budget), and `run` drives them until the budget is spent. The sets of moves:

  method             set of moves (its `Annealing`)    where its moves are drawn
  anneal             anneal/orders.py                  anneal/orders.py: `_move`
  anneal-list        anneal/lists.py                   anneal/lists.py: `anneal`
  anneal-load        anneal/loads.py                   anneal/loads.py: `_draw`
  anneal-ops         transfer_rules/solver.py          transfer_rules/search.py: `anneal`
  anneal-schedule    schedules/solver.py               schedules/moves.py: `draw`, its shares in `solver.MIX`
  anneal of maps     maps/anneal.py                    maps/anneal.py: `_change`

To add a move, extend the function that draws the moves of its method: a branch that changes the chain, and its inverse.
To add a set of moves, subclass `Annealing` with `walk` and `value`; for several chains or clusters, subclass
`Exchanging`, also with `energy`, `follow` and `move_ops`.
A compiled function calls only those of its own folder (`graphrl.compiled`), so the moves of schedules, of sends and of
maps are in the folders of the costs that they walk.

`xla/checkpoint/solvers/anneal.py` has its own loop: its moves are partly in Python, and its starts race.
"""

import abc
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from graphrl.process import count_cores
from graphrl.solvers.anneal.clusters import LEVELS, Clusters, count_at
from graphrl.solvers.base import Budget, Search

C = TypeVar("C")
T = TypeVar("T", bound=tuple[Any, ...])


class Pace(NamedTuple):
    """Lengths of the pieces of a run, between which the driver checks the clock. A step is the chain's unit of work: a
    move, or a window of moves.

    Attributes:
      steps: maximum number of steps of a chain in a piece, where the budget is in evaluations.
      pieces: minimum number of pieces, where the budget is in evaluations.
      seconds: length of a piece, where the budget is in seconds.
      first: steps of a chain in the first piece, where the budget is in seconds.
      evaluations: number of evaluations per step.
      exchanges: number of exchanges between several chains per run (`Exchanging`).
    """

    steps: int
    pieces: int = 1
    seconds: float = 0.05
    first: int = 32
    evaluations: int = 1
    exchanges: int = 10


class Annealing(abc.ABC, Generic[C]):
    """Chains of one search, and their moves. Subclasses define `walk` and `value`.

    Attributes:
      search: budget, clock and progress of the run.
      chains: list of chains, not empty.
      pace: lengths of the run's pieces.
      budget: budget of the run: the whole search's or, for some, a part of it.
      evaluations: number of evaluations so far.
      expected: steps of each chain in the whole run, as estimated so far.
      reserve: seconds to leave for the work after the run.
    """

    def __init__(self, search: Search[Any], chains: Sequence[C], pace: Pace, evaluations: int = 0) -> None:
        self.search, self.chains, self.pace, self.evaluations = search, list(chains), pace, evaluations
        self.budget: Budget = search.budget
        self.expected = self.reserve = 0.0

    @abc.abstractmethod
    def walk(self, chain: C, steps: int, begin: float, end: float) -> int:
        """Makes steps of a chain, at the temperatures between two shares of the run; returns the evaluations made."""

    @abc.abstractmethod
    def value(self) -> float:
        """Returns the best objective so far."""

    def before(self, share: float) -> None:
        """Does work before a piece; `share` is the share of the run that is over. Does nothing by default."""

    def after(self, share: float) -> None:
        """Does work after a piece; `share` is the share of the run that is over. Does nothing by default."""

    def exchange(self, share: float) -> None:
        """Lets chains follow one another between two pieces. Does nothing by default."""

    def done(self) -> bool:
        """True if nothing is left to gain."""
        return False

    def run(self, steps: int | None = None) -> None:
        """Anneals until the budget is spent, or for some steps of each chain that the budget may cut short.

        If only evaluations are limited, the result does not depend on the clock.
        """
        with ThreadPoolExecutor(min(len(self.chains), count_cores())) as pool:
            each = map if len(self.chains) == 1 else pool.map
            for counts, begin, end in self._pieces(steps):
                self.before(begin)
                evaluations = sum(each(self.walk, self.chains, counts, itertools.repeat(begin), itertools.repeat(end)))
                self.evaluations += evaluations
                self.after(end)
                self.search.report(self.evaluations, self.value())
                if evaluations == 0 or self.done():  # 0: there are no moves
                    return
                self.exchange(end)

    def _pieces(self, steps: int | None) -> Iterator[tuple[list[int], float, float]]:
        """Yields the pieces of a run: steps of each chain, and the shares of the run before and after them."""
        if self.done():
            return
        if steps is None and self.budget.seconds is not None:
            yield from self._timed_pieces()
            return
        pace, count = self.pace, len(self.chains)
        total = self._left() if steps is None else steps * count
        assert total is not None  # a budget without seconds has evaluations
        self.expected = total / count
        pieces = max(pace.pieces, -(-total // (pace.steps * count)))
        for piece in range(pieces):
            low, high = total * piece // pieces, total * (piece + 1) // pieces
            left = self._left()
            fitting = high - low if left is None else min(high - low, left)
            if high > low and (fitting <= 0 or self.search.is_spent(self.evaluations)):
                return
            if high > low:
                end = (piece + fitting / (high - low)) / pieces
                yield _split_steps(low + fitting, count, low), piece / pieces, end

    def _timed_pieces(self) -> Iterator[tuple[list[int], float, float]]:
        """Yields the pieces for a budget in seconds; the run takes the seconds that are left now."""
        search, pace, count = self.search, self.pace, len(self.chains)
        assert self.budget.seconds is not None
        start, total = search.seconds, self._left()
        whole = self.budget.seconds - start
        whole = max(whole - self.reserve, whole / 2)
        done, share, rate, end = 0, 0.0, 0.0, start + whole  # steps, share of the run, steps of a chain in a second
        while search.seconds < end and not search.is_spent(self.evaluations) and (total is None or done < total):
            piece_start, before = time.perf_counter(), self.evaluations
            seconds = min(pace.seconds, max(0.0, whole - (search.seconds - start)))
            steps = max(1, int(rate * seconds) if rate else pace.first) * count
            step = seconds / whole if rate else 0.0
            if total is not None:
                steps = min(steps, total - done)
                step = max(step, steps / total)
            yield _split_steps(steps, count), share, min(1.0, share + step)
            piece_steps = (self.evaluations - before) // pace.evaluations
            done += piece_steps
            rate = piece_steps / count / max(time.perf_counter() - piece_start, 1e-6)
            share = min(1.0, max((search.seconds - start) / whole, 0.0 if total is None else done / total))
            self.expected = rate * whole if total is None else min(rate * whole, total / count)

    def _left(self) -> int | None:
        """Returns the number of steps of all chains within the remaining evaluations; None if these are not limited."""
        limit = self.budget.evaluations
        return None if limit is None else (limit - self.evaluations) // self.pace.evaluations


class Exchanging(Annealing[C]):
    """Chains of which the worst continues from the state of the best, a few times per run ("go with the winners",
    Aldous & Vazirani 1994), and whose clusters of ops may move together.

    Attributes:
      clusters: forms the clusters (`anneal.clusters`), or None.
      level: level of the chains' current clusters; -1 before the first.
    """

    def __init__(self, search: Search[Any], chains: Sequence[C], pace: Pace, evaluations: int = 0) -> None:
        super().__init__(search, chains, pace, evaluations)
        self.clusters: Clusters | None = None
        self.level = -1
        self._exchanged = 0

    @abc.abstractmethod
    def energy(self, chain: C) -> float:
        """Returns the energy of a chain's current state."""

    @abc.abstractmethod
    def follow(self, chain: C, other: C) -> None:
        """Copies another chain's state into a chain, which keeps its own best."""

    @abc.abstractmethod
    def move_ops(self, chain: C) -> Any:
        """Returns a writable view of a chain's ops, with fields `device` and `next_member`."""

    def before(self, share: float) -> None:
        """Forms new clusters for every chain where a share of the run starts their next level."""
        level = min(int(share * LEVELS), LEVELS - 1)
        if self.clusters is not None and level > self.level:
            self.level = level
            for chain in self.chains:
                ops = self.move_ops(chain)
                ops["next_member"] = self.clusters.next_members(ops["device"], count_at(level, self.expected, len(ops)))

    def exchange(self, share: float) -> None:
        """Lets the worst chain follow the best, `pace.exchanges` times per run."""
        if len(self.chains) > 1 and int(share * self.pace.exchanges) > self._exchanged:
            self._exchanged = int(share * self.pace.exchanges)
            ranked = sorted(self.chains, key=self.energy)
            self.follow(ranked[-1], ranked[0])


def temperature_at(hot: float, cold: float, share: float) -> float:
    """Returns the temperature after a share of the run: it falls geometrically from `hot` to `cold`."""
    return hot * (cold / hot) ** share


def _split_steps(high: int, count: int, low: int = 0) -> list[int]:
    """Deals the numbers from low to high - 1 to `count` chains in turn; returns how many each gets."""
    return [(high + count - 1 - i) // count - (low + count - 1 - i) // count for i in range(count)]


def copy_arrays(parts: T) -> T:
    """Returns a named tuple with copies of its arrays."""
    make = type(parts)._make  # type: ignore[attr-defined]
    return cast(
        T, make(copy_arrays(x) if isinstance(x, tuple) else x.copy() if isinstance(x, np.ndarray) else x for x in parts)
    )


def copy_into(target: T, source: T) -> None:
    """Overwrites the target's arrays, except those in nested tuples, with those of a source of the same shapes."""
    for of_target, of_source in zip(target, source, strict=True):
        if isinstance(of_target, np.ndarray):
            of_target[:] = of_source
