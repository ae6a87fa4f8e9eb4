"""Measures the steps a second of the four environments on one CPU core: docs/results/throughput-environments.md.

Compiles `jax.vmap(env.step)` for 64 instances, with random valid actions; an episode of several steps is a
`jax.lax.scan`. Resets are excluded. The process is pinned to one core, and CPU time counts.

  python scripts/env_steps.py
"""

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from reproduce.results import Origin, Table, here, results_text

import graphrl
from graphrl.bench import machine
from graphrl.commands.parser import Parser
from graphrl.compare.report import markdown
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.problem import map_problem
from graphrl.costs.problem import Problem
from graphrl.envs import memory_map, ordering, proposal, specs
from graphrl.envs.compile import generator
from graphrl.files import write_atomically
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.datasets.workloads.egrl import resnet50

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "throughput-environments.md"
COUNT, OPS, SAMPLES, SECONDS = 64, 128, 5, 1.0  # instances, ops of each; timings, CPU seconds of each at least
PROBLEM = Problem("makespan", 2)
TITLE = "Steps a second of the environments"
SETTING = (
    f"{COUNT} instances in one `jax.jit(jax.vmap(env.step))`, random valid actions, one pinned CPU core: medians of "
    f"{SAMPLES} samples of CPU time, without resets and without compiling. Graphs have {OPS} ops, those of memory maps "
    "57 (ResNet-50). A step of `Ordering-v0` is one op, a step of the others a whole decision. One of `Proposal-v0` is "
    "a run of BRKGA with 5,000 evaluations of schedules; one of `Compile-v0` decides devices and order, not fusion."
)


class Episode(NamedTuple):
    """An environment, its instances (leading axis g), number of ops of each, and number of steps of an episode."""

    env: Any
    instances: Any
    ops: int
    steps: int


def episodes() -> dict[str, Episode]:
    """Returns the environments by id."""
    layered, regal = load_graphs([f"layered:{OPS}x{COUNT}"]), load_graphs([f"regal-like:{OPS}x{COUNT}"])
    maps = [map_problem(resnet50(), NNP_I)] * COUNT
    instances = {
        "Proposal-v0": (proposal.make_instances(regal), len(regal[0].ops), 1),
        "Ordering-v0": (ordering.make_instances(layered), len(layered[0].ops), len(layered[0].ops)),
        "MemoryMap-v0": (memory_map.make_instances(maps), maps[0].steps, 1),
        "Compile-v0": (generator.make_instances(regal, [PROBLEM] * COUNT), len(regal[0].ops), 1),
    }
    return {id: Episode(graphrl.make(id), *rest) for id, rest in instances.items()}


def action(env: Any, key: jax.Array, observation: Any, instance: Any) -> Any:
    """Draws a random action, which is valid if the observation has a mask of actions."""
    mask = getattr(observation, "action_mask", None)
    if mask is None:
        return specs.sample(env.action_spec(instance), key)
    leaves, structure = jax.tree.flatten(mask)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.categorical(k, jnp.where(leaf, 0.0, -jnp.inf)) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, [one.astype(jnp.int32) for one in drawn])


def play(episode: Episode, key: jax.Array, state: Any, timestep: Any, instance: Any) -> Any:
    """Plays an episode of one instance from its first state and time step; returns the last time step."""

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        state, timestep = carry
        act_key, step_key = jax.random.split(key)
        chosen = action(episode.env, act_key, timestep.observation, instance)
        return episode.env.step(step_key, state, chosen, instance), None

    return jax.lax.scan(step, (state, timestep), jax.random.split(key, episode.steps))[0][1]


def row(id: str, episode: Episode, seed: int) -> list[str]:
    """Measures one environment; returns its row of the table."""
    keys = jax.random.split(jax.random.key(seed), COUNT)
    state, timestep = jax.jit(jax.vmap(episode.env.reset))(keys, episode.instances)
    arguments = keys, state, timestep, jax.tree.map(jnp.asarray, episode.instances)
    started = time.perf_counter()
    run = jax.jit(jax.vmap(lambda *one: play(episode, *one))).lower(*arguments).compile()
    compiling = time.perf_counter() - started
    assert bool(run(*arguments).done.all()), f"an episode of {id} has not ended"
    rate = statistics.median(_rate(run, arguments, episode.steps) for _ in range(SAMPLES))
    return [
        f"`{id}`", str(episode.ops), str(episode.steps), f"{float(f'{rate:.3g}'):,.10g}",
        f"{float(f'{1e6 / rate:.3g}'):,.10g}", f"{compiling:.1f}",
    ]  # fmt: skip


def _rate(run: Any, arguments: tuple, steps: int) -> float:
    """Measures one sample; returns the steps per CPU second."""
    started, calls = time.process_time(), 0
    while not calls or time.process_time() - started < SECONDS:
        jax.block_until_ready(run(*arguments))
        calls += 1
    return calls * COUNT * steps / (time.process_time() - started)


def main() -> None:
    """Measures and writes the page."""
    parser = Parser(description=__doc__, epilog=f"writes {PAGE.name}")
    parser.add_argument("--seed", type=int, default=0, help="of the actions (default: 0)")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE.md", help=f"(default: {PAGE.name} of docs)")
    args = parser.parse_args()
    with machine.pinned(1):
        rows = []
        for id, episode in episodes().items():
            rows.append(row(id, episode, args.seed))
            print(" ".join(rows[-1]), flush=True)
    head = ("environment", "ops", "steps of an episode", "steps / s", "s / million steps", "compile s")
    origin = here()
    origin = Origin(frozenset([args.seed]), frozenset([f"{machine.cpu_name()}, 1 core"]), origin.versions, origin.dates)
    rates = ", ".join(f"{row[3]} of {row[0]}" for row in rows)
    table = Table(TITLE, origin, (SETTING, markdown(head, rows)), f"Steps a second of one CPU core: {rates}.")
    text = results_text(TITLE, [table], "python scripts/env_steps.py")
    write_atomically(args.output, lambda file: file.write(text))


if __name__ == "__main__":
    main()
