"""What GO's policy imitates before it decides fusion: where `flips` ends, at once from the rule like XLA's.

A choice counts as much as kernels take longer if it alone is wrong, up to ten times the mean, or so much where a kernel
is too large then: most make no difference.
The programs are training steps of the zoo's training split; none of GO's workloads is among them, though their kin are
(an unrolled LSTM, GPTs, ResNets).
"""

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.network import networks
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import CompileParams, fusion_sizes
from graphrl.envs.compile.observation import shown
from graphrl.envs.compile.reward import nothing_played
from graphrl.graphs.datasets import zoo
from graphrl.graphs.padding import common_sizes
from graphrl.learning import learner
from graphrl.solvers.fusion.flips import flip_costs
from graphrl.solvers.fusion.rules import flips, xla_like
from reproduce.go.fusing import FusingPolicy, begun, settings_of, untrained

PROGRAMS = "training/jaxpr/train-split"
ONE_DEVICE = Problem("makespan", 1, "free")
RATE = 2e-3  # of Adam, falling to 0
LARGEST = 10.0  # times the mean that a wrong choice counts at most


class Lesson(NamedTuple):
    """One program."""

    instance: CompileParams
    inlined: np.ndarray  # [n] int32, where `flips` ends
    weight: np.ndarray  # [n] float32, their sum is 1


def programs(chip: str, most_ops: int) -> list[FusionProblem]:
    """A training step of each architecture that is no larger."""
    by_name = {entry.architecture: entry.name for entry in zoo.select(PROGRAMS) if entry.ops <= most_ops}
    return [fusion_problem(zoo.load(name).graph, chip) for name in by_name.values()]


def imitator(problems: Sequence[FusionProblem], steps: int) -> FusingPolicy:
    """A policy after some steps, each on one program."""
    began = time.perf_counter()
    policy = untrained(settings_of("fusion", changes=0.0))
    settings, params = policy.config, policy.params
    lessons = _lessons(problems, settings)
    moments, rng = _optimiser(settings, steps).init(params), np.random.default_rng(0)
    for step in range(steps):
        if step % len(lessons) == 0:
            order = rng.permutation(len(lessons))
        params, moments = _step(settings, steps, params, moments, lessons[order[step % len(lessons)]])
    note = f"{steps} steps of imitation on {len(lessons)} programs, {time.perf_counter() - began:.0f} s"
    return FusingPolicy(settings, jax.tree.map(np.asarray, params), note)


def _lessons(problems: Sequence[FusionProblem], settings: GoSettings) -> list[Lesson]:
    """Of each problem; all are padded to the same sizes."""
    to = common_sizes([problem.graph for problem in problems])
    fusion_to = fusion_sizes(problems, to)
    lessons = []
    for problem in problems:
        best, rest = flips(problem), (0, to.ops - problem.num_ops)
        costs = np.where(problem.legal, np.maximum(flip_costs(best), 0), 0)
        weight = np.minimum(costs, LARGEST * costs[np.isfinite(costs) & problem.legal].mean())
        inlined = np.pad(best.inlined, rest).astype(np.int32)
        weight = np.pad(weight / weight.sum(), rest).astype(np.float32)
        instance = begun(xla_like(problem), ONE_DEVICE, settings, to, fusion_to)
        lessons.append(Lesson(instance, inlined, weight))
    return lessons


def _optimiser(settings: GoSettings, steps: int) -> optax.GradientTransformation:
    return learner.optimiser(optax.cosine_decay_schedule(RATE, steps), settings.ppo.gradient_norm)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(settings: GoSettings, steps: int, params: Any, moments: Any, lesson: Lesson) -> tuple[Any, Any]:
    gradient = jax.grad(functools.partial(imitation_loss, settings))(params, lesson)
    return learner.moved(_optimiser(settings, steps), params, moments, gradient)


def imitation_loss(settings: GoSettings, params: Any, lesson: Lesson) -> jax.Array:
    """Nats by which what is to be imitated surprises the policy, by weight: `[]` float32."""
    instance = jax.tree.map(jnp.asarray, lesson.instance)
    observation = shown(instance, instance.start, settings.network.tasks, nothing_played(instance))
    logits: Any = networks(settings.network).policy.apply(params, observation)
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits["fusion"]), lesson.inlined[:, None], -1)[:, 0]
    return -(likely * lesson.weight).sum()
