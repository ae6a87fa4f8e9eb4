"""Topoformer's learner: the gradient is REINFORCE's, equal seeds give equal parameters on any mesh, its baseline."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from graphrl.agents.topoformer import learner as topoformer
from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.learner import LOWEST, LearnerState
from graphrl.agents.topoformer.network import Policy, orders
from graphrl.decoding.rollout import Rollout
from graphrl.envs.ordering import OrderingParams, instances
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.learning.learner import Learner, Metrics, on_mesh
from graphrl.mesh import make_mesh
from graphrl.training.config import as_dict, parsed
from graphrl.training.config import updated as updated_settings

SMALL = TopoformerConfig(layers=1, width=8, heads=1, head_width=4, samples=4, learning_rate=0.01, warmup=0)
BIAS = ".params['policy']['priority']['Dense_1']['bias']"
ROLLOUT = dataclasses.replace(SMALL, baseline="greedy-rollout")


@functools.cache
def graphs() -> OrderingParams:
    return instances([layered(40 + seed, seed) for seed in range(4)])  # of fewer ops some have but one peak


@functools.cache
def learner(config: TopoformerConfig, devices: int = 1) -> Learner:
    return on_mesh(topoformer.learner(config), make_mesh(4, jax.devices()[:devices]))


def updated(config: TopoformerConfig, devices: int, steps: int) -> tuple[LearnerState, Metrics]:
    """The state after some updates, and the last metrics."""
    functions, metrics = learner(config, devices), dict[str, jax.Array]()
    state = functions.init(jax.random.key(0))
    for step in range(steps):
        state, metrics = functions.update(state, jax.random.fold_in(jax.random.key(1), step), graphs())
    return state, metrics


def leaves(state: LearnerState) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def test_one_and_two_devices_give_the_same_parameters() -> None:
    """All but the bias before eq. 17, whose gradient is nothing but rounding, which Adam makes as large as any."""
    one, two = updated(SMALL, 1, 2), updated(SMALL, 2, 2)
    assert int(one[0].step) == 2
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one[0]), leaves(two[0]), strict=True):
        if jax.tree_util.keystr(path) != BIAS:
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)
    assert {name: float(value) for name, value in one[1].items()} == pytest.approx(
        {name: float(value) for name, value in two[1].items()}, rel=1e-3, abs=1e-4
    )


def same(a: Any, b: Any) -> bool:
    return bool(jax.tree.all(jax.tree.map(np.array_equal, a, b)))


def test_the_baseline_stands_still_until_a_better_policy_is_found() -> None:
    functions = learner(ROLLOUT)
    state = functions.validated(functions.init(jax.random.key(0)), {"greedy": -20.0})
    assert same(state.baseline, state.params["policy"])
    moved = state._replace(params=jax.tree.map(lambda x: x + 1, state.params))
    assert same(functions.validated(moved, {"greedy": -20.5}).baseline, state.baseline)
    better = functions.validated(moved, {"greedy": -19.5})
    assert same(better.baseline, moved.params["policy"])
    assert float(better.score) == -19.5


@pytest.mark.slow
def test_greedy_orders_of_a_frozen_policy_are_a_baseline() -> None:
    functions = learner(ROLLOUT)
    state = functions.validated(functions.init(jax.random.key(0)), {"greedy": -20.0})
    first = jax.tree.map(np.array, state.baseline)
    for step in range(2):  # the second update would find that the first gave away the baseline's memory
        state, metrics = functions.update(state, jax.random.key(step), graphs())
        assert 0 < float(metrics["gradient_norm"]) < np.inf
    assert same(state.baseline, first)
    assert not same(state.params["policy"], first)


def test_leave_one_out_keeps_no_baseline() -> None:
    state = learner(SMALL).init(jax.random.key(0))
    assert state.baseline is None
    assert float(learner(SMALL).validated(state, {"greedy": 3.0}).score) == LOWEST


@pytest.mark.slow
def test_a_network_that_is_asked_at_every_step_learns_alike() -> None:
    config = dataclasses.replace(SMALL, decoder="autoregressive", encoder="gat", samples=2)
    state, metrics = updated(config, 1, 1)
    assert 0 < float(metrics["gradient_norm"]) < np.inf

    @jax.jit
    def played(params: Any) -> tuple[Rollout, Rollout, jax.Array]:
        policy = orders(config, params, graphs())
        drawn = policy.sample(jax.random.split(jax.random.key(0), 4), 2)
        return drawn, policy.greedy(), policy.log_prob(drawn.order)

    drawn, likeliest, log_prob = played(state.params["policy"])
    assert (drawn.order.shape, likeliest.order.shape) == ((4, 2, 44), (4, 44))
    np.testing.assert_allclose(log_prob, drawn.log_prob, rtol=1e-4, atol=1e-4)


def test_training_goes_on_from_a_policy(tmp_path: Path) -> None:
    params = jax.jit(functools.partial(Policy.initial, SMALL))(jax.random.key(5))
    Policy(SMALL, jax.tree.map(np.asarray, params)).save(tmp_path / "p")
    for config in (SMALL, ROLLOUT):
        state = learner(config).init(jax.random.key(0), Policy.start(str(tmp_path / "p"), config))
        assert jax.tree.all(jax.tree.map(np.array_equal, state.params["policy"], params))
        anew = learner(config).init(jax.random.key(0))
        assert jax.tree.map(jax.typeof, anew) == jax.tree.map(jax.typeof, state)
    with pytest.raises(ProblemError, match="has another network: encoder and sizes must be equal"):
        Policy.start(str(tmp_path / "p"), dataclasses.replace(SMALL, width=16))


def test_heads_of_each_graph_and_tied_ones_come_from_the_command_line() -> None:
    def shape(*settings: str) -> tuple[int, ...]:
        """Of the first layer's queries: width, heads that have parameters of their own, width of a head."""
        config = updated_settings(SMALL, parsed(settings))
        params = jax.eval_shape(functools.partial(Policy.initial, config), jax.random.key(0))
        size: tuple[int, ...] = params["encoder"]["attention_0"]["query"]["kernel"].shape
        return size

    assert shape() == (8, 7, 4)
    assert shape("heads=2,1,1,2,1,1,4") == (8, 12, 4)
    assert shape("heads=2,1,1,2,1,1,4", "tied=true") == (8, 4, 4)
    assert shape("heads=3", "encoder=topoformer-dag", "tied=true") == (8, 3, 4)
    config = updated_settings(SMALL, parsed(["heads=2,1,1,2,0,1,4", "tied=true"]))
    assert updated_settings(SMALL, as_dict(config)) == config  # as files of policies hold it
    with pytest.raises(ProblemError, match="heads is 'two': must be an integer"):
        shape("heads=two")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"layers": 0}, "layers is 0: must be an integer from 1 to 64"),
        ({"samples": 1}, "samples is 1: must be an integer from 2 to 4,096"),
        ({"alpha": 0.0}, "alpha is 0.0: must be a number above 0"),
        ({"baseline": "mean"}, "baseline is 'mean': must be one of leave-one-out, greedy-rollout"),
        ({"heads": 0}, "heads is 0: must be an integer from 1 to 256"),
        ({"heads": (1, 2)}, r"heads are \(1, 2\): must be one number or 7, one for each graph of 'topoformer'"),
        ({"heads": (1, 1, 1, 1, 1, 1, -1)}, "heads is -1: must be at least 0"),
        ({"heads": (1, 1, 1, 1, 1, 1, 10**9)}, "heads is 1000000000: must be at most 256"),
        ({"encoder": "rnn"}, "encoder is 'rnn': must be one of topoformer, "),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        dataclasses.replace(SMALL, **changes)
    assert dataclasses.replace(ROLLOUT, samples=1).samples == 1
