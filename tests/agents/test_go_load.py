"""GO under `max_load`: exact costs, imitation data, training, methods that use the policy, and refusals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command_line import check_failure
from partitioned_graphs import TRAINING, costs_of, edge, file_of, node, random_pipeline
from tiny_go import NETWORK, TINY, untrained

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.decode import Decoder, LoadDecoder, hint_instance
from graphrl.agents.go.learner import batch, fine_tune, learner, problem_of
from graphrl.agents.go.network import Policy, sample_choices
from graphrl.cli import main
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import make_instance
from graphrl.envs.compile.reward import outcome, possible_choices
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.families import pipeline
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes
from graphrl.learning.learner import on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.loads.rules import quick_plan

LOAD = dataclasses.replace(
    TINY,
    network=dataclasses.replace(NETWORK, tasks=("placement",)),
    problem=Problem("max_load", 4),
    learning="imitation",
)


def problem_for(graph: ComputationGraph) -> Problem:
    return Problem.on(graph.machine, objective="max_load")


def decoder_of(graph: ComputationGraph, problem: Problem) -> LoadDecoder:
    return LoadDecoder(graph, problem, make_instance(graph, problem, baseline=1.0))


def solved(graph: ComputationGraph, problem: Problem, method: str, evaluations: int = 500, seed: int = 0) -> Plan:
    plan = find_solver(method)(Task(graph, problem, Budget(evaluations), seed))
    plan.check(graph)
    return plan


@pytest.mark.parametrize("seed", range(3))
def test_choices_cost_what_their_plan_costs(seed: int) -> None:
    graph = random_pipeline(seed, 20, cpus=False, training=seed % 2 == 0)
    problem = Problem("max_load", 3, memory_limit=30 if seed % 3 else None)
    decoder, rng = decoder_of(graph, problem), np.random.default_rng(seed)
    for _ in range(3):
        placement = decoder.colocated(rng.integers(0, 3, 20))
        costs = costs_of(graph, problem, placement.tolist())
        assert decoder.rank(placement, placement) == pytest.approx(costs.rank(problem), rel=1e-12)
        assert decoder.plan(placement, placement)[0].tolist() == placement.tolist()


@pytest.mark.parametrize("objective", ["max_load", "makespan"])
def test_changes_are_kept_that_make_nothing_worse(objective: str) -> None:
    graph = pipeline(60, 1) if objective == "max_load" else layered(60, 8)
    settings = LOAD if objective == "max_load" else TINY
    problem = problem_of(settings, graph, "link")
    instance = hint_instance(graph, problem, common_sizes([graph]), settings)
    decoder: Any = Decoder(graph, problem, instance) if objective == "makespan" else decoder_of(graph, problem)
    rng = np.random.default_rng(0)
    placement, level = rng.integers(0, problem.accelerators, 60), np.asarray(instance.start.priority, np.int64)[:60]
    placement = placement[graph.leaders]
    changes = np.stack([rng.integers(0, 60, 200), rng.integers(0, problem.devices, 200)], 1)
    after = decoder.climb(placement, level, changes)
    assert decoder.rank(after, level) < decoder.rank(placement, level)
    one_by_one = placement
    for change in changes:
        before, one_by_one = one_by_one, decoder.climb(one_by_one, level, change[None])
        moved = set(graph.leaders[one_by_one != before].tolist())
        assert moved <= {graph.leaders[change[0]]}
        assert decoder.rank(one_by_one, level) <= decoder.rank(before, level)
    np.testing.assert_array_equal(one_by_one, after)


def test_gains_are_of_single_changes() -> None:
    """Gains in the energy of annealing: for loads l, max(l) (1 + 4 (mean of (l / max(l))^8)^(1/8))."""
    graph = random_pipeline(3, 16, cpus=False)
    problem = Problem("max_load", 3)
    decoder = decoder_of(graph, problem)
    placement = decoder.colocated(np.random.default_rng(0).integers(0, 3, 16))

    def energy(placement: np.ndarray) -> float:
        loads = np.array(costs_of(graph, problem, placement.tolist()).loads)
        return float(loads.max() * (1 + 4 * np.mean((loads / loads.max()) ** 8) ** (1 / 8)))

    gains = decoder.gains(placement, placement)
    for op, device in np.ndindex(gains.shape):
        moved = np.where(graph.leaders == graph.leaders[op], device, placement)
        gain = max(0.0, 100 * (1 - energy(moved) / energy(placement))) if graph.leaders[op] == op else 0.0
        assert gains[op, device] == pytest.approx(gain, abs=1e-6)


def test_quick_plans_are_never_behind_their_rules() -> None:
    for seed in range(4):
        graph = pipeline(40, seed)
        rules = [solved(graph, problem_for(graph), method) for method in ("equal-stages", "greedy-load")]
        assert quick_plan(graph, problem_for(graph)).rank <= min(plan.rank for plan in rules)
        assert quick_plan(graph, problem_for(graph), 1e-9).rank <= rules[0].rank  # no time except for the first rule


@pytest.mark.parametrize("seed", range(4))
def test_pipelines_are_what_they_say(seed: int) -> None:
    """The machine can hold the weights; training graphs colocate pairs of ops; equal seeds give equal graphs."""
    graph = pipeline(41, seed)
    problem = problem_for(graph)
    assert problem.memory_limit is not None
    assert problem.accelerators * problem.memory_limit > graph.arrays.weight_bytes.sum()
    trains = graph.colocation is not None
    assert len(graph.ops) == 41
    assert len(np.unique(graph.leaders)) == (21 if trains else 41)
    assert pipeline(41, seed) == graph


def test_the_problem_is_that_of_the_machine() -> None:
    graph = pipeline(30, 2)
    seen, wanted = problem_of(LOAD, graph, "free"), problem_for(graph)
    for name in ("objective", "devices", "cpus", "memory_limit"):
        assert getattr(seen, name) == getattr(wanted, name)
    assert problem_of(LOAD, layered(30, 2), "free").devices in LOAD.devices


@pytest.mark.slow
def test_imitation_learns_which_changes_help() -> None:
    """Learns from the exact gains of single changes; tested on unseen graphs."""
    graphs = [pipeline(60, seed) for seed in range(100, 108)]
    functions = on_mesh(learner(LOAD), make_mesh(2, jax.devices()[:1]))
    state, losses = functions.init(jax.random.key(0)), []
    train = batch(LOAD, graphs, common_sizes(graphs))
    for number in range(120):
        state, metrics = functions.update(state, jax.random.key(number), train)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    held_out = [pipeline(60, seed) for seed in range(16)]
    score = functions.evaluate(state.params, jax.random.key(0), batch(LOAD, held_out, common_sizes(held_out)))
    assert float(score["sampled"]) > float(score["random"])


@pytest.fixture(name="checkpoint", scope="module")
def _checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of an untrained policy."""
    path = tmp_path_factory.mktemp("policy") / "go.msgpack"
    untrained(LOAD).save(path)
    return str(path)


def test_methods_are_never_behind_their_hint(checkpoint: str) -> None:
    """Independent of the number of devices; the same seed gives the same plan."""
    for seed in (1, 5):
        graph = pipeline(50, seed)
        problem = problem_for(graph)
        first = quick_plan(graph, problem)
        plans = [solved(graph, problem, f"{method}:rounds=2,checkpoint={checkpoint}") for method in ("go", "go", "go+")]
        assert all(plan.rank <= first.rank for plan in plans)
        assert all(1 < plan.evaluations <= 500 for plan in plans)
        assert dict(plans[0].placement) == dict(plans[1].placement)


@pytest.mark.slow
def test_a_start_that_is_over_the_limit_is_left() -> None:
    """Fine-tuning prefers any plan within the limit to every plan over it."""
    graph = pipeline(20, 3)
    limit = int(graph.arrays.weight_bytes.sum()) * 6 // 10
    problem = Problem("max_load", 2, memory_limit=limit)
    instance = hint_instance(graph, problem, common_sizes([graph]), LOAD)
    everything = instance.start._replace(placement=np.zeros_like(instance.start.placement))
    instance = dataclasses.replace(instance, start=everything, baseline=np.array(1e6, np.float32))
    assert not bool(outcome(instance, possible_choices(instance, everything), "urgent").valid)
    settings = dataclasses.replace(LOAD, learning="ppo", network=dataclasses.replace(LOAD.network, changes=0.5))
    best = fine_tune(settings, untrained(settings).params, instance, jax.random.key(0), 8)[1]
    assert bool(outcome(instance, possible_choices(instance, best), "urgent").valid)


def test_the_policy_that_ships_is_ahead_of_its_start_and_of_chance() -> None:
    policy, gains = Policy.default(Problem("max_load")), []
    for seed in range(12):
        graph = pipeline(120, 300 + seed)
        problem, n = problem_for(graph), 120
        instance = hint_instance(graph, problem, common_sizes([graph]), policy.config)
        decoder, rng = LoadDecoder(graph, problem, instance), np.random.default_rng(seed)
        placement = np.asarray(instance.start.placement, np.int64)[:n]
        first, best = decoder.rank(placement, placement), [(1, np.inf)] * 2
        logits = policy.logits(instance, decoder.plan_features(placement, placement))
        movable = np.flatnonzero(graph.leaders == np.arange(n))
        for plan in sample_choices(logits, instance.start, 64, rng).placement[:, :n].astype(np.int64):
            random, ops = placement.copy(), rng.choice(movable, (plan != placement)[movable].sum(), replace=False)
            random[ops] = (placement[ops] + rng.integers(1, problem.devices, len(ops))) % problem.devices
            best = [min(was, decoder.rank(one, one)) for was, one in zip(best, (plan, random), strict=True)]
        gains.append([100 * (1 - min(one, first)[1] / first[1]) for one in best])
    played, by_chance = np.mean(gains, 0)
    assert played > 0.3
    assert played > by_chance + 0.2


def test_wrong_policies_and_settings_are_one_line(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LoadDecoder.prepare()  # prints a line about compiling
    capsys.readouterr()
    path = tmp_path / "training.json"
    path.write_text(json.dumps(TRAINING))
    makespan = ["--objective", "makespan", "--devices", "2", "--method", f"go:checkpoint={checkpoint}"]
    check_failure(["optimize", str(path), *makespan], 2, "is a policy for max_load: the problem's is makespan", capsys)
    peak = ["--objective", "peak_memory", "--devices", "2", "--method", "go"]
    check_failure(["optimize", str(path), *peak], 2, "objective must not be peak_memory", capsys)
    nowhere = file_of([node(1, 1.0), node(2, 1.0, supportedOnFpga=0)], [edge(1, 2, 1.0)], cpus=0)
    path.write_text(json.dumps(nowhere))
    load = ["optimize", str(path), "--objective", "max_load", "--method", "go"]
    check_failure(load, 2, "op '2:node2' can run on none of the devices: 2 accelerators and 0 CPUs", capsys)
    for setting, message in (
        ({"network": NETWORK, "problem": Problem("max_load", 4)}, "must be placement alone"),
        ({"problem": Problem("peak_memory", 4)}, "problem.objective is peak_memory: must be makespan or max_load"),
    ):
        with pytest.raises(ProblemError, match=message):
            GoSettings(**setting)


def test_the_command_plays_the_policy_that_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finds the optimum of the two layers, also with a limit that never binds."""
    path = tmp_path / "training.json"
    for size in (100.0, 1e18):
        path.write_text(json.dumps({**TRAINING, "maxSizePerFPGA": size}))
        command = ["optimize", str(path), "--objective", "max_load", "--method", "go", "--evaluations", "50", "--json"]
        assert main(command) == 0
        assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(0.013)
    assert solved(random_pipeline(2, 8, cpus=False), Problem("max_load", 2), "go", 50).excess == 0  # no limit at all
