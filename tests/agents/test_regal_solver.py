"""A policy as a method: files, refusals, and that proposals, warm starts and samples are what reaches the search."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import jax
import numpy as np
import pytest

from graphrl.agents.regal.config import Hint, RegalConfig
from graphrl.agents.regal.network import Policy, networks, smallest
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import coding, observe
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.padding import common_sizes
from graphrl.methods import digest, find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.brkga import UNIFORM

CONFIG = RegalConfig(rounds=1, width=8, coding="moments", genes="all", hint="none")
GRAPH = regal_like(1, num_ops=15)
PROBLEM = Problem("makespan", 2)


def untrained(config: RegalConfig = CONFIG, preferred: int = 0) -> Policy:
    """A policy that chooses option `preferred` everywhere (0 is the uniform of "moments")."""
    params = jax.jit(networks(config).policy.init)(jax.random.key(0), observe(smallest(config)))
    last = params["choices"]["Dense_1"]
    bias = np.zeros((config.problem.devices + 1, 16), np.float32)
    bias[:, preferred] = 100.0  # no sample is another
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


def test_other_proposals_find_something_else(tmp_path: Path) -> None:
    untrained(preferred=5).save(tmp_path / "p")
    budget = Budget(evaluations=400)
    plain = find_solver("brkga")(Task(GRAPH, PROBLEM, budget, 3))
    learned = find_solver(f"regal:checkpoint={tmp_path / 'p'}")(Task(GRAPH, PROBLEM, budget, 3))
    assert learned.order != plain.order


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
        with pytest.raises(ProblemError, match=f"method '{re.escape(method)}' has a policy with .*; {other} plays it"):
            find_solver(f"{method}:checkpoint={file}")(task)
    assert find_solver(f"regal-hint:checkpoint={path}")(task).method == "regal-hint"
    assert digest(f"regal+:checkpoint={path}", PROBLEM) == hinted.digest != digest("regal-hint", PROBLEM)


def test_both_kinds_of_policies_are_shipped() -> None:
    for problem in (PROBLEM, Problem("peak_memory", 2)):
        assert [Policy.shipped(problem, hint).config.hint for hint in get_args(Hint)] == list(get_args(Hint))
        assert digest("regal", problem) != digest("regal-hint", problem)


def test_idrs_is_the_best_of_samples(saved: str) -> None:
    solve = find_solver(f"idrs:checkpoint={saved}")
    values = [solve(Task(GRAPH, PROBLEM, Budget(evaluations=count), 0)).value for count in (80, 160, 800)]
    assert values == sorted(values, reverse=True)
    searched = find_solver(f"regal:checkpoint={saved}")(Task(GRAPH, PROBLEM, Budget(evaluations=800), 0))
    assert searched.value <= values[-1]


def test_a_default_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "defaults", tmp_path)
    with pytest.raises(GraphrlError, match="no policy for makespan comes with graphrl: name one"):
        find_solver("regal")(Task(GRAPH, PROBLEM, Budget(evaluations=80), 0))


def test_a_shipped_policy_is_that_of_the_transfer_model_where_there_is_one() -> None:
    link = Problem("makespan", 2, "link", latency=1e-6, bandwidth=1e10)
    for hint in get_args(Hint):
        assert Policy.shipped(link, hint).config.problem.transfer == "link"
        for transfer in ("rendezvous", "free"):
            assert Policy.shipped(Problem("makespan", 2, transfer), hint).config.problem.transfer == "rendezvous"


@pytest.mark.parametrize("method", ["regal", "regal+"])
def test_another_number_of_devices_is_refused(method: str) -> None:
    with pytest.raises(ProblemError, match=f"method '{re.escape(method)}' has a policy for 2 devices: must not be 3"):
        find_solver(method)(Task(GRAPH, Problem("makespan", 3), Budget(evaluations=80), 0))
