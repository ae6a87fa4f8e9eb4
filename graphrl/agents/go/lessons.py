"""What is imitated before PPO: of every single change of a plan, how much it gains.

A teacher climbs from the hint: it looks at every change of one op, makes the best of them, one after the other, as long
as each still gains, and looks again. What it saw at each stop is a lesson: exact costs of thousands of plans, where PPO
has to guess from the sums of many changes' effects.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.decode import saved
from graphrl.agents.go.domain import PlanDecoder, domain
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.envs.compile.observation import shown
from graphrl.envs.compile.played import Played
from graphrl.graphs.graph import ComputationGraph
from graphrl.networks.base import Network

LARGEST = 2.0  # percent of the makespan that a change counts as
NATS = 20.0  # by which a change is to be likelier than none, for each percent
MOST_MADE = 0.1  # changes between two stops, a share of the ops


class Lesson(NamedTuple):
    """One instance, and s stops of a teacher on it."""

    instance: CompileParams
    starts: Choices  # [s, n] each
    gains: Choices  # [s, n, o] float32 each: percent of the makespan; 0 for what was chosen, and at least 0
    played: Played  # [s, n, ...], how they ran


def lesson(
    graph: ComputationGraph, problem: Problem, instance: CompileParams, stops: int, tasks: Sequence[str]
) -> Lesson:
    """Of a graph whose instance begins at a plan; other tasks than these stay as they are."""
    n = len(graph.ops)
    decoder = domain(problem).decoder(graph, problem, instance)
    chosen = [np.asarray(choice, np.int64)[:n].copy() for choice in (instance.start.placement, instance.start.priority)]
    devices, levels = instance.runs_on.shape[1], 0 if instance.levels is None else len(instance.levels)
    to, starts, gains, runs = len(instance.order), [], [], []
    for _ in range(stops):
        each = [np.zeros((n, problem.devices)), np.zeros((n, levels))]
        if "placement" in tasks:
            each[0] = decoder.gains(chosen[0], chosen[1])
        if "priority" in tasks:
            each[1] = _gains_of_levels(decoder, chosen, levels)
        starts.append([choice.copy() for choice in chosen])
        gains.append(each)
        runs.append(decoder.played(chosen[0], chosen[1]))
        _climb(decoder, chosen, each)
        chosen[0] = decoder.together(chosen[0])
    return Lesson(
        instance,
        Choices(*(_padded(np.stack(each), (to,)).astype(np.int32) for each in zip(*starts, strict=True))),
        Choices(
            *(
                _padded(np.stack(each), (to, count)).astype(np.float32)
                for each, count in zip(zip(*gains, strict=True), (devices, levels), strict=True)
            )
        ),
        Played(*(np.stack(each) for each in zip(*runs, strict=True))),  # type: ignore[arg-type]
    )


def _padded(rows: np.ndarray, to: tuple[int, ...]) -> np.ndarray:
    """With zeros at the ends of all axes but the first."""
    return np.pad(rows, [(0, 0), *((0, size - had) for size, had in zip(to, rows.shape[1:], strict=True))])


def imitation_loss(policy: Network, params: object, tasks: tuple[str, ...], lesson: Lesson) -> jax.Array:
    """How far what the policy thinks of changes is from what they gain, percent squared: a mean over all changes, stops
    and tasks, `[]` float32.

    A change is to be likelier than none by `NATS` for each percent that it gains, if it were made alone; none counts as
    more than `LARGEST`, and those for the worse as 0, for a worse plan is not taken. So all gains of a graph teach, and
    the policy stays as uncertain as they are: where only what its changes are expected to gain counts, it ends at a few
    of them, and of its plans, all nearly the same, the best is no better than by chance.
    """

    def of_stop(start: Choices, gains: Choices, played: Played) -> jax.Array:
        observation = shown(dataclasses.replace(lesson.instance, start=start), start, tasks, played)
        logits, error = policy.apply(params, observation), jnp.float32(0)
        for task in tasks:
            mask = observation.action_mask[task]
            was = jax.nn.one_hot(observation.previous[task], mask.shape[-1], dtype=bool)
            ahead = logits[task] - jnp.where(was, logits[task], 0.0).sum(-1, keepdims=True)
            wrong = ahead / NATS - jnp.clip(getattr(gains, task), 0.0, LARGEST)
            changes = mask & ~was & (mask.sum(-1, keepdims=True) > 1)
            error += jnp.square(jnp.where(changes, wrong, 0.0)).sum() / jnp.maximum(changes.sum(dtype=jnp.float32), 1.0)
        return error / len(tasks)

    return jax.vmap(of_stop)(lesson.starts, lesson.gains, lesson.played).mean()


def _gains_of_levels(decoder: PlanDecoder, chosen: list[np.ndarray], levels: int) -> np.ndarray:
    """How many percent the makespan falls where one op has another level: `[n, levels]`, 0 where it does not fall."""
    placement, level = chosen
    now, makespans = decoder.rank(placement, level)[1], np.empty((len(level), levels))
    for op, other in np.ndindex(makespans.shape):
        was, level[op] = level[op], other
        makespans[op, other] = decoder.rank(placement, level)[1]
        level[op] = was
    return saved(now, makespans)


def _climb(decoder: PlanDecoder, chosen: list[np.ndarray], gains: list[np.ndarray]) -> None:
    """Makes the changes that gain, the best first, if they still do."""
    n, now, made = len(chosen[0]), decoder.rank(chosen[0], chosen[1]), 0
    gain = np.stack([each.max(1, initial=0) for each in gains])
    for which in np.argsort(-gain, axis=None, kind="stable"):
        task, op = divmod(int(which), n)
        if gain[task, op] <= 0 or made >= MOST_MADE * n:
            return
        was = chosen[task][op]
        chosen[task][op] = gains[task][op].argmax()
        rank = decoder.rank(chosen[0], chosen[1])
        if rank < now:
            now, made = rank, made + 1
        else:
            chosen[task][op] = was
