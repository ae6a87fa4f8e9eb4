"""REGAL's policy as a method: the search's proposals, files, old files, refusals."""

import dataclasses
import json
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrl.agents import find_agent
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import Policy
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import CodingName, coding
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.padding import common_sizes
from graphrl.methods import digest, find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.brkga import UNIFORM
from graphrl.training.config import as_dict
from graphrl.training.folder import RunSettings, write_settings
from graphrl.training.run import default_config, run_config

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
    keys = np.full((PROBLEM.devices, sizes.tensors), UNIFORM)
    keys[:, GRAPH.arrays.use_tensor] = 3  # as their readers' priorities
    np.testing.assert_array_equal(choice[learned:, 0], keys.reshape(-1))
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


def test_files_of_version_0_2_are_read_unless_their_policy_has_a_hint(tmp_path: Path) -> None:
    new, old = tmp_path / "new.msgpack", tmp_path / "old.msgpack"
    policy = untrained(preferred=3)
    policy.save(new)
    file = serialization.msgpack_restore(new.read_bytes())
    config = json.loads(file["config"])
    del config["placement"]
    for hint in ({}, {"hint": "none"}, {"hint": "list"}):
        old.write_bytes(serialization.msgpack_serialize({**file, "config": json.dumps(config | hint)}))
        if hint != {"hint": "list"}:
            assert Policy.load(old).digest == policy.digest
    with pytest.raises(GraphrlError, match=r"old.msgpack: there is no setting 'agent.hint' any more: train without it"):
        find_solver(f"regal+:checkpoint={old}")(Task(GRAPH, PROBLEM, Budget(evaluations=80)))


def test_runs_with_the_removed_setting_continue_unless_they_had_a_hint(tmp_path: Path) -> None:
    agent = find_agent("regal")
    for hint in ("list", "none"):
        stored = as_dict(default_config(agent))
        write_settings(tmp_path, RunSettings("regal", {**stored, "agent": {**stored["agent"], "hint": hint}}))
        if hint == "list":
            with pytest.raises(ProblemError, match=r"there is no setting 'agent.hint' any more: train without it"):
                run_config(agent, {}, tmp_path, name="regal")
    assert run_config(agent, {"training": {"steps": 5}}, tmp_path, name="regal").agent == RegalConfig()


def test_idrs_is_the_best_of_samples(saved: str) -> None:
    solve = find_solver(f"idrs:checkpoint={saved}")
    values = [solve(Task(GRAPH, PROBLEM, Budget(evaluations=count), 0)).value for count in (80, 160, 800)]
    assert values == sorted(values, reverse=True)
    searched = find_solver(f"regal:checkpoint={saved}")(Task(GRAPH, PROBLEM, Budget(evaluations=800), 0))
    assert searched.value <= values[-1]


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


def test_priorities_alone_leave_affinities_uniform() -> None:
    sizes, config = common_sizes([GRAPH]), dataclasses.replace(CONFIG, genes="priorities")
    choice = np.asarray(untrained(config, 3).propose(GRAPH, sizes).choice)[: 3 * sizes.ops, 0].reshape(3, -1)
    assert (choice[:2] == UNIFORM).all()
    assert (choice[2, : len(GRAPH.ops)] == 3).all()


def test_policies_are_shipped_for_each_transfer_model_and_independent_ones_are_for_their_devices(saved: str) -> None:
    link = Problem("makespan", 2, "link", latency=1e-6, bandwidth=1e10)
    for problem in (PROBLEM, Problem("peak_memory", 2), link, Problem("makespan", 2, "free")):
        assert Policy.default(problem).config.problem.transfer == ("link" if problem is link else "rendezvous")
    with pytest.raises(ProblemError, match=r"method 'regal\+' has a policy for 2 devices, not for 3"):
        find_solver(f"regal+:checkpoint={saved}")(Task(GRAPH, Problem("makespan", 3), Budget(evaluations=80), 0))
    for objective in ("makespan", "peak_memory"):
        task = Task(GRAPH, Problem(objective, 3), Budget(evaluations=80), 0)
        assert find_solver("regal+")(task).problem.devices == 3
