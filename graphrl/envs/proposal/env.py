"""The environment of REGAL's policy."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jraph

from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.proposal.coding import Coding, CodingName, coding, gene_choices
from graphrl.envs.proposal.instance import ProposalParams
from graphrl.envs.proposal.reward import objective, reward
from graphrl.envs.proposal.search import search
from graphrl.errors import ProblemError
from graphrl.graphs.jraph_view import to_graphs_tuple
from graphrl.graphs.padding import PaddedGraph
from graphrl.solvers.chromosomes.brkga import Parameters


class Observation(NamedTuple):
    """What the policy sees: n ops, e uses, f control edges, F and H features, all padded."""

    graph: jraph.GraphsTuple  # nodes [n + 1, F], edges [e + f, H]: see `to_graphs_tuple`
    mask: jax.Array  # [n] bool, real ops


class State(NamedTuple):
    """Of one episode."""

    key: jax.Array  # [] typed key: the random numbers of BRKGA, with and without the policy's proposals
    standard: jax.Array  # [] float32, fitness that standard BRKGA reached (device/fitness.py)


@dataclasses.dataclass(frozen=True)
class ProposalEnv:
    """`Proposal-v0`: propose a distribution for every gene of BRKGA, and see what it finds (REGAL, section 3).

    - Observation: the graph with its features, data and control edges, and the mask of real ops (`Observation`). The
      features of ops may end with a hint, as `instance` made them; the papers have none.
    - Action: for each op, the distribution of its affinity to each of the d devices and of its priority: int32
      `[n, d + 1]` indices of 16 means and variances ("moments", the ICLR paper) or `[n, d + 1, 2]` indices of alpha
      and beta ("shapes", the workshop paper); `coding.py` has the values. Those of padding ops change nothing.
    - Reward: -o_a / o_s, where o_a is the objective that BRKGA reaches with these proposals, for the first population
      and for mutants, and o_s what it reaches with uniform ones, with as many evaluations and the same random numbers.
      So -1 is standard BRKGA, exactly so for the action that is uniform everywhere.
    - Under a memory limit, a search that found nothing that fits counts as a makespan of W (1 + excess / limit): W, the
      time of all ops and of all possible transfers one after the other, is no less than any makespan. (The papers do
      not say; their objective, too, ranks every feasible schedule above every infeasible one.)
    - End: after one step, terminated (a bandit).
    - State: the key, drawn by `reset`, and o_s; `reset` runs BRKGA. `step` draws no random numbers of its own.
    - Info: "objective" and "standard", o_a and o_s in bytes or seconds; inf where nothing fits. After `reset` the two
      are equal.

    Attributes:
      problem: objective, devices, transfer model, memory limit.
      evaluations: of each run of BRKGA; whole generations are made.
      parameters: of BRKGA.
      coding: "moments" or "shapes".

    Version history: v0, the first.

    Raises:
      ProblemError: an option is out of range.
    """

    problem: Problem = Problem("makespan", 2)
    evaluations: int = 5000
    parameters: Parameters = Parameters()
    coding: CodingName = "moments"

    def __post_init__(self) -> None:
        coding(self.coding)
        if self.evaluations < self.parameters.offspring:
            raise ProblemError(
                f"evaluations is {self.evaluations}: must be at least a generation's {self.parameters.offspring}"
            )

    @property
    def distributions(self) -> Coding:
        """What the action's indices stand for."""
        return coding(self.coding)

    def reset(self, key: jax.Array, params: ProposalParams) -> tuple[State, TimeStep[Observation]]:
        """Standard BRKGA. See `Environment`."""
        standard = self._search(key, params.graph, None)
        no = jnp.asarray(False)
        return State(key, standard), TimeStep(
            observe(params), jnp.float32(0), no, no, self._info(standard, standard, params.graph)
        )

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: ProposalParams
    ) -> tuple[State, TimeStep[Observation]]:
        """BRKGA with the proposals. See `Environment`; `key` is not used."""
        graph = params.graph
        choice = gene_choices(action, self.distributions, graph.sizes, self.problem.devices)
        fitness = self._search(state.key, graph, choice)
        return state, TimeStep(
            observe(params),
            reward(fitness, state.standard, graph, DeviceProblem.of(self.problem)),
            terminated=jnp.asarray(True),
            truncated=jnp.asarray(False),
            info=self._info(fitness, state.standard, graph),
        )

    def observation_spec(self, params: ProposalParams) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(observe, params)
        graph = jax.tree.map(lambda x: specs.ArraySpec(x.shape, x.dtype), shapes.graph)
        n = shapes.mask.shape[0]
        edges = shapes.graph.senders.shape[0]
        place, nodes, edge_counts = (
            specs.integers(shape, 0, most) for shape, most in (((edges,), n), ((2,), n + 1), ((2,), edges))
        )
        graph = graph._replace(senders=place, receivers=place, n_node=nodes, n_edge=edge_counts)
        return shapes._replace(graph=graph, mask=specs.booleans(shapes.mask.shape))

    def action_spec(self, params: ProposalParams) -> specs.ArraySpec:
        """See `Environment`."""
        return self.distributions.action_spec(params.graph.sizes.ops, self.problem.devices)

    def _search(self, key: jax.Array, graph: PaddedGraph, choice: jax.Array | None) -> jax.Array:
        """The best fitness of BRKGA with a choice `[k]` for each gene, or with uniform ones: `[]` float32."""
        generations = self.parameters.generations(self.evaluations)
        run = search(self.parameters, generations, self.distributions)
        batch: PaddedGraph = jax.tree.map(lambda x: jnp.asarray(x)[None], graph)
        return run(DeviceProblem.of(self.problem), key[None], batch, None if choice is None else choice[None])[0]

    def _info(self, fitness: jax.Array, standard: jax.Array, graph: PaddedGraph) -> dict[str, jax.Array]:
        values = {"objective": fitness, "standard": standard}
        return {name: objective(value, graph, DeviceProblem.of(self.problem)) for name, value in values.items()}


def observe(params: ProposalParams) -> Observation:
    """What the policy sees of an instance; `jax.vmap` over this function for batches."""
    graph = params.graph
    view = to_graphs_tuple(graph, jnp.asarray(params.nodes), jnp.asarray(params.edges))
    return Observation(view, jnp.arange(graph.sizes.ops, dtype=jnp.int32) < graph.num_ops)
