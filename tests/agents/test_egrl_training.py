"""`graphrl train egrl`: it learns, goes on after a kill, is the same on two devices; what plays the trained policy."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from command_line import fault, sets
from map_problems import WORKED_CHIP, WORKED_GRAPH
from tiny_egrl import CHIP, graph, settings
from training_processes import assert_same, final_state

from graphrl.agents.egrl.agent import AGENT, batch, sizes
from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers
from graphrl.agents.egrl.learner import learner
from graphrl.agents.egrl.network import Policy
from graphrl.cli import main
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.problem import map_problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.learning.learner import Learner, on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_map_solver
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.task import MapTask
from graphrl.training.config import RunConfig, parsed, updated
from graphrl.training.run import default_config


def config_of(folder: Path, *more: str) -> EgrlConfig:
    """The settings of `tiny_egrl`, and more."""
    config: RunConfig[EgrlConfig] = updated(default_config(AGENT), parsed([*settings(folder), *more]))
    return config.agent


def rows(config: EgrlConfig, seeds: range) -> Layers:
    """A batch of tiny graphs."""
    graphs = [graph(seed) for seed in seeds]
    return jax.tree.map(np.asarray, batch(config, graphs, sizes(graphs)))


def trained(config: EgrlConfig, devices: int, steps: int, train: Layers) -> tuple[Learner, Any, Any]:
    """The learner, its state before any training and after some steps."""
    mesh = make_mesh(2, jax.devices()[:devices])
    functions = on_mesh(learner(config, mesh, train), mesh)
    state = functions.init(jax.random.key(0))
    first = jax.tree.map(np.asarray, state)
    for number in range(steps):
        state, _ = functions.update(state, jax.random.key(number), train)
    return functions, first, jax.tree.map(np.asarray, state)


def solved(method: str, problem: Any, evaluations: int = 10) -> Any:
    memory_map = find_map_solver(method)(MapTask(problem, Budget(evaluations)))
    memory_map.check(problem.graph)
    return memory_map


@pytest.mark.parametrize(
    "options",
    [
        ("agent.variant=ea", "agent.boltzmann=0", "agent.population=12"),
        ("agent.learning=ppo",),
    ],
)
def test_it_learns_what_holds_for_graphs_that_it_has_not_seen(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Untrained it asks the fast memory for everything, which is first come, first served."""
    config = config_of(tmp_path, *options, "agent.hint=compiler", "agent.preference=1")
    functions, before, after = trained(config, 1, 40, rows(config, range(8)))
    key, unseen = jax.random.key(0), rows(config, range(100, 120))
    first, last = (functions.evaluate(state.params, key, unseen) for state in (before, after))
    assert float(first["alone"]) < 1.05
    assert float(first["hint"]) == float(last["hint"]) == pytest.approx(1.0)
    assert float(last["speedup"]) >= float(last["alone"]) > 1.2


@pytest.mark.parametrize("option", ["agent.variant=ea", "agent.learning=ppo"])
def test_one_device_is_two_devices(tmp_path: Path, option: str) -> None:
    """Of the population, or of the graphs; test_collaborative.py looks at the replay too."""
    config = config_of(tmp_path, option)
    (_, _, one), (_, _, two) = (trained(config, devices, 2, rows(config, range(2))) for devices in (1, 2))
    chex.assert_trees_all_close(one, two, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed, and beside it its graphs."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "egrl", *sets(*settings(folder.parent)), "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run(run: Path) -> None:
    """All that a search holds is in its checkpoints, the replay and the population too. (Kills: test_training_loop.)"""
    resumed = run.with_name("resumed")
    for more in (("training.steps=3",), ()):
        options = sets(*settings(run.parent), *more)
        assert main(["train", "egrl", *options, "--resume", "--out", str(resumed)]) == 0
    one, other = map(final_state, (run, resumed))
    assert any("replay" in name for name in one)
    assert_same(one, other)


@pytest.mark.slow
def test_from_training_to_table(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--evaluations", "20", "--seeds", "2", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    methods = {method["method"]: method for method in table["methods"]}
    assert list(methods) == ["egrl-policy", "compiler", "benefit", "greedy-dp", "local-search"]
    assert (methods["compiler"]["speedup"], methods["egrl-policy"]["evaluations"]) == (
        1.0,
        5,
    )  # its own map, and the four of its hint
    assert {row["graph"] for row in table["runs"]} == {"chain200", "chain201"}
    assert main(["evaluate", str(run), "--evaluations", "20", "--methods", "compiler"]) == 0
    assert "2 graphs, 1 seed, 20 evaluations a run" in capsys.readouterr().out
    (tmp_path / "cut.json").write_text('{"format": ')
    assert main(["evaluate", str(run), str(tmp_path / "cut.json"), "layered:20", "--evaluations", "20", "--json"]) == 1
    out, err = capsys.readouterr()
    assert list(json.loads(out)["unreadable"]) == [str(tmp_path / "cut.json")]
    assert err.startswith(f"graphrl: left out: {tmp_path / 'cut.json'}: broken or truncated JSON")
    code, err = fault(capsys, "evaluate", str(run), "--plot", "a.png")
    assert (code, "--plot is for plans" in err) == (2, True)
    by_policy = solved(f"egrl-policy:checkpoint={run}", map_problem(graph(300), CHIP))
    table_row = next(row for row in table["runs"] if row["graph"] == "chain200")
    again = solved(f"egrl-policy:checkpoint={run}", map_problem(graph(200), CHIP))
    assert (by_policy.evaluations, again.latency) == (5, table_row["latency"])
    begun = solved(f"egrl:checkpoint={run},variant=ea,population=6,boltzmann=0.34", map_problem(graph(200), CHIP), 40)
    assert begun.latency <= again.latency
    code, err = fault(
        capsys, "train", "egrl", "--out", str(tmp_path / "b"), *sets(*settings(run.parent), "data.fresh=true")
    )
    assert (code, "data.fresh is True" in err) == (2, True)


def test_a_policy_is_for_chips_of_as_many_memories(tmp_path: Path) -> None:
    config = EgrlConfig(width=8)
    path = tmp_path / "policy.msgpack"
    Policy(config, Policy.initial(config, jax.random.key(0))).save(path)
    with pytest.raises(ProblemError, match="for the 3 memories of chip 'nnp-i': chip 'worked' has 2"):
        solved(f"egrl-policy:checkpoint={path}", map_problem(WORKED_GRAPH, WORKED_CHIP))
    with pytest.raises(GraphrlError, match="no policy for chips of 2 memories comes with graphrl"):
        solved("egrl-policy", map_problem(WORKED_GRAPH, WORKED_CHIP))
    with pytest.raises(ProblemError, match="another network: encoder, width, depth, heads"):
        Policy.start(str(path), dataclasses.replace(config, width=16))


def test_another_agents_policy_is_refused() -> None:
    path = Path(AGENT.policy.defaults).parents[1] / "regal" / "defaults" / "published" / "makespan.msgpack"
    with pytest.raises(GraphrlError, match="is 'graphrl-regal-policy' version 1: must be graphrl-egrl-policy"):
        solved(f"egrl-policy:checkpoint={path}", map_problem(WORKED_GRAPH, WORKED_CHIP))


def test_a_network_that_is_sure_of_the_fastest_memory_makes_the_compilers_map(tmp_path: Path) -> None:
    config = EgrlConfig(width=8, depth=0, heads=1, hint="compiler", preference=100.0)
    path = tmp_path / "policy.msgpack"
    Policy(config, Policy.initial(config, jax.random.key(0))).save(path)
    problem = map_problem(WORKLOADS["resnet50"](), NNP_I)
    assert solved(f"egrl-policy:checkpoint={path}", problem).speedup == 1.0
