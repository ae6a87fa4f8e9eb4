"""Loops in stretches: of n steps, k at a time are computed again by one more forward pass before they run backward.

A loop of n steps keeps what it carries at every step. In stretches of k it keeps that of each k-th step only, and while
a stretch runs backward what its k steps keep: about 2 sqrt(n) in place of n (Chen et al. 2016, section 4.3).
"""

import math
from typing import NamedTuple

from graphrl.solvers.budgets.level import Loop

NEAR = 1.5  # factor from what is wanted by which a divisor may differ


class LoopCost(NamedTuple):
    """What a loop, or a step of it, costs what is around it, in bytes.

    Attributes:
      kept: for the backward pass.
      forward, backward: at the peaks of the two passes.
    """

    kept: float
    forward: float
    backward: float


def loop_cost(loop: Loop, trips: int, stretch: int, step: LoopCost) -> LoopCost:
    """What a loop costs.

    A stretch that is not the whole loop has slices of what the loop reads and writes of each step, and sums gradients
    by itself. Where the last one is shorter, all steps' slices are cut and joined. Steps that stand one after the other
    work on values, those of a loop on copies of them.

    Args:
      loop: it is.
      trips: its steps.
      stretch: steps of a stretch; 1 where there are none.
      step: what one of its steps does.
    """
    if stretch == 1:
        return step._replace(kept=trips * step.kept)
    others = stretch - loop.is_unrolled(stretch)  # such a step's peak has what it keeps, that of a loop's step has not
    sliced = stretch if stretch < trips else 0
    joined = trips if trips % stretch else 0
    return LoopCost(
        -(-trips // stretch) * loop.begin_bytes + joined * loop.taken_bytes,
        step.forward + sliced * (loop.taken_bytes + loop.given_bytes) + joined * loop.given_bytes,
        max(step.forward, step.backward)
        + others * step.kept
        + sliced * (loop.taken_bytes + loop.pulled_bytes)
        + joined * loop.pulled_bytes
        + (loop.sum_bytes if sliced else 0.0),
    )


def stretches_of(trips: int) -> tuple[int, ...]:
    """How many steps a stretch may have: about the root of all, and that doubled and halved, up to all.

    Divisors, but where none is near: what the last stretch lacks costs copies.
    """
    root = trips**0.5
    small = [k for k in range(1, math.isqrt(trips) + 1) if trips % k == 0]
    divisors = [*small, *(trips // k for k in small)]
    found = {1, max(trips, 1)}
    for power in range(-(trips.bit_length() // 2), trips.bit_length() // 2 + 1):
        wanted = root * 2.0**power
        if 1 < wanted < trips:
            nearest = min(divisors, key=lambda k: abs(math.log(k / wanted)))
            found.add(nearest if abs(math.log(nearest / wanted)) < math.log(NEAR) else round(wanted))
    return tuple(sorted(found))
