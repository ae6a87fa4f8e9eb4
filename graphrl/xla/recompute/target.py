"""The lowest peak that computing again can reach in one order, within a limit: a search over targets.

At too low a target the limit is spent on whatever is cheapest for its bytes, wherever it is; at the right one it is
spent where the peak is. So the target is found by bisection.
"""

from collections.abc import Callable

from graphrl.xla.recompute.greedy import Greedy
from graphrl.xla.recompute.state import State

PRECISE = 0.01  # of the peak: the search ends when it knows the target so well
MAX_RUNS = 8


def relieved(state: State, limit: float, over: Callable[[], bool]) -> State:
    """A state of lower peak with more clones, or the state itself if there is none.

    Args:
      limit: seconds of all clones, those that are there included.
      over: whether to stop with what there is.
    """
    best = state
    low, high = 0, int(state.profile.max())
    target = low
    for _ in range(MAX_RUNS):
        tried = state.copy()
        reached = Greedy(tried, target).run(limit)
        peak = int(tried.profile.max())
        if (peak, tried.spent) < (int(best.profile.max()), best.spent):
            best = tried
        if not reached:
            low = target
        high = min(high, peak)
        if high - low <= PRECISE * high or over():
            break
        target = (low + high) // 2
    return best
