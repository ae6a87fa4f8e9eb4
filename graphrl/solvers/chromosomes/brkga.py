"""BRKGA, the biased random-key genetic algorithm, in pure JAX (Goncalves & Resende 2011; REGAL, BACKGROUND).

- `init`, `evolve`, `best`: the algorithm on a batch of graphs.
- `run_batch`, `run_grouped`: whole runs, on several devices or on one.
- `beta_table`, `shared_betas`, `beta_quantile`: proposal distributions.

**Generations.** Sort by fitness; keep the elites; make children, each gene from an elite parent with probability
`elite_bias` and else from a non-elite one; sample the rest, the mutants, from the proposal distribution. Deviations,
all for speed and none in distribution after the first generation:

- the first population has `population - elites` chromosomes, which is the number that every later generation evaluates,
  so that the program has one copy of the decoder; elites keep their fitness and are never evaluated again;
- random words come from a seeded hash (`graphrl/random_bits.py`).

A run of G generations makes exactly G * (population - elites) evaluations. Every graph of a batch draws from its own
key, and a gene's words do not depend on padding. So a result depends neither on the rest of the batch nor on its sizes.

**Proposals.** Mutants come from a Beta distribution for every gene (REGAL's proposals). REGAL reports that sampling,
not its network, was its overhead. Here each distribution's quantile function is tabulated once, for all genes that
share it, and a sample is a look-up with linear interpolation. Uniform genes need no table and are exact: proposals that
are all uniform give the same run as no proposals.

With x = sigmoid(y), the density of y is e^(alpha y) / (1 + e^y)^(alpha + beta): smooth, without the poles that
Beta(alpha, beta) has at 0 and 1 for small parameters, and with exponential tails of rates alpha and beta. So the table
stores y. In the first and last cell the tails are inverted in closed form.

**Batches.** `run_batch` spreads many graphs over the devices of this process, each with its share (`jax.shard_map` over
one axis). On an accelerator a device runs its share as one program. On a CPU it runs a few graphs at a time: more lanes
than fit in the caches cost more than shared kernels save (512 ops: 11,600 evaluations a second in one program, 20,900
one graph at a time). A graph's result depends on its key alone, not on how the batch is cut.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import digamma
from jax.sharding import Mesh, PartitionSpec

from graphrl.costs.device.decisions import DeviceProblem, from_genes, num_genes
from graphrl.costs.device.evaluate import fitness
from graphrl.costs.device.indexing import take
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.mesh import make_mesh, most_that_share
from graphrl.random_bits import random_words, unit_interval

_CELLS = 128  # cells of a table of quantiles
_POINTS = 128  # points of the numerical integral, over 10 standard deviations
_LARGEST = 1 - 2.0**-24  # the largest float32 below 1
_CPU_STATE = 2**17  # lanes times slots that share a program on a CPU: state of a few megabytes
UNIFORM = -1


class BetaTable(NamedTuple):
    """The distribution of each gene of each graph: one of c tabulated Beta distributions, or uniform."""

    logit: jax.Array  # [c, cells + 1] float32, logit of the quantile at i / cells; both ends repeat their neighbours
    lower_rate: jax.Array  # [c] float32, density over the mass below, at the lowest tabulated quantile
    upper_rate: jax.Array  # [c] float32, density over the mass above, at the highest one
    choice: jax.Array  # [k, g] int32, index of the distribution, or UNIFORM


def beta_table(alpha: jax.Array, beta: jax.Array) -> BetaTable:
    """Tabulates Beta(alpha, beta) for each gene: c = k * g distributions.

    Args:
      alpha, beta: `[k, g]` float32, from 0.05 to 1,000. (1, 1) is the uniform distribution.
    """
    spread = jnp.sqrt(_variance_bound(alpha) + _variance_bound(beta))
    middle = digamma(alpha) - digamma(beta)
    offset = jnp.linspace(-5.0, 5.0, _POINTS, dtype=jnp.float32)
    y = middle[..., None] + spread[..., None] * offset[None, None, :]
    log_density = _log_density(y, alpha, beta)
    largest = log_density.max(-1, keepdims=True)
    density = jnp.exp(log_density - largest)
    step = (y[..., 1:2] - y[..., :1]) / 2
    inside = jnp.cumsum((density[..., 1:] + density[..., :-1]) * step, -1)
    below = density[..., :1] / alpha[..., None]
    above = density[..., -1:] / beta[..., None]
    total = below + inside[..., -1:] + above
    mass = jnp.concatenate([below, below + inside], -1) / total
    wanted = jnp.arange(1, _CELLS, dtype=jnp.float32) / _CELLS
    logit = jax.vmap(jax.vmap(lambda f, v: jnp.interp(wanted, f, v)))(mass, y)
    outermost = logit[..., jnp.array([0, -1])]
    rate = jnp.exp(_log_density(outermost, alpha, beta) - largest) / total * _CELLS
    logit = jnp.concatenate([logit[..., :1], logit, logit[..., -1:]], -1)
    each = jnp.arange(alpha.size, dtype=jnp.int32).reshape(alpha.shape)
    return BetaTable(logit.reshape(-1, _CELLS + 1), rate[..., 0].reshape(-1), rate[..., 1].reshape(-1), each)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Population sizes and elite bias of BRKGA. Static: each combination compiles a program.

    Attributes:
      population: number of chromosomes of a generation.
      elites: number of best chromosomes that survive into the next generation.
      mutants: number of new random chromosomes per generation.
      elite_bias: probability that a child inherits a gene from its elite parent.

    Raises:
      ProblemError: a value is out of range.
    """

    population: int = 100
    elites: int = 20
    mutants: int = 20
    elite_bias: float = 0.7

    def __post_init__(self) -> None:
        if not 1 <= self.elites < self.population:
            raise ProblemError(f"elites is {self.elites}: must be from 1 to population - 1 = {self.population - 1}")
        if not 0 <= self.mutants <= self.population - self.elites:
            raise ProblemError(
                f"mutants is {self.mutants}: must be from 0 to population - elites = {self.population - self.elites}"
            )
        if not 0.5 <= self.elite_bias <= 1:
            raise ProblemError(f"elite_bias is {self.elite_bias}: must be from 0.5 to 1")

    @property
    def offspring(self) -> int:
        """Number of chromosomes that a generation makes and evaluates: children and mutants."""
        return self.population - self.elites

    def shrunk(self, offspring: int) -> "Parameters":
        """Returns a copy with fewer offspring per generation."""
        return dataclasses.replace(self, population=self.elites + offspring, mutants=min(self.mutants, offspring))

    def generations(self, evaluations: int) -> int:
        """Returns the number of generations that fit into a budget of evaluations; at least one."""
        return max(1, evaluations // self.offspring)


class State(NamedTuple):
    """The populations of all graphs of a batch: k genes, g graphs, E elites, O offspring."""

    elites: jax.Array  # [k, g, E] float32
    elite_fitness: jax.Array  # [g, E] float32, ascending; inf before the first generation
    offspring: jax.Array  # [k, g, O] float32, not evaluated yet
    draw: "Draw"
    keys: jax.Array  # [g] typed keys
    bias: jax.Array  # [g] uint32, a gene comes from the elite parent if its random word is below
    rows: jax.Array  # [k, g] uint32, number of each gene without padding, its row of random words
    generation: jax.Array  # [] int32


def op_proposals(shapes: Sequence[tuple[float, float]], sizes: Sizes, devices: int, graphs: int) -> BetaTable:
    """Returns proposals with one Beta(alpha, beta) for all affinities and op keys, and uniform transfer keys.

    The first `graphs` graphs of the batch have the first pair of `shapes`, the next ones the second, and so on.

    An increasing function that maps all genes of a chromosome does not change its meaning, so one distribution for all
    genes would be equivalent to the uniform one. This one determines how early transfers run among the ops.
    """
    return shared_betas(shapes, (devices + 1) * sizes.ops, devices * sizes.tensors, graphs)


def init(
    keys: jax.Array,
    graph: PaddedGraph,
    problem: DeviceProblem,
    parameters: Parameters,
    proposals: BetaTable | None = None,
    initial: jax.Array | None = None,
    elite_bias: jax.Array | None = None,
) -> State:
    """Returns the first population.

    Args:
      keys: `[g]` typed keys, one per graph.
      graph: a batch of graphs (leading axis g).
      problem: the problem that chromosomes solve.
      parameters: static.
      proposals: the Beta distribution of each gene, of shape `[k, g]`; None is uniform.
      initial: `[k, g, m]` chromosomes to start from (warm start), m at most the offspring of a generation.
      elite_bias: `[g]` float32, in place of that of `parameters`: graphs may differ, and a new value does not
        recompile.
    """
    g, rows = keys.shape[0], _rows(graph, problem.devices)
    sampled = _sample(random_words(_seeds(keys, jnp.int32(-1)), rows, parameters.population), proposals)
    elites, offspring = sampled[..., : parameters.elites], sampled[..., parameters.elites :]
    if initial is not None:
        if initial.shape[-1] > parameters.offspring:
            raise ProblemError(f"{initial.shape[-1]} initial chromosomes: at most {parameters.offspring} offspring fit")
        offspring = jnp.concatenate([initial, offspring[..., initial.shape[-1] :]], -1)
    unknown = jnp.full((g, parameters.elites), jnp.inf, jnp.float32)
    share = jnp.full(g, parameters.elite_bias, jnp.float32) if elite_bias is None else elite_bias
    bias = (jnp.minimum(share, jnp.float32(_LARGEST)) * jnp.float32(2.0**32)).astype(jnp.uint32)
    first = jnp.int32(0)
    draw = _draw(keys, bias, rows, first, parameters, proposals)
    return State(elites, unknown, offspring, draw, keys, bias, rows, first)


def evolve(
    state: State,
    graph: PaddedGraph,
    problem: DeviceProblem,
    parameters: Parameters,
    generations: int | jax.Array,
    proposals: BetaTable | None = None,
) -> State:
    """Runs `generations` more generations. How a run is cut into calls does not change its result.

    Args:
      state: result of `init` or of this function; donate it, it is as large as the population.
      graph, problem: as given to `init`.
      parameters: static.
      generations: static or traced; static where a trip count known only at run time is slow (GPUs).
      proposals: as given to `init`.
    """

    def generation(_: jax.Array, state: State) -> State:
        decisions = from_genes(state.offspring, graph.sizes, problem.devices)
        return _next(state, fitness(graph, decisions, problem), parameters, proposals)

    return lax.fori_loop(0, generations, generation, state)


def best(state: State) -> tuple[jax.Array, jax.Array]:
    """Returns the best chromosome of each graph so far, and its fitness: `[k, g]` float32 and `[g]` float32."""
    return state.elites[..., 0], state.elite_fitness[:, 0]


def _next(state: State, values: jax.Array, parameters: Parameters, proposals: BetaTable | None) -> State:
    """Selection, crossover and mutation: makes the next generation, given the fitness `[g, O]` of the offspring."""
    k, g, _ = state.offspring.shape
    p, e = parameters.population, parameters.elites
    fitness = jnp.concatenate([state.elite_fitness, values], -1)
    place = jnp.broadcast_to(jnp.arange(p, dtype=jnp.int32), (g, p))
    fitness, place = lax.sort((fitness, place), dimension=-1, num_keys=2)
    column = (place + jnp.arange(g, dtype=jnp.int32)[:, None] * p).reshape(-1)
    genes = jnp.concatenate([state.elites, state.offspring], -1).reshape(k, g * p)
    ranked = genes.at[:, column].get(mode="promise_in_bounds", wrap_negative_indices=False)
    children = take(ranked.reshape(-1), state.draw.parents.reshape(-1))
    offspring = jnp.concatenate([state.draw.mutants, children.reshape(k, g, -1)], -1)
    following = state.generation + jnp.int32(1)
    return State(
        elites=ranked.reshape(k, g, p)[..., :e],
        elite_fitness=fitness[:, :e],
        offspring=offspring,
        draw=_draw(state.keys, state.bias, state.rows, following, parameters, proposals),
        keys=state.keys,
        bias=state.bias,
        rows=state.rows,
        generation=following,
    )


def run_batch(
    keys: jax.Array,
    graph: PaddedGraph,
    problem: Problem,
    parameters: Parameters,
    evaluations: int,
    proposals: BetaTable | None = None,
    *,
    elite_bias: jax.Array | None = None,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Runs BRKGA on a batch of graphs, for a number of evaluations each, and returns the best solutions.

    Args:
      keys: `[g]` typed keys, one per graph.
      graph: a batch of graphs (leading axis g), on the host or a device.
      problem: the planning problem.
      parameters: static.
      evaluations: number per graph; rounded down to whole generations, at least one.
      proposals: the Beta distribution of each gene, of shape `[k, g]`; None is uniform.
      elite_bias: `[g]` float32, in place of that of `parameters`.
      mesh: one axis of devices to spread the graphs over; by default local devices, the most whose number divides g.

    Returns:
      Genes `[k, g]` float32 (`costs.device.decisions` has their layout) and fitness `[g]` float32, in the graph's
      units.

    Raises:
      ProblemError: the mesh has more than one axis, or its size does not divide g.
    """
    graphs = keys.shape[0]
    if mesh is None:
        devices = jax.local_devices()
        mesh = make_mesh(graphs, devices[: most_that_share(graphs, len(devices))])
    if len(mesh.axis_names) != 1 or graphs % mesh.size:
        raise ProblemError(
            f"a mesh of shape {dict(mesh.shape)} cannot share {graphs} graphs: needs one axis that divides"
        )
    generations = parameters.generations(evaluations)
    return _sharded(keys, graph, proposals, elite_bias, DeviceProblem.of(problem), parameters, generations, mesh)


def run_grouped(
    keys: jax.Array,
    graph: PaddedGraph,
    proposals: BetaTable | None,
    elite_bias: jax.Array | None,
    problem: DeviceProblem,
    parameters: Parameters,
    generations: int,
) -> tuple[jax.Array, jax.Array]:
    """Runs `run_batch` on one device, for a traced caller: all graphs in one batch or, on a CPU, in groups."""

    def run(group: tuple[jax.Array, PaddedGraph, jax.Array | None, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        keys, graph, choice, elite_bias = group
        table = None if proposals is None or choice is None else proposals._replace(choice=choice.T)
        state = init(keys, graph, problem, parameters, table, elite_bias=elite_bias)
        return best(evolve(state, graph, problem, parameters, generations, table))

    whole = keys, graph, None if proposals is None else proposals.choice.T, elite_bias
    size = _group_size(keys.shape[0], graph.sizes, parameters)

    def in_groups() -> tuple[jax.Array, jax.Array]:
        groups = jax.tree.map(lambda x: x.reshape(x.shape[0] // size, size, *x.shape[1:]), whole)
        genes, value = lax.map(run, groups)
        return jnp.moveaxis(genes, 0, 1).reshape(genes.shape[1], -1), value.reshape(-1)

    if size == keys.shape[0]:
        return run(whole)
    return lax.platform_dependent(cpu=in_groups, default=lambda: run(whole))


def _variance_bound(shape: jax.Array) -> jax.Array:
    """Returns an upper bound of the trigamma function: 1/x + 1/x^2."""
    return 1 / shape + 1 / jnp.square(shape)


def _log_density(logit: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """Returns the log density of the logit of a Beta variable, up to a constant: `[k, g, x]`."""
    return alpha[..., None] * logit - (alpha + beta)[..., None] * jax.nn.softplus(logit)


def shared_betas(shapes: Sequence[tuple[float, float]], genes: int, uniform: int, graphs: int) -> BetaTable:
    """Tabulates one Beta(alpha, beta) for the first `genes` genes of a graph; the next `uniform` genes are uniform.

    The first `graphs` graphs have the first pair of `shapes`, the next ones the second, and so on.
    """
    table = beta_table(*jnp.asarray(shapes, jnp.float32).T[..., None])
    by_graph = jnp.repeat(table.choice[:, 0], graphs)
    real = jnp.arange(genes + uniform, dtype=jnp.int32) < genes
    return table._replace(choice=jnp.where(real[:, None], by_graph[None], jnp.int32(UNIFORM)))


def _rows(graph: PaddedGraph, devices: int) -> jax.Array:
    """Returns the number of each gene in a graph without padding; padding genes come last: `[k, g]` uint32."""
    k, sizes = num_genes(graph.sizes, devices), graph.sizes
    ops, tensors = (jnp.asarray(count)[None, None] for count in (graph.num_ops, graph.num_tensors))

    def blocks(count: int, size: int, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Numbers the real genes of `count` blocks of `size`; returns numbers and True for real ones, `[genes, g]`."""
        block = jnp.arange(count, dtype=jnp.int32)[:, None, None]
        place = jnp.arange(size, dtype=jnp.int32)[None, :, None]
        is_real = jnp.broadcast_to(place < real, (count, size, real.shape[-1]))
        return (block * real + place).reshape(count * size, -1), is_real.reshape(count * size, -1)

    by_op, real_op = blocks(devices + 1, sizes.ops, ops)
    by_tensor, real_tensor = blocks(devices, sizes.tensors, tensors)
    number = jnp.concatenate([by_op, by_tensor + ops[0] * (devices + 1)])
    padding = k + jnp.arange(k, dtype=jnp.int32)[:, None]
    return jnp.where(jnp.concatenate([real_op, real_tensor]), number, padding).astype(jnp.uint32)


def _sample(words: jax.Array, proposals: BetaTable | None) -> jax.Array:
    """Converts random words `[k, g, m]` to genes: uniform, or each from its own Beta distribution."""
    uniform = unit_interval(words)
    return uniform if proposals is None else beta_quantile(proposals, uniform)


def _seeds(keys: jax.Array, generation: jax.Array) -> jax.Array:
    """Returns two random words for each graph and a generation (-1: the first population): `[g, 2]` uint32."""
    return jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, generation + jnp.int32(1)), (2,)))(keys)


class Draw(NamedTuple):
    """The random choices of the next generation, drawn a generation ahead.

    Otherwise XLA:CPU would fuse their arithmetic into the gather that uses them, whose loop does not vectorise: 17
    instead of 6 us an evaluation at 512 ops.
    """

    parents: jax.Array  # [k, g, children] int32, the parent of each gene, in the sorted population, as a flat index
    mutants: jax.Array  # [k, g, mutants] float32


def _draw(
    keys: jax.Array,
    bias: jax.Array,
    rows: jax.Array,
    generation: jax.Array,
    parameters: Parameters,
    proposals: BetaTable | None,
) -> Draw:
    """Draws parents, coins and mutants of the generation after `generation`."""
    (k, g), p, e, m = rows.shape, parameters.population, parameters.elites, parameters.mutants
    seeds = _seeds(keys, generation)
    words = random_words(seeds, rows, parameters.offspring)
    pair = unit_interval(random_words(~seeds, 2, parameters.offspring - m))
    elite = (pair[0] * e).astype(jnp.int32)
    other = e + (pair[1] * (p - e)).astype(jnp.int32)
    from_elite = words[..., m:] < bias[None, :, None]
    row = jnp.arange(k, dtype=jnp.int32)[:, None, None] * (g * p)
    graph = jnp.arange(g, dtype=jnp.int32)[None, :, None] * p
    return Draw(jnp.where(from_elite, elite[None], other[None]) + (row + graph), _sample(words[..., :m], proposals))


@functools.partial(jax.jit, static_argnames=("parameters", "generations", "mesh"))
def _sharded(
    keys: jax.Array,
    graph: PaddedGraph,
    proposals: BetaTable | None,
    elite_bias: jax.Array | None,
    problem: DeviceProblem,
    parameters: Parameters,
    generations: int,
    mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
    axis = mesh.axis_names[0]
    specs: Any = PartitionSpec(axis), PartitionSpec(None, axis), PartitionSpec()
    by_graph, by_gene, whole = specs
    of_proposals = None if proposals is None else BetaTable(whole, whole, whole, by_gene)
    return jax.shard_map(
        functools.partial(run_grouped, parameters=parameters, generations=generations),
        mesh=mesh,
        in_specs=(by_graph, by_graph, of_proposals, by_graph, whole),
        out_specs=(by_gene, by_graph),
        check_vma=False,
    )(keys, graph, proposals, elite_bias, problem)


def _group_size(graphs: int, sizes: Sizes, parameters: Parameters) -> int:
    """Returns the number of graphs that run together on a CPU: the largest divisor whose state is small enough."""
    fitting = max(1, _CPU_STATE // (parameters.offspring * sizes.slots))
    return max(n for n in range(1, graphs + 1) if graphs % n == 0 and n <= fitting)


def beta_quantile(table: BetaTable, uniform: jax.Array) -> jax.Array:
    """Returns each gene's quantiles at `uniform` `[k, g, m]` in [0, 1): `[k, g, m]` float32 in [0, 1)."""
    choice = jnp.maximum(table.choice, 0)
    scaled = uniform * _CELLS
    cell = jnp.minimum(scaled.astype(jnp.int32), _CELLS - 1)
    part = scaled - cell.astype(jnp.float32)
    entry = choice[..., None] * (_CELLS + 1) + cell
    flat = table.logit.reshape(-1)
    low, high = take(flat, entry), take(flat, entry + 1)
    # beyond the outermost quantiles the distribution function is exponential in the logit
    first, last = cell == 0, cell == _CELLS - 1
    tail = jnp.log(jnp.where(first, part, 1 - part))
    lower, upper = (take(rate, choice)[..., None] for rate in (table.lower_rate, table.upper_rate))
    logit = jnp.where(first | last, low + tail / jnp.where(first, lower, -upper), low + part * (high - low))
    quantile = jnp.minimum(jax.nn.sigmoid(logit), jnp.float32(_LARGEST))
    return jnp.where(table.choice[..., None] == UNIFORM, uniform, quantile)
