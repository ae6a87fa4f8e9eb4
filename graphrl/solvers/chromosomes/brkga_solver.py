"""Population searches as methods: "brkga", "brkga+", "brkga-tuned" and "random".

- "brkga" starts from random chromosomes, as REGAL's baseline does.
- "brkga+" has list scheduling and the given order in its first population.
- "brkga-tuned" is REGAL's baseline with parameters that a grid search on training graphs chose, one setting for all
  graphs of an objective (`tune`). `scripts/tune_brkga.py` runs `tune` and stores the best settings in
  `brkga_tuned.json`.
- "random" draws independent uniform chromosomes and keeps the best: the baseline of any search at equal evaluations.

`search_population` runs any search whose state is on the device: in chunks that report progress, stop in time and
return a plan on Ctrl-C. `chromosome` encodes a known plan as genes for a warm start, `decisions` decodes genes on the
host.

The grid is over the sizes of the population, of its elites and of its mutants, the elite bias, and the two parameters
of one Beta distribution, from which the affinities and op keys of the first population and of mutants are drawn.
Transfer keys stay uniform, as in REGAL, whose policy does not set them: a distribution that all genes share would
change nothing (`brkga.op_proposals`).
"""

import dataclasses
import functools
import importlib.resources
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.decisions import Decisions, DeviceProblem, from_genes, num_genes, to_genes
from graphrl.costs.device.evaluate import fitness, objective
from graphrl.costs.exact import decode
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, pad_batch
from graphrl.plan import Plan
from graphrl.random_bits import random_words, unit_interval
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.brkga import BetaTable, Parameters, op_proposals, run_batch
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.plan_builder import prepare
from graphrl.solvers.rules.simple import given_order
from graphrl.solvers.solver import solver


def chromosome(
    graph: ComputationGraph, problem: Problem, sizes: Sizes, placement: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """Encodes a placement and an order as genes: `[k]` float32 (`costs.device.decisions` has their layout).

    Keys fall along the order. If an order is longer than a quantised key has levels (above about 16,000 nodes),
    neighbours may change places.

    Args:
      graph, problem: graph and problem of the plan.
      sizes: sizes of the padded graph that the genes are for.
      placement: `[n]` int.
      order: `[m]` int, node ids of `costs.exact`: op v is v, tensor t to device b is n + t * devices + b.
    """
    n, d = graph.arrays.num_ops, problem.devices
    key = (len(order) - np.arange(len(order), dtype=np.float64) - 0.5) / len(order)
    devices = np.zeros(sizes.ops, np.int32)
    devices[:n] = placement
    op_keys = np.zeros(sizes.ops, np.float32)
    transfer_keys = np.zeros((d, sizes.tensors), np.float32)
    is_op = order < n
    op_keys[order[is_op]] = key[is_op]
    tensor, device = np.divmod(order[~is_op] - n, d)
    transfer_keys[device, tensor] = key[~is_op]
    one = (jnp.asarray(x)[..., None, None] for x in (devices, op_keys, transfer_keys))
    return np.asarray(to_genes(Decisions(*one), d))[:, 0, 0]


def chromosomes(
    graph: ComputationGraph,
    problem: Problem,
    sizes: Sizes,
    starts: Sequence[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Encodes each (placement, order) by `chromosome`: `[k, 1, m]` float32, the layout of `brkga.init`."""
    return np.stack([chromosome(graph, problem, sizes, *start) for start in starts], -1)[:, None]


def decisions(
    graph: ComputationGraph, problem: Problem, sizes: Sizes, genes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Decodes genes `[k]` float32 into a placement `[n]` and an order `[m]`, by the exact host twin."""
    n, t, d = graph.arrays.num_ops, graph.arrays.num_tensors, problem.devices
    affinities = genes[: d * sizes.ops].reshape(d, sizes.ops)[:, :n]
    placement = affinities.argmax(0)
    op_keys = genes[d * sizes.ops : (d + 1) * sizes.ops][:n]
    transfer_keys = genes[(d + 1) * sizes.ops :].reshape(d, sizes.tensors)[:, :t].T
    return placement, decode(graph, problem, placement, op_keys, transfer_keys)


_CHUNK_SECONDS = 0.3  # device time between two checks of the clock

State = TypeVar("State")
Share = tuple[float, float]  # see `Task.share`


def search_population(
    task: Task,
    padded: PaddedGraph,
    state: State,
    advance: Callable[[State, int, Share], State],
    best: Callable[[State], tuple[jax.Array, jax.Array]],
    evaluations: int,
) -> Plan:
    """Runs a search whose state is on the device and advances a number of equal steps per call, until the budget is
    spent; at least one step.

    Args:
      padded: the graph as a batch of one.
      state: the state before the first step.
      advance: (state, steps, share of the budget spent before them and by each) -> state; may donate the state.
      best: state -> (genes `[k]`, fitness `[]`), on the device.
      evaluations: number of evaluations in one step.
    """
    total = None if task.budget.evaluations is None else max(1, task.budget.evaluations // evaluations)
    unit = float(np.asarray(padded.byte_unit if task.problem.objective == "peak_memory" else padded.second_unit)[0])
    done, steps = 0, 1
    while True:
        chunk_start = time.perf_counter()
        state = advance(state, steps, task.share(done, total))
        genes, value = best(state)
        done += steps
        task.best = functools.partial(_plan, task, padded.sizes, np.asarray(genes), done * evaluations)
        task.report(done * evaluations, objective(float(value), task.problem) * unit, force=True)
        now = time.perf_counter()
        if done == total or now >= task.end:
            return task.best()
        # the first call compiles, so its time is not that of a step
        fitting = 1 if done == 1 else max(1, int(min(_CHUNK_SECONDS, task.end - now) * steps / (now - chunk_start)))
        steps = fitting if total is None else min(fitting, total - done)


def _plan(task: Task, sizes: Sizes, genes: np.ndarray, evaluations: int) -> Plan:
    return task.plan(*decisions(task.graph, task.problem, sizes, genes), evaluations=evaluations)


_init = jax.jit(brkga.init, static_argnames=("parameters",))
_evolve = jax.jit(brkga.evolve, static_argnames=("parameters",), donate_argnames=("state",))


@solver("brkga", "biased random-key genetic algorithm, from random chromosomes (REGAL's baseline)")
def solve(task: Task, *, population: int = 100, elites: int = 20, mutants: int = 20, bias: float = 0.7) -> Plan:
    """Runs BRKGA from random chromosomes. REGAL's "BRKGA XK" is this method with X thousand evaluations.

    Args:
      population, elites, mutants, bias: see `brkga.Parameters`.

    Raises:
      ProblemError: an option is out of range.
    """
    return evolve(task, brkga.Parameters(population, elites, mutants, bias))


@solver("brkga+", "brkga with list scheduling and the given order in its first population", prepare=prepare)
def solve_warm(task: Task, *, population: int = 100, elites: int = 20, mutants: int = 20, bias: float = 0.7) -> Plan:
    """Runs BRKGA with a warm start; arguments and errors as in `solve`."""
    parameters = brkga.Parameters(population, elites, mutants, bias)
    return evolve(task, parameters, [schedule(task.graph, task.problem), given_order(task.graph, task.problem)])


def evolve(
    task: Task,
    parameters: brkga.Parameters = brkga.Parameters(),
    warm_starts: Sequence[PlacedOrder] = (),
    proposals: Callable[[Sizes], BetaTable] | None = None,
) -> Plan:
    """Runs BRKGA for whole generations within the budget; if it is less than a generation, one smaller generation.

    Args:
      parameters: population sizes and elite bias.
      warm_starts: plans that are part of the first population; the first `offspring` of them.
      proposals: makes, for the graph padded to some sizes, the distribution of each gene in the first population and
        in mutants (choices `[k, 1]`); None is uniform.
    """
    graph, problem, evaluations = task.graph, task.problem, task.budget.evaluations
    if evaluations is not None and evaluations < parameters.offspring:
        parameters = parameters.shrunk(evaluations)
    padded = jax.device_put(pad_batch([graph], task.sizes))
    starts = warm_starts[: parameters.offspring]
    initial = jnp.asarray(chromosomes(graph, problem, padded.sizes, starts)) if starts else None
    keys, on_device = jax.random.key(task.seed)[None], DeviceProblem.of(problem)
    table = None if proposals is None else proposals(padded.sizes)

    def best(state: brkga.State) -> tuple[jax.Array, jax.Array]:
        genes, value = brkga.best(state)
        return genes[:, 0], value[0]

    return search_population(
        task,
        padded,
        _init(keys, padded, on_device, parameters, table, initial),
        advance=lambda state, steps, _: _evolve(state, padded, on_device, parameters, steps, table),
        best=best,
        evaluations=parameters.offspring,
    )


_SAMPLES = 80  # number per step; 80 to 256 lanes are fastest on a CPU: 1,000 are 0.65 times as fast


class _State(NamedTuple):
    genes: jax.Array  # [k] float32, the best chromosome so far
    value: jax.Array  # [] float32, its fitness
    samples: jax.Array  # [k, 1, samples] float32, the chromosomes to evaluate next
    step: jax.Array  # [] int32
    key: jax.Array


@solver("random", "the best of independent uniform placements and keys")
def solve_random(task: Task) -> Plan:
    """Draws whole steps of 80 samples within the budget (fewer only if the budget is smaller)."""
    padded = jax.tree.map(jnp.asarray, pad_batch([task.graph]))
    samples = min(_SAMPLES, task.budget.evaluations or _SAMPLES)
    k, on_device = num_genes(padded.sizes, task.problem.devices), DeviceProblem.of(task.problem)
    key, step = jax.random.key(task.seed), jnp.int32(0)
    return search_population(
        task,
        padded,
        _State(jnp.zeros(k, jnp.float32), jnp.float32(jnp.inf), _sample(key, step, k, samples), step, key),
        advance=lambda state, steps, _: _advance(state, padded, on_device, steps),
        best=lambda state: (state.genes, state.value),
        evaluations=samples,
    )


def _sample(key: jax.Array, step: jax.Array, k: int, samples: int) -> jax.Array:
    seeds = jax.random.bits(jax.random.fold_in(key, step), (1, 2))
    return unit_interval(random_words(seeds, k, samples))


@functools.partial(jax.jit, donate_argnames=("state",))
def _advance(state: _State, graph: PaddedGraph, problem: DeviceProblem, steps: int) -> _State:
    def step(_: jax.Array, state: _State) -> _State:
        values = fitness(graph, from_genes(state.samples, graph.sizes, problem.devices), problem)[0]
        best = jnp.argmin(values)
        better = values[best] < state.value
        following = state.step + jnp.int32(1)
        return _State(
            jnp.where(better, state.samples[:, 0, best], state.genes),
            jnp.minimum(values[best], state.value),
            _sample(state.key, following, *state.samples.shape[::2]),
            following,
            state.key,
        )

    return lax.fori_loop(0, steps, step, state)


STORED = "brkga_tuned.json"


@dataclasses.dataclass(frozen=True)
class Setting:
    """Tuned parameters of "brkga-tuned"; alpha and beta are those of its Beta distribution."""

    population: int
    elites: int
    mutants: int
    elite_bias: float
    alpha: float
    beta: float


@dataclasses.dataclass(frozen=True)
class Grid:
    """The values to try, in all combinations. Elites and mutants are shares of the population."""

    populations: tuple[int, ...] = (50, 100, 200)
    elites: tuple[float, ...] = (0.1, 0.2)
    mutants: tuple[float, ...] = (0.1, 0.2)
    biases: tuple[float, ...] = (0.6, 0.7, 0.8)
    shapes: tuple[float, ...] = (0.5, 1.0, 2.0)  # values of alpha and of beta

    def sizes(self) -> Iterator[tuple[int, int, int]]:
        """Yields (population, elites, mutants): each compiles a program."""
        for population, elites, mutants in itertools.product(self.populations, self.elites, self.mutants):
            yield population, max(1, round(elites * population)), round(mutants * population)


@solver("brkga-tuned", "brkga with sizes, bias and a Beta distribution tuned on training graphs (REGAL's baseline)")
def solve_tuned(task: Task) -> Plan:
    """Runs BRKGA with the stored setting for the problem's objective."""
    best = stored_setting(task.problem.objective)
    return evolve(
        task,
        Parameters(best.population, best.elites, best.mutants, best.elite_bias),
        proposals=lambda sizes: op_proposals([(best.alpha, best.beta)], sizes, task.problem.devices, 1),
    )


def stored_setting(objective: str) -> Setting:
    """Returns the setting that scripts/tune_brkga.py stored for an objective."""
    return Setting(**stored()["settings"][objective])


def stored() -> dict[str, Any]:
    """Reads the file of scripts/tune_brkga.py: the settings by objective, and how they were found."""
    return json.loads(importlib.resources.files(__package__).joinpath(STORED).read_text(encoding="utf-8"))


def tune(
    graphs: Sequence[ComputationGraph], problem: Problem, evaluations: int, grid: Grid, seed: int
) -> dict[Setting, float]:
    """Scores every setting of the grid by the geometric mean of the objective over the graphs, in the graphs' units.

    Sizes of a population are shapes, so each triple of them is a separate program; all biases, Beta distributions and
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
