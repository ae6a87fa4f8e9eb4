"""`Proposal-v0`: choose the proposal distributions of a genetic algorithm; the reward is its best fitness (REGAL).

- `ProposalEnv`: the environment. `make_instance` creates its instances on the host, in NumPy: padded graphs with
  their features.
- `reward`, `objective`: computed from the best fitness of a search (`fitness` in costs/device/evaluate.py).
- `search`: runs BRKGA for many environments in parallel. It takes a batch of graphs, and `jax.vmap` of `search` folds
  a mapped axis into that batch: plain `jax.vmap` would add an axis to each of the decoder's gathers and loops. On a
  CPU, the batch then runs a few graphs at a time (solvers/chromosomes/brkga.py).
- `Coding`: the Beta distributions that an action can choose for a gene.

The two papers of REGAL encode actions differently. The ICLR paper quantises mean and variance (a gene has one index;
its best agent has "a choice of 16 different node placement actions"); the workshop paper samples alpha and beta from a
softmax each (a gene has two indices, eq. 1). Neither prints its values. Ours:

- "moments": the uniform distribution, and fifteen means with one small spread, alpha + beta = 128. The variance of a
  Beta distribution is mean (1 - mean) / (alpha + beta + 1), which is always below mean (1 - mean). Many means with a
  small variance can express the order of ops, and whether the affinities of two devices differ always, in most samples
  or at random. At few evaluations policies learned faster than with five means at each of three spreads.
- "shapes": alpha and beta are powers of two from 1/2 to 16; (1, 1) is the uniform distribution.

Both include the uniform distribution exactly: an action that chooses it for all genes earns -1.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.device.evaluate import node_seconds
from graphrl.costs.problem import Problem
from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.graph_environment import GraphEnvironment, stacked
from graphrl.envs.specs import ArraySpec, choices
from graphrl.errors import ProblemError
from graphrl.graphs.features import padded_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.jraph_view import to_graphs_tuple
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.plan import Plan
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.brkga import UNIFORM, BetaTable, Parameters, beta_table, run_grouped
from graphrl.solvers.chromosomes.brkga_solver import decisions

CodingName = Literal["moments", "shapes"]
TransferKeys = Literal["uniform", "readers"]
MEANS = tuple(i / 16 for i in range(1, 16))
CONCENTRATION = 128.0  # alpha + beta; 2 for the uniform distribution
SHAPES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclasses.dataclass(frozen=True)
class Coding:
    """The Beta distributions that an action chooses from by one or two indices per gene. Static and hashable.

    Attributes:
      heads: number of values of each of a gene's indices.
      alpha, beta: parameters of the distributions, last index fastest. (1, 1) is the uniform distribution.
    """

    heads: tuple[int, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    @property
    def values(self) -> int:
        """Number of values of an index, the same for all indices of a gene."""
        return self.heads[0]

    @property
    def means(self) -> np.ndarray:
        """The means of the distributions: `[m]` float64."""
        return np.array(self.alpha) / np.add(self.alpha, self.beta)

    @property
    def uniform(self) -> tuple[int, ...]:
        """The indices that choose the uniform distribution."""
        place = list(zip(self.alpha, self.beta, strict=True)).index((1.0, 1.0))
        return tuple(int(index) for index in np.unravel_index(place, self.heads))

    def nearest(self, mean: jax.Array) -> jax.Array:
        """Finds the distribution with the nearest mean, and of those the smallest variance: maps `[...]` float32 from 0
        to 1 to indices, `[...]` int32 for genes with one index, `[..., 2]` for genes with two.
        """
        alpha, beta = np.array(self.alpha), np.array(self.beta)
        surest = np.lexsort((-alpha - beta, self.means))  # by mean, then by variance
        means, first = np.unique(self.means[surest], return_index=True)
        middles = ((means[1:] + means[:-1]) / 2).astype(np.float32)
        row = jnp.asarray(surest[first], jnp.int32)[jnp.searchsorted(middles, mean)]
        return row if len(self.heads) == 1 else jnp.stack(jnp.unravel_index(row, self.heads), -1)

    def action_spec(self, ops: int, devices: int) -> ArraySpec:
        """Specifies actions: `[n, d + 1]` int32 for genes with one index, `[n, d + 1, 2]` for two (`gene_choices`)."""
        extra = self.heads[1:] and (len(self.heads),)
        return choices((ops, devices + 1, *extra), self.values)


def coding(name: CodingName) -> Coding:
    """Returns the coding with that name.

    Raises:
      ProblemError: the name is unknown.
    """
    if name not in _CODINGS:
        raise ProblemError(f"coding is {name!r}: must be one of {', '.join(_CODINGS)}")
    return _CODINGS[name]


def gene_choices(
    action: jax.Array, coding: Coding, graph: PaddedGraph, devices: int, transfer_keys: TransferKeys = "uniform"
) -> jax.Array:
    """Converts an action to the distribution of every gene of a chromosome: `[k]` int32, `UNIFORM` for the uniform one.

    Args:
      action: an action of `Coding.action_spec`: for each op, the choice of its affinity to each device and of its
        priority.
      coding: the coding of the action.
      graph: the padded graph.
      devices: number of devices, d.
      transfer_keys: of the keys of transfers, see `ProposalEnv`.
    """
    ops = op_choices(action, coding)
    key = jnp.full(graph.sizes.tensors, UNIFORM, jnp.int32)
    if transfer_keys == "readers":
        by_mean = np.argsort(coding.means, kind="stable").astype(np.int32)
        place = jnp.asarray(np.argsort(by_mean).astype(np.int32))[ops[-1]]
        place = jnp.where(ops[-1] == UNIFORM, UNIFORM, place)  # below all others
        key = key.at[graph.use_tensor].max(place.at[graph.use_op].get(mode="fill", fill_value=UNIFORM), mode="drop")
        key = jnp.where(key == UNIFORM, UNIFORM, jnp.asarray(by_mean)[key])
    return jnp.concatenate([ops.reshape(-1), jnp.tile(key, devices)])


def op_choices(action: jax.Array, coding: Coding) -> jax.Array:
    """Converts an action to the distributions of the ops' genes: `[d + 1, n]` int32, `UNIFORM` for the uniform one."""
    row = action if len(coding.heads) == 1 else action[..., 0] * coding.heads[1] + action[..., 1]
    return jnp.where(row == np.ravel_multi_index(coding.uniform, coding.heads).astype(np.int32), UNIFORM, row).T


def to_beta_table(choice: jax.Array, coding: Coding) -> BetaTable:
    """Creates BRKGA's table of a coding's distributions, with the choice of each gene among them: `[k, g]` int32."""
    logit, lower, upper = map(jnp.asarray, _quantile_tables(coding))
    return BetaTable(logit, lower, upper, choice)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProposalInstance:
    """One graph with features for the network; a batch has a leading axis g on every array."""

    graph: PaddedGraph
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops; 0 for padding
    edges: jax.Array | np.ndarray  # [e, H] float32, features of uses; 0 for padding

    @property
    def num_ops(self) -> jax.Array:
        """Number of real ops: `[]` int32."""
        return self.graph.num_ops


def make_instance(graph: ComputationGraph, to: Sizes | None = None) -> ProposalInstance:
    """Converts a graph to an instance, padded to `to` (by default its size bucket).

    Raises:
      GraphError: `to` is too small for the graph.
    """
    to = common_sizes([graph]) if to is None else to
    return ProposalInstance(pad(graph, to), *padded_features(graph, to))


def make_instances(graphs: Sequence[ComputationGraph], to: Sizes | None = None) -> ProposalInstance:
    """Converts graphs to a batch (leading axis g), padded to `to` (by default the smallest bucket that covers all).

    Raises:
      GraphError: `to` is too small for a graph.
    """
    to = common_sizes(graphs) if to is None else to
    return stacked([make_instance(graph, to) for graph in graphs])


class State(NamedTuple):
    """State of one episode."""

    key: jax.Array  # [] typed key: random numbers of BRKGA, with and without the policy's proposals
    standard: jax.Array  # [] float32, fitness of standard BRKGA (`costs.device.evaluate`)
    genes: jax.Array  # [k] float32, the best chromosome of the last run of BRKGA (`costs.device.decisions`)


class View(NamedTuple):
    """The part of an observation that networks read: n ops, e uses of tensors and f control edges, all padded."""

    graph: jraph.GraphsTuple  # nodes [n + 1, F], edges [e + f, H]: see `to_graphs_tuple`
    mask: jax.Array  # [n] bool, True for real ops


class Observation(NamedTuple):
    """A `View`, and the mask of actions. An episode has one step: all fields are constant.

    Attributes:
      graph: `nodes` `[n + 1, F]` and `edges` `[e + f, H]` float32, features without units
        (`graphs.features.NODE_FEATURES`, `EDGE_FEATURES`); `senders` and `receivers` `[e + f]` int32. Padding has
        features of 0, and its edges connect node n to itself (`graphs.jraph_view.to_graphs_tuple`).
      mask: `[n]` bool, True for real ops.
      action_mask: bool, the action's shape with a last axis of its values: True for all, or only for value 0 of
        padding.
    """

    graph: jraph.GraphsTuple
    mask: jax.Array
    action_mask: jax.Array


@dataclasses.dataclass(frozen=True)
class ProposalEnv(GraphEnvironment[ProposalInstance]):
    """`Proposal-v0`: propose a distribution for every gene of BRKGA, which then searches with them (REGAL, section 3).

    - Observation: the graph with its features, data and control edges, and masks of real ops and of actions
      (`Observation`).
    - Action: for each op, the distribution of its affinity to each of the d devices and of its priority: int32
      `[n, d + 1]` indices of 16 means and variances ("moments", the ICLR paper) or `[n, d + 1, 2]` indices of alpha
      and beta ("shapes", the workshop paper); `Coding` has the values. Choices of padding ops have no effect.
    - Reward: -o_a / o_s, where o_a is the objective that BRKGA reaches with these proposals, for the first population
      and for mutants. o_s is the objective with uniform proposals, the same number of evaluations and the same random
      numbers. So -1 is standard BRKGA, exactly so for the action that is uniform everywhere.
    - Under a memory limit, a search without a feasible schedule counts as a makespan of W (1 + excess / limit): W, the
      serial time of all ops and all possible transfers, is an upper bound of makespans. (The papers do not specify
      this; their objective, too, ranks every feasible schedule above every infeasible one.)
    - End: after one step, terminated (a bandit).
    - State: the key, drawn by `reset`, o_s, and the best chromosome; `reset` runs BRKGA. `step` draws no additional
      random numbers.
    - Info: "objective" and "standard", o_a and o_s in bytes or seconds; inf without a feasible schedule. After `reset`
      the two are equal.

    Attributes:
      problem: objective, devices, transfer model, memory limit.
      evaluations: number of evaluations per BRKGA run, in whole generations.
      parameters: parameters of BRKGA.
      coding: "moments" or "shapes".
      transfer_keys: distributions of the keys of transfers, which REGAL does not learn: "uniform", the papers'
        (workshop A.2); or "readers" (ours), that of the priority of the tensor's first reader: of those with a learned
        priority the one of highest mean. With uniform keys most transfers are far from their readers, whatever the
        policy proposes.

    Version history: v0, the first.

    Raises:
      ProblemError: an option is out of range.
    """

    problem: Problem = Problem("makespan", 2)
    evaluations: int = 5000
    parameters: Parameters = Parameters()
    coding: CodingName = "moments"
    transfer_keys: TransferKeys = "uniform"

    def __post_init__(self) -> None:
        coding(self.coding)
        if self.transfer_keys not in get_args(TransferKeys):
            raise ProblemError(
                f"transfer_keys is {self.transfer_keys!r}: must be one of {', '.join(get_args(TransferKeys))}"
            )
        if self.evaluations < self.parameters.offspring:
            raise ProblemError(
                f"evaluations is {self.evaluations}: must be at least a generation's {self.parameters.offspring}"
            )

    @property
    def distributions(self) -> Coding:
        """The distributions that the action's indices select."""
        return coding(self.coding)

    def reset(self, key: jax.Array, instance: ProposalInstance) -> tuple[State, TimeStep[Observation]]:
        """Runs standard BRKGA, the reference of the reward. See `Environment`."""
        genes, standard = self._search(key, instance.graph, None)
        no, info = jnp.asarray(False), self._info(standard, standard, instance.graph)
        return State(key, standard, genes), TimeStep(self._observe(instance), jnp.float32(0), no, no, info)

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: ProposalInstance
    ) -> tuple[State, TimeStep[Observation]]:
        """Runs BRKGA with the proposals. See `Environment`; `key` is not used."""
        graph = instance.graph
        choice = gene_choices(action, self.distributions, graph, self.problem.devices, self.transfer_keys)
        genes, fitness = self._search(state.key, graph, choice)
        return state._replace(genes=genes), TimeStep(
            self._observe(instance),
            reward(fitness, state.standard, graph, DeviceProblem.of(self.problem)),
            terminated=jnp.asarray(True),
            truncated=jnp.asarray(False),
            info=self._info(fitness, state.standard, graph),
        )

    def observation_spec(self, instance: ProposalInstance) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(self._observe, instance)
        graph = jax.tree.map(lambda x: specs.ArraySpec(x.shape, x.dtype), shapes.graph)
        n = shapes.mask.shape[0]
        edges = shapes.graph.senders.shape[0]
        place, nodes, edge_counts = (
            specs.integers(shape, 0, most) for shape, most in (((edges,), n), ((2,), n + 1), ((2,), edges))
        )
        graph = graph._replace(senders=place, receivers=place, n_node=nodes, n_edge=edge_counts)
        masks = {name: specs.booleans(getattr(shapes, name).shape) for name in ("mask", "action_mask")}
        return shapes._replace(graph=graph, **masks)

    def action_spec(self, instance: ProposalInstance) -> specs.ArraySpec:
        """See `Environment`."""
        return self.distributions.action_spec(instance.graph.sizes.ops, self.problem.devices)

    def make_instances(self, graphs: Sequence[ComputationGraph], to: Any = None) -> ProposalInstance:
        """See `GraphEnvironment`."""
        return make_instances(graphs, to)

    def _plan(self, graph: ComputationGraph, instance: ProposalInstance, state: State) -> Plan:
        placement, order = decisions(graph, self.problem, instance.graph.sizes, np.asarray(state.genes))
        evaluations = self.parameters.generations(self.evaluations) * self.parameters.offspring
        facts: dict[str, Any] = {"method": "Proposal-v0", "seconds": 0.0, "evaluations": evaluations, "seed": 0}
        return Plan.from_order(graph, self.problem, placement, order, **facts)

    def _observe(self, instance: ProposalInstance) -> Observation:
        view, spec = observe(instance), self.action_spec(instance)
        shape = (*spec.shape, spec.num_values)
        is_first = jax.lax.broadcasted_iota(jnp.int32, shape, len(spec.shape)) == 0
        return Observation(*view, view.mask.reshape(-1, *[1] * len(spec.shape)) | is_first)

    def _search(self, key: jax.Array, graph: PaddedGraph, choice: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Runs BRKGA with a choice `[k]` for each gene, or with uniform distributions: best chromosome, `[k]` float32,
        and its fitness, `[]` float32.
        """
        generations = self.parameters.generations(self.evaluations)
        run = search(self.parameters, generations, self.distributions)
        batch: PaddedGraph = jax.tree.map(lambda x: jnp.asarray(x)[None], graph)
        one = run(DeviceProblem.of(self.problem), key[None], batch, None if choice is None else choice[None])
        return one[0][0], one[1][0]

    def _info(self, fitness: jax.Array, standard: jax.Array, graph: PaddedGraph) -> dict[str, jax.Array]:
        values = {"objective": fitness, "standard": standard}
        return {name: objective(value, graph, DeviceProblem.of(self.problem)) for name, value in values.items()}


def observe(instance: ProposalInstance) -> View:
    """Returns the view of an instance; apply `jax.vmap` for batches."""
    graph = instance.graph
    view = to_graphs_tuple(graph, jnp.asarray(instance.nodes), jnp.asarray(instance.edges))
    return View(view, jnp.arange(graph.sizes.ops, dtype=jnp.int32) < graph.num_ops)


def _moments() -> Coding:
    pairs = [(1.0, 1.0)] + [(mean * CONCENTRATION, (1 - mean) * CONCENTRATION) for mean in MEANS]
    alpha, beta = zip(*pairs, strict=True)
    return Coding((len(pairs),), alpha, beta)


def _shapes() -> Coding:
    alpha, beta = zip(*((a, b) for a in SHAPES for b in SHAPES), strict=True)
    return Coding((len(SHAPES),) * 2, alpha, beta)


_CODINGS: dict[str, Coding] = {"moments": _moments(), "shapes": _shapes()}


@functools.cache
def _quantile_tables(coding: Coding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the quantile functions of all distributions of a coding, once per process."""
    with jax.ensure_compile_time_eval():  # also works if first called inside a jitted function
        shapes = (np.asarray(values, np.float32)[:, None] for values in (coding.alpha, coding.beta))
        table = jax.jit(beta_table)(*shapes)
        return np.asarray(table.logit), np.asarray(table.lower_rate), np.asarray(table.upper_rate)


def reward(fitness: jax.Array, standard: jax.Array, graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Computes the reward -o_a / o_s, `[]` float32, from the fitness `[]` with and without proposals.

    If o_s is 0 (no op takes time), the reward is -1 for o_a = 0 and else -2.
    """
    cost, base = (_cost(value, graph, problem) for value in (fitness, standard))
    penalty = 1 + (cost > 0).astype(jnp.float32)
    return -jnp.where(base > 0, cost / jnp.where(base > 0, base, 1), penalty)


@functools.cache
def search(
    parameters: brkga.Parameters, generations: int, coding: Coding
) -> Callable[[DeviceProblem, jax.Array, PaddedGraph, jax.Array | None], tuple[jax.Array, jax.Array]]:
    """Returns a jitted function that runs BRKGA: it maps a problem, keys `[g]`, graphs (leading axis g) and choices
    `[g, k]` int32 to the best chromosomes, `[g, k]` float32, and their fitness, `[g]` float32.

    The choices are those of `gene_choices`, or None for uniform distributions. The function supports nested `jax.vmap`
    over all arguments except the problem; arguments that are not mapped are repeated.
    """

    @jax.custom_batching.custom_vmap
    def best(
        problem: DeviceProblem, keys: jax.Array, graph: PaddedGraph, choice: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        table = None if choice is None else to_beta_table(choice.T, coding)
        genes, fitness = run_grouped(keys, graph, table, None, problem, parameters, generations)
        return genes.T, fitness

    @best.def_vmap
    def rule(size: int, mapped: Sequence[Any], problem: DeviceProblem, *arguments: Any) -> Any:
        def fold(is_mapped: bool, x: jax.Array) -> jax.Array:
            x = x if is_mapped else jnp.broadcast_to(x[None], (size, *x.shape))
            return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])  # not -1, since an axis may be empty

        genes, fitness = best(problem, *jax.tree.map(fold, tuple(mapped[1:]), arguments))
        return (genes.reshape(size, -1, genes.shape[1]), fitness.reshape(size, -1)), (True, True)

    return jax.jit(best)


def objective(fitness: jax.Array, graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Converts a fitness to bytes or seconds: `[]` float32; inf if the memory limit is exceeded."""
    if problem.objective == "peak_memory":
        return fitness * graph.byte_unit
    if problem.memory_limit is None:
        return fitness * graph.second_unit
    return jnp.where(fitness < 0, _makespan(fitness) * graph.second_unit, jnp.inf)


def _cost(fitness: jax.Array, graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Computes the cost in the reward, `[]` float32 in the graph's units: the objective, or its substitute for
    infeasible schedules.
    """
    if problem.memory_limit is None:
        return fitness
    limit = problem.memory_limit / graph.byte_unit
    return jnp.where(fitness < 0, _makespan(fitness), _serial(graph, problem) * (1 + fitness / limit))


def _makespan(fitness: jax.Array) -> jax.Array:
    """Converts the fitness of a schedule within the memory limit to its makespan; returns 1 for other schedules."""
    return -1 / jnp.where(fitness < 0, fitness, -1)


def _serial(graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Sums the times of all ops and all possible transfers, second units: `[]` float32."""
    batch: PaddedGraph = jax.tree.map(lambda x: jnp.asarray(x)[None], graph)
    n, foreign = graph.sizes.ops, problem.devices - 1
    node = jnp.arange(n + foreign * graph.sizes.tensors, dtype=jnp.int32)
    real = (node < n) | (node - n < graph.num_tensors * foreign)
    return jnp.where(real, node_seconds(batch, problem)[0, : len(node)], 0).sum()
