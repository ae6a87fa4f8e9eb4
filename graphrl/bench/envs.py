"""Throughput of an environment: proposals evaluated per second, for each number of parallel environments.

The step of `Proposal-v0`, vmapped and compiled as in a learner, is compared with BRKGA (`run_batch`) on the same graphs
with the same proposals. A step must not be slower than that.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from graphrl.bench.cases import DEVICES, PARAMETERS, Settings, problem, random_graphs
from graphrl.bench.report import Table
from graphrl.bench.timing import Bench, Prepared, Program, Sample, Timed, Timing, mapped_program, repeated_calls
from graphrl.costs.device.decisions import num_genes
from graphrl.envs import specs
from graphrl.envs.proposal import ProposalEnv, ProposalInstance, State, gene_choices, make_instances, to_beta_table
from graphrl.solvers.chromosomes.brkga import run_batch

ENV = "Proposal-v0"
MAX_ENVS = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvRow(Timing):
    """A table row: the measured step rate of parallel environments."""

    env: str  # environment id
    n: int  # number of ops in each graph
    envs: int  # number of parallel environments, one graph each
    evaluations: int  # number of solutions that BRKGA decodes and costs for one proposal
    population: int
    devices: int  # number of devices in the problem
    transfer: str
    objective: str
    proposals_per_s: float  # environment steps per second, from the median time
    evaluations_per_s: float
    ratio_to_batch: float  # `proposals_per_s` / the rate of `run_batch` on the same graphs


def _programs(settings: Settings, n: int, envs: int, mesh: Mesh, first: bool) -> Prepared:
    """Compiles environment steps under the first transfer model of the settings; `run_batch` is the yardstick."""
    env = ProposalEnv(problem("makespan", settings.transfers[0]), settings.evaluations, PARAMETERS)
    instances = make_instances(random_graphs(n, envs, settings.seed))
    steps = _steps(env, instances, mesh, settings.seed)
    return Prepared({"steps": steps}, _batches(env, instances, mesh, settings.seed))


def _drawn(env: ProposalEnv, instances: ProposalInstance, seed: int) -> tuple[jax.Array, jax.Array]:
    """Draws a key and a random action for every environment: `[g]` typed keys and `[g, n, d + 1]` int32."""
    keys = jax.random.split(jax.random.key(seed), instances.nodes.shape[0])
    spec = env.action_spec(jax.tree.map(lambda x: x[0], instances))
    return keys, jax.vmap(lambda key: specs.sample(spec, key))(keys)


def _steps(env: ProposalEnv, instances: ProposalInstance, mesh: Mesh, seed: int) -> Program:
    """Compiles one step of all environments; every run repeats it from the same state with the same actions."""
    keys, actions = _drawn(env, instances, seed)
    genes = jnp.zeros((len(keys), num_genes(instances.graph.sizes, env.problem.devices)))
    state = State(keys, jnp.ones(len(keys), jnp.float32), genes)

    def rewards(*arguments: Any) -> jax.Array:
        return jax.vmap(env.step)(*arguments)[1].reward

    return mapped_program(rewards, (keys, state, actions, instances), mesh, len(keys))


def _batches(env: ProposalEnv, instances: ProposalInstance, mesh: Mesh, seed: int) -> Callable[[int], Sample]:
    """Returns a function that times repeated `run_batch` calls with the same keys, graphs and proposals."""
    keys, actions = _drawn(env, instances, seed)
    sizes, coding = instances.graph.sizes, env.distributions
    choice = jax.vmap(lambda action: gene_choices(action, coding, sizes, env.problem.devices))(actions)
    table = to_beta_table(choice.T, coding)

    arguments = keys, instances.graph, env.problem, env.parameters, env.evaluations, table
    return repeated_calls(functools.partial(run_batch, mesh=mesh), arguments, len(keys))


def _row(settings: Settings, timed: Timed, fields: dict[str, Any]) -> EnvRow:
    evaluations = PARAMETERS.generations(settings.evaluations) * PARAMETERS.offspring
    return EnvRow(
        env=ENV,
        n=timed.ops,
        envs=timed.number,
        evaluations=evaluations,
        population=PARAMETERS.population,
        devices=DEVICES,
        transfer=settings.transfers[0],
        objective="makespan",
        proposals_per_s=timed.rate,
        evaluations_per_s=timed.rate * evaluations,
        ratio_to_batch=timed.ratio,
        **fields,
    )


ENVS = Bench(
    option="envs",
    what="env",
    unit="environment",
    largest=MAX_ENVS,
    prepare=_programs,
    row=_row,
    table=Table(
        heading=lambda row: (
            f"{row.env}: proposals evaluated a second ({row.evaluations:,} evaluations each, {row.transfer})"
        ),
        columns={
            "ops": lambda row: f"{row.n:,}",
            "envs": lambda row: f"{row.envs:,}",
            "proposals / s": lambda row: f"{row.proposals_per_s:.3g}",
            "evaluations / s": lambda row: f"{row.evaluations_per_s:,.0f}",
            "/ run_batch": lambda row: f"{row.ratio_to_batch:.3g}",
            "compile s": lambda row: f"{row.compile_s:.1f}",
        },
        section=lambda row: 0,
        title=lambda row: row.env,
        labels=("parallel environments", "proposals / s"),
        point=lambda row: (f"{row.evaluations:,} evaluations each", f"{row.n:,} ops", row.envs, row.proposals_per_s),
    ),
)
