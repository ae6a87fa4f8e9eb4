"""REGAL's policy by evolution in place of REINFORCE: from scratch, on a few graphs, at equal evaluations.

In every step both play as many proposals for each training graph, and standard BRKGA once: REINFORCE samples all of
them from its one policy, evolution one from the policy of each individual, all with the same random numbers.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.learner import learner
from graphrl.agents.regal.network import Policy, networks, played, smallest
from graphrl.compare.report import markdown, problem_line
from graphrl.envs.proposal import ProposalEnv, ProposalParams, instances, observe
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.learning.evolution import EvolutionSettings, Population, next_generation
from graphrl.learning.learner import on_mesh
from graphrl.mesh import make_mesh
from graphrl.solvers.base import Budget
from reproduce.contest import Entrant
from reproduce.policies import once
from reproduce.regal.settings import BASELINE, Settings
from reproduce.regal.tables import HEADINGS, ahead, cells, scores
from reproduce.regal.tasks import TASKS
from reproduce.results import Table, bullets, of_rows

GRAPHS, QUICK_GRAPHS = "regal-like:30x8@10000", "regal-like:12x2@10000"
STEPS = 80
PLAYED = 16  # proposals for a graph in a step: REINFORCE's samples, evolution's individuals
EVALUATIONS = 160  # of each run of BRKGA in training
EVOLUTION = EvolutionSettings(strength=0.3)


def evolved(settings: Settings) -> Iterator[Table]:
    """One table: BRKGA without proposals, and with those of the policy untrained, evolved, and as REGAL learns it."""
    task, budget = settings.task, Budget(settings.evaluations)
    ways = {"untrained": _untrained, "evolution": _by_evolution, "reinforce": _by_reinforce}
    entrants = [settings.entrant(task, BASELINE, budget)]
    for name, way in ways.items():
        files = [_trained(settings, name, way, seed) for seed in range(settings.seeds)]
        entrants.append(Entrant(f"regal, {name}", [f"regal:checkpoint={file}" for file in files], budget))
    contest = settings.on_task(task, entrants)
    by_label = scores(contest, contest.by_label[BASELINE])
    config, graphs, steps = _training(settings)
    how = (
        f"Policies learn from scratch on {graphs} in {steps} steps, each of {config.actions} proposals for every graph "
        f"and {config.evaluations:,} evaluations of BRKGA a proposal. {len(settings.unseen(task))} unseen graphs, "
        f"{settings.evaluations:,} evaluations a run. Improvement: arithmetic mean over graphs; gap: geometric mean, "
        f"from the best of this table. Means over {settings.seeds} seeds of search and training, with 95% intervals."
    )
    lines = markdown(HEADINGS, [cells(label, one) for label, one in by_label.items()])
    notes = bullets([*ahead(by_label, "regal, evolution", ("regal, untrained", "regal, reinforce")), *contest.faults()])
    title = f"REGAL's policy evolved: {problem_line(TASKS[task].problem)}"
    yield Table(title, of_rows(contest.rows), (how, lines, notes))


def _training(settings: Settings) -> tuple[RegalConfig, str, int]:
    """What policies are, the graphs that they learn on, and the steps."""
    problem = TASKS[settings.task].problem
    if settings.quick:
        return RegalConfig(problem, evaluations=80, rounds=1, width=4, actions=4), QUICK_GRAPHS, 2
    return RegalConfig(problem, evaluations=EVALUATIONS, actions=PLAYED), GRAPHS, STEPS


def _trained(settings: Settings, name: str, way: Any, seed: int) -> Path:
    """The file of a policy, made now unless there is one."""
    config, graphs, steps = _training(settings)

    def make() -> Policy:
        batch = jax.tree.map(np.asarray, instances(load_graphs([graphs]), None, config.hint_for))
        params = way(config, jax.random.key(seed), batch, steps)
        return Policy(config, jax.tree.map(np.asarray, params), name)

    file = once(settings.out / "training" / f"{settings.task}-{name}-{seed}.msgpack", make)
    return settings.copy(Policy.load(file))


def _untrained(config: RegalConfig, key: jax.Array, batch: ProposalParams, steps: int) -> Any:
    del batch, steps
    return Policy.initial(config, key)


def _by_reinforce(config: RegalConfig, key: jax.Array, batch: ProposalParams, steps: int) -> Any:
    functions = on_mesh(learner(config), make_mesh(1, jax.devices()[:1]))
    state = functions.init(key)
    for step in range(steps):
        state, _ = functions.update(state, jax.random.fold_in(key, step), batch)
    return state.params["policy"]


def _by_evolution(config: RegalConfig, key: jax.Array, batch: ProposalParams, steps: int) -> Any:
    """The fittest of the last generation."""
    init_all = jax.vmap(networks(config).policy.init, (0, None))
    population = init_all(jax.random.split(key, config.actions), observe(smallest(config)))
    for step in range(steps):
        fittest, population = _generation(config, jax.random.fold_in(key, step), population, batch)
    return fittest


@functools.partial(jax.jit, static_argnums=0)
def _generation(config: RegalConfig, key: jax.Array, population: Any, batch: ProposalParams) -> tuple[Any, Any]:
    """The fittest of a population `[m, ...]`, and the next population."""
    play_key, evolve_key = jax.random.split(key)
    graphs = batch.nodes.shape[0]
    play = jax.vmap(functools.partial(_rewards, config, population))
    fitness = play(jax.random.split(play_key, graphs), batch).mean(0)
    fittest = jax.tree.map(lambda leaf: leaf[fitness.argmax()], population)
    return fittest, next_generation(EVOLUTION, evolve_key, Population(population, None), fitness)[0].networks


def _rewards(config: RegalConfig, population: Any, key: jax.Array, graph: ProposalParams) -> jax.Array:
    """What every individual's proposals for one graph bring: `[m]` float32."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    env = ProposalEnv(config.problem, config.evaluations, config.parameters, config.coding)
    state, first = env.reset(reset_key, graph)

    def one(params: Any) -> jax.Array:
        action = played(config, action_key, networks(config).policy.apply(params, first.observation))
        return env.step(step_key, state, action, graph)[1].reward

    return jax.vmap(one)(population)
