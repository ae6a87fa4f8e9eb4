"""The distribution over orders of each Topoformer decoder: exact on graphs whose orders can be enumerated."""

import functools
from typing import Any

import filled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ordering_graphs import SIZES, all_orders, exact_peak, padded_orders, small_graphs

from graphrl.agents.topoformer.config import Decoder, TopoformerConfig
from graphrl.agents.topoformer.network import initial, orders
from graphrl.decoding.rollout import Rollout
from graphrl.envs.ordering import OrderingInstance, make_instance, make_instances

GRAPHS = [graph for graph in small_graphs(40) if graph.arrays.num_ops <= 6 and len(list(all_orders(graph))) > 9][:3]
ORDERS = [padded_orders(list(all_orders(graph)), SIZES.ops) for graph in GRAPHS]
MOST = max(map(len, ORDERS))
SAMPLES = 4000
Found = tuple[Rollout, Rollout, Rollout, np.ndarray, np.ndarray]
DECODERS: tuple[Decoder, ...] = ("sequential", "priorities", "autoregressive")


@functools.cache
def batch() -> OrderingInstance:
    return make_instances(GRAPHS, SIZES)


@functools.cache
def found(decoder: Decoder) -> Found:
    """Greedy, sampled and beam orders; log-probabilities of the sampled orders and of all orders `[g, MOST]`."""
    config = TopoformerConfig(layers=1, width=8, heads=1, head_width=4, alpha=1.0, decoder=decoder)
    params = filled.drawn(
        jax.eval_shape(lambda key: initial(config, key, make_instance(GRAPHS[0], SIZES)), jax.random.key(0))
    )
    every = jnp.asarray(np.stack([np.pad(one, ((0, MOST - len(one)), (0, 0)), mode="edge") for one in ORDERS]))

    @jax.jit
    def all_of(params: Any, batch: OrderingInstance) -> Any:
        policy = orders(config, params, batch)
        drawn = policy.sample(jax.random.split(jax.random.key(1), len(GRAPHS)), SAMPLES)
        return policy.greedy(), drawn, policy.beam(32), policy.log_prob(drawn.order), policy.log_prob(every)

    made: Found = jax.tree.map(np.asarray, all_of(params, batch()))
    return made


@pytest.mark.parametrize("decoder", DECODERS)
def test_probabilities_sum_to_1_and_orders_are_drawn_as_often_as_they_are_probable(decoder: Decoder) -> None:
    _, drawn, _, again, log_probs = found(decoder)
    np.testing.assert_allclose(drawn.log_prob, again, rtol=1e-5, atol=1e-5)
    for own, values, orders_drawn in zip(ORDERS, log_probs, drawn.order, strict=True):
        expected = np.exp(values[: len(own)])
        assert expected.sum() == pytest.approx(1, abs=1e-5)
        assert np.ptp(values[: len(own)]) > 0.5  # not all are equal
        same = (orders_drawn[:, None] == own[None]).all(-1)
        assert same.sum(1).tolist() == [1] * SAMPLES
        assert np.all(np.abs(same.mean(0) - expected) < 5 * np.sqrt(expected / SAMPLES) + 2 / SAMPLES)


@pytest.mark.parametrize("decoder", DECODERS)
def test_peaks_are_exact_and_a_wide_beam_finds_the_lowest(decoder: Decoder) -> None:
    likeliest, drawn, best, _, log_probs = found(decoder)
    for g, (graph, own) in enumerate(zip(GRAPHS, ORDERS, strict=True)):
        unit = float(batch().graph.byte_unit[g])
        peaks = [exact_peak(graph, order) for order in own]
        assert best.peak[g] * unit == min(peaks)
        for rollout, order in ((likeliest, likeliest.order[g]), (best, best.order[g])):
            place = (own == order).all(1).argmax()
            assert rollout.log_prob[g] == pytest.approx(log_probs[g, place], abs=1e-5)
            assert rollout.peak[g] * unit == peaks[place]
        assert {float(peak) for peak in drawn.peak[g] * unit} <= set(map(float, peaks))
