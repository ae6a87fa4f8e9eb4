"""GO under `makespan`: training, exact costs and imitation data, methods that use it, and the shipped policy."""

import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from command_line import fault, sets
from random_graphs import grouped
from tiny_go import NETWORK, TINY, untrained

import graphrl
from graphrl.agents import find_agent
from graphrl.agents.go import agent
from graphrl.agents.go.agent import TRAINING_KINDS
from graphrl.agents.go.config import SENDS, GoSettings
from graphrl.agents.go.decode import Decoder, hint_instance
from graphrl.agents.go.learner import Batch, batch, learner, problem_of
from graphrl.agents.go.network import Policy, _logits, sample_choices
from graphrl.cli import main
from graphrl.costs import exact
from graphrl.costs.problem import Problem, Transfer
from graphrl.envs.compile.features import schedule_features_on_host
from graphrl.envs.compile.generator import Choices, make_instance
from graphrl.envs.compile.reward import run
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.learning.learner import Learner, on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.transfer_rules.solver import quick_plan
from graphrl.training.config import parsed
from graphrl.training.run import run_config

SETTINGS = [
    "data.train=layered:30x4@100",
    "data.validation=layered:30x2",
    "data.test=layered:30x2@50",
    "data.graphs=2",
    "data.buckets=1",
    "training.steps=6",
    "training.validate_every=3",
    "training.checkpoint_every=1",
    "agent.transfers=rendezvous",
    "agent.devices=2,4",
    "agent.rounds=2",
    "agent.samples=8",
    "agent.levels=4",
    "agent.ppo.environments=8",
    *(
        f"agent.network.{name}={getattr(NETWORK, name)}"
        for name in ("width", "rounds", "layers", "heads", "superposition", "coupling", "changes")
    ),
]


def rows(settings: GoSettings, seeds: range, ops: int) -> Batch:
    """A batch of layered graphs."""
    graphs = [layered(ops, seed) for seed in seeds]
    return batch(settings, graphs, common_sizes(graphs))


def trained(settings: GoSettings, devices: int, steps: int, batches: list[Batch]) -> tuple[Learner, Any, Any]:
    """The learner, its state before any training and after some steps."""
    functions = on_mesh(learner(settings), make_mesh(2, jax.devices()[:devices]))
    state = functions.init(jax.random.key(0))
    first = jax.tree.map(np.asarray, state)
    for number in range(steps):
        state, _ = functions.update(state, jax.random.key(number), batches[number % len(batches)])
    return functions, first, jax.tree.map(np.asarray, state)


@pytest.mark.slow
def test_it_learns_which_changes_help() -> None:
    """Tested on the training graphs; on other graphs it is no better than chance after so few updates."""
    train = rows(TINY, range(100, 104), 60)
    functions, before, after = trained(TINY, 1, 150, [train])  # after 60 luck decides, by processor

    def mean(params: Any, name: str) -> float:
        """Mean over eight draws of samples: a single draw varies by a point."""
        return float(
            np.mean([functions.evaluate(params, key, train)[name] for key in jax.random.split(jax.random.key(0), 8)])
        )

    assert mean(after.params, "sampled") > mean(before.params, "sampled") + 1
    assert mean(after.params, "sampled") > mean(after.params, "random") + 1


def test_one_device_is_two_devices() -> None:
    slow = dataclasses.replace(TINY, ppo=dataclasses.replace(TINY.ppo, learning_rate=1e-3))
    (_, _, one), (_, _, two) = (trained(slow, devices, 1, [rows(TINY, range(2), 30)]) for devices in (1, 2))
    chex.assert_trees_all_close(one, two, atol=2e-4)


@pytest.mark.slow
def test_from_training_to_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "go", "--out", str(run), *sets(*SETTINGS)]) == 0
    assert "sampled" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--evaluations", "300", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [method["method"] for method in table["methods"]] == ["go", "go+", "list", "etf", "anneal-ops", "auto"]


@pytest.fixture(name="checkpoint", scope="module")
def _checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of an untrained policy."""
    path = tmp_path_factory.mktemp("policy") / "go.msgpack"
    untrained(TINY).save(path)
    return str(path)


def test_methods_are_never_worse_than_their_hint(checkpoint: str) -> None:
    """One policy serves any number of devices; groups stay together."""
    graph = grouped(layered(40, 1), {f"op{i}": i % 5 for i in range(0, 40, 3)})
    assert graph.colocation is not None
    problem = Problem("makespan", 3, "link", 0.1, 50_000.0)
    first = exact.evaluate(graph, problem, *quick_plan(graph, problem)).makespan
    options: dict[str, Any] = {"devices": 3, "transfer": "link", "latency": 0.1, "bandwidth": 50_000.0, "seed": 2}
    for method in ("go:rounds=2,samples=16,", "go+:rounds=1,"):
        plan = graphrl.optimize(
            graph, objective="makespan", method=f"{method}checkpoint={checkpoint}", evaluations=500, **options
        )
        plan.check(graph)
        assert plan.makespan <= first * (1 + 1e-9)
        assert 1 < plan.evaluations <= 500


def test_seeds_of_32_bits_draw_different_plans(checkpoint: str) -> None:
    """All 32 bits of a seed count, in addition to the number of the round."""
    method, options = f"go:rounds=1,samples=16,checkpoint={checkpoint}", {"devices": 4, "evaluations": 17}
    seeds = (0, 1, 2**20, 2**32 - 1)
    plans = [
        graphrl.optimize(layered(60, 3), objective="makespan", method=method, seed=seed, **options)  # type: ignore[arg-type]
        for seed in seeds
    ]
    assert len({tuple(plan.order) for plan in plans}) == len(seeds)


@pytest.mark.slow
def test_updates_on_one_graph_find_better_plans(checkpoint: str) -> None:
    """Better plans by learning or by more draws: `test_it_learns_which_changes_help` compares with chance."""
    graph, options = layered(60, 3), {"objective": "makespan", "devices": 4, "evaluations": 5000}
    plans = [
        graphrl.optimize(graph, method=f"go:{tune}rounds=2,samples=8,tries=0,checkpoint={checkpoint}", **options)  # type: ignore[arg-type]
        for tune in ("", "finetune=40,")
    ]
    plans[1].check(graph)
    assert plans[1].makespan < plans[0].makespan
    assert plans[1].evaluations == 1 + 40 * TINY.ppo.environments + 16
    few: dict[str, Any] = {**options, "evaluations": 2 + 3 * TINY.ppo.environments}
    few_plan = graphrl.optimize(
        graph, method=f"go:finetune=40,rounds=1,samples=8,tries=0,checkpoint={checkpoint}", **few
    )
    assert few_plan.evaluations == few["evaluations"]


def test_choices_cost_what_their_plan_costs() -> None:
    graph, generator = layered(50, 2), np.random.default_rng(0)
    n = len(graph.ops)
    for transfer, limit in (("rendezvous", None), ("link", None), ("rendezvous", 50_000)):
        problem = Problem("makespan", 3, transfer, 0.1, 50_000.0, memory_limit=limit)  # type: ignore[arg-type]
        decoder = Decoder(graph, problem, make_instance(graph, problem, levels=4, reach=0.1))
        for _ in range(3):
            choices = generator.integers(0, 3, n), generator.integers(0, 4, n)
            costs = exact.evaluate(graph, problem, *decoder.plan(*choices))
            assert decoder.rank(*choices) == pytest.approx(costs.rank(problem), rel=1e-9)
            better = decoder.rank(*choices, (0, 0.9 * costs.makespan))
            assert better == pytest.approx((0, costs.makespan), rel=1e-9)
            assert decoder.run(*choices)[0].max() == pytest.approx(costs.makespan, rel=1e-9)


@pytest.mark.parametrize(("transfer", "devices", "limit"), [("rendezvous", 2, 50_000), ("link", 3, None)])
def test_the_host_runs_choices_as_the_device_does(transfer: Transfer, devices: int, limit: int | None) -> None:
    """Bundled for two devices: with more the device code breaks ties by tensor, the host by pair."""
    graph, generator = layered(50, 2), np.random.default_rng(0)
    n, problem = len(graph.ops), Problem("makespan", devices, transfer, 0.1, 50_000.0, memory_limit=limit)
    instance = make_instance(graph, problem, levels=4, reach=0.09)
    choices = generator.integers(0, devices, n), generator.integers(0, 4, n)
    decoder = Decoder(graph, problem, instance)
    end, place = decoder.run(*choices)
    wide = (0, len(instance.order) - n)
    ran = run(instance, Choices(*(np.pad(choice, wide).astype(np.int32) for choice in choices)), SENDS)
    np.testing.assert_allclose(np.asarray(ran.end)[:n] * instance.graph.second_unit, end, rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(ran.place)[:n], place)
    assert bool(ran.valid) == (decoder.rank(*choices)[0] == 0)


@pytest.mark.parametrize(
    ("setting", "without"),
    [
        ("superposition=none", "modulation"),
        ("coupling=none", "heads/norm"),
        ("votes=false", "voters"),
        ("plan_features=false", "movers"),
        ("layers=0", "layers_0"),
        ("rounds=0", "pool_0"),
    ],
)
def test_every_part_of_the_network_can_be_left_out(setting: str, without: str) -> None:
    whole, part = ({*parts(of)} for of in ((), (f"agent.network.{setting}",)))
    assert any(without in name for name in whole)
    assert not any(without in name for name in part)


def test_gdp_is_go_without_superposition_and_coupling_on_placement_alone() -> None:
    settings = [f"agent.network.{one}" for one in ("tasks=placement", "superposition=none", "coupling=none")]
    assert config_of("gdp", ()).agent == config_of("go", settings).agent
    assert not any(word in name for name in parts((), "gdp") for word in ("priority", "modulation", "heads/attention"))


def config_of(agent: str, settings: Sequence[str]) -> Any:
    """The run's configuration from command-line settings."""
    return run_config(find_agent(agent), parsed(settings), None, name=agent)


def parts(settings: Sequence[str], agent: str = "go") -> list[str]:
    """The names of a policy's parameters."""
    config = config_of(agent, settings).agent
    params = jax.eval_shape(functools.partial(Policy.initial, config), jax.random.key(0))
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]


def test_problems_differ_by_graph() -> None:
    problems = [problem_of(GoSettings(), layered(30, seed), "link") for seed in range(20)]
    assert {problem.devices for problem in problems} == {2, 4, 8}
    assert len({problem.latency for problem in problems}) == 2


def test_faults_are_one_line(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*options: str) -> str:
        code, err = fault(capsys, "train", "go", *sets(*options))
        assert code == 2
        return err

    assert "devices is 0: must be one or more numbers from 1 to 64" in told("agent.devices=0")
    assert "transfers is empty: must be one or more of rendezvous, free, link" in told("agent.transfers=")
    assert "network.tasks has fusion: must be placement" in told("agent.network.tasks=placement,fusion")
    assert "ppo.steps is 2: must be 1, the steps of an episode; set rounds instead" in told("agent.ppo.steps=2")
    assert "changes is 1.0: must be at least 0 and below 1" in told("agent.network.changes=1")
    graph, options = layered(30, 1), {"devices": 2, "evaluations": 10}
    for method, text in (
        ("go:samples=0", "samples is 0: must be from 1 to 4,096"),
        ("go:finetune=-1", "finetune is -1: must be from 0 to 1,000"),
    ):
        with pytest.raises(ProblemError, match=text):
            graphrl.optimize(graph, objective="makespan", method=f"{method},checkpoint={checkpoint}", **options)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="method 'go' minimises makespan or max_load: objective must not"):
        graphrl.optimize(graph, method=f"go:checkpoint={checkpoint}", **options)  # type: ignore[arg-type]


def test_lessons_are_exact_costs_of_single_changes() -> None:
    imitates = dataclasses.replace(TINY, learning="imitation", stops=3)
    graph = layered(40, 8)
    lesson = batch(imitates, [graph], common_sizes([graph]))["rendezvous"]
    problem, n = problem_of(imitates, graph, "rendezvous"), len(graph.ops)
    decoder = Decoder(graph, problem, jax.tree.map(lambda leaf: leaf[0], lesson.instance))
    generator = np.random.default_rng(0)
    for stop in range(3):
        start = [np.asarray(choice[0, stop], np.int64)[:n] for choice in lesson.starts[:2]]
        now = decoder.rank(start[0], start[1])[1]
        for task, options in enumerate((problem.devices, TINY.levels)):
            for op in generator.integers(0, n, 5):
                changed = [choice.copy() for choice in start]
                changed[task][op] = generator.integers(options)
                gain = max(0.0, 100 * (1 - decoder.rank(changed[0], changed[1])[1] / now))
                assert lesson.gains[task][0, stop, op, changed[task][op]] == pytest.approx(gain, abs=1e-4)
    places, levels = ([np.asarray(choice[0, stop], np.int64)[:n] for stop in (0, 2)] for choice in lesson.starts[:2])
    first, last = (decoder.rank(place, level) for place, level in zip(places, levels, strict=True))
    assert last < first


PLANS = 64
CHANGES = Policy.defaults / "makespan-changes.msgpack"  # that of single changes
KINDS = {"seen": [f"{kind}:150x4@6000" for kind in TRAINING_KINDS], "held out": ["stochastic-block:150x16@6000"]}


def gains(policy: Policy, graph: ComputationGraph, to: Sizes, seed: int) -> tuple[float, float]:
    """Percent below the hint of the best plan that the policy draws, and of the best random plan. Random plans have the
    same number of ops on other devices, but choose ops and devices at random.
    """
    problem, n = problem_of(GoSettings(), graph, "rendezvous"), len(graph.ops)
    instance = hint_instance(graph, problem, to, policy.config)
    decoder, generator = Decoder(graph, problem, instance), np.random.default_rng(seed)
    placement, priority = (np.asarray(choice, np.int64)[:n] for choice in instance.start[:2])
    first, best = decoder.rank(placement, priority)[1], [np.inf, np.inf]
    end, place = decoder.run(placement, priority)
    features = schedule_features_on_host(graph, placement, place, end, instance.runs_on.shape[1], to.ops)
    plans = sample_choices(policy.logits(instance, features), instance.start, PLANS, generator)
    for plan in plans.placement[:, :n].astype(np.int64):
        ops = generator.choice(n, (plan != placement).sum(), replace=False)
        random = placement.copy()
        random[ops] = (placement[ops] + generator.integers(1, problem.devices, len(ops))) % problem.devices
        best = [min(least, decoder.rank(each, priority)[1]) for least, each in zip(best, (plan, random), strict=True)]
    return 100 * (1 - min(best[0] / first, 1)), 100 * (1 - min(best[1] / first, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_its_plans_are_better_than_the_hint_and_than_chance(kind: str) -> None:
    graphs = load_graphs(KINDS[kind])
    policy = Policy.load(CHANGES)
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
        find_solver(f"go:rounds=1,checkpoint={CHANGES}")(Task(graph, problem, Budget(evaluations=70)))
        calls.append(_logits._cache_size())  # type: ignore[attr-defined]
    assert calls[0] == calls[1]


def test_what_was_drawn_is_looked_at_also_where_compiling_took_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, clock = Policy.logits, time.perf_counter

    def slow(*args: Any, fast_compile: bool) -> dict[str, np.ndarray]:
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + 1e6)
        return logits(*args, fast_compile=fast_compile)

    monkeypatch.setattr(Policy, "logits", slow)
    problem = {"objective": "makespan", "devices": 4, "latency": 0.1, "bandwidth": 50_000.0}
    plan = graphrl.optimize(layered(60, 3), method=f"go:checkpoint={CHANGES}", seconds=600, **problem)  # type: ignore[arg-type]
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
    policy = Policy.load(CHANGES)
    instance = hint_instance(graph, problem, common_sizes([graph]), policy.config)
    features = Decoder(graph, problem, instance).plan_features(
        *(np.asarray(choice, np.int64)[:60] for choice in instance.start[:2])
    )
    usual, fast = (policy.logits(instance, features, fast_compile=each)["placement"] for each in (False, True))
    np.testing.assert_allclose(fast, usual, rtol=1e-5, atol=1e-5)
