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
    apart, shared = _tried(state, 0, limit, False, over), _tried(state, 0, limit, True, over)
    share = int(shared.profile.max()) < int(apart.profile.max())
    best = min(state, apart, shared, key=_rank)
    low, high = 0, int(best.profile.max())
    for _ in range(MAX_RUNS):
        if high - low <= PRECISE * high or over():
            break
        target = (low + high) // 2
        tried = _tried(state, target, limit, share, over)
        best = min(best, tried, key=_rank)
        high = min(high, int(tried.profile.max()))
        if high > target:
            low = target
    return best


def _tried(state: State, target: int, limit: float, shared: bool, over: Callable[[], bool]) -> State:
    tried = state.copy()
    Greedy(tried, target, shared).run(limit, over)
    return tried


def _rank(state: State) -> tuple[int, float]:
    return int(state.profile.max()), state.spent
