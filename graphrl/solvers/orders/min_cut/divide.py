"""One pass of divide and conquer: an order is led through a minimum cut at its peak, then each side is ordered.

Let v be the op at which a part of the order needs most. A minimum cut (bounds/cuts.py) gives the ops that should have
run when v runs, for v to need least. The part is split there: those ops, v, and the others, and each side is ordered on
its own, as the given orders have it, whichever of them is best there. Where v needs already as little as it can, the
part is finished: no order of it is better.
"""

from collections.abc import Callable, Sequence

import numpy as np

from graphrl.costs.bounds.cuts import DONE, LATER, OPEN, Cuts
from graphrl.solvers.orders.usage import Usage


class Division:
    """Passes over the orders of one graph.

    Attributes:
      evaluations: orders whose memory was computed.
    """

    def __init__(self, cuts: Cuts, usage: Usage) -> None:
        self._cuts, self._usage = cuts, usage
        self.evaluations = 0

    def __call__(
        self,
        orders: Sequence[np.ndarray],
        target: int,
        rng: np.random.Generator,
        weight: np.ndarray | None,
        over: Callable[[], bool],
    ) -> np.ndarray:
        """An order `[n]`.

        Args:
          orders: `[n]` each, at least one: what parts are ordered like.
          target: bytes: parts that need no more are left as they are.
          rng: chooses between the earliest and the latest minimum cut.
          weight: see `Cuts.least`; other sizes lead to other cuts that are nearly as good.
          over: whether to stop with the order as it is.
        """
        places = np.argsort(np.stack(orders), axis=1)
        order = np.array(orders[0])
        parts = [(0, len(order))]
        while parts and not over():
            begin, end = parts.pop()
            peak, at = self._arrange(order, begin, end, places, over)
            if peak <= target:
                continue
            op, phase = int(order[at]), np.full(len(order), OPEN)
            phase[order[:begin]], phase[order[end:]] = DONE, LATER
            late = bool(rng.integers(2))
            cut = self._cuts.least(op, phase, late=late)
            if cut.need >= peak:
                target = max(target, peak)  # so much is needed now: what needs less gains nothing
                continue
            done = (cut if weight is None else self._cuts.least(op, phase, late=late, weight=weight)).done
            part = order[begin:end]
            before, after = part[done[part] & (part != op)], part[~done[part]]
            order[begin:end] = np.concatenate([before, [op], after])
            middle = begin + len(before)
            parts += [part for part in ((begin, middle), (middle + 1, end)) if part[1] - part[0] > 1]
        return order

    def _arrange(
        self, order: np.ndarray, begin: int, end: int, places: np.ndarray, over: Callable[[], bool]
    ) -> tuple[int, int]:
        """Puts the ops of a part, in place, as that of the orders has them in which they need least; gives the peak of
        the part and where it is.
        """
        part = order[begin:end].copy()
        best: tuple[int, int, np.ndarray] | None = None
        for tried in np.unique(np.stack([part[np.argsort(place[part])] for place in places]), axis=0):
            order[begin:end] = tried
            usage = self._usage(order)[begin:end]
            self.evaluations += 1
            if best is None or usage.max() < best[0]:
                best = int(usage.max()), begin + int(usage.argmax()), tried
            if over():
                break
        assert best is not None
        order[begin:end] = best[2]
        return best[0], best[1]
