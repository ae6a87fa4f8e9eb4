"""A placement of all ops, from what both networks choose, and how likely it was."""

from typing import Any

import jax
import jax.numpy as jnp

from graphrl.agents.hdp.config import HdpConfig
from graphrl.agents.hdp.instance import Instance
from graphrl.agents.hdp.network import Draw, Grouper, Placer, choose
from graphrl.learning import reinforce

Params = dict[str, Any]


def init(config: HdpConfig, key: jax.Array, task: Instance) -> Params:
    """New parameters of both networks."""
    of_grouper, of_placer, choice = jax.random.split(key, 3)
    grouper, placer = _networks(config, task)
    draw = Draw(jnp.float32(0), jnp.asarray(True))
    groups = jnp.zeros((grouper.groups, _width(task, grouper.groups)))
    return {
        "grouper": grouper.init(of_grouper, jnp.asarray(task.features))["params"],
        "placer": placer.init(of_placer, groups, choice, draw)["params"],
    }


def play(config: HdpConfig, params: Params, key: jax.Array, task: Instance, draw: Draw) -> tuple[jax.Array, jax.Array]:
    """The log-probability of a placement, `[]` float32, and the placement, `[n]` int32."""
    of_grouper, of_placer = jax.random.split(key)
    grouper, placer = _networks(config, task)
    logits: Any = grouper.apply({"params": params["grouper"]}, jnp.asarray(task.features))
    group, logits = choose(of_grouper, logits, draw._replace(is_sampled=jnp.asarray(True)))
    total = reinforce.log_prob(logits, group, task.decides)
    group = group[task.leader]
    embedded, used = _embedded(task, group, grouper.groups)
    placed: Any = placer.apply({"params": params["placer"]}, embedded, of_placer, draw)
    device, logits = placed
    return total + reinforce.log_prob(logits, device, used), device[group]


def _networks(config: HdpConfig, task: Instance) -> tuple[Grouper, Placer]:
    devices = task.problem.devices
    return Grouper(config.grouper, config.groups_for(devices)), Placer(config, devices)


def _width(task: Instance, groups: int) -> int:
    return task.features.shape[1] + 1 + groups


def _embedded(task: Instance, group: jax.Array, groups: int) -> tuple[jax.Array, jax.Array]:
    """What the placer reads of k groups: their ops' mean features, their share of the ops, and which groups read them;
    `[k, G]` float32. And which have ops, `[k]` bool.
    """
    graph = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], task.graph)
    n = graph.sizes.ops
    real = jnp.arange(n, dtype=jnp.int32) < graph.num_ops
    counts = jnp.zeros(groups).at[group].add(real.astype(jnp.float32))
    sums = jnp.zeros((groups, task.features.shape[1])).at[group].add(jnp.asarray(task.features))
    share = counts[:, None] / jnp.maximum(graph.num_ops, 1).astype(jnp.float32)
    writer = group[graph.producer[jnp.minimum(graph.use_tensor, graph.sizes.tensors - 1)]]
    pair = jnp.where(graph.use_op < n, writer * groups + group[jnp.minimum(graph.use_op, n - 1)], groups**2)
    read = jnp.zeros(groups**2).at[pair].set(1.0, mode="drop").reshape(groups, groups)
    return jnp.concatenate([sums / jnp.maximum(counts, 1.0)[:, None], share, read], 1), counts > 0
