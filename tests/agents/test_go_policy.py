"""The policy that ships: on graphs that it has not seen, it knows better than chance which ops to move."""

import time
from typing import Any

import numpy as np
import pytest

import graphrl
from graphrl.agents.go import agent
from graphrl.agents.go.agent import SEEN
from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.decode import Decoder, hinted
from graphrl.agents.go.learner import problem_of
from graphrl.agents.go.network import Policy, _logits, drawn
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.envs.compile.features import played_on_host
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.sending.solver import quick_plan

PLANS = 64
KINDS = {"seen": [f"{kind}:150x4@6000" for kind in SEEN], "held out": ["stochastic-block:150x16@6000"]}


def gains(policy: Policy, graph: ComputationGraph, to: Sizes, seed: int) -> tuple[float, float]:
    """Percent below the hint of the best plan that the policy draws, and of the best by chance: the same numbers of ops
    on other devices, but which ops and devices is random.
    """
    problem, n = problem_of(GoSettings(), graph, "rendezvous"), len(graph.ops)
    instance = hinted(graph, problem, to, policy.config)
    decoder, generator = Decoder(graph, problem, instance), np.random.default_rng(seed)
    placement, priority = (np.asarray(choice, np.int64)[:n] for choice in instance.start[:2])
    first, best = decoder.rank(placement, priority)[1], [np.inf, np.inf]
    end, place = decoder.run(placement, priority)
    played = played_on_host(graph, placement, place, end, instance.runs_on.shape[1], to.ops)
    plans = drawn(policy.logits(instance, played), instance.start, PLANS, generator)
    for plan in plans.placement[:, :n].astype(np.int64):
        ops = generator.choice(n, (plan != placement).sum(), replace=False)
        random = placement.copy()
        random[ops] = (placement[ops] + generator.integers(1, problem.devices, len(ops))) % problem.devices
        best = [min(least, decoder.rank(each, priority)[1]) for least, each in zip(best, (plan, random), strict=True)]
    return 100 * (1 - min(best[0] / first, 1)), 100 * (1 - min(best[1] / first, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_its_plans_are_better_than_the_hint_and_than_chance(kind: str) -> None:
    graphs = load_graphs(KINDS[kind])
    policy = Policy.default(Problem("makespan", 4))
    to = common_sizes(graphs)
    played, by_chance = np.array([gains(policy, graph, to, seed) for seed, graph in enumerate(graphs)]).T
    assert played.mean() > 1.5
    assert played.mean() > by_chance.mean() + 0.4


def test_go_plays_it_by_default() -> None:
    graph = layered(60, 3)
    problem = Problem("makespan", 4, latency=0.1, bandwidth=50_000.0)
    first = exact.evaluate(graph, problem, *quick_plan(graph, problem)).makespan
    plan = graphrl.optimize(
        graph, objective="makespan", devices=4, latency=0.1, bandwidth=50_000.0, method="go", evaluations=257
    )
    assert plan.makespan < first


def test_one_program_serves_all_transfer_models() -> None:
    graph, calls = layered(60, 3), []
    for transfer, devices in (("rendezvous", 4), ("link", 2)):
        problem = Problem("makespan", devices, transfer, 0.1, 50_000.0)  # type: ignore[arg-type]
        find_solver("go:rounds=1")(Task(graph, problem, Budget(evaluations=70)))
        calls.append(_logits._cache_size())  # type: ignore[attr-defined]
    assert calls[0] == calls[1]


def test_what_was_drawn_is_looked_at_also_where_compiling_took_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, clock = Policy.logits, time.perf_counter

    def slow(*args: Any, hasty: bool) -> dict[str, np.ndarray]:
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + 1e6)
        return logits(*args, hasty=hasty)

    monkeypatch.setattr(Policy, "logits", slow)
    problem = {"objective": "makespan", "devices": 4, "latency": 0.1, "bandwidth": 50_000.0}
    plan = graphrl.optimize(layered(60, 3), method="go", seconds=600, **problem)  # type: ignore[arg-type]
    assert plan.evaluations == 65


@pytest.mark.parametrize("objective", ["makespan", "max_load"])
def test_where_no_round_fits_the_first_plan_is_the_answer(objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, problem = layered(60, 3), Problem(objective, 4, latency=0.1, bandwidth=50_000.0)
    first = find_solver("go:rounds=0")(Task(graph, problem, Budget(seconds=600)))
    more = find_solver("go:rounds=1")(Task(graph, problem, Budget(seconds=600)))
    assert more.evaluations > first.evaluations == 1
    monkeypatch.setattr(agent, "ROUND_SECONDS", 600 / len(graph.ops))
    plan = find_solver("go:rounds=1")(Task(graph, problem, Budget(seconds=600)))
    plan.check(graph)
    assert (plan.evaluations, plan.value) == (1, first.value)
    assert find_solver("go:rounds=1")(Task(graph, problem, Budget(evaluations=70))).evaluations == 70


def test_what_is_compiled_in_haste_says_the_same() -> None:
    graph, problem = layered(60, 3), Problem("makespan", 4, latency=0.1, bandwidth=50_000.0)
    policy = Policy.default(problem)
    params = hinted(graph, problem, common_sizes([graph]), policy.config)
    played = Decoder(graph, problem, params).played(*(np.asarray(choice, np.int64)[:60] for choice in params.start[:2]))
    usual, hasty = (policy.logits(params, played, hasty=hasty)["placement"] for hasty in (False, True))
    np.testing.assert_allclose(hasty, usual, rtol=1e-5, atol=1e-5)
