"""Tuned BRKGA: REGAL's baseline whose parameters a grid search on training graphs chose, one setting for all graphs.

The grid is over the sizes of the population, of its elites and of its mutants, the elite bias, and the two parameters
of one Beta distribution that the affinities and op keys of the first population and of mutants are
drawn from. Transfer keys stay uniform, as in REGAL, whose policy does not set them: a distribution that all genes
share would change nothing (`brkga.op_proposals`).

`tune` scores it; scripts/tune_brkga.py runs that and stores the best setting of each objective beside this file.
"""

import dataclasses
import importlib.resources
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.fitness import objective
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes.batch import run_batch
from graphrl.solvers.chromosomes.brkga import Parameters, op_proposals
from graphrl.solvers.chromosomes.brkga_solver import evolve
from graphrl.solvers.solver import solver

STORED = "brkga_tuned.json"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is tuned."""

    population: int
    elites: int
    mutants: int
    elite_bias: float
    alpha: float
    beta: float


@dataclasses.dataclass(frozen=True)
class Grid:
    """The values that are tried, each with each. Elites and mutants are shares of the population."""

    populations: tuple[int, ...] = (50, 100, 200)
    elites: tuple[float, ...] = (0.1, 0.2)
    mutants: tuple[float, ...] = (0.1, 0.2)
    biases: tuple[float, ...] = (0.6, 0.7, 0.8)
    shapes: tuple[float, ...] = (0.5, 1.0, 2.0)  # of alpha and of beta

    def sizes(self) -> Iterator[tuple[int, int, int]]:
        """(population, elites, mutants): each compiles a program."""
        for population, elites, mutants in itertools.product(self.populations, self.elites, self.mutants):
            yield population, max(1, round(elites * population)), round(mutants * population)


@solver("brkga-tuned", "brkga with sizes, bias and a Beta distribution tuned on training graphs (REGAL's baseline)")
def solve(task: Task) -> Plan:
    """BRKGA with the stored setting of the problem's objective."""
    best = stored_setting(task.problem.objective)
    return evolve(
        task,
        Parameters(best.population, best.elites, best.mutants, best.elite_bias),
        proposals=lambda sizes: op_proposals([(best.alpha, best.beta)], sizes, task.problem.devices, 1),
    )


def stored_setting(objective: str) -> Setting:
    """The setting that scripts/tune_brkga.py stored for an objective."""
    return Setting(**stored()["settings"][objective])


def stored() -> dict[str, Any]:
    """What scripts/tune_brkga.py stored: the settings by objective, and how they were found."""
    return json.loads(importlib.resources.files(__package__).joinpath(STORED).read_text(encoding="utf-8"))


def tune(
    graphs: Sequence[ComputationGraph], problem: Problem, evaluations: int, grid: Grid, seed: int
) -> dict[Setting, float]:
    """Scores every setting of the grid: the geometric mean over the graphs of the objective, in the graphs' units.

    Sizes of a population are shapes, so each triple of them is a program of its own; all biases, Beta distributions and
    graphs are one batch of it. All settings use the same random keys.
    """
    padded, pairs = pad_batch(graphs), list(itertools.product(grid.shapes, grid.shapes))
    each = len(grid.biases) * len(graphs)  # runs of a pair
    table = op_proposals(pairs, padded.sizes, problem.devices, each)
    repeats = len(pairs) * len(grid.biases)
    batch: PaddedGraph = jax.tree.map(lambda x: jnp.tile(x, (repeats, *[1] * (x.ndim - 1))), padded)
    keys = jnp.tile(jax.random.split(jax.random.key(seed), len(graphs)), repeats)
    biases = jnp.tile(jnp.repeat(jnp.asarray(grid.biases, jnp.float32), len(graphs)), len(pairs))
    scores: dict[Setting, float] = {}
    for sizes in grid.sizes():
        values = run_batch(keys, batch, problem, Parameters(*sizes), evaluations, table, elite_bias=biases)[1]
        objectives = [objective(value, problem) for value in np.asarray(values, np.float64).tolist()]
        means = np.exp(np.log(objectives).reshape(repeats, len(graphs)).mean(1)).tolist()
        settings = itertools.product(pairs, grid.biases)
        scores |= {Setting(*sizes, bias, *pair): mean for (pair, bias), mean in zip(settings, means, strict=True)}
    return scores
