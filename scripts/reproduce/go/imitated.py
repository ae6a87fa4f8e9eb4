"""Policies of GO that tables train for themselves, by imitation (`graphrl/agents/go/learner.py`)."""

import functools
import time
from collections.abc import Iterable

import jax
import numpy as np

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.learner import Batch, learner
from graphrl.agents.go.network import Policy
from graphrl.learning.learner import Learner, on_mesh
from graphrl.mesh import make_mesh


def imitated(config: GoSettings, batches: Iterable[Batch], seed: int, what: str) -> Policy:
    """A policy from its initial weights on, after a step on each batch.

    Args:
      config: of the learner.
      batches: of lessons.
      seed: of the weights.
      what: it learns from, for its note.
    """
    functions, began, steps = _functions(config), time.perf_counter(), 0
    state = functions.init(jax.random.key(seed))
    for batch in batches:
        state, _ = functions.update(state, jax.random.key(steps), batch)
        steps += 1
    params = jax.tree.map(np.asarray, state.params["policy"])
    return Policy(config, params, f"{steps} steps on {what}, seed {seed}: {time.perf_counter() - began:.0f} s")


@functools.lru_cache(maxsize=1)
def _functions(config: GoSettings) -> Learner:
    return on_mesh(learner(config), make_mesh(1, jax.devices()[:1]))
