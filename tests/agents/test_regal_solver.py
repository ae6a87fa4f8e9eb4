"""REGAL's policy as a method: the list schedule that it starts around, the search's proposals, files, refusals."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_graphs import random_dag

from graphrl.agents.regal.config import Hint, RegalConfig
from graphrl.agents.regal.network import HintPolicy, Policy
from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem, Transfer
from graphrl.envs.proposal import CodingName, coding, hint, make_instance
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.features import NODE_FEATURES, padded_features
from graphrl.graphs.padding import common_sizes
from graphrl.methods import digest, find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.brkga import UNIFORM
from graphrl.solvers.chromosomes.brkga_solver import evolve, solve
from graphrl.solvers.rules.list_scheduling import quick_schedule, schedule

CONFIG = RegalConfig(rounds=1, width=8, placement="independent")
GRAPH = regal_like(1, num_ops=15)
PROBLEM = Problem("makespan", 2)


def untrained(config: RegalConfig = CONFIG, preferred: int = 0) -> Policy:
    """A policy that chooses option `preferred` everywhere (0 is the uniform of "moments")."""
    params = Policy.initial(config, jax.random.key(0))
    last = params["choices"]["Dense_1"]
    bias = np.zeros((config.problem.devices + 1, 16), np.float32)
    bias[:, preferred] = 100.0  # no two samples are equal
    last["bias"] = bias.reshape(-1)
    return Policy(config, jax.tree.map(np.asarray, params), "by hand")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "policy.msgpack"
    untrained().save(path)
    return str(path)


def test_proposals_are_the_policys_choices() -> None:
    distributions, sizes = coding("moments"), common_sizes([GRAPH])
    choice = np.asarray(untrained(preferred=3).propose(GRAPH, sizes, 0).choice)
    learned, n = (PROBLEM.devices + 1) * sizes.ops, len(GRAPH.ops)
    assert choice.shape == (learned + PROBLEM.devices * sizes.tensors, 1)
    assert (choice[:learned].reshape(-1, sizes.ops)[:, :n] == 3).all()
    assert (choice[learned:] == UNIFORM).all()
    assert (distributions.alpha[3], distributions.beta[3]) != (1.0, 1.0)
    assert (np.asarray(untrained().propose(GRAPH, sizes, 0).choice) == UNIFORM).all()


def test_the_untrained_policy_finds_what_standard_brkga_finds(saved: str) -> None:
    budget = Budget(evaluations=400)
    plain, learned = (
        find_solver(name)(Task(GRAPH, PROBLEM, budget, 3)) for name in ("brkga", f"regal:checkpoint={saved}")
    )
    assert (learned.order, learned.evaluations) == (plain.order, 400)
    assert (plain.method, learned.method) == ("brkga", "regal")


def test_padding_changes_no_result(saved: str) -> None:
    solve, budget = find_solver(f"regal:checkpoint={saved}"), Budget(evaluations=160)
    to = common_sizes([GRAPH, regal_like(2, num_ops=30)])
    own, padded = (solve(Task(GRAPH, PROBLEM, budget, 3, sizes=sizes)) for sizes in (None, to))
    assert to != common_sizes([GRAPH])
    assert padded.order == own.order


def test_a_policy_is_read_once_until_its_file_changes(saved: str) -> None:
    first = Policy.load(saved)
    assert Policy.load(saved) is first
    untrained(preferred=3).save(saved)
    assert Policy.load(saved) is not first


def test_a_digest_is_of_the_content(saved: str, tmp_path: Path) -> None:
    method, before = f"regal:checkpoint={saved}", digest(f"regal:checkpoint={saved}", PROBLEM)
    assert len(before) == 16
    untrained().save(tmp_path / "copy")
    assert digest(f"idrs:checkpoint={tmp_path / 'copy'}", PROBLEM) == before
    untrained(preferred=3).save(saved)
    assert digest(method, PROBLEM) != before
    assert digest("brkga", PROBLEM) == digest(f"regal:checkpoint={tmp_path / 'none'}", PROBLEM) == ""


def test_warm_starts_are_never_worse_than_the_plans_they_start_from(saved: str) -> None:
    best = min(
        find_solver(name)(Task(GRAPH, PROBLEM, Budget(evaluations=1), 0)).value for name in ("list", "hlfet", "etf")
    )
    plan = find_solver("regal+")(Task(GRAPH, PROBLEM, Budget(evaluations=80), 0))
    assert plan.method == "regal+"
    assert plan.value <= best


def test_a_method_plays_policies_of_its_kind_alone(saved: str, tmp_path: Path) -> None:
    path = tmp_path / "hinted.msgpack"
    hinted = untrained(dataclasses.replace(CONFIG, hint="list"))
    hinted.save(path)
    task = Task(GRAPH, PROBLEM, Budget(evaluations=80))
    for method, file in (
        ("regal", path),
        ("idrs", path),
        ("regal-hint", saved),
        ("idrs-hint", saved),
        ("regal+", saved),
    ):
        other = "regal-hint" if file == path else "regal"
        with pytest.raises(
            ProblemError, match=f"method '{re.escape(method)}' has a policy with .*; method {other} is for"
        ):
            find_solver(f"{method}:checkpoint={file}")(task)
    assert find_solver(f"regal-hint:checkpoint={path}")(task).method == "regal-hint"
    assert digest(f"regal+:checkpoint={path}", PROBLEM) == hinted.digest != digest("regal-hint", PROBLEM)


def test_idrs_is_the_best_of_samples(saved: str) -> None:
    solve = find_solver(f"idrs:checkpoint={saved}")
    values = [solve(Task(GRAPH, PROBLEM, Budget(evaluations=count), 0)).value for count in (80, 160, 800)]
    assert values == sorted(values, reverse=True)
    searched = find_solver(f"regal:checkpoint={saved}")(Task(GRAPH, PROBLEM, Budget(evaluations=800), 0))
    assert searched.value <= values[-1]


PROBLEMS = (
    Problem("makespan", 2),
    Problem("makespan", 3, "link", latency=0.5),
    Problem("peak_memory", 2),
    Problem("makespan", 2, memory_limit=400),
    Problem("peak_memory", 1),
)
GRAPH = regal_like(1, num_ops=15)
OPS = len(GRAPH.ops)  # with a source and a sink
SHAPES = coding("shapes")
MEANS = np.array(SHAPES.alpha) / (np.array(SHAPES.alpha) + np.array(SHAPES.beta))


def policy(**changes: object) -> Policy:
    config = dataclasses.replace(HintPolicy.settings(), rounds=1, width=8, **changes)  # type: ignore[arg-type]
    return Policy(config, jax.tree.map(np.asarray, Policy.initial(config, jax.random.key(0))))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), ops=st.integers(1, 25), problem=st.sampled_from(PROBLEMS))
def test_a_quick_schedule_is_a_plan_and_the_hint_says_which(seed: int, ops: int, problem: Problem) -> None:
    graph = random_dag(seed, ops)
    placement, order = quick_schedule(graph, problem)
    costs = exact.evaluate(graph, problem, placement, order)  # raises for an invalid order
    value = max(costs.peak_memory) if problem.objective == "peak_memory" else costs.makespan
    assert value >= lower_bound(graph, problem) * (1 - 1e-9)
    shares = hint(graph, problem)
    assert shares.shape == (ops, problem.devices + 1)
    np.testing.assert_array_equal(shares[:, :-1].argmax(1), placement)
    assert set(shares[:, :-1].ravel()) <= {0.0, 1.0}
    np.testing.assert_array_equal(np.argsort(-shares[:, -1]), order[order < ops])


def test_a_quick_schedule_is_about_as_good_as_the_best_of_the_list_schedules() -> None:
    problem = PROBLEMS[0]
    for seed in range(8):
        graph = regal_like(seed)
        plans = quick_schedule(graph, problem), schedule(graph, problem)
        quick, best = (exact.evaluate(graph, problem, *plan).makespan for plan in plans)
        assert best <= quick <= 1.05 * best


def test_features_end_with_the_hint_if_there_is_one() -> None:
    sizes = common_sizes([GRAPH])
    plain, hinted = make_instance(GRAPH, sizes), make_instance(GRAPH, sizes, PROBLEMS[0])
    np.testing.assert_array_equal(plain.nodes, padded_features(GRAPH, sizes)[0])
    np.testing.assert_array_equal(hinted.nodes[:, : len(NODE_FEATURES)], plain.nodes)
    np.testing.assert_array_equal(hinted.nodes[:OPS, len(NODE_FEATURES) :], hint(GRAPH, PROBLEMS[0]))
    assert not np.asarray(hinted.nodes)[OPS:].any()


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(get_args(CodingName)), mean=st.floats(0, 1, width=32))
def test_the_nearest_distribution_is_the_surest_of_those_with_the_nearest_mean(name: CodingName, mean: float) -> None:
    distributions = coding(name)
    alpha, beta = np.array(distributions.alpha), np.array(distributions.beta)
    row = int(np.ravel_multi_index(np.atleast_1d(distributions.nearest(jnp.float32(mean))), distributions.heads))
    distance = abs(alpha / (alpha + beta) - mean)
    assert distance[row] <= distance.min() + 1e-6
    alike = np.isclose(alpha / (alpha + beta), alpha[row] / (alpha[row] + beta[row]))
    assert (alpha + beta)[row] == (alpha + beta)[alike].max()


@pytest.mark.parametrize("name", get_args(CodingName))
def test_the_untrained_policy_proposes_what_is_around_the_hint(name: CodingName) -> None:
    sizes, distributions = common_sizes([GRAPH]), coding(name)
    untrained = policy(coding=name)
    choice = np.asarray(untrained.propose(GRAPH, sizes, 0).choice)[: 3 * sizes.ops, 0].reshape(3, -1)[:, :OPS]
    mean = np.array(distributions.alpha) / (np.array(distributions.alpha) + np.array(distributions.beta))
    proposed, hinted = mean[choice].T, hint(GRAPH, untrained.config.problem)
    assert abs(proposed - hinted).max() < 0.1
    again = np.asarray(untrained.propose(GRAPH, sizes, 1).choice)[: 3 * sizes.ops, 0].reshape(3, -1)[:, :OPS]
    np.testing.assert_array_equal(again, choice)  # the most likely actions: no random draw


def test_the_hint_is_for_the_problem_that_is_asked_about() -> None:
    sizes, untrained = common_sizes([GRAPH]), policy()
    own, other = untrained.config.problem, Problem("peak_memory", 2)
    proposals = {}
    for problem in (None, own, other):
        choice = np.asarray(untrained.propose(GRAPH, sizes, 0, problem).choice)[: 3 * sizes.ops, 0].reshape(3, -1)[
            :2, :OPS
        ]
        np.testing.assert_array_equal(MEANS[choice].argmax(0), hint(GRAPH, problem or own)[:, :2].argmax(1))
        proposals[problem] = choice
    np.testing.assert_array_equal(proposals[None], proposals[own])
    assert (proposals[own] != proposals[other]).any()


def test_priorities_alone_leave_affinities_uniform() -> None:
    sizes = common_sizes([GRAPH])
    choice = np.asarray(policy(genes="priorities").propose(GRAPH, sizes).choice)[: 3 * sizes.ops, 0].reshape(3, -1)
    assert (choice[:2] < 0).all()
    assert (choice[2, :OPS] >= 0).all()


def test_brkga_around_the_hint_is_better_than_brkga() -> None:
    """At 400 evaluations of graphs with 50 ops, gains are about 12%; a mean of 8 graphs above 5% is not chance."""
    untrained, better = policy(), []
    graphs = [regal_like(1000 + seed, num_ops=50) for seed in range(8)]
    sizes = common_sizes(graphs)
    for graph in graphs:
        task = functools.partial(Task, graph, untrained.config.problem, Budget(400), 0, sizes=sizes)
        plain = solve(task())
        ours = evolve(task(), proposals=functools.partial(untrained.propose, graph))
        better.append(1 - ours.value / plain.value)
    assert np.mean(better) > 0.05


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
def test_where_transfers_are_dear_the_hint_is_one_device(transfer: Transfer) -> None:
    graph = regal_like(1, num_ops=40)
    problem = Problem("makespan", 2, transfer, latency=20 * float(graph.arrays.runtime.mean()))
    placement, order = quick_schedule(graph, problem)
    assert not placement.any()
    assert exact.evaluate(graph, problem, placement, order).makespan == pytest.approx(graph.arrays.runtime.sum())


def test_policies_of_both_kinds_are_shipped_for_two_devices_and_each_transfer_model_where_there_is_one() -> None:
    link = Problem("makespan", 2, "link", latency=1e-6, bandwidth=1e10)
    for kind in get_args(Hint):
        for problem in (PROBLEM, Problem("peak_memory", 2), link, Problem("makespan", 2, "free")):
            config = Policy.shipped(problem, kind).config
            assert config.hint == kind
            assert config.problem.transfer == ("link" if problem is link else "rendezvous")
    assert digest("regal", PROBLEM) != digest("regal-hint", PROBLEM)
    with pytest.raises(ProblemError, match=r"method 'regal\+' has a policy for 2 devices, not for 3"):
        find_solver("regal+")(Task(GRAPH, Problem("makespan", 3), Budget(evaluations=80), 0))
