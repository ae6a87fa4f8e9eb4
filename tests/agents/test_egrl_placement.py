"""EGRL's sequential policy: what it sees is exact, its maps are valid, it learns, and searches start from it."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import drawn
from map_problems import WORKED_CHIP, WORKED_GRAPH
from tiny_egrl import CHIP, graph

from graphrl.agents.egrl import agent
from graphrl.agents.egrl.agent import batch, sizes
from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, layers, observe, start
from graphrl.agents.egrl.learner import learner
from graphrl.agents.egrl.network import Policy, likeliest, networks, place_all
from graphrl.agents.egrl.placement import FEATURES, TensorVisits, place, visits
from graphrl.costs.maps import exact
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.device import common_sizes
from graphrl.costs.maps.drawn import draw_chip, seed_of, with_flops
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.kinds import kinds
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.datasets.zoo import augmented
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.learning.learner import on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_map_solver
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.task import MapTask

CONFIG = EgrlConfig(placement="sequential", hint="uniform", preference=2.0, width=8)
STEPS = 64
# A step with outputs that die at different dates, and one that writes nothing.
DATES = ComputationGraph(
    "dates",
    (
        Op("a", flops=2, weight_bytes=4, outputs=(Tensor("a0", 4), Tensor("a1", 2))),
        Op("b", flops=1, weight_bytes=3, inputs=("a0",), outputs=(Tensor("b0", 4),)),
        Op("c", flops=1, inputs=("a1", "b0"), outputs=(Tensor("c0", 1),)),
        Op("d", flops=1, weight_bytes=2, inputs=("c0", "a1")),
    ),
)


def problem_of(seed: int) -> MapProblem:
    """A random graph with weights on a drawn chip."""
    graph = with_flops(kinds(40, seed, structure="blocks"))
    return map_problem(graph, draw_chip(graph, seed))


PROBLEMS = {
    "worked": map_problem(WORKED_GRAPH, WORKED_CHIP),
    "dates": map_problem(DATES, WORKED_CHIP),
    "resnet50": map_problem(WORKLOADS["resnet50"](), NNP_I),
    **{f"drawn{seed}": problem_of(seed) for seed in range(3)},
}


def rows_of(graphs: list[ComputationGraph], share: float = 0.0) -> Layers:
    """A batch of graphs, a share of them on drawn chips."""
    return batch(dataclasses.replace(CONFIG, drawn=share), graphs, sizes(graphs))


def compiled(problem: MapProblem) -> np.ndarray:
    """The compiler's own map: `[n, 2]`."""
    costs = exact.compiler(problem)
    return np.stack([costs.weights, costs.outputs], 1)


def randomly(key: jax.Array, turn: Any) -> jax.Array:
    """A random memory with room."""
    return jax.random.categorical(key, turn[1]).astype(jnp.int32)


@jax.jit
def placed_randomly(visits: TensorVisits, key: jax.Array) -> Any:
    return place(visits, 2, 0.0, key, randomly)


@pytest.mark.parametrize("name", PROBLEMS)
def test_maps_are_valid_and_savings_exact(name: str) -> None:
    """All memories that it regards as having room have it; the last tensor's saving is that of exact costs."""
    problem = PROBLEMS[name]
    turns = visits(problem, STEPS, compiled(problem))
    slowest = exact.all_in(problem, 0).latency - problem.chip.launch * problem.steps
    for seed in range(4):
        placed = placed_randomly(turns, jax.random.key(seed))
        rows = np.array(placed.map)[: problem.steps]
        assert exact.evaluate(problem, *rows.T).moved_bytes == 0
        count = int(turns.real)
        last, features = int(turns.order[count - 1]), np.asarray(placed.features)[2 * STEPS * 2 - 2 * STEPS + count - 1]
        kind, step = divmod(last, STEPS)
        for memory in np.flatnonzero(features[:, FEATURES.index("fits")]):
            rows[step, kind] = memory
            moved = exact.evaluate(problem, *rows.T)
            rows[step, kind] = 0
            saved = exact.evaluate(problem, *rows.T).latency - moved.latency
            assert moved.moved_bytes == 0
            feature = features[memory, 0]
            seconds = np.sign(feature) * np.expm1(abs(feature)) / 10 * slowest / problem.steps
            assert seconds == pytest.approx(saved, rel=1e-3, abs=2e-5 * slowest)


def test_padding_changes_nothing() -> None:
    problem = PROBLEMS["resnet50"]
    sizes_of = (None, common_sizes([problem, map_problem(WORKLOADS["resnet101"](), NNP_I)]))
    near, far = (
        jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), layers([problem], to, "uniform", "sequential"))
        for to in sizes_of
    )
    assert near.visits is not None
    params = drawn(jax.eval_shape(lambda: Policy.initial(CONFIG, jax.random.key(0))))
    likely = [np.asarray(likeliest(CONFIG, params, each)) for each in (near, far)]
    sampled = [np.asarray(place_all(CONFIG, params, each.visits, jax.random.key(3)).map) for each in (near, far)]
    for maps in (likely, sampled):
        np.testing.assert_array_equal(maps[0][:57], maps[1][:57])
        assert not maps[1][57:].any()


def test_logits_are_those_of_the_map() -> None:
    """The actor of EGRL's own search asks for the map that the policy makes."""
    instance = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows_of([WORKLOADS["resnet50"]()]))
    params = drawn(jax.eval_shape(lambda: Policy.initial(CONFIG, jax.random.key(0))))
    logits = networks(CONFIG, 3).actor.apply(params, observe(instance, start(instance)))
    np.testing.assert_array_equal(np.asarray(logits.argmax(-1)), likeliest(CONFIG, params, instance))


def test_an_untrained_policy_is_no_slower_than_its_hint() -> None:
    policy = Policy(CONFIG, jax.tree.map(np.zeros_like, Policy.initial(CONFIG, jax.random.key(0))))
    for name in ("resnet50", "drawn0"):
        problem = PROBLEMS[name]
        own, *hints = policy.request_maps(problem).reshape(10, 2, -1)
        best = min(exact.evaluate(problem, *each).latency for each in hints)
        assert exact.evaluate(problem, *own).latency <= best * (1 + 1e-6)


def test_it_learns_what_holds_for_graphs_that_it_has_not_seen(tmp_path: Path) -> None:
    """Without a preference it starts from random choices."""
    CHIP.save(tmp_path / "chip.json")
    config = dataclasses.replace(
        CONFIG, learning="ppo", preference=0.0, samples=8, rate=0.01, entropy_coefficient=0.01,
        chip=str(tmp_path / "chip.json"), hint="none",
    )  # fmt: skip
    train, unseen = ([graph(seed) for seed in seeds] for seeds in (range(8), range(100, 120)))
    rows, held_out = (batch(config, graphs, sizes(graphs)) for graphs in (train, unseen))
    mesh = make_mesh(1, jax.devices()[:1])
    functions = on_mesh(learner(config, mesh, rows), mesh)
    state = functions.init(jax.random.key(1))
    before = functions.evaluate(state.params, jax.random.key(0), held_out)
    for number in range(30):
        state, _ = functions.update(state, jax.random.key(number), rows)
    after = functions.evaluate(state.params, jax.random.key(0), held_out)
    assert float(before["policy"]) < 1.28
    assert float(after["policy"]) > 1.34


@pytest.mark.parametrize("variant", ["egrl", "ea", "pg"])
def test_searches_start_from_the_policy(variant: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.msgpack"
    Policy(CONFIG, Policy.initial(CONFIG, jax.random.key(0))).save(path)
    problem = PROBLEMS["worked"]  # of two memories: the policy is for any number

    def solved() -> MemoryMap:
        method = find_map_solver(f"egrl:checkpoint={path},variant={variant},population=4")
        memory_map = method(MapTask(problem, Budget(60), 3))
        memory_map.check(problem.graph)
        return memory_map

    first, second = solved(), solved()
    assert first.evaluations == 60
    assert (first.weights, first.outputs) == (second.weights, second.outputs)
    alone = find_map_solver(f"egrl-policy:checkpoint={path},alone=true")(MapTask(problem, Budget(60)))
    assert first.latency <= alone.latency


def test_settings_of_the_user_precede_those_of_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.msgpack"
    Policy(CONFIG, Policy.initial(CONFIG, jax.random.key(0))).save(path)
    configs: list[EgrlConfig] = []
    monkeypatch.setattr(agent, "_search", lambda task, config, policy: configs.append(config))
    for options in (f"checkpoint={path}", f"checkpoint={path},rate=0.003", "entropy=0.1", "checkpoint=shipped"):
        find_map_solver(f"egrl:{options}")(MapTask(PROBLEMS["worked"], Budget(60)))
    rates = [(config.rate, config.entropy_coefficient) for config in configs]
    assert rates == [(0.01, 0.02), (0.003, 0.02), (0.001, 0.1), (0.01, 0.02)]


def test_the_shipped_policy_has_a_name() -> None:
    problem = PROBLEMS["worked"]
    assert Policy.load_or_default(problem, "shipped") is Policy.load_or_default(problem, "")


def test_samples_are_drawn_by_key() -> None:
    instance = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows_of([WORKLOADS["resnet50"]()]))
    params = Policy.initial(CONFIG, jax.random.key(0))
    assert instance.visits is not None
    sample = jax.jit(lambda key: place_all(CONFIG, params, instance.visits, key).map)
    one, again, other = (np.asarray(sample(jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_drawn_chips_depend_on_graph_and_seed() -> None:
    resnet = WORKLOADS["resnet50"]()
    chip = draw_chip(resnet, 1)
    assert (chip, draw_chip(resnet, 2)) == (draw_chip(resnet, 1), draw_chip(resnet, 2))
    assert chip != draw_chip(resnet, 2)
    assert len(draw_chip(resnet, 1, 4).memories) == 4
    capacities = [memory.capacity or 0 for memory in chip.memories[1:]]
    assert 0 < capacities[1] <= capacities[0] < map_problem(resnet, chip).total_bytes
    assert seed_of(resnet) == seed_of(WORKLOADS["resnet50"]()) != seed_of(augmented(resnet, 1))
    with pytest.raises(ProblemError, match="seed is -1"):
        draw_chip(resnet, -1)


def test_generated_graphs_have_flops_in_proportion_to_run_times() -> None:
    graph = kinds(20, 3, structure="layered", runtime="log-normal")
    timed = with_flops(graph)
    ratio = [new.flops / old.runtime for new, old in zip(timed.ops, graph.ops, strict=True) if old.runtime > 1e-9]
    assert max(ratio) == pytest.approx(min(ratio), rel=1e-2)
    assert with_flops(timed) is timed


def test_a_share_of_the_graphs_has_drawn_chips() -> None:
    graphs = [WORKLOADS["resnet50"]() if not i else augmented(WORKLOADS["resnet50"](), i) for i in range(8)]
    each = [np.asarray(rows_of(graphs, drawn).problem.capacity)[:, 1] for drawn in (0.0, 0.5, 1.0)]
    pages = (NNP_I.memories[1].capacity or 0) // NNP_I.page
    fixed = [np.mean(capacity == pages) for capacity in each]
    assert fixed[0] == 1 > fixed[1] > fixed[2] == 0


def test_neither_ratio_nor_unit_of_time_changes_the_features() -> None:
    """A chip that is ten times as fast, and one with pages of half the size, make the same features."""
    resnet, slow = WORKLOADS["resnet50"](), NNP_I
    fast = dataclasses.replace(
        slow,
        peak=10 * slow.peak,
        memories=tuple(
            dataclasses.replace(each, read=10 * each.read, write=10 * each.write, setup=each.setup / 10)
            for each in slow.memories
        ),
    )
    both = [map_problem(resnet, chip) for chip in (slow, fast)]
    one, other = (placed_randomly(visits(each, STEPS, compiled(each)), jax.random.key(0)) for each in both)
    np.testing.assert_allclose(one.features, other.features, atol=1e-4)
