"""What XLA makes of the sampling loop: state is updated in place (see test_compiled_loops.py of costs)."""

import jax
import numpy as np
from compiled_modules import GRAPHS, LANES, L, Module, padded

from graphrl.decoding.rollout import sampled_orders


def test_a_step_writes_its_state_in_place() -> None:
    graph, samples = padded(), LANES
    n = graph.sizes.ops
    priorities, keys = np.zeros((GRAPHS, n), np.float32), jax.random.split(jax.random.key(0), GRAPHS)
    run = jax.jit(lambda graph, y, keys: sampled_orders(graph, y, keys, samples))
    module = Module(run.lower(graph, priorities, keys))
    (loop,) = module.loops(f"s32[{(n + 1) * L}]")
    assert module.made_anew(loop, (n + 1) // 4 * L) == []
