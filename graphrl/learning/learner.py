"""What a learner is: pure functions on states, which `spread.on_mesh` compiles for the devices of a mesh."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

Batch = Any  # pytree of arrays, leading axis g (graphs) on each
Metrics = dict[str, jax.Array]  # [] float32 each, means over the graphs of a batch, the same on all devices


class LearnerState(NamedTuple):
    """All that training changes: a pytree of arrays, no typed keys among them. A learner's own may have more fields."""

    params: dict[str, Any]  # of the networks, by name; those of "policy" are what a trained agent plays
    optimiser: Any
    step: jax.Array  # [] int32, updates made


class Learner(NamedTuple):
    """An agent's way to learn. Every random number comes from the keys, so that equal seeds give equal parameters.

    `update` and `evaluate` are for one device's share of the batch: state, params and key are the same on every device,
    and so must be what they give, by `learning.spread`'s means and by the sum of all devices' gradients.

    Attributes:
      init: (key, policy) -> the state before training; `policy` are parameters that its policy has, None for new ones.
      update: (state, key, batch) -> the state after one step of learning, and what to record. The key is another for
        each update; the old state may be donated.
      evaluate: (params, key, batch) -> how good the parameters of a state are on held-out graphs.
      score: the metric of `evaluate` that is to be as large as possible: it chooses the best checkpoint.
      validated: (state, means) -> the state to go on with once the held-out graphs were looked at, with the means of
        `evaluate` by name: where a learner keeps what changes only when they say so, as a frozen baseline. Not jitted.
    """

    init: Callable[..., Any]
    update: Callable[[Any, jax.Array, Batch], tuple[Any, Metrics]]
    evaluate: Callable[[Any, jax.Array, Batch], Metrics]
    score: str
    validated: Callable[[Any, Mapping[str, float]], Any] = lambda state, means: state
