"""EGRL: its networks and rewards, the method, training by `graphrl train egrl`, and methods that use the policy.

Checkpoints of the whole state, replay and population included: test_collaborative.py; the loop: test_training_loop.py.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import fault, sets
from filled import drawn
from map_problems import WORKED_CHIP, WORKED_GRAPH
from tiny_egrl import CHIP, graph, settings

from graphrl.agents.egrl import agent, domain
from graphrl.agents.egrl.agent import AGENT, batch, sizes
from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers
from graphrl.agents.egrl.learner import learner
from graphrl.agents.egrl.network import Policy, networks
from graphrl.cli import main
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.device import common_sizes
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.envs.memory_map import MemoryMapEnv, make_instance
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.learning.learner import Learner, on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_map_solver
from graphrl.networks.graph_unet import senders_of
from graphrl.networks.heads import Acted
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget, Interrupted
from graphrl.solvers.maps.task import MapTask
from graphrl.training.config import RunConfig, parsed, updated
from graphrl.training.run import default_config

RESNET = map_problem(WORKLOADS["resnet50"](), NNP_I)
WORKED = map_problem(WORKED_GRAPH, WORKED_CHIP)
TINY = "width=8,population=4,boltzmann=0.5"
UNET = EgrlConfig(encoder="unet", width=16, depth=1, heads=2)


def one(problem: MapProblem, to: Any = None) -> domain.Layers:
    """One problem as a padded instance."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), domain.layers([problem], to))


def solved(options: str, problem: MapProblem, budget: Budget, seed: int = 0) -> MemoryMap:
    """The method's map, checked."""
    memory_map = find_map_solver(f"egrl:{TINY}{options}")(MapTask(problem, budget, seed))
    memory_map.check(problem.graph)
    return memory_map


def test_networks_see_and_earn_what_the_environment_says() -> None:
    layers, env, instance = one(RESNET), MemoryMapEnv(), jax.tree.map(jnp.asarray, make_instance(RESNET))
    key = jax.random.key(0)
    state, first = env.reset(key, instance)
    seen = domain.observe(layers, domain.start(layers))
    reads = np.asarray(senders_of(seen)) - np.diag(np.asarray(seen.mask, np.float32))
    np.testing.assert_array_equal(reads > 0, first.observation.reads)
    np.testing.assert_array_equal(seen.mask, first.observation.mask)
    for action in jax.random.randint(key, (5, *layers.placed.shape), 0, 3) * jnp.arange(5)[:, None, None] // 4:
        _, last = env.step(key, state, action, instance)
        assert float(domain.evaluate(layers, action)) == float(last.reward)
        rectified = float(domain.evaluate(layers, action, "rectified"))
        assert rectified > 0
        assert last.reward <= 0 or rectified == float(last.reward)


def test_the_map_before_is_seen() -> None:
    layers = one(WORKED)
    before = jnp.zeros(layers.placed.shape, jnp.int32).at[1, 0].set(1)
    nodes = domain.observe(layers, before).graph.nodes
    np.testing.assert_array_equal(nodes[:2, -4:], [[1, 0, 1, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("config", [EgrlConfig(), UNET], ids=["means", "unet"])
def test_neither_padding_nor_what_is_not_there_changes_anything(config: EgrlConfig) -> None:
    """Ops without weights or outputs have these in the largest memory."""
    large = common_sizes([RESNET, map_problem(WORKLOADS["resnet101"](), NNP_I)])
    actor, critic = networks(config, 3)
    near, far = (one(RESNET, to) for to in (None, large))
    seen, padded = (domain.observe(each, domain.start(each)) for each in (near, far))
    act, value = jax.jit(actor.apply), jax.jit(critic.apply)
    params = drawn(jax.eval_shape(actor.init, jax.random.key(0), seen))
    logits = np.asarray(act(params, seen))
    np.testing.assert_allclose(logits[:57], act(params, padded)[:57], atol=1e-5)
    absent = ~np.asarray(near.placed)
    assert absent[:57].any()
    assert (logits.argmax(-1)[absent] == 0).all()
    cases = [
        Acted(of, jax.nn.one_hot(jnp.where(layers.placed, 1, other), 3))
        for of, layers, other in ((seen, near, 0), (seen, near, 2), (padded, far, 0))
    ]
    params = drawn(jax.eval_shape(critic.init, jax.random.key(0), cases[0]))
    plain, elsewhere, wide = (value(params, case) for case in cases)
    chex.assert_trees_all_equal(plain, elsewhere)
    np.testing.assert_allclose(plain, wide, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    ["", ",variant=ea", ",variant=pg,reward=valid,endless=true,discounts=0.9+0.5"],
)
def test_answers_are_valid_within_the_budget_and_repeat(options: str) -> None:
    first, second = (solved(options, WORKED, Budget(15), 3) for _ in range(2))
    assert first.evaluations == 15
    assert (first.weights, first.outputs) == (second.weights, second.outputs)
    assert first.latency <= first.compiler_latency


def test_it_finds_the_best_map_of_two_ops() -> None:
    assert solved("", WORKED, Budget(200)).latency == solved("", WORKED, Budget(400), 1).latency == 6.0


def test_graphs_of_one_bucket_share_a_program() -> None:
    solved("", WORKED, Budget(20))
    count = agent._generation._cache_size()  # type: ignore[attr-defined]
    more = Op("c", flops=3, inputs=("b0", "a0"), outputs=(Tensor("c0", 2),))
    three = map_problem(ComputationGraph("three", (*WORKED_GRAPH.ops, more)), WORKED_CHIP)
    solved("", three, Budget(20), 5)
    assert agent._generation._cache_size() == count  # type: ignore[attr-defined]


def test_ctrl_c_gives_the_best_so_far() -> None:
    def stop(evaluations: int, seconds: float, best: object, value: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        find_map_solver(f"egrl:{TINY}")(MapTask(WORKED, Budget(seconds=60.0), 0, stop))
    stopped.value.plan.check(WORKED.graph)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("variant=best", "variant is 'best': must be one of egrl, ea, pg"),
        ("reward=fast", "reward is 'fast': must be one of valid, rectified"),
        ("encoder=unet,width=12", "width is 12: must be a multiple of 2 x 4 heads"),
        ("encoder=gcn", "encoder is 'gcn': must be one of means, unet"),
        ("boltzmann=2", "boltzmann is 2.0: must be from 0 to 1"),
        ("discounts=0.9+", r"discounts is '0\.9\+': must be numbers with '\+' between them"),
        ("discounts=0.9+1.5", r"discounts are \(0\.9, 1\.5\): must be 1 to 16 numbers from 0 to 1"),
        ("discounts=nan", r"discounts are \(nan,\): must be"),
    ],
)
def test_wrong_options_are_refused(options: str, fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        find_map_solver(f"egrl:{options}")(MapTask(WORKED, Budget(10)))


def config_of(folder: Path, *more: str) -> EgrlConfig:
    """The settings of `tiny_egrl` with further settings."""
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


def played(method: str, problem: Any, evaluations: int = 10) -> Any:
    memory_map = find_map_solver(method)(MapTask(problem, Budget(evaluations)))
    memory_map.check(problem.graph)
    return memory_map


@pytest.mark.parametrize(
    "options",
    [
        ("agent.variant=ea", "agent.boltzmann=0", "agent.population=12"),
        ("agent.learning=ppo", "agent.samples=32"),
    ],
)
def test_it_learns_what_holds_for_graphs_that_it_has_not_seen(tmp_path: Path, options: tuple[str, ...]) -> None:
    """An untrained policy asks for the fast memory everywhere, which amounts to first come, first served."""
    options += "agent.placement=independent", "agent.hint=compiler", "agent.preference=1"
    config = config_of(tmp_path, *options)
    functions, before, after = trained(config, 1, 40, rows(config, range(8)))
    key, unseen = jax.random.key(0), rows(config, range(100, 120))
    first, last = (functions.evaluate(state.params, key, unseen) for state in (before, after))
    assert float(first["policy"]) < 1.05
    assert float(first["hint"]) == float(last["hint"]) == pytest.approx(1.0)
    assert float(last["speedup"]) >= float(last["policy"]) > 1.2


def test_one_device_is_two_devices(tmp_path: Path) -> None:
    """With PPO, which spreads graphs over devices; test_collaborative.py tests the search, which spreads the
    population.
    """
    config = config_of(tmp_path, "agent.learning=ppo")
    (_, _, one), (_, _, two) = (trained(config, devices, 2, rows(config, range(2))) for devices in (1, 2))
    chex.assert_trees_all_close(one, two, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_from_training_to_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "egrl", *sets(*settings(tmp_path)), "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--evaluations", "20", "--seeds", "2", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    methods = {method["method"]: method for method in table["methods"]}
    assert list(methods) == ["egrl-policy", "compiler", "benefit", "greedy-dp", "local-search"]
    assert methods["compiler"]["speedup"] == 1.0
    assert methods["egrl-policy"]["evaluations"] == 5  # its own map, and the four of its hint
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
    by_policy = played(f"egrl-policy:checkpoint={run}", map_problem(graph(300), CHIP))
    table_row = next(row for row in table["runs"] if row["graph"] == "chain200")
    again = played(f"egrl-policy:checkpoint={run}", map_problem(graph(200), CHIP))
    assert (by_policy.evaluations, again.latency) == (5, table_row["latency"])
    begun = played(f"egrl:checkpoint={run},variant=ea,population=6,boltzmann=0.34", map_problem(graph(200), CHIP), 40)
    assert begun.latency <= again.latency
    fresh = sets(*settings(tmp_path), "data.fresh=true")
    code, err = fault(capsys, "train", "egrl", "--out", str(tmp_path / "b"), *fresh)
    assert (code, "data.fresh is True" in err) == (2, True)


def test_an_independent_policy_is_for_chips_of_as_many_memories(tmp_path: Path) -> None:
    config = EgrlConfig(width=8)
    path = tmp_path / "policy.msgpack"
    Policy(config, Policy.initial(config, jax.random.key(0))).save(path)
    with pytest.raises(ProblemError, match="for the 3 memories of chip 'nnp-i': chip 'worked' has 2"):
        played(f"egrl-policy:checkpoint={path}", map_problem(WORKED_GRAPH, WORKED_CHIP))
    with pytest.raises(ProblemError, match="another network: placement, encoder, width, depth, heads"):
        Policy.load_params(str(path), dataclasses.replace(config, width=16))


def test_another_agents_policy_is_refused() -> None:
    path = Path(AGENT.policy.defaults).parents[1] / "regal" / "defaults" / "makespan.msgpack"
    with pytest.raises(GraphrlError, match="is 'graphrl-regal-policy' version 1: must be graphrl-egrl-policy"):
        played(f"egrl-policy:checkpoint={path}", map_problem(WORKED_GRAPH, WORKED_CHIP))


def test_a_network_that_is_sure_of_the_fastest_memory_makes_the_compilers_map(tmp_path: Path) -> None:
    config = EgrlConfig(width=8, depth=0, heads=1, hint="compiler", preference=100.0)
    path = tmp_path / "policy.msgpack"
    Policy(config, Policy.initial(config, jax.random.key(0))).save(path)
    problem = map_problem(WORKLOADS["resnet50"](), NNP_I)
    assert played(f"egrl-policy:checkpoint={path}", problem).speedup == 1.0
