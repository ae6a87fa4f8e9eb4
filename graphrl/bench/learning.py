"""What is timed of learning: updates of Topoformer's policy, as `graphrl train topoformer` makes them."""

import time
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, NamedSharding

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.learner import learner
from graphrl.bench.programs import BY_GRAPH
from graphrl.bench.timing import Program, timed
from graphrl.envs.ordering.instance import instances
from graphrl.graphs.graph import ComputationGraph
from graphrl.learning.spread import on_mesh

CONFIG = TopoformerConfig()  # the default: what trained the policy that the package ships


def learning(graphs: Sequence[ComputationGraph], mesh: Mesh, seed: int) -> Program:
    """Updates on the same batch, over and over, its graphs spread over the mesh.

    A batch is not made anew: in training, threads make the next ones while the device learns from this one.
    """
    functions, key = on_mesh(learner(CONFIG), mesh), jax.random.key(seed)
    batch = jax.device_put(instances(graphs), NamedSharding(mesh, BY_GRAPH))
    state = functions.init(key)
    started = time.perf_counter()
    state = jax.block_until_ready(functions.update(state, key, batch)[0])
    compile_s = time.perf_counter() - started

    def work(runs: int) -> int:
        nonlocal state
        for _ in range(runs):
            state = jax.block_until_ready(functions.update(state, key, batch)[0])
        return runs * len(graphs) * CONFIG.samples

    return Program(timed(work), compile_s)
