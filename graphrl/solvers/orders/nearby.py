"""Random orders of one device near a given one."""

import heapq

import numpy as np

from graphrl.solvers.flow import Flow

REACHES = (1.0, 4.0, 16.0, 64.0)  # standard deviations, in places, of how far ops are moved
STRETCHES = (0.1, 0.3, 1.0)  # parts of the order within which they are


class Nearby:
    """Draws orders of one graph: in a random stretch of an order, each op's place gets a normal deviate added, and then
    the ready op of least place runs next.
    """

    def __init__(self, flow: Flow) -> None:
        self._successors = flow.successors
        self._waits_for = [len(before) for before in flow.predecessors]

    def __call__(self, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An order `[n]` near `order` `[n]`."""
        n = len(order)
        key = np.empty(n)
        key[order] = np.arange(n)
        length = max(1, int(n * rng.choice(STRETCHES)))
        begin = int(rng.integers(n - length + 1))
        key[order[begin : begin + length]] += rng.choice(REACHES) * rng.standard_normal(length)
        places, left = key.tolist(), list(self._waits_for)
        ready = [(places[op], op) for op in range(n) if left[op] == 0]
        heapq.heapify(ready)
        nearby = []
        while ready:
            op = heapq.heappop(ready)[1]
            nearby.append(op)
            for after in self._successors[op]:
                left[after] -= 1
                if left[after] == 0:
                    heapq.heappush(ready, (places[after], after))
        return np.array(nearby, np.int64)
