"""EGRL as an agent of the training loop, and as methods that plan memory maps.

`AGENT` is for training and the commands. `solve` searches for a memory map of the given graph by evolution and policy
gradient, from new networks or from a trained policy. `solve_policy` evaluates the map of a trained policy, without a
search.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, layers
from graphrl.agents.egrl.learner import TunedState, init_search, init_tuning, learner, search_of, tune
from graphrl.agents.egrl.network import NETWORK_SETTINGS, Policy
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.device import MapSizes, common_sizes
from graphrl.costs.maps.drawn import draw_chip, seed_of, with_flops
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.sets import load_layers
from graphrl.graphs.graph import ComputationGraph
from graphrl.learning import collaborative
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask, map_solver
from graphrl.training.agent import Agent
from graphrl.training.config import Schedule
from graphrl.training.data import DataConfig


def batch(config: EgrlConfig, graphs: Sequence[ComputationGraph], to: MapSizes) -> Layers:
    """Converts graphs to padded problems of the chip, or of drawn ones (`EgrlConfig.drawn`)."""
    return layers([_problem(config, graph) for graph in graphs], to, config.hint, config.placement)


def _problem(config: EgrlConfig, graph: ComputationGraph) -> MapProblem:
    chip, seed = config.problem, seed_of(graph)
    if seed % 1000 >= 1000 * config.drawn:
        return map_problem(graph, chip)
    graph = with_flops(graph)
    return map_problem(graph, draw_chip(graph, seed, len(chip.memories)))


def sizes(graphs: Sequence[ComputationGraph]) -> MapSizes:
    """Computes padded sizes that cover all of the graphs; they do not depend on the chip."""
    return common_sizes([map_problem(graph, NNP_I) for graph in graphs])


def _zoo(batch: int, *models: str) -> tuple[str, ...]:
    return tuple(f"zoo:{model}/inference/b{batch}/jaxpr" for model in models)


# At most 150 layers; their compiler's map can be improved by more than 1%, or made worse by errors of learning.
_SINGLE = (
    *("mobilenet", "mobilenetv2", "mobilenetv3large", "mobilenetv3small", "resnet50", "resnet50v2", "resnet101v2"),
    *("densenet121", "retinanet_resnet50", "deeplabv3_resnet50", "deit_small", "vit_base", "gpt2", "electra_small"),
)
_HELD_OUT = (
    *("convnexttiny", "efficientnetb0", "efficientnetb3", "efficientnetv2b0", "segformer_b0", "t5_small", "bart_base"),
)

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner(config, mesh, data.batch(1).rows),
    batch=batch,
    methods=lambda _: ("egrl-policy",),
    opponents=("compiler", "benefit", "greedy-dp", "local-search"),
    data=DataConfig(
        train=("workloads:resnet50", *_zoo(1, *_SINGLE), *_zoo(8, "albert_base", "deit_small", "distilbert")),
        validation=_zoo(1, *_HELD_OUT),
        test=("workloads:resnet101", "workloads:bert", "zoo:inference/b1/jaxpr/test-split"),
        graphs=len(_HELD_OUT),
        buckets=1,
    ),
    schedule=Schedule(steps=200, validate_every=25, checkpoint_every=25),
    load=lambda _, names: load_layers(names),
    sizes=lambda _, graphs: sizes(graphs),
    shares=lambda config: "individuals" if config.learning == "search" else "graphs",
)


# Defaults of the search that starts from a sequential policy: its learner is PPO.
TUNING: dict[str, Any] = {"rate": 0.01, "entropy_coefficient": 0.02, "samples": 10}

MAX_STEPS = 2_000  # attention over all pairs of steps, for all networks of a generation in one batch: about 10 GB


@map_solver("egrl", "EGRL: evolution and policy gradient of graph networks, on the given graph")
def solve(
    task: MapTask,
    *,
    variant: str = "egrl",
    reward: str = "rectified",
    hint: str = "none",
    preference: float = 0.0,
    encoder: str = "means",
    width: int = 16,
    depth: int = 2,
    population: int = 20,
    boltzmann: float = 0.0,
    entropy: float | None = None,
    rate: float | None = None,
    strength: float = 0.05,
    chromosome_strength: float = 0.1,
    temperature: float = 10.0,
    operators: str = "paper",
    gradient_steps: float = 0.25,
    migrate_every: int = 1,
    endless: bool = False,
    discounts: str = "0.99",
    checkpoint: str = "",
) -> MemoryMap:
    """Searches in generations; every roll-out counts as an evaluation, and the first one is the compiler's own map.

    Args:
      options: see `EgrlConfig`.
      entropy, rate: `EgrlConfig.entropy_coefficient` and `rate`; by default 0.2 and 0.001, or 0.02 and 0.01 from a
        sequential policy.
      discounts: discount of each learner, separated by plus signs, as in "0.9+0.99".
      checkpoint: as for `solve_policy`, or "shipped" for the policy that the package ships: the search starts from that
        policy, which also determines the networks' settings; by default all networks are new. The population of a
        sequential policy has mutated copies of it, and the learner is PPO, which samples 10 maps a generation; options
        of SAC and of chromosomes have no effect.

    Raises:
      GraphrlError: the checkpoint cannot be read, or is for another number of memories.
      ProblemError: an option is out of range, or the graph has more than 2,000 ops.
    """
    if task.problem.steps > MAX_STEPS:
        raise ProblemError(
            f"method 'egrl' takes graphs of up to {MAX_STEPS:,} ops: this one has {task.problem.steps:,}"
        )
    rates: dict[str, Any] = {"entropy_coefficient": entropy, "rate": rate}
    given = {name: value for name, value in rates.items() if value is not None}
    config = EgrlConfig(
        variant=variant,  # type: ignore[arg-type]
        reward=reward,  # type: ignore[arg-type]
        hint=hint,  # type: ignore[arg-type]
        preference=preference,
        encoder=encoder,  # type: ignore[arg-type]
        width=width,
        depth=depth,
        population=population,
        boltzmann=boltzmann,
        strength=strength,
        chromosome_strength=chromosome_strength,
        temperature=temperature,
        operators=operators,  # type: ignore[arg-type]
        gradient_steps=gradient_steps,
        migrate_every=migrate_every,
        endless=endless,
        discounts=_discounts(discounts),
        **given,
    )
    if not checkpoint:
        return _search(task, config, None)
    policy = Policy.load_or_default(task.problem, checkpoint).checked(task.problem)
    config = dataclasses.replace(config, **{name: getattr(policy.config, name) for name in NETWORK_SETTINGS})
    if config.placement == "sequential":
        config = dataclasses.replace(config, **{**TUNING, **given})
    return _search(task, config, policy.params)


@map_solver("egrl-policy", "the map that EGRL's trained policy asks for, or its hint if that is faster: no search")
def solve_policy(task: MapTask, *, checkpoint: str = "", alone: bool = False) -> MemoryMap:
    """Evaluates the policy's map, and each map that its hint is chosen from (9 for three memories).

    Args:
      alone: True returns the policy's own map, even if the hint is faster; one evaluation.
      checkpoint: a checkpoint of `graphrl train egrl`, or a file of `Policy.save`; by default, or for
        "shipped", the policy that the package ships.

    Raises:
      GraphrlError: the checkpoint cannot be read.
      ProblemError: its policy is independent, and for another number of memories.
    """
    maps = Policy.load_or_default(task.problem, checkpoint).checked(task.problem).request_maps(task.problem)
    task.evaluate(maps[:1] if alone else maps)
    return task.answer(task.best_map())


def _discounts(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split("+"))
    except ValueError:
        raise ProblemError(f"discounts is {text!r}: must be numbers with '+' between them, as in 0.9+0.99") from None


def _search(task: MapTask, config: EgrlConfig, policy: Any) -> MemoryMap:
    """Runs generations until the budget is spent; of the last one, only the maps that the budget covers are
    evaluated.
    """
    instances = layers([task.problem], None, config.hint, config.placement)
    root = jax.random.key(task.seed)
    task.evaluate(task.fastest[None])
    functions = (_init, _generation) if config.placement == "independent" else (_init_tuning, _tune)
    init, generation = functions
    state = init(config, instances, root, policy)
    while not task.spent():
        state, actions = generation(config, state, instances, root)
        task.evaluate(rows_of(actions, task.problem.steps))
    return task.best_map()


def rows_of(actions: jax.Array, steps: int) -> np.ndarray:
    """Converts actions `[k, 1, N, 2]` to maps `[k, 2n]` int64, weights first and then outputs."""
    maps = np.asarray(actions, np.int64)[:, 0, :steps]
    return maps.swapaxes(1, 2).reshape(len(maps), -1)


_init = jax.jit(init_search, static_argnums=0)
_init_tuning = jax.jit(init_tuning, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _generation(config: EgrlConfig, state: collaborative.State, instances: Layers, root: jax.Array) -> Any:
    key = jax.random.fold_in(root, state.step)
    state, _, actions = collaborative.generation(*search_of(config, instances), state, key, instances)
    return state, actions


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _tune(config: EgrlConfig, state: TunedState, instances: Layers, root: jax.Array) -> Any:
    return tune(config, state, jax.random.fold_in(root, state.step), instances)
