"""Learners as free functions: every agent's updates and evaluations under `jit` and `vmap`, without a mesh and with.

And the names of their metrics, which docs/reference/metrics.md lists.
"""

import re
from pathlib import Path
from typing import Any

import chex
import jax
import pytest

from graphrl.agents import find_agent
from graphrl.learning.learner import Learner, on_mesh
from graphrl.mesh import make_mesh
from graphrl.training.config import parsed
from graphrl.training.run import run_config, run_data

GRAPHS = ("data.train=layered:10x4@100", "data.validation=layered:10x4@50", "data.graphs=2", "data.buckets=1")
GO = (
    *GRAPHS,
    "agent.transfers=link",
    "agent.samples=2",
    "agent.network.width=8",
    "agent.network.heads=2",
    "agent.ppo.environments=4",
    "agent.rounds=1",
)
EGRL = ("data.train=zoo:mobilenet/inference/b1/jaxpr", "data.graphs=1", "agent.width=4", "agent.encoder=means")
# Adam turns rounding errors of gradients near 0 into steps of up to the learning rate: low for EGRL's search and orders
SETTINGS = {
    "regal": (*GRAPHS, "agent.evaluations=100", "agent.width=8", "agent.actions=2"),
    "topoformer": (*GRAPHS, "agent.layers=1", "agent.width=16", "agent.samples=4", "agent.baseline=greedy-rollout"),
    "go": GO,
    "go imitation": (*GO, "agent.learning=imitation", "agent.stops=1"),
    "egrl": (*EGRL, "agent.learning=ppo", "agent.samples=4"),
    "ppo": (*GRAPHS, "agent.ppo.environments=4", "agent.ppo.epochs=1"),
    "ppo steps": (
        *GRAPHS,
        "agent.env=Ordering-v0",
        "agent.ppo.environments=2",
        "agent.ppo.epochs=1",
        "agent.ppo.learning_rate=1e-4",
    ),
    "egrl search": (
        *EGRL,
        "agent.variant=egrl",
        "agent.learning=search",
        "agent.population=4",
        "agent.boltzmann=0.25",
        "agent.rate=1e-5",
        "agent.replay=1000",
    ),
}
KEYS = jax.random.split(jax.random.key(0), 3)


def learner_and_batch(name: str) -> tuple[Learner, Any]:
    """An agent's learner with tiny settings, and a batch of its graphs."""
    agent = find_agent(name.split()[0])
    config = run_config(agent, parsed(SETTINGS[name]))
    mesh = make_mesh(1, jax.devices()[:1])
    data = run_data(agent, config, mesh)
    return agent.learner(config.agent, mesh, data), data.batch(1).rows


SLOW = ("go", "go imitation", "ppo", "ppo steps", "regal")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else ()) for name in SETTINGS]


@pytest.mark.parametrize("name", NAMES)
def test_seeds_under_vmap_are_updates_on_a_mesh_one_after_another(name: str) -> None:
    learner, batch = learner_and_batch(name)
    meshed = on_mesh(learner, make_mesh(1, jax.devices()[:1]))
    states = jax.jit(jax.vmap(learner.init))(KEYS)
    scored = jax.jit(jax.vmap(learner.evaluate, (0, 0, None)))(states.params, KEYS, batch)
    together = jax.jit(jax.vmap(learner.update, (0, 0, None)))(states, KEYS, batch)
    for number, key in enumerate(KEYS):
        state = meshed.init(key)
        alone = meshed.evaluate(state.params, key, batch), *meshed.update(state, key, batch)
        one = jax.tree.map(lambda leaf, i=number: leaf[i], (scored, *together))
        # Adam divides a gradient by its size: rounding of one near 0 moves a parameter by a share of the rate
        chex.assert_trees_all_close(one, alone, rtol=1e-3, atol=1e-4)


def listed_metrics(section: str) -> dict[str, set[str]]:
    """Each learner's metrics as a section of the page lists them."""
    by_learner: dict[str, set[str]] = {name: set() for name in SETTINGS}
    for line in PAGE.read_text().partition(f"## {section}")[2].partition("\n## ")[0].splitlines():
        if cells := re.fullmatch(r"\| `(\w+)` \|.*\| ([^|]+) \|", line):
            for name in cells[2].split(", ") if cells[2] != "all" else SETTINGS:
                by_learner[name].add(cells[1])
    return by_learner


def test_the_page_of_metrics_lists_what_learners_return() -> None:
    updates, validations = listed_metrics("Updates"), listed_metrics("Validations")
    for name in SETTINGS:
        learner, batch = learner_and_batch(name)
        state = jax.eval_shape(learner.init, KEYS[0])
        metrics = set(jax.eval_shape(learner.update, state, KEYS[0], batch)[1])
        if "env_steps" in metrics:
            metrics.add("env_steps_per_second")  # the loop's
        assert updates[name] == metrics, name
        assert validations[name] == set(jax.eval_shape(learner.evaluate, state.params, KEYS[0], batch)), name
