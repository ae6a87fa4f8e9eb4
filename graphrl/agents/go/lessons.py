"""What is imitated before PPO: of every single change of a plan, how much it gains.

A teacher climbs from the hint: it looks at every change of one op, makes the best of them, one after the other, as long
as each still gains, and looks again. What it saw at each stop is a lesson: exact costs of thousands of plans, where PPO
has to guess from the sums of many changes' effects.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.decode import Decoder
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.envs.compile.observation import observe
from graphrl.graphs.graph import ComputationGraph
from graphrl.networks.base import Network

LARGEST = 2.0  # percent of the makespan that a change counts as
MOST_MADE = 0.1  # changes between two stops, a share of the ops


class Lesson(NamedTuple):
    """One instance, and s stops of a teacher on it."""

    instance: CompileParams
    starts: Choices  # [s, n] each
    gains: Choices  # [s, n, o] float32 each: percent of the makespan; 0 for what was chosen


def lesson(graph: ComputationGraph, problem: Problem, instance: CompileParams, stops: int) -> Lesson:
    """Of a graph whose instance begins at a plan."""
    n = len(graph.ops)
    decoder = Decoder(graph, problem, instance)
    chosen = [np.asarray(choice, np.int64)[:n].copy() for choice in (instance.start.placement, instance.start.priority)]
    levels = len(instance.levels)
    counts, starts, gains = (problem.devices, levels), [], []
    for _ in range(stops):
        seen = [_gains(decoder, chosen, task, count) for task, count in enumerate(counts)]
        starts.append([choice.copy() for choice in chosen])
        gains.append(seen)
        _climb(decoder, chosen, seen)
        chosen[0] = decoder.together(chosen[0])
    to = len(instance.order) - n
    options = len(instance.present), levels
    return Lesson(
        instance,
        Choices(*(np.pad(np.stack(each), ((0, 0), (0, to))).astype(np.int32) for each in zip(*starts, strict=True))),
        Choices(
            *(
                np.pad(np.stack(each), ((0, 0), (0, to), (0, count - each[0].shape[1]))).astype(np.float32)
                for each, count in zip(zip(*gains, strict=True), options, strict=True)
            )
        ),
    )


def imitation_loss(policy: Network, params: object, tasks: tuple[str, ...], lesson: Lesson) -> jax.Array:
    """Minus what a change of the policy is expected to gain, percent, a mean over stops and tasks: `[]` float32.

    Changes count as if each were made alone, none as more than `LARGEST`, and those for the worse as none, for a worse
    plan is not taken. Where they count as what they lose, the policy learns changes that have no effect.
    """

    def of_stop(start: Choices, gains: Choices) -> jax.Array:
        seen = observe(dataclasses.replace(lesson.instance, start=start), start, tasks)
        logits, lost = policy.apply(params, seen), jnp.float32(0)
        for task in tasks:
            was = jax.nn.one_hot(seen.previous[task], logits[task].shape[-1], dtype=bool)
            decides = (seen.action_mask[task].sum(-1) > 1)[:, None]
            chance = jnp.where(decides & ~was, jax.nn.softmax(logits[task]), 0.0)
            worth = jnp.clip(getattr(gains, task), 0.0, LARGEST)
            lost -= (chance * worth).sum() / jnp.maximum(chance.sum(), 1e-6)
        return lost / len(tasks)

    return jax.vmap(of_stop)(lesson.starts, lesson.gains).mean()


def _gains(decoder: Decoder, chosen: list[np.ndarray], task: int, options: int) -> np.ndarray:
    """What every change of one op gains, percent: `[n, options]`."""
    choice, now = chosen[task], max(decoder.rank(*chosen)[1], 1e-30)
    gains = np.zeros((len(choice), options))
    for op in range(len(choice)):
        was = choice[op]
        for option in range(options):
            if option != was:
                choice[op] = option
                gains[op, option] = 100 * (1 - decoder.rank(*chosen)[1] / now)
        choice[op] = was
    return gains


def _climb(decoder: Decoder, chosen: list[np.ndarray], seen: list[np.ndarray]) -> None:
    """Makes the changes that gain, the best first, if they still do."""
    n, now, made = len(chosen[0]), decoder.rank(*chosen), 0
    gain = np.stack([each.max(1) for each in seen])
    for which in np.argsort(-gain, axis=None, kind="stable"):
        task, op = divmod(int(which), n)
        if gain[task, op] <= 0 or made >= MOST_MADE * n:
            return
        was = chosen[task][op]
        chosen[task][op] = seen[task][op].argmax()
        rank = decoder.rank(*chosen)
        if rank < now:
            now, made = rank, made + 1
        else:
            chosen[task][op] = was
