"""Guide of a search: labels to start from and nodes to move; and the dual after some rounds, from which one is made."""

import dataclasses
from typing import NamedTuple

import numpy as np

from graphrl.sharding import messages as dual
from graphrl.sharding import moves
from graphrl.sharding.multipliers import Ascent
from graphrl.sharding.rules import Reduced


@dataclasses.dataclass(frozen=True)
class Guide:
    """Labels to start a search from, and nodes at which trees are moved.

    Attributes:
      labels: `[k, g] int64` labels of the reduced problem, feasible or not; k is at least 1.
      nodes: `[r] int64` nodes of the full problem, from which random trees grow with equal probability; empty for all.
    """

    labels: np.ndarray
    nodes: np.ndarray

    def roots(self, reduced: Reduced) -> np.ndarray:
        """Returns the groups of `nodes` in a reduced problem; empty for all groups."""
        groups = reduced.root[self.nodes]
        return groups[(groups >= 0) & (groups < len(reduced.sizes))]


def place_best(model: moves.Model, state: moves.State, labels: np.ndarray) -> None:
    """Places all of `[k, g]` labels, and last those of the least cost with penalties for bytes above the room."""
    energies = []
    for label in labels:
        state.label[:] = label
        moves.place(model, state)
        watched = int(state.numbers[moves.WATCHED])
        over = np.maximum(state.held[:watched], 0)
        energies.append(float(state.numbers[moves.COST]) + float(state.weight[:watched] @ over))
    state.label[:] = labels[int(np.argmin(energies))]
    moves.place(model, state)


class Settled(NamedTuple):
    """The dual of a reduced problem after some rounds, without moves of trees.

    Attributes:
      messages: messages at the best multipliers, and their labels.
      multipliers: `[watched] float64`, cost per byte.
      state: places the messages' labels.
      best: `[g] int64`, the best feasible labels of all rounds; those of the messages without one.
      cost: of `best`, without the reduced problem's constant.
    """

    messages: dual.Messages
    multipliers: np.ndarray
    state: moves.State
    best: np.ndarray
    cost: int


def settle(reduced: Reduced, rounds: int) -> Settled:
    """Raises the bound of a reduced problem of at least one group for a number of rounds: the same on every machine."""
    model = moves.model_of(reduced)
    state = moves.start(model, moves.least_labels(model), 0.0, 0)
    ascent = Ascent(reduced, model, float(max(1, state.numbers[moves.COST])))
    for _ in range(rounds):
        _place(model, state, ascent, ascent.step())
    sent = ascent.messages
    dual.price(model, sent, ascent.multipliers)
    for forward in (True, False):
        dual.sweep(model, sent, forward)
    _place(model, state, ascent, sent.label)
    cost = int(state.numbers[moves.BEST])
    best = state.best if cost >= 0 else sent.label
    multipliers = ascent.multipliers[state.watched[: state.numbers[moves.WATCHED]]]
    return Settled(sent, multipliers, state, best.copy(), cost if cost >= 0 else int(state.numbers[moves.COST]))


def _place(model: moves.Model, state: moves.State, ascent: Ascent, label: np.ndarray) -> None:
    """Places `[g]` labels; the time of the least multiplier gives way if too many are watched."""
    watched = state.watched[: state.numbers[moves.WATCHED]]
    state.weight[: len(watched)] = ascent.multipliers[watched]
    state.label[:] = label
    moves.place(model, state)
