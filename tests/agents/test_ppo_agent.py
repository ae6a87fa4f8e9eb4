"""The agent ppo: own environments and networks, its method, and faults of one line."""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from command_line import fault
from own_environment import Deep

import graphrl
from graphrl.agents.ppo import AGENT, Policy, parts
from graphrl.cli import main
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.padding import roomy_sizes
from graphrl.learning.learner import on_mesh
from graphrl.learning.ppo.settings import likeliest
from graphrl.mesh import make_mesh
from graphrl.training import devices
from graphrl.training.checkpoints import Checkpoints, find, read
from graphrl.training.config import parsed
from graphrl.training.run import run_config, run_data

NETWORKS = "network=own_environment:networks"
BALANCE = ("--env", "own_environment:Balance", "--network", "own_environment:networks")
FEW = ("data.train=layered:8x8@100", "data.validation=layered:8x4", "data.test=layered:8x2@50", "data.graphs=4")
QUICK = (*FEW, "agent.ppo.environments=4")


def train(folder: Path, *arguments: str) -> int:
    return main(["train", "ppo", "--out", str(folder), *arguments])


def test_an_own_environment_and_network_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """8 ops of equal run times on two devices: -0.5 is the optimum, random actions are at about -0.64."""
    settings = *QUICK, "agent.ppo.learning_rate=0.01", "training.steps=40", "training.validate_every=10"
    assert train(tmp_path / "run", *BALANCE, *settings) == 0
    info = read(find(tmp_path / "run")).info
    assert info.validation[0]["return"] < -0.6
    assert info.score is not None
    assert info.score > -0.55
    assert info.config["agent"]["env"] == "own_environment:Balance"
    capsys.readouterr()
    code, err = fault(capsys, "evaluate", str(tmp_path / "run"))
    assert code == 2
    assert "agent.env=own_environment:Balance makes no plans to compare: give it problem" in err


def test_a_run_is_resumed(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = *BALANCE, *QUICK, "training.validate_every=2"
    assert train(whole, *settings, "training.steps=4") == 0
    assert train(halves, *settings, "training.steps=2") == 0
    assert train(halves, "--resume", "training.steps=4") == 0
    states = [read(Checkpoints(folder, 1).latest() or folder).state["params"] for folder in (whole, halves)]
    chex.assert_trees_all_equal(*states)


@pytest.mark.parametrize("env", ["Balance", "Bandit"])
def test_one_device_is_two_devices(env: str) -> None:
    config = run_config(AGENT, parsed([f"agent.env=own_environment:{env}", f"agent.{NETWORKS}", *QUICK]))
    results = []
    for count in (1, 2):
        mesh = make_mesh(4, jax.devices()[:count])
        data = run_data(AGENT, config, mesh)
        learner = on_mesh(AGENT.learner(config.agent, mesh, data), mesh)
        batch = devices.shard(data.batch(1).rows, mesh, 4)
        state, metrics = learner.update(learner.init(jax.random.key(0)), jax.random.key(1), batch)
        results.append((state.params, metrics, learner.evaluate(state.params, jax.random.key(2), batch)))
    chex.assert_trees_all_close(*jax.tree.map(np.asarray, results), rtol=1e-4, atol=1e-5)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `mine` in the working directory, which is not on the path."""
    (tmp_path / "mine.py").write_text("from own_environment import LivePeaks\nENV = LivePeaks()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("mine", None)
    parts.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("own_module")
def test_an_own_subclass_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = list(sys.path)
    assert train(Path("run"), "--env", "mine:ENV", *QUICK, "training.steps=1") == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--evaluations", "50"]) == 0
    printed = capsys.readouterr().out
    assert "peak memory on 1 device" in printed
    for method in ("ppo", "list", "auto"):
        assert re.search(rf"^ {method} .* 0? *$", printed, re.MULTILINE), method

    (graph,) = load_graphs(["layered:8@51"])
    policy = Policy.load("run")
    env, networks, *_ = parts(policy.config)
    instance = env.instance(graph, to=roomy_sizes(graph))
    state, timestep = env.reset(jax.random.key(0), instance)
    while not timestep.done:
        action = likeliest(networks.policy.apply(policy.params, timestep.observation))
        assert timestep.observation.action_mask[action]
        state, timestep = env.step(jax.random.key(0), state, action, instance)
    plan = graphrl.optimize(graph, method="ppo:checkpoint=run", evaluations=1)
    _, order = plan.decisions(graph)
    assert order.tolist() == state.order[: len(graph.ops)].tolist()
    assert (plan.method, plan.evaluations, plan.value) == ("ppo", 1, float(timestep.info["peak"]))
    with pytest.raises(ProblemError, match="method 'ppo' has a policy for Problem"):
        graphrl.optimize(graph, method="ppo:checkpoint=run", objective="makespan", devices=2, evaluations=1)

    monkeypatch.setattr(sys, "path", path)  # as in a process that starts elsewhere
    monkeypatch.chdir("/")
    del sys.modules["mine"]
    parts.cache_clear()
    code, err = fault(capsys, "evaluate", str(tmp_path / "run"))
    assert code == 1
    assert err == "graphrl: error: agent.env=mine:ENV cannot be imported: ModuleNotFoundError: No module named 'mine'\n"


@pytest.mark.slow
def test_the_default_learns_and_makes_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`Compile-v0`, the default: plans of unseen graphs become better, by a margin that chance does not give."""
    run = tmp_path / "run"
    assert train(run, "training.steps=60", "data.train=layered:20x64@10000", "data.test=layered:12x2") == 0
    info = read(find(run)).info
    assert info.score is not None
    assert info.score > info.validation[0]["return"] + 0.05
    capsys.readouterr()
    assert main(["evaluate", str(run), "--evaluations", "100", "--json"]) == 0
    methods = {row["method"]: row for row in json.loads(capsys.readouterr().out)["methods"]}
    assert methods["ppo"]["failed"] == 0


@pytest.mark.slow
def test_memory_maps_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, names = tmp_path / "run", ("resnet50", "mobilenet", "mobilenetv2", "gpt2")
    models = [f"zoo:{name}/inference/b1/jaxpr" for name in names]
    data = f"data.train={','.join(models[:2])}", f"data.validation={','.join(models[2:])}", "data.graphs=2"
    assert train(run, "--env", "MemoryMap-v0", *data, "agent.ppo.environments=2", "training.steps=1") == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), models[2], "--evaluations", "50"]) == 0
    printed = capsys.readouterr().out
    for method in ("ppo", "brkga", "auto", "compiler"):
        assert re.search(rf"^ ?{method} ", printed, re.MULTILINE), printed
    code, err = fault(capsys, "optimize", "layered:8@1", "--method", f"ppo:checkpoint={run}", "--evaluations", "1")
    assert code == 2
    assert "method 'ppo' has a policy for nnp-i" in err


def place_in(env: type) -> str:
    """The file and the line where `Deep` fails, as messages have them."""
    path = Path(str(inspect.getsourcefile(env)))
    lines = path.read_text().splitlines()
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}, line {1 + next(i for i, line in enumerate(lines) if '[name]' in line)}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--env", "Compile"), "agent.env=Compile: must be Compile-v0, MemoryMap-v0,"),
        (("--env", "no_such_module:Env"), "agent.env=no_such_module:Env cannot be imported: ModuleNotFoundError"),
        (("--env", "own_environment:Balances"), "module 'own_environment' has no 'Balances': the nearest"),
        (("--env", "own_environment.py"), "agent.env=own_environment.py: must be Compile-v0"),
        (("--env", "own_environment:NUMBER"), "is of type int: must be a class or an environment"),
        (("--env", "own_environment:Perceptron"), "TypeError: Perceptron.__init__() missing 1 required positional"),
        (("--env", "own_environment:NoInstances"), "has no make_instances: must have reset, step, observation_spec"),
        (("--env", "own_environment:NoLeadingAxis"), "every array must have a leading axis of 1, the graphs"),
        (("--env", "own_environment:OtherView"), "observation.load has shape (2,)"),
        (("--env", "own_environment:OtherState"), "state has other arrays, shapes or dtypes after step"),
        (("--env", "own_environment:FromOne"), "options must count from 0, as those of specs.choices"),
        (("--env", "own_environment:Continuous"), "has no number of values: only bounded integers have one"),
        (("--env", "own_environment:Endless"), "an episode must end within 10,000 random actions"),
        (("--env", "Ordering-v0", "agent.problem.devices=3"), "agent.env=Ordering-v0 has no argument problem"),
        (("--env", "own_environment:Balance"), "this network is for observations with mask, and graph or nodes"),
        (("--env", "own_environment:Deep"), f"agent.env=own_environment:Deep: KeyError: 'b' ({place_in(Deep)})"),
        (("--network", "own_environment:no"), "module 'own_environment' has no 'no': the nearest"),
        (("--network", "own_environment:NUMBER"), "is of type int: must be a function of the environment"),
        (("--network", "own_environment:only_policy"), "returns a Network: must return graphrl.learning.ppo.Policy"),
        (("--network", "own_environment:failing"), "agent.network=own_environment:failing: RuntimeError: no weights"),
        (("--network", "own_environment:three_options"), "the policy's output has shape (3,) and dtype float32: must"),
        (
            ("--env", "Ordering-v0", "--network", "own_environment:three_fixed"),
            "the policy's output has shape (3,): must be (8,), that of the action mask",
        ),
        (
            ("--network", "own_environment:two_values"),
            "the value network's output has shape (2,) and dtype float32: must be ()",
        ),
        (("agent.ppo.environments=3", "agent.ppo.minibatches=2"), "minibatches is 2: must divide steps * environ"),
    ],
)
def test_faults_are_one_line(
    arguments: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = {"--env": BALANCE[:2], "--network": BALANCE[2:]}
    others = [word for option, words in defaults.items() if option not in arguments for word in words]
    if text.startswith("this network"):
        others = []  # the default network
    code, err = fault(capsys, "train", "ppo", "--out", str(tmp_path), *QUICK, *others, *arguments)
    assert code in (1, 2)
    assert text in err


def test_other_agents_have_no_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no setting 'agent.env'" in fault(capsys, "train", "regal", "--env", "Compile-v0")[1]
