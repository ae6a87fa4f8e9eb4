"""The graph networks and their heads: they see structure; neither padding nor the order of ops changes the outputs."""

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import applied, filled

from graphrl.envs.proposal import make_instance, observe
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.networks.base import Network, network
from graphrl.networks.encoders import (
    GraphSage,
    MessagePassing,
    NeighbourMeans,
    Neighbours,
    Recurrent,
    max_of_senders,
    neighbour_mean,
)
from graphrl.networks.heads import ChoiceLogits, GraphValue

GRAPH = regal_like(3, num_ops=20)
CHAIN = ComputationGraph(  # four ops one after the other; the last two are joined by a control edge
    "chain",
    (
        Op("a", "op", 5.0, outputs=(Tensor("t0", 4),)),
        Op("b", "op", 1.0, inputs=("t0",), outputs=(Tensor("t1", 4),)),
        Op("c", "op", 1.0, inputs=("t1",), outputs=(Tensor("t2", 4),)),
        Op("d", "op", 2.0, after=("c",)),
    ),
)
ENCODERS: dict[str, nn.Module] = {
    "messages": MessagePassing(8, 2),
    "recurrent": Recurrent(8),
    "means": NeighbourMeans(8),
}


def seen(graph: ComputationGraph, to: Sizes | None = None) -> Any:
    return jax.jit(observe)(make_instance(graph, to))


def jitted(module: nn.Module) -> Network:
    net = network(module)
    return Network(jax.jit(net.init), jax.jit(net.apply))


def larger(graph: ComputationGraph) -> Sizes:
    sizes = dataclasses.asdict(common_sizes([graph]))
    return Sizes(**{name: size + 8 for name, size in sizes.items()})


@pytest.mark.parametrize("name", ENCODERS)
def test_neither_padding_nor_the_order_of_ops_changes_anything(name: str) -> None:
    """Ops are renumbered once: the recurrent network reads ops of equal depth in the order of their numbers."""
    net, place = jitted(ENCODERS[name]), [2, 0, 3, 1]
    shuffled = dataclasses.replace(CHAIN, ops=tuple(CHAIN.ops[i] for i in place))
    params = net.init(jax.random.key(0), seen(CHAIN))
    plain, padded, mixed = (
        np.asarray(net.apply(params, each))[:4] for each in (seen(CHAIN), seen(CHAIN, larger(CHAIN)), seen(shuffled))
    )
    assert plain.shape == (4, 8)
    assert plain.std() > 0
    np.testing.assert_allclose(padded, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mixed, plain[place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounds", [0, 2])
def test_messages_reach_as_far_as_there_are_rounds_in_both_directions(rounds: int) -> None:
    net = jitted(MessagePassing(8, rounds))
    observation = seen(CHAIN)
    params = net.init(jax.random.key(1), observation)

    def reach(op: int) -> list[bool]:
        """Flags of the ops that the features of `op` influence."""

        def of(features: jax.Array) -> jax.Array:
            nodes = observation.graph.nodes.at[op].set(features)
            return net.apply(params, observation._replace(graph=observation.graph._replace(nodes=nodes)))[:4]

        slope = jax.jit(jax.jacobian(of))(observation.graph.nodes[op])
        return (np.abs(np.asarray(slope)).sum((1, 2)) > 0).tolist()

    assert reach(0) == [i <= rounds for i in range(4)]
    assert reach(3) == [3 - i <= rounds for i in range(4)]


def policy(choices: tuple[int, ...], preferred: tuple[int, ...], shared: bool) -> Network:
    return jitted(ChoiceLogits(MessagePassing(8, 1), 8, choices, preferred, 2.0, shared))


@pytest.mark.parametrize(
    ("choices", "preferred", "shared"),
    [((3, 16), (5,), True), ((3, 2, 4), (1, 2), False)],
)
def test_the_untrained_policy_prefers_what_it_is_told_to(
    choices: tuple[int, ...], preferred: tuple[int, ...], shared: bool
) -> None:
    net = policy(choices, preferred, shared)
    observation = seen(GRAPH)
    logits = np.asarray(net.apply(net.init(jax.random.key(0), observation), observation))
    assert logits.shape == (observation.mask.shape[0], *choices)
    best = logits.argmax(-1).reshape(logits.shape[0], choices[0], -1)
    assert (best == np.asarray(preferred)).all()
    expected = np.zeros(choices[-1])
    expected[preferred[0]] = 2.0
    np.testing.assert_allclose(logits[0].reshape(-1, choices[-1])[0], expected, atol=0.5)


def test_the_value_of_a_graph_does_not_depend_on_padding_but_on_its_ops() -> None:
    net = jitted(GraphValue(MessagePassing(8, 2), 8, typical=-1.0))
    params = net.init(jax.random.key(0), seen(GRAPH))
    value = net.apply(params, seen(GRAPH))
    assert value.shape == ()
    assert -1.5 < float(value) < -0.5
    assert float(net.apply(params, seen(GRAPH, larger(GRAPH)))) == pytest.approx(float(value), rel=1e-5)
    assert float(net.apply(params, seen(regal_like(4, num_ops=20)))) != float(value)


def test_networks_are_mapped_over_parameters_and_graphs_and_compiled_once() -> None:
    net = policy((3, 16), (0,), True)
    observation = seen(GRAPH)
    population = jax.vmap(net.init, (0, None))(jax.random.split(jax.random.key(0), 2), observation)
    apply = jax.jit(chex.assert_max_traces(lambda params, seen: jax.vmap(net.apply, (0, None))(params, seen), n=1))
    both = apply(population, observation)
    apply(population, seen(GRAPH))
    alone = [net.apply(jax.tree.map(lambda x, i=i: x[i], population), observation) for i in range(2)]
    np.testing.assert_allclose(np.asarray(both), np.stack(alone), rtol=1e-4, atol=1e-5)
    assert not np.array_equal(alone[0], alone[1])


def test_gradients_are_finite_also_where_nothing_is_joined() -> None:
    graph = ComputationGraph("apart", (Op("a", "op", 1.0), Op("b", "op", 2.0)))
    observation = seen(graph)
    for module in ENCODERS.values():
        net = jitted(module)
        params = net.init(jax.random.key(0), observation)
        slope = jax.jit(jax.grad(lambda p, net=net: jnp.square(net.apply(p, observation)[:2]).sum()))(params)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slope))


def test_means_of_the_neighbours_of_a_diamond() -> None:
    senders, receivers = jnp.array([0, 0, 1, 2, 4]), jnp.array([1, 2, 3, 3, 4])  # the last is padding
    values = jnp.array([[1.0], [2.0], [4.0], [8.0]])
    np.testing.assert_array_equal(neighbour_mean(values, senders, receivers)[:, 0], [0, 1, 1, 3])
    np.testing.assert_array_equal(neighbour_mean(values, receivers, senders)[:, 0], [3, 8, 8, 0])


# GraphSAGE in GO's variant

SENDERS, RECEIVERS = (jnp.array(ends, jnp.int32) for ends in ([0, 1, 2, 5], [1, 2, 3, 5]))  # 0 -> 1 -> 2 -> 3, 4 alone
NODES = jax.random.normal(jax.random.key(0), (5, 3))


def test_largest_of_the_senders_and_nothing_below_zero_where_there_are_none() -> None:
    values = jnp.array([[0.1, 0.9], [0.5, 0.2], [0.3, 0.3]])
    out = max_of_senders(values, jnp.array([0, 1, 0, 3]), jnp.array([2, 2, 1, 3]))
    np.testing.assert_allclose(np.asarray(out), np.array([[0, 0], [0.1, 0.9], [0.5, 0.9]]))


@functools.cache
def outputs(rounds: int, neighbours: Neighbours) -> tuple[Any, Any]:
    """The jitted module, and its parameters."""
    module = GraphSage(16, rounds, neighbours)
    params = filled(module, NODES, SENDERS, RECEIVERS)
    return jax.jit(functools.partial(applied, module, params)), params


def test_equations_three_and_four() -> None:
    apply, params = outputs(1, "together")
    out = np.asarray(apply(NODES, SENDERS, RECEIVERS))

    def affine(name: str, x: Any) -> Any:
        return x @ params[name]["kernel"] + params[name]["bias"]

    def normed(name: str, x: Any) -> Any:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return scaled * params[name]["scale"] + params[name]["bias"]

    h = normed("norm_in", affine("node_in", np.asarray(NODES)))
    messages = 1 / (1 + np.exp(-affine("pool_0_0", h)))
    pooled = np.stack([messages[[1]].max(0), messages[[0, 2]].max(0), messages[[1, 3]].max(0), messages[2], 0 * h[4]])
    expected = normed("norm_0", np.maximum(affine("update_0", np.concatenate([h, pooled], 1)), 0))
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("neighbours", ["together", "apart"])
def test_it_sees_as_far_as_there_are_rounds_in_both_directions(neighbours: Neighbours) -> None:
    apply, _ = outputs(2, neighbours)
    base = apply(NODES, SENDERS, RECEIVERS)
    for op, distance in ((0, [0, 1, 2, 3, 9]), (3, [3, 2, 1, 0, 9]), (4, [9, 9, 9, 9, 0])):
        # a single change may move no maximum: of several, some do
        others = [NODES.at[op, feature].add(by) for feature in range(3) for by in (-20.0, 20.0)]
        moved = [apply(nodes, SENDERS, RECEIVERS) - base for nodes in others]
        reached = np.abs(np.asarray(moved)).sum((0, 2)) > 1e-6
        assert reached.tolist() == [hops <= 2 for hops in distance]


def test_directions_are_told_apart_where_neighbours_are() -> None:
    for neighbours, same in (("together", True), ("apart", False)):
        apply, _ = outputs(2, neighbours)
        forward, backward = apply(NODES, SENDERS, RECEIVERS), apply(NODES, RECEIVERS, SENDERS)
        assert np.allclose(forward, backward, atol=1e-5) == same


def test_gradients_are_finite_and_reach_every_weight() -> None:
    module = GraphSage(16, 2)
    _, params = outputs(2, "apart")

    def loss(params: Any) -> jax.Array:
        return jnp.square(applied(module, params, NODES, SENDERS, RECEIVERS) + 0.1).sum()

    slope = jax.jit(jax.grad(loss))(params)
    for leaf in jax.tree.leaves(slope):
        assert bool(jnp.isfinite(leaf).all())
        assert float(jnp.abs(leaf).max()) > 0
