"""Multipliers of memory that raise the lower bound of a reduced problem: cutting planes in a box (bundle method).

The dual function of the multipliers is concave. Any labels are a plane above it: their cost, and for each time its
multiplier times the bytes above the room. A step maximises the least of all planes within a box around the best
multipliers. The messages then give the bound there, and labels, which are the next plane. The box moves and grows
when the bound rises, and shrinks when it does not (Lemarechal 1975; Marsten, Hogan, Blankenship 1975).

Labels often cost much more than the bound at their own multipliers, or have a prohibitive cost: their planes are far
above the dual function. The newest planes are therefore lowered to the bound there. They may be too low elsewhere;
later planes correct them, and the bound is that of the messages in any case.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from graphrl.sharding import messages as dual
from graphrl.sharding.moves import Model
from graphrl.sharding.problem import PROHIBITIVE
from graphrl.sharding.rules import Reduced

PLANES = 60  # planes that are kept
RECENT = 4  # of them are lowered to the bound
SWEEPS = 2  # pairs of sweeps of a step
LEAST = 3e-4  # of the box's radius, relative to the cost
GROW, SHRINK = 1.6, 0.8  # of the box


class Plane(NamedTuple):
    """Labels as a plane above the dual function.

    Attributes:
      cost: of the labels: the plane's value without a price of bytes.
      lowered: the same if the plane is lowered to the bound at its own multipliers.
      above: `[T] int64`, bytes above the room.
    """

    cost: int
    lowered: float
    above: np.ndarray


class Ascent:
    """Ascent of the dual.

    Attributes:
      messages: of the last step.
      multipliers: `[T] float64`, those of the best bound, cost per byte.
      bound: the best bound of the reduced problem, without its constant.
    """

    def __init__(self, reduced: Reduced, model: Model, scale: float) -> None:
        self.reduced, self.model = reduced, model
        self.messages = dual.messages_of(model, scale)
        dual.sweep(model, self.messages, True)
        free = int(dual.sweep(model, self.messages, False)) / self.messages.scale
        self.scale = max(1.0, free)  # without a price of bytes
        self.multipliers = np.zeros(len(reduced.room))
        self.bound = -(2**62)
        self.radius = 0.1
        self._planes: list[Plane] = []
        self._times: set[int] = set()

    def step(self) -> np.ndarray:
        """Passes messages at the next multipliers; returns labels."""
        multipliers, predicted = self._next()
        room = dual.price(self.model, self.messages, multipliers)
        for _ in range(SWEEPS):
            bounds = [int(dual.sweep(self.model, self.messages, forward)) for forward in (True, False)]
        bound = -((room - max(bounds)) // self.messages.scale)
        label = self.messages.label.copy()
        self._add(label, multipliers, bound)
        if bound > self.bound:
            if bound - self.bound > 0.2 * (predicted - self.bound):
                self.radius = min(1.0, self.radius * GROW)
            self.bound, self.multipliers = bound, multipliers
        else:
            self.radius = max(LEAST, self.radius * SHRINK)
        return label

    def _add(self, label: np.ndarray, multipliers: np.ndarray, bound: int) -> None:
        """Adds the plane of `[g]` labels by messages, with the bound at their multipliers."""
        cost, above = evaluate(self.reduced, label)
        self._planes = [*self._planes[1 - PLANES :], Plane(cost, bound - float(multipliers @ above), above)]
        if above.max(initial=0) > 0:
            self._times.add(int(np.argmax(above)))

    def _next(self) -> tuple[np.ndarray, float]:
        """Returns the multipliers of the next step, and what the planes predict for their bound."""
        times = np.array(sorted(self._times), np.int64)
        if len(times) == 0:
            return self.multipliers, np.inf
        above = np.array([plane.above[times] for plane in self._planes], float)
        older = len(self._planes) - RECENT
        values = [
            float(plane.cost) if number < older and plane.cost < PROHIBITIVE else plane.lowered
            for number, plane in enumerate(self._planes)
        ]
        costs = np.array(values)
        worth = self.scale / np.sqrt((above**2).mean(0) + 1)  # multipliers that are worth the whole cost
        center = self.multipliers[times] / worth
        bounds = np.stack([np.maximum(0, center - self.radius), center + self.radius], 1)
        result = linprog(
            np.append(np.zeros(len(times)), -1.0),
            A_ub=np.append(-above * worth / self.scale, np.ones((len(costs), 1)), 1), b_ub=costs / self.scale,
            bounds=[*bounds.tolist(), (None, None)],
        )  # fmt: skip
        if result.x is None:
            return self.multipliers, np.inf
        multipliers = np.zeros_like(self.multipliers)
        multipliers[times] = np.maximum(0, result.x[:-1]) * worth
        return multipliers, float(result.x[-1]) * self.scale


def evaluate(reduced: Reduced, label: np.ndarray) -> tuple[int, np.ndarray]:
    """Returns the cost of `[g]` labels, without the constant, and the bytes above the room, `[T] int64`."""
    first, last = reduced.edges.T
    entry = reduced.edge_offset[:-1] + label[first] * reduced.sizes[last] + label[last]
    cost = sum(reduced.cost[reduced.offset[:-1] + label].tolist()) + sum(reduced.edge_cost[entry].tolist())
    taken = reduced.usage[reduced.usage_offset[:-1] + label[reduced.user]]
    change = np.zeros(len(reduced.room) + 1, np.int64)
    np.add.at(change, reduced.span[:, 0], taken)
    np.subtract.at(change, reduced.span[:, 1], taken)
    return cost, np.cumsum(change)[:-1] - reduced.room


def byte_rows(reduced: Reduced) -> Iterator[np.ndarray]:
    """Yields the bytes of each strategy, `[S] int64`, for each time."""
    taken = np.zeros(len(reduced.cost), np.int64)
    starts, ends = (np.argsort(reduced.span[:, side], kind="stable") for side in (0, 1))
    for time in range(len(reduced.room)):
        for users, side, sign in ((starts, 0, 1), (ends, 1, -1)):
            low, high = np.searchsorted(reduced.span[users, side], [time, time + 1])
            for u in users[low:high].tolist():
                first = reduced.offset[reduced.user[u]]
                usage = reduced.usage[reduced.usage_offset[u] : reduced.usage_offset[u + 1]]
                taken[first : first + len(usage)] += sign * usage
        yield taken
