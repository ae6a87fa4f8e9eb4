"""What a level's price is worked out in: arrays that are there before, so that pricing allocates nothing."""

from typing import NamedTuple

import numpy as np

from graphrl.solvers.budgets.level import Level

COMPUTED, KEPT, MOVED = 0, 1, 2  # what happens to a value between the passes


class Work(NamedTuple):
    """Arrays for `price`, for a level of n values and b kernels, and m steps of its backward pass at most."""

    stored: np.ndarray  # [n] int64: COMPUTED, KEPT or MOVED, with what follows from the choice
    mark: np.ndarray  # [n] int64, by the last segment or kernel that looked at a value
    stack: np.ndarray  # [n + r] int64
    last: np.ndarray  # [n] int64, the last step of the backward pass that reads a value
    loaded: np.ndarray  # [n] int64, the step at which what was moved begins to come back
    first: np.ndarray  # [n] int64, the first step that reads a value from then on
    sent: np.ndarray  # [n] int64, of what is moved, the value that waits for it to be gone; n for none
    arrived: np.ndarray  # [n] float64, of what is moved, seconds from the begin of the forward pass until it is gone
    position: np.ndarray  # [n] int64, the step that computes a value again
    ran: np.ndarray  # [ops] int64, the segment that last ran an op again
    rerun: np.ndarray  # [n] bool, values that a stretch of a loop computes again before it runs backward
    forward: np.ndarray  # [n + 2] float64, changes of live bytes
    backward: np.ndarray  # [m + 2] float64, changes of live bytes
    beside: np.ndarray  # [m + 2] float64, bytes beside the values
    took: np.ndarray  # [m + 2] float64, seconds
    coming: np.ndarray  # [m + 2] float64, bytes that come back for a step to read
    since: np.ndarray  # [m + 2] int64, the step from which they come
    at: np.ndarray  # [m + 2] float64, seconds from the begin of the backward pass until a step
    # bytes kept and moved, peaks of both passes, seconds, steps; of a stretch's step seconds, and bytes kept twice
    prices: np.ndarray  # [8] float64


def work(level: Level) -> Work:
    """For a level, whatever is chosen."""
    n, b = len(level.bytes), len(level.kernel_place)
    steps = n + b + int(level.solid[level.free_values].sum()) * (len(level.first) - 1)
    stored, mark, last, loaded, first, sent, position = (np.zeros(n, np.int64) for _ in range(7))
    stack, ran = np.zeros(n + len(level.reads) + 1, np.int64), np.zeros(int(level.op.max(initial=0)) + 1, np.int64)
    forward, (backward, beside, took, coming, at) = np.zeros(n + 2), (np.zeros(steps + 2) for _ in range(5))
    since, arrived, rerun, prices = np.zeros(steps + 2, np.int64), np.zeros(n), np.zeros(n, bool), np.zeros(8)
    values = stored, mark, stack, last, loaded, first, sent, arrived, position, ran, rerun
    return Work(*values, forward, backward, beside, took, coming, since, at, prices)
