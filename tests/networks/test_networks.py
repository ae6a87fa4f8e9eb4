"""The graph networks: they see structure, padding changes nothing, order of ops changes nothing."""

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphrl.envs.proposal import instance, observe
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.networks.base import Network, network
from graphrl.networks.encoders import MessagePassing, Recurrent
from graphrl.networks.heads import ChoiceLogits, GraphValue

GRAPH = regal_like(3, num_ops=20)
ENCODERS: dict[str, nn.Module] = {
    "T=0": MessagePassing(8, 0),
    "T=1": MessagePassing(8, 1),
    "T=3": MessagePassing(8, 3),
    "recurrent": Recurrent(8),
}


def seen(graph: ComputationGraph, to: Sizes | None = None) -> Any:
    return jax.jit(observe)(instance(graph, to))


def jitted(module: nn.Module) -> Network:
    net = network(module)
    return Network(jax.jit(net.init), jax.jit(net.apply))


def larger(graph: ComputationGraph) -> Sizes:
    sizes = dataclasses.asdict(common_sizes([graph]))
    return Sizes(**{name: size + 8 for name, size in sizes.items()})


@functools.cache
def outputs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the graph in its own bucket and in a larger one: rows of the real ops."""
    net, n = jitted(ENCODERS[name]), len(GRAPH.ops)
    params = net.init(jax.random.key(0), seen(GRAPH))
    small, large = (np.asarray(net.apply(params, seen(GRAPH, to)))[:n] for to in (None, larger(GRAPH)))
    return small, large


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_changes_no_real_op(name: str) -> None:
    small, large = outputs(name)
    assert small.shape == (len(GRAPH.ops), 8)
    assert np.isfinite(small).all()
    np.testing.assert_allclose(small, large, rtol=1e-4, atol=1e-5)


def chain(first_seconds: float) -> ComputationGraph:
    """Four ops one after the other; the last two are joined by a control edge."""
    tensors = [Tensor(f"t{i}", 4) for i in range(3)]
    return ComputationGraph(
        "chain",
        (
            Op("a", "op", first_seconds, outputs=(tensors[0],)),
            Op("b", "op", 1.0, inputs=("t0",), outputs=(tensors[1],)),
            Op("c", "op", 1.0, inputs=("t1",), outputs=(tensors[2],)),
            Op("d", "op", 2.0, after=("c",)),
        ),
    )


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_messages_reach_as_far_as_there_are_rounds_in_both_directions(rounds: int) -> None:
    net = jitted(MessagePassing(8, rounds))
    observation = seen(chain(1.0))
    params = net.init(jax.random.key(1), observation)

    def reach(op: int) -> list[bool]:
        """Which ops the features of `op` have an influence on."""

        def of(features: jax.Array) -> jax.Array:
            nodes = observation.graph.nodes.at[op].set(features)
            return net.apply(params, observation._replace(graph=observation.graph._replace(nodes=nodes)))[:4]

        slope = jax.jit(jax.jacobian(of))(observation.graph.nodes[op])
        return (np.abs(np.asarray(slope)).sum((1, 2)) > 0).tolist()

    assert reach(0) == [i <= rounds for i in range(4)]
    assert reach(3) == [3 - i <= rounds for i in range(4)]


def test_the_sequence_is_read_in_both_directions_and_in_topological_order() -> None:
    graph = chain(5.0)
    shuffled = dataclasses.replace(graph, ops=tuple(graph.ops[i] for i in (2, 0, 3, 1)))
    net = jitted(Recurrent(8))
    params = net.init(jax.random.key(0), seen(graph))
    straight, mixed = (np.asarray(net.apply(params, seen(g)))[:4] for g in (graph, shuffled))
    np.testing.assert_allclose(straight[[2, 0, 3, 1]], mixed, rtol=1e-4, atol=1e-6)


def policy(choices: tuple[int, ...], preferred: tuple[int, ...], shared: bool) -> Network:
    head = ChoiceLogits(MessagePassing(8, 1), 8, choices, lambda _: jnp.asarray(preferred, jnp.int32), 2.0, shared)
    return jitted(head)


@pytest.mark.parametrize(
    ("choices", "preferred", "shared"),
    [((3, 16), (5,), True), ((3, 16), (5,), False), ((3, 2, 4), (1, 2), False), ((5, 2, 4), (0, 3), True)],
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
