"""Steps a second of environments: cells, policies, rollouts, and `graphrl bench ENV...`."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphrl
from graphrl.bench import envs, machine, steps
from graphrl.bench.cases import Settings
from graphrl.bench.envs import ROLLOUTS, gymnasium_steps, make_graphs, make_instances, map_graphs, random_policy
from graphrl.bench.report import STEPS_TABLE
from graphrl.bench.steps import Cell, StepRow, Steps, after_reset, cells, rollout
from graphrl.bench.timing import Limit
from graphrl.cli import main
from graphrl.commands import bench as bench_command
from graphrl.envs import specs
from graphrl.envs.registry import registered
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.layered import layered

SMALL = Settings(sizes=(16,), repeats=2, seconds=0.01)


@pytest.fixture(autouse=True)
def own_cache() -> Iterator[None]:
    """Restores jax's cache of compiled programs, which the benchmark disables, for later tests."""
    jax.devices()  # the tests' two: the command would ask for one
    cache = jax.config.values["jax_enable_compilation_cache"]
    yield
    jax.config.update("jax_enable_compilation_cache", cache)


def bench(arguments: str) -> int:
    """Runs the command on one thread, with short samples; returns the exit code."""
    return main(["bench", *arguments.split(), "--threads", "1", "--quick"])


def test_every_environment_is_measured() -> None:
    assert set(ROLLOUTS) == set(registered())


def test_the_most_telling_cells_come_first() -> None:
    of_sizes = cells("A", ((512, ""), (64, "")), (1, 256, 16), steps.DEFAULT_POLICIES)
    order = [(cell.policy, cell.ops, cell.envs) for cell in of_sizes]
    assert len(order) == len(set(order)) == 12
    assert order[:4] == [("random", 64, 16), ("random", 64, 256), ("random", 512, 16), ("network", 64, 16)]
    assert order[-1] == ("network", 512, 1)
    assert str(Cell("A", "random", 512, 1)) == "A, 512 ops, 1 environment, random"
    assert str(Cell("A", "random", 512, 2, "model.onnx")) == "A, model.onnx, 2 environments, random"


def test_random_actions_are_valid_and_uniform() -> None:
    mask = jnp.asarray([[True, False, True, True], [False, False, False, True]])
    drawn = np.asarray(jax.vmap(lambda key: specs.sample_masked(mask, key))(jax.random.split(jax.random.key(0), 3000)))
    counts = np.bincount(drawn[:, 0], minlength=4)
    assert counts[1] == 0
    assert (counts[[0, 2, 3]] > 850).all()
    assert (drawn[:, 1] == 3).all()


def test_sizes_of_memory_maps() -> None:
    assert [graph.name for graph in map_graphs(64, 5, 0)] == ["resnet50"]
    assert [len(graph.ops) for graph in map_graphs(20, 2, 0)] == [20, 20]


def test_a_rollout_is_an_episode_of_steps() -> None:
    """Carrying only the changed parts of observations makes no difference."""
    first = after_reset(make_instances("Ordering-v0", make_graphs("Ordering-v0", 16, 2, 0)), 0)
    assert {None} < set(first.sources)
    env, batch = first.instances.env, first.instances.batch
    policy = random_policy(env)
    done, total, _ = jax.jit(rollout(first, policy, 16))(first.keys, first.state, first.changed, batch, ())
    assert done.all()
    step, act = jax.jit(jax.vmap(env.step)), jax.jit(lambda key, observation: policy.act(key, (), observation))
    state, timestep = jax.jit(jax.vmap(env.reset))(first.keys, batch)
    for number in range(16):
        now = jax.vmap(jax.random.fold_in, (0, None))(first.keys, number)
        state, timestep = step(now, state, act(now, timestep.observation), batch)
        assert timestep.done.all() == (number == 15)
    np.testing.assert_allclose(total, timestep.reward, rtol=1e-6)


def test_command_measures_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The network plays whole episodes."""
    assert bench(f"Ordering-v0 --counts 2 --sizes 70 --json --output {tmp_path}") == 0
    printed = capsys.readouterr()
    assert [line.partition(" (")[0] for line in printed.err.splitlines()] == [
        "1/2 Ordering-v0, 70 ops, 2 environments, random",
        "2/2 Ordering-v0, 70 ops, 2 environments, network",
    ]
    assert "next Ordering-v0, 70 ops, 2 environments, network" in printed.err
    assert (tmp_path / "bench.jsonl").read_text() == printed.out
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    rows = [StepRow(**json.loads(line)) for line in printed.out.splitlines()]
    assert [(row.policy, row.n, row.envs, row.steps) for row in rows] == [("random", 70, 2, 64), ("network", 70, 2, 70)]
    for row in rows:
        assert row.steps_per_s is not None
        assert row.steps_per_s > 0
        assert row.s_per_million_steps == pytest.approx(1e6 / row.steps_per_s)
        assert row.compile_s is not None
        assert row.jax_steps_per_s is row.ratio_to_jax is None  # the same program
        assert row.skipped == ""
    STEPS_TABLE.printer()(rows)
    assert "Ordering-v0          70          2  random" in capsys.readouterr().out


def test_what_takes_too_long_is_marked_and_the_rest_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_CALL", 1e-9)
    small = Steps(SMALL, ["Ordering-v0"], (2, 4), ["random"])
    one, two = (row for rows in small.measure(Limit(None), lambda _: None) for row in rows)
    assert one.steps_per_s is not None
    assert two.steps_per_s is None
    assert two.skipped.startswith("a call would take about")
    STEPS_TABLE.printer()([one, two])
    assert "a call would take about" in capsys.readouterr().out
    monkeypatch.setattr(machine, "free_bytes", lambda: 0)
    (row,) = next(Steps(SMALL, ["Ordering-v0"], (2,), ["random"]).measure(Limit(None), lambda _: None))
    assert row.skipped.startswith("needs ")
    assert bench("Ordering-v0 --sizes 16 --counts 2,4 --seconds 1ms") == 0
    printed = capsys.readouterr()
    assert "of memory" in printed.out
    assert "graphrl: 3 of 4 cases were left out for time: --all measures all" in printed.err


def test_gymnasium_makes_valid_steps_alone_and_in_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """An illegal action would end an episode before its last op, and be counted as a reset."""
    instances = make_instances("Ordering-v0", make_graphs("Ordering-v0", 16, 1, 0))
    ends: list[np.ndarray] = []
    for name in ("to_gymnasium", "to_gymnasium_vector"):
        make = getattr(envs, name)
        monkeypatch.setattr(envs, name, lambda *args, make=make: Recorded(make(*args), ends))
    for count in (1, 3):
        ends.clear()
        assert gymnasium_steps(instances, count, 0)(32) == 32 * count
        assert [np.all(end) for end in ends] == ([False] * 15 + [True]) * 2
        assert all(np.size(end) == count for end in ends)


class Recorded:
    """An environment that records which of its episodes end."""

    def __init__(self, env: Any, ends: list[np.ndarray]) -> None:
        self._env, self._ends, self.reset = env, ends, env.reset

    def step(self, action: Any) -> tuple[Any, ...]:
        result = self._env.step(action)
        self._ends.append(np.asarray(result[2]))
        return tuple(result)


def test_command_measures_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Models have a column, their own number of ops, and steps through gymnasium."""
    path = tmp_path / "chain.json"
    graphrl.write_json(layered(7, 0), path)
    bench(f"Ordering-v0 --models {path} --counts 2 --policies random,gymnasium --json --output {tmp_path}")
    rows = [StepRow(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(row.policy, row.model, row.size, row.n, row.steps) for row in rows] == [
        ("random", str(path), 7, 7, 7),
        ("gymnasium", str(path), 7, 7, 1),
    ]
    assert all(row.steps_per_s for row in rows)
    Steps(SMALL, ["Ordering-v0"], (2,), models=[str(path)]).table.printer()(rows)
    head, first = capsys.readouterr().out.splitlines()[2:4]
    assert head.split()[:4] == ["environment", "graph", "ops", "envs"]
    assert first.split()[:4] == ["Ordering-v0", str(path), "7", "2"]


def test_an_environment_without_a_network_or_graphs() -> None:
    """Sharding-v0 has no agent, and its models are sharding problems."""
    small = Steps(SMALL, ["Sharding-v0"], (2,), ["random", "network"], ["sharding-layers:9@1"])
    assert small.titles == ["Sharding-v0, sharding-layers:9@1, 2 environments, random"]
    with pytest.raises(GraphrlError, match=r"^Sharding-v0 has no network: leave --policies out, or take random"):
        Steps(SMALL, ["Sharding-v0"], (2,), ["network"])
    args = argparse.Namespace(envs="all", models=("layered:9",), ids=[])
    assert set(bench_command._ids(args)) == set(registered()) - {"Sharding-v0"}
    args.models = None
    assert set(bench_command._ids(args)) == set(registered())


@pytest.mark.slow
def test_all_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(f"--envs all --sizes 16 --counts 2 --json --all --policies {','.join(steps.POLICIES)}") == 0
    rows = [StepRow(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    played = [
        (env, policy)
        for env, one in ROLLOUTS.items()
        for policy in steps.POLICIES
        if one.network or policy != "network"
    ]
    assert [(row.env, row.policy) for row in rows] == played
    assert all(row.steps_per_s for row in rows)
    compiled = {row.env for row in rows if row.ratio_to_jax is not None}
    assert compiled == {"Compile-v0", "Proposal-v0"}
