"""The driver of every simulated annealing on the host: clock, cooling, parallel chains, exchange.

An `Annealing` is a set of moves. It has chains, each the state of one compiled walk (`walk` makes moves of a chain at
temperatures that fall over a share of the budget), and `run` drives them until the budget is spent. The sets of moves:

  method             set of moves (its `Annealing`)    where its moves are drawn
  anneal             anneal/orders.py                  anneal/orders.py: `_move`
  anneal-list        anneal/lists.py                   anneal/lists.py: `anneal`
  anneal-load        anneal/loads.py                   anneal/loads.py: `_draw`
  anneal-ops         sending/solver.py                 sending/search.py: `anneal`
  anneal-schedule    schedules/solver.py               schedules/moves.py: `draw`, its shares in `solver.MIX`
  anneal of maps     maps/anneal.py                    maps/anneal.py: `_change`

A move is added where the moves of its method are drawn: a branch that changes the chain, and what takes it back. A set
of moves is added as a subclass of `Annealing` with `walk`, `value` and, for several chains, `energy` and `follow`.
A compiled function calls only those of its own folder (`graphrl.compiled`), so the moves of schedules, of sends and of
maps are beside the costs that they walk.

`xla/checkpoint/solvers/anneal.py` has a loop of its own: its moves are in part Python's, and its starts race.
"""

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
    """How a run is cut into pieces, between which the driver looks at the clock. A step is what a chain counts: moves,
    or windows of them.

    Attributes:
      steps: of a chain in a piece at most, where the budget is in evaluations.
      pieces: at least, there.
      seconds: of a piece, where the budget is in seconds.
      first: steps of a chain in the first piece, there.
      evaluations: of a step.
      exchanges: times in all that the worst of several chains goes on from where the best stands ("go with the
        winners", Aldous & Vazirani 1994); 0 where chains have temperatures of their own.
    """

    steps: int
    pieces: int = 1
    seconds: float = 0.05
    first: int = 32
    evaluations: int = 1
    exchanges: int = 10


class Annealing(Generic[C]):
    """Chains of one search, and their moves.

    Attributes:
      search: what they are of.
      chains: at least one.
      pace: of them.
      budget: of the whole search; a part of it for some.
      evaluations: so far.
      expected: steps of each chain in the whole run, as far as is known.
      reserve: seconds that what follows takes.
      clusters: what `anneal.clusters` says of ops that move together, if they do.
      level: of the clusters that the chains have; -1 for none.
    """

    def __init__(self, search: Search[Any], chains: Sequence[C], pace: Pace, evaluations: int = 0) -> None:
        self.search, self.chains, self.pace, self.evaluations = search, list(chains), pace, evaluations
        self.budget: Budget = search.budget
        self.expected = self.reserve = 0.0
        self.clusters: Clusters | None = None
        self.level = -1

    def walk(self, chain: C, steps: int, begin: float, end: float) -> int:
        """Makes steps of a chain, at the temperatures between two shares of the run; gives the evaluations made."""
        raise NotImplementedError

    def value(self) -> float:
        """The objective of the best so far."""
        raise NotImplementedError

    def energy(self, chain: C) -> float:
        """Of a chain where it stands."""
        raise NotImplementedError

    def follow(self, chain: C, other: C) -> None:
        """Puts a chain where another stands; what it found best stays."""
        raise NotImplementedError

    def mates(self, chain: C) -> Any:
        """Of a chain with clusters: a view of its ops with fields `device` and `mate`, which is written."""
        raise NotImplementedError

    def after(self, share: float) -> None:
        """Called after each piece, when a share of the run is over."""

    def done(self) -> bool:
        """Whether nothing is left to gain."""
        return False

    def run(self, steps: int | None = None) -> None:
        """Anneals until the budget is spent, or for some steps of each chain that the budget may cut short.

        With evaluations alone the result depends on nothing else: not on the clock.
        """
        exchanged = 0
        with ThreadPoolExecutor(min(len(self.chains), count_cores())) as pool:
            each = map if len(self.chains) == 1 else pool.map
            for counts, begin, end in self._pieces(steps):
                self._coarsen(begin)
                made = sum(each(self.walk, self.chains, counts, itertools.repeat(begin), itertools.repeat(end)))
                self.evaluations += made
                self.after(end)
                self.search.report(self.evaluations, self.value())
                if made == 0 or self.done():  # 0: there are no moves
                    return
                if len(self.chains) > 1 and int(end * self.pace.exchanges) > exchanged:
                    exchanged = int(end * self.pace.exchanges)
                    ranked = sorted(self.chains, key=self.energy)
                    self.follow(ranked[-1], ranked[0])

    def _coarsen(self, share: float) -> None:
        """Forms the clusters of every chain anew where a share of the run begins their next level."""
        level = min(int(share * LEVELS), LEVELS - 1)
        if self.clusters is not None and level > self.level:
            self.level = level
            for chain in self.chains:
                ops = self.mates(chain)
                ops["mate"] = self.clusters.mates(ops["device"], count_at(level, self.expected, len(ops)))

    def _pieces(self, steps: int | None) -> Iterator[tuple[list[int], float, float]]:
        """Steps of each chain, and the shares of the run before and after them."""
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
            if high > low and (fitting <= 0 or self.search.over(self.evaluations)):
                return
            if high > low:
                end = (piece + fitting / (high - low)) / pieces
                yield _dealt(low + fitting, count, low), piece / pieces, end

    def _timed_pieces(self) -> Iterator[tuple[list[int], float, float]]:
        """The same where the budget is in seconds, of which what is left now is the run."""
        search, pace, count = self.search, self.pace, len(self.chains)
        assert self.budget.seconds is not None
        begun, total = search.seconds, self._left()
        whole = self.budget.seconds - begun
        whole = max(whole - self.reserve, whole / 2)
        done, share, rate = 0, 0.0, 0.0  # steps of all chains, the share of the run, and steps of a chain in a second
        while search.seconds - begun < whole and not search.over(self.evaluations) and (total is None or done < total):
            began, before = time.perf_counter(), self.evaluations
            seconds = min(pace.seconds, max(0.0, whole - (search.seconds - begun)))
            steps = max(1, int(rate * seconds) if rate else pace.first) * count
            step = seconds / whole if rate else 0.0
            if total is not None:
                steps = min(steps, total - done)
                step = max(step, steps / total)
            yield _dealt(steps, count), share, min(1.0, share + step)
            made = (self.evaluations - before) // pace.evaluations
            done += made
            rate = made / count / max(time.perf_counter() - began, 1e-6)
            share = min(1.0, max((search.seconds - begun) / whole, 0.0 if total is None else done / total))
            self.expected = rate * whole if total is None else min(rate * whole, total / count)

    def _left(self) -> int | None:
        """Steps of all chains that the evaluations are enough for; None where they are not limited."""
        limit = self.budget.evaluations
        return None if limit is None else (limit - self.evaluations) // self.pace.evaluations


def cooled(hot: float, cold: float, share: float) -> float:
    """The temperature when a share of the run is over: it falls geometrically."""
    return hot * (cold / hot) ** share


def _dealt(high: int, count: int, low: int = 0) -> list[int]:
    """Numbers from low to high - 1, each dealt to one of `count` in turn: how many each has."""
    return [(high + count - 1 - i) // count - (low + count - 1 - i) // count for i in range(count)]


def copied(parts: T) -> T:
    """A named tuple with copies of its arrays."""
    make = type(parts)._make  # type: ignore[attr-defined]
    return cast(
        T, make(copied(x) if isinstance(x, tuple) else x.copy() if isinstance(x, np.ndarray) else x for x in parts)
    )


def copy_into(target: T, source: T) -> None:
    """Overwrites its own arrays, not those of tuples in it, with those of one of the same shapes."""
    for of_target, of_source in zip(target, source, strict=True):
        if isinstance(of_target, np.ndarray):
            of_target[:] = of_source
