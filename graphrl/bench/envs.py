"""Throughput of an environment: proposals evaluated a second, by the number of environments at once.

The step of `Proposal-v0`, mapped and compiled as a learner would, is compared with `run_batch` on the same graphs with
the same proposals. A step must not be slower than that.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Settings, problem, random_graphs
from graphrl.bench.programs import BY_GRAPH, compile_program, over_and_over
from graphrl.bench.report import machine_line, make_console, make_table, write_curves
from graphrl.bench.timing import Program, Sample, Say, TimedRow, by_size_and_count, interleaved, timed_fields
from graphrl.envs import specs
from graphrl.envs.proposal import ProposalEnv, ProposalParams, State, chosen, gene_choices, instances
from graphrl.solvers.chromosomes.brkga import run_batch

ENV = "Proposal-v0"
MOST_ENVS = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvRow(TimedRow):
    """What so many environments at once took for a step each."""

    env: str  # its id
    n: int  # ops of each graph
    envs: int  # at once, a graph each
    evaluations: int  # of one proposal: solutions decoded and costed
    population: int
    devices: int  # of the problem
    transfer: str
    objective: str
    proposals_per_s: float  # steps of an environment, by the median
    evaluations_per_s: float
    ratio_to_batch: float  # of that and what `run_batch` makes on the same graphs


def measure_envs(settings: Settings, counts: tuple[int, ...], say: Say) -> Iterator[list[EnvRow]]:
    """One row for each size of graphs and number of environments; see `by_size_and_count`. The first transfer model of
    `settings` counts.
    """
    return by_size_and_count(settings, "envs", counts, MOST_ENVS, _rows, say)


def _rows(settings: Settings, n: int, envs: int, pinned: bool, say: Say) -> list[EnvRow]:
    title = f"n = {n}, {envs} environment{'s' * (envs > 1)}"
    task = problem("makespan", settings.transfers[0])
    env = ProposalEnv(task, settings.evaluations, PARAMETERS)
    mesh = machine.make_mesh(settings.threads, envs)
    say(f"{title}: preparing")
    params = instances(random_graphs(n, envs, settings.seed))
    steps = _steps(env, params, mesh, settings.seed)
    batches = _batches(env, params, mesh, settings.seed)
    say(f"{title}: timing")
    ours, theirs = interleaved([steps.run, batches], settings.repeats, settings.seconds)
    clock = machine.clock(pinned)
    each = PARAMETERS.generations(settings.evaluations) * PARAMETERS.offspring
    row = EnvRow(
        what="env",
        env=ENV,
        n=n,
        envs=envs,
        evaluations=each,
        population=PARAMETERS.population,
        devices=DEVICES,
        transfer=task.transfer,
        objective=task.objective,
        proposals_per_s=ours.per_second(clock),
        evaluations_per_s=ours.per_second(clock) * each,
        ratio_to_batch=ours.per_second(clock) / theirs.per_second(clock),
        **timed_fields(settings, pinned, steps.compile_s, ours),
    )
    return [row]


def _drawn(env: ProposalEnv, params: ProposalParams, seed: int) -> tuple[jax.Array, jax.Array]:
    """A key and a random action of every environment: `[g]` typed and `[g, n, d + 1]` int32."""
    keys = jax.random.split(jax.random.key(seed), params.nodes.shape[0])
    spec = env.action_spec(jax.tree.map(lambda x: x[0], params))
    return keys, jax.vmap(lambda key: specs.sample(spec, key))(keys)


def _steps(env: ProposalEnv, params: ProposalParams, mesh: Mesh, seed: int) -> Program:
    """Steps of all environments from the same state and actions, over and over."""
    keys, actions = _drawn(env, params, seed)
    state = State(keys, jnp.ones(len(keys), jnp.float32))
    step = jax.shard_map(jax.vmap(env.step), mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    arguments = jax.device_put((keys, state, actions, params), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(lambda *arguments: step(*arguments)[1].reward, *arguments)

    return Program(over_and_over(compiled, arguments, len(keys)), compile_s)


def _batches(env: ProposalEnv, params: ProposalParams, mesh: Mesh, seed: int) -> Callable[[int], Sample]:
    """`run_batch` with the same keys, graphs and proposals, over and over."""
    keys, actions = _drawn(env, params, seed)
    sizes, coding = params.graph.sizes, env.distributions
    choice = jax.vmap(lambda action: gene_choices(action, coding, sizes, env.problem.devices))(actions)
    table = chosen(choice.T, coding)

    arguments = keys, params.graph, env.problem, env.parameters, env.evaluations, table
    return over_and_over(functools.partial(run_batch, mesh=mesh), arguments, len(keys))


def print_envs(rows: Sequence[EnvRow]) -> None:
    """Prints proposals and evaluations a second by number of environments."""
    first = rows[0]
    heading = f"{first.env}: proposals evaluated a second ({first.evaluations:,} evaluations each, {first.transfer})"
    columns = "envs", "proposals / s", "evaluations / s", "/ run_batch", "compile s"
    table = make_table(f"{heading}\n{machine_line(rows)}", "ops", *columns)
    for row in rows:
        table.add_row(
            f"{row.n:,}",
            f"{row.envs:,}",
            f"{row.proposals_per_s:.3g}",
            f"{row.evaluations_per_s:,.0f}",
            f"{row.ratio_to_batch:.3g}",
            f"{row.compile_s:.1f}",
        )
    make_console().print(table)


def write_envs_plot(rows: Sequence[EnvRow], file: IO[bytes]) -> None:
    """Writes a PNG: proposals a second against environments, a line a size of graphs."""
    points = [
        (f"{row.evaluations:,} evaluations each", f"{row.n:,} ops", row.envs, row.proposals_per_s) for row in rows
    ]
    write_curves(f"{rows[0].env}\n{machine_line(rows)}", ("environments at once", "proposals / s"), points, file)
