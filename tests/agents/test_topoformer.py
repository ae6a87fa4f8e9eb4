"""Topoformer: its learner, with equal parameters for equal seeds on any mesh, which learns; its policy as a method."""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from graphrl.agents.regal.network import Policy as RegalPolicy
from graphrl.agents.topoformer import learner as topoformer
from graphrl.agents.topoformer import network
from graphrl.agents.topoformer.config import PROBLEM, TopoformerConfig
from graphrl.agents.topoformer.learner import INITIAL_SCORE, LearnerState
from graphrl.agents.topoformer.network import Policy
from graphrl.costs.problem import Problem
from graphrl.envs.ordering import OrderingInstance, make_instances
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.padding import common_sizes
from graphrl.learning.learner import Learner, Metrics, on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.training.config import as_dict, parsed
from graphrl.training.config import updated as updated_settings

SMALL = TopoformerConfig(layers=1, width=8, heads=1, head_width=4, samples=4, learning_rate=0.01, warmup=0)
BIAS = ".params['policy']['priority']['Dense_1']['bias']"
ROLLOUT = dataclasses.replace(SMALL, baseline="greedy-rollout")


@functools.cache
def graphs() -> OrderingInstance:
    return make_instances(
        [layered(40 + seed, seed) for seed in range(4)]
    )  # all orders of some smaller graphs have one peak


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
    """All parameters but the bias before eq. 17: its gradient is pure rounding, which Adam scales up like any other."""
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
    state = functions.after_validation(functions.init(jax.random.key(0)), {"greedy": -20.0})
    assert same(state.baseline, state.params["policy"])
    moved = state._replace(params=jax.tree.map(lambda x: x + 1, state.params))
    assert same(functions.after_validation(moved, {"greedy": -20.5}).baseline, state.baseline)
    better = functions.after_validation(moved, {"greedy": -19.5})
    assert same(better.baseline, moved.params["policy"])
    assert float(better.score) == -19.5


@pytest.mark.slow
def test_greedy_orders_of_a_frozen_policy_are_a_baseline() -> None:
    functions = learner(ROLLOUT)
    state = functions.after_validation(functions.init(jax.random.key(0)), {"greedy": -20.0})
    first = jax.tree.map(np.array, state.baseline)
    for step in range(2):  # the second update fails if the first donated the baseline's memory
        state, metrics = functions.update(state, jax.random.key(step), graphs())
        assert 0 < float(metrics["grad_norm"]) < np.inf
    assert same(state.baseline, first)
    assert not same(state.params["policy"], first)


def test_leave_one_out_keeps_no_baseline() -> None:
    state = learner(SMALL).init(jax.random.key(0))
    assert state.baseline is None
    assert float(learner(SMALL).after_validation(state, {"greedy": 3.0}).score) == INITIAL_SCORE


@pytest.mark.slow
def test_a_network_that_is_asked_at_every_step_learns_alike() -> None:
    """Its orders are tested in test_topoformer_orders.py."""
    config = dataclasses.replace(SMALL, decoder="autoregressive", encoder="gat", samples=2)
    assert 0 < float(updated(config, 1, 1)[1]["grad_norm"]) < np.inf


def test_training_goes_on_from_a_policy(tmp_path: Path) -> None:
    params = jax.jit(functools.partial(Policy.initial, SMALL))(jax.random.key(5))
    Policy(SMALL, jax.tree.map(np.asarray, params)).save(tmp_path / "p")
    for config in (SMALL, ROLLOUT):
        state = learner(config).init(jax.random.key(0), Policy.load_params(str(tmp_path / "p"), config))
        assert jax.tree.all(jax.tree.map(np.array_equal, state.params["policy"], params))
        anew = learner(config).init(jax.random.key(0))
        assert jax.tree.map(jax.typeof, anew) == jax.tree.map(jax.typeof, state)
    with pytest.raises(ProblemError, match="has another network: encoder and sizes must be equal"):
        Policy.load_params(str(tmp_path / "p"), dataclasses.replace(SMALL, width=16))


def test_a_policy_of_priorities_starts_one_that_sees_memory(tmp_path: Path) -> None:
    """Only what is called at every step is trained then, if the rest is to keep its parameters."""
    params = jax.tree.map(np.asarray, jax.jit(functools.partial(Policy.initial, SMALL))(jax.random.key(5)))
    Policy(SMALL, params).save(tmp_path / "p")
    config = dataclasses.replace(SMALL, decoder="sequential", freeze=True)
    started = Policy.load_params(str(tmp_path / "p"), config)
    assert Policy.fits(started, config)
    assert all(same(started[name], params[name]) for name in params)
    first = jax.tree.map(np.array, started)  # the update donates its memory
    functions = learner(config)
    state, _ = functions.update(functions.init(jax.random.key(0), started), jax.random.key(1), graphs())
    after = state.params["policy"]
    changed = {name for name in after if not same(after[name], first[name])}
    assert changed == {"scale", "hidden", "features", "out"}
    with pytest.raises(ProblemError, match="has another network: encoder and sizes must be equal"):
        Policy.load_params(str(tmp_path / "p"), dataclasses.replace(config, width=16))


def test_heads_of_each_graph_and_tied_ones_come_from_the_command_line() -> None:
    def shape(*settings: str) -> tuple[int, ...]:
        """Shape of the first layer's queries: width, heads with separate parameters, width of a head."""
        config = updated_settings(SMALL, parsed(settings))
        params = jax.eval_shape(functools.partial(Policy.initial, config), jax.random.key(0))
        size: tuple[int, ...] = params["encoder"]["attention_0"]["query"]["kernel"].shape
        return size

    assert shape() == (8, 7, 4)
    assert shape("heads=2,1,1,2,1,1,4") == (8, 12, 4)
    assert shape("heads=2,1,1,2,1,1,4", "tied=true") == (8, 4, 4)
    assert shape("heads=3", "encoder=topoformer-dag", "tied=true") == (8, 3, 4)
    config = updated_settings(SMALL, parsed(["heads=2,1,1,2,0,1,4", "tied=true"]))
    assert updated_settings(SMALL, as_dict(config)) == config  # the form in which policy files store it
    with pytest.raises(ProblemError, match="heads is 'two': must be an integer"):
        shape("heads=two")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hidden": 0}, "hidden is 0: must be an integer from 1 to 256"),
        ({"freeze": True}, "freeze is True: decoder must be 'sequential', and is 'priorities'"),
        ({"layers": 0}, "layers is 0: must be an integer from 1 to 64"),
        ({"alpha": 0.0}, "alpha is 0.0: must be a number above 0"),
        ({"baseline": "mean"}, "baseline is 'mean': must be one of leave-one-out, greedy-rollout"),
        ({"heads": (1, 2)}, r"heads are \(1, 2\): must be one number or 7, one for each graph of 'topoformer'"),
        ({"heads": (1, 1, 1, 1, 1, 1, 10**9)}, "heads is 1000000000: must be at most 256"),
        ({"encoder": "rnn"}, "encoder is 'rnn': must be one of topoformer, "),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        dataclasses.replace(SMALL, **changes)
    assert dataclasses.replace(ROLLOUT, samples=1).samples == 1


@pytest.mark.slow
def test_the_trained_policy_beats_its_starting_point_on_unseen_graphs() -> None:
    """Percent below the best of 100 random orders. Untrained, greedy orders are about 15% above it; the standard error
    of the mean of 32 graphs is about 1.
    """
    config = TopoformerConfig(layers=1, width=16, samples=8, learning_rate=3e-3)
    functions = on_mesh(topoformer.learner(config), make_mesh(8, jax.devices()[:1]))
    unseen, seen = ([layered(40, first + i) for i in range(count)] for first, count in ((0, 32), (1000, 512)))
    sizes = common_sizes([*unseen, *seen])
    held_out = make_instances(unseen, sizes)

    def look() -> dict[str, float]:
        metrics = functions.evaluate(state.params, jax.random.key(1), held_out)
        return {name: float(value) for name, value in metrics.items()}

    state = functions.init(jax.random.key(0))
    before = look()
    for step in range(200):
        first = 8 * step % len(seen)
        batch = make_instances(seen[first : first + 8], sizes)
        state, _ = functions.update(state, jax.random.key(step), batch)
    after = look()
    assert after["greedy"] > before["greedy"] + 5
    assert after["sampled"] > before["sampled"] + 4
    assert after["sampled"] > after["greedy"]


CONFIG = TopoformerConfig(layers=1, width=8, heads=1, head_width=4)
GRAPH = layered(30, 1)
BUDGET = Budget(evaluations=100)


def untrained(seed: int = 0) -> Policy:
    params = jax.jit(functools.partial(Policy.initial, CONFIG))(jax.random.key(seed))
    return Policy(CONFIG, jax.tree.map(np.asarray, params), "by hand")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "policy.msgpack"
    untrained().save(path)
    return str(path)


def test_every_order_of_a_decoder_is_counted_and_none_beyond_the_budget(saved: str) -> None:
    for decode, budget, count in (("sample", BUDGET, 16), ("sample", Budget(evaluations=5), 5), ("beam", BUDGET, 16)):
        plan = find_solver(f"topoformer:decode={decode},checkpoint={saved}")(Task(GRAPH, PROBLEM, budget, 3))
        plan.check(GRAPH)
        assert (plan.method, plan.evaluations, plan.seed) == ("topoformer", count, 3)


def test_neither_padding_nor_company_changes_a_greedy_order(saved: str) -> None:
    other = layered(50, 2)
    solve, to = find_solver(f"topoformer:checkpoint={saved}"), common_sizes([GRAPH, other])
    own, padded = (solve(Task(GRAPH, PROBLEM, BUDGET, 0, sizes=sizes)) for sizes in (None, to))
    assert to != common_sizes([GRAPH])
    assert padded.order == own.order
    together = untrained().rollout(make_instances([GRAPH, other], to), "greedy")
    np.testing.assert_array_equal(together.order[0, 0, : len(GRAPH.ops)], own.decisions(GRAPH)[1])


def test_annealing_from_learned_orders_is_no_worse_than_them(saved: str) -> None:
    learned = find_solver(f"topoformer:decode=sample,checkpoint={saved}")(Task(GRAPH, PROBLEM, BUDGET, 0))
    solve = find_solver(f"topoformer+:checkpoint={saved}")
    plan, few = (solve(Task(GRAPH, PROBLEM, Budget(evaluations=count), 0)) for count in (3000, 16))
    plan.check(GRAPH)
    assert plan.method == few.method == "topoformer+"
    assert plan.evaluations > 2000
    assert plan.value <= learned.value
    assert (few.evaluations, few.order) == (16, learned.order)


def test_progress_and_ctrl_c_count_what_both_halves_took(saved: str) -> None:
    looks: list[tuple[int, float, Plan, float]] = []

    def look(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        looks.append((evaluations, seconds, plan(), value))
        if len(looks) == 3:
            raise KeyboardInterrupt

    started = time.perf_counter()
    with pytest.raises(Interrupted) as stop:
        find_solver(f"topoformer+:checkpoint={saved}")(Task(GRAPH, PROBLEM, Budget(evaluations=10**8), 4, look))
    passed = time.perf_counter() - started
    stop.value.plan.check(GRAPH)
    assert stop.value.plan.order == looks[-1][2].order
    first, _, last = looks
    assert first[0] == 16 < last[0] == stop.value.plan.evaluations
    assert first[1] < last[1] <= stop.value.plan.seconds <= passed
    for evaluations, _, plan, value in [*looks, (last[0], 0.0, stop.value.plan, last[3])]:
        assert (plan.method, plan.evaluations, plan.seed) == ("topoformer+", evaluations, 4)
        assert plan.value == pytest.approx(value)
        assert value <= first[3]


def test_wrong_options_and_problems_are_one_line(saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, fault in (
        ("decode=best", "decode is 'best': must be one of greedy, sample, beam"),
        ("samples=0", "samples is 0: must be from 1 to 4,096"),
    ):
        with pytest.raises(ProblemError, match=fault):
            find_solver(f"topoformer:{option},checkpoint={saved}")(Task(GRAPH, PROBLEM, BUDGET, 0))
    for method in ("topoformer", "topoformer+"):
        with pytest.raises(ProblemError, match="orders the ops of one device: devices must be 1, and is 2"):
            find_solver(method)(Task(GRAPH, Problem("peak_memory", 2), BUDGET, 0))
    with pytest.raises(GraphrlError, match="is 'graphrl-regal-policy' version 1: must be graphrl-topoformer-policy"):
        Policy.load(RegalPolicy.defaults / "makespan.msgpack")
    monkeypatch.setattr(Policy, "defaults", tmp_path)
    with pytest.raises(GraphrlError, match="graphrl ships no policy for peak_memory: name one, as in topoformer:"):
        find_solver("topoformer")(Task(GRAPH, PROBLEM, BUDGET, 0))


def test_one_program_serves_a_bucket(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of one bucket of ops whose numbers of rows and uses are in several buckets."""
    graphs = [layered(100, seed) for seed in range(4)]
    assert len({common_sizes([graph]) for graph in graphs}) == 4
    traced, decode = [], network.orders

    def orders(*args: Any) -> Any:
        traced.append(args)
        return decode(*args)

    monkeypatch.setattr(network, "orders", orders)
    for graph in graphs:
        find_solver(f"topoformer:checkpoint={saved}")(Task(graph, PROBLEM, BUDGET, 0))
    assert len(traced) == 1
