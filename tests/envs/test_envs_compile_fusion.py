"""`Compile-v0` with fusion as a task: its contract, rewards equal to the exact twin's, batches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_observations import keys_of, order_of
from fusion_graphs import CHIP, chain_graph, fusable_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import graphrl
from graphrl.agents.go.config import GoConfig
from graphrl.agents.go.network import networks
from graphrl.costs import exact
from graphrl.costs.fusion.device import FusionSizes
from graphrl.costs.fusion.exact import fuse, fused_graph
from graphrl.costs.fusion.padded_graph import kernel_sizes
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import Choices, CompileInstance, Task, make_instance, make_instances
from graphrl.envs.testing import check_env
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.solvers.fusion.rules import xla_like
from graphrl.solvers.rules.list_scheduling import quick_schedule

KEY = jax.random.key(0)
LINK = Problem("makespan", 2, "link", latency=1.0, bandwidth=2.0)
LEVELS, FUSIONS = 3, 3
TASKS: tuple[Task, ...] = ("placement", "priority", "fusion")
SIZES = Sizes(ops=16, tensors=24, slots=24, rows=64, uses=40, controls=16, shares=16)
TO = FusionSizes(ops=16, tensors=24, externals=4, steps=40, reads=4)
ENV = graphrl.make("Compile-v0", tasks=TASKS)


def diamond() -> ComputationGraph:
    """A product, two chains that read it, and a sum of both."""
    ops = (
        Op("make", "dot_general", 1.0, ("x",), (Tensor("m", 8),), flops=8),
        Op("left", "exp", 1.0, ("m",), (Tensor("l", 8),), flops=8),
        Op("right", "mul", 1.0, ("m", "y"), (Tensor("r", 8),), flops=8),
        Op("more", "exp", 1.0, ("r",), (Tensor("s", 8),), flops=8),
        Op("sum", "reduce_sum", 1.0, ("l", "s"), (Tensor("z", 2),), flops=8),
        Op("last", "dot_general", 1.0, ("r", "z"), (Tensor("e", 2),), flops=8),
    )
    return ComputationGraph("diamond", ops, (Tensor("x", 8), Tensor("y", 8)), ("e",))


def drawn(graph: ComputationGraph, seed: int) -> Choices:
    generator = np.random.default_rng(seed)
    counts = LINK.devices, LEVELS, FUSIONS
    return Choices(*(generator.integers(0, count, len(graph.ops)).astype(np.int32) for count in counts))


def instance_of(fusion: FusionProblem, problem: Problem = LINK, **options: Any) -> CompileInstance:
    options = {"baseline": 10.0, "levels": LEVELS} | options
    return make_instance(fusion.graph, problem, SIZES, fusion=fusion, fusion_levels=FUSIONS, fusion_to=TO, **options)


def action(choices: Choices, n: int = SIZES.ops) -> dict[str, jax.Array]:
    return {task: jnp.asarray(np.pad(one, (0, n - len(one)))) for task, one in choices.of(TASKS).items()}


def twin(fusion: FusionProblem, problem: Problem, choices: Choices) -> tuple[exact.Costs, bool]:
    """Host costs of the fusion's kernels, with device and key of their roots; and the flag that they have room."""
    assert choices.fusion is not None
    kernels = fused_graph(fuse(fusion, choices.fusion))
    roots = list(kernels.fusion.members)
    placement, keys = np.asarray(choices.placement)[roots], keys_of(fusion.graph, choices.priority, LEVELS)[roots]
    order = order_of(kernels, problem, placement, keys)
    return exact.evaluate(kernels, problem, placement, order), len(kernels.arrays.use_op) <= kernel_sizes(SIZES).uses


step = jax.jit(ENV.step)


@settings(max_examples=30)
@given(st.data())
def test_rewards_are_those_of_the_exact_twin(data: st.DataObject) -> None:
    fusion = fusion_problem(data.draw(fusable_graphs()), CHIP)
    limited = Problem("makespan", 2, "link", latency=1.0, bandwidth=2.0, memory_limit=data.draw(st.integers(1, 40)))
    instance, choices = instance_of(fusion, limited), drawn(fusion.graph, data.draw(st.integers(0, 99)))
    state, _ = ENV.reset(KEY, instance)
    _, timestep = step(KEY, state, action(choices), instance)
    costs, has_room = twin(fusion, limited, choices)
    assert has_room
    assert float(timestep.info["runtime"]) == pytest.approx(costs.makespan, rel=1e-5)
    valid = bool(max(costs.peak_memory, default=0) <= (limited.memory_limit or 0))
    assert bool(timestep.info["valid"]) == valid
    assert float(timestep.reward) == pytest.approx(-((costs.makespan / 10) ** 0.5) if valid else -10, rel=1e-5)


def test_the_contract() -> None:
    graph = diamond()
    wider = common_sizes([chain_graph("exp " * 40)])
    fusion, start = fusion_problem(graph, CHIP), drawn(graph, 3)
    narrow, wide = (make_instance(graph, LINK, to, start=start, fusion=fusion, levels=LEVELS) for to in (None, wider))
    check_env(ENV, narrow, wider=wide, tolerance=1e-5)
    network = networks(GoConfig(TASKS, width=8, heads=2, segment=16, rounds=1, layers=1)).policy
    seen = ENV.reset(KEY, narrow)[1].observation
    logits: Any = jax.eval_shape(lambda seen: network.apply(network.init(KEY, seen), seen), seen)
    assert {task: of.shape for task, of in logits.items()} == {
        task: of.shape for task, of in seen.action_mask.items()
    }, "GO's network decides all three"


def test_only_what_is_legal_may_be_inlined() -> None:
    fusion = fusion_problem(diamond(), CHIP)
    _, timestep = ENV.reset(KEY, instance_of(fusion))
    mask = np.asarray(timestep.observation.action_mask["fusion"])
    assert mask[:, 0].all()
    assert mask[:6, 1:].all(1).tolist() == fusion.legal.tolist() == [False, True, False, True, False, False]
    assert not mask[6:, 1:].any()


def test_mapped_over_choices_and_graphs_it_is_a_loop() -> None:
    graphs = [diamond(), chain_graph("dot_general exp mul exp reduce_sum mul exp dot_general")]
    fusions = [fusion_problem(graph, CHIP) for graph in graphs]
    batch = make_instances(graphs, [LINK] * 2, levels=LEVELS, fusions=fusions, fusion_levels=FUSIONS)
    choices = [[drawn(graph, seed) for seed in range(3)] for graph in graphs]
    each = [[action(one, batch.order.shape[1]) for one in row] for row in choices]
    actions = jax.tree.map(lambda *leaves: jnp.stack(leaves).reshape(2, 3, -1), *(one for row in each for one in row))
    state = ENV.reset(KEY, jax.tree.map(lambda leaf: leaf[0], batch))[0]

    def runtime(action: Any, instance: Any) -> jax.Array:
        return ENV.step(KEY, state, action, instance)[1].info["runtime"]

    together = jax.jit(jax.vmap(jax.vmap(runtime, (0, None))))(actions, batch)
    loop = [[twin(*pair)[0].makespan for pair in zip([fusion] * 3, [LINK] * 3, row, strict=True)]
            for fusion, row in zip(fusions, choices, strict=True)]  # fmt: skip
    np.testing.assert_allclose(np.asarray(together), loop, rtol=1e-5)


def test_fusion_that_is_not_decided_stays_as_it_was_given() -> None:
    fusion, choices = fusion_problem(diamond(), CHIP), drawn(diamond(), 1)
    env = graphrl.make("Compile-v0")
    others = jax.jit(env.step)
    for inlined in (0, 1):
        start = choices._replace(fusion=np.full(6, inlined))
        instance = instance_of(fusion, start=start)
        state, _ = env.reset(KEY, instance)
        _, timestep = others(KEY, state, {task: action(choices)[task] for task in env.tasks}, instance)
        assert float(timestep.info["runtime"]) == pytest.approx(twin(fusion, LINK, start)[0].makespan, rel=1e-5)


def test_the_default_baseline_is_a_list_schedule_of_the_kernels_of_the_usual_rule() -> None:
    fusion = fusion_problem(diamond(), CHIP)
    instance = instance_of(fusion, baseline=None)
    kernels = fused_graph(xla_like(fusion))
    seconds = exact.evaluate(kernels, LINK, *quick_schedule(kernels, LINK)).makespan
    assert float(instance.baseline * instance.graph.second_unit) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ENV.reset(KEY, make_instance(diamond(), LINK)), "the task 'fusion' needs an instance with a fusion"),
        (lambda: ENV.action_spec(make_instance(diamond(), LINK)), "the task 'fusion' needs an instance with"),
        (lambda: make_instance(diamond(), LINK, fusion=fusion_problem(diamond())), "of another graph than 'diamond'"),
        (
            lambda: make_instances(
                [graph := diamond(), graph],
                [LINK] * 2,
                fusions=[fusion_problem(graph), fusion_problem(graph, max_ops=3)],
            ),
            "must have equal limits of kernels",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()
