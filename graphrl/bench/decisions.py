"""Throughput of GO: decisions a second, and updates of its policy, by the number of graphs at once.

A decision is a call of the network on a layered graph, and the likeliest option of each task for every op. An update is
one of `graphrl train go`, on plans of the same graphs on 8 devices.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import IO

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from graphrl.agents.go.config import SENDS, GoSettings
from graphrl.agents.go.learner import batch, learner
from graphrl.agents.go.network import networks
from graphrl.bench import machine
from graphrl.bench.cases import Settings
from graphrl.bench.programs import BY_GRAPH, compile_program, over_and_over
from graphrl.bench.report import machine_line, make_console, make_table, write_curves
from graphrl.bench.timing import Program, Samples, Say, TimedRow, by_size_and_count, interleaved, timed, timed_fields
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import CompileParams, instances
from graphrl.envs.compile.observation import seen
from graphrl.graphs.datasets.layered import layered
from graphrl.learning.learner import on_mesh
from graphrl.learning.ppo.settings import likeliest

DECIDING, LEARNING = "deciding", "learning"
DEVICES = 8
CONFIG = GoSettings(transfers=("rendezvous",), devices=(DEVICES,), slowness=(0.0,), rounds=1)
LARGEST_LEARNT = 1000  # ops: an update of one graph of 10,000 takes minutes on a core
MOST_GRAPHS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecisionRow(TimedRow):
    """What decisions, or updates of the policy (compiled once the first is done), took for so many graphs at once."""

    work: str  # `DECIDING` or `LEARNING`
    n: int  # ops of each graph
    graphs: int  # at once
    per_s: float  # decisions of a graph, or updates, by the median


def measure_decisions(settings: Settings, counts: tuple[int, ...], say: Say) -> Iterator[list[DecisionRow]]:
    """A row for deciding, and one for learning up to `LARGEST_LEARNT` ops, of each size and number of graphs at once;
    see `by_size_and_count`.
    """
    return by_size_and_count(settings, "decisions", counts, MOST_GRAPHS, _rows, say)


def _rows(settings: Settings, n: int, count: int, pinned: bool, say: Say) -> list[DecisionRow]:
    mesh = machine.make_mesh(settings.threads, count)
    title = f"n = {n}, {count} graph{'s' * (count > 1)}"
    say(f"{title}: preparing")
    programs = {DECIDING: _deciding(n, count, mesh, settings.seed)}
    if n <= LARGEST_LEARNT:
        programs[LEARNING] = _learning(n, count, mesh, settings.seed)
    say(f"{title}: timing")
    samples_of = interleaved([program.run for program in programs.values()], settings.repeats, settings.seconds)
    clock = machine.clock(pinned)

    def row(work: str, compile_s: float, samples: Samples) -> DecisionRow:
        return DecisionRow(
            what="decisions",
            work=work,
            n=n,
            graphs=count,
            per_s=samples.per_second(clock),
            **timed_fields(settings, pinned, compile_s, samples),
        )

    return [
        row(work, program.compile_s, samples)
        for (work, program), samples in zip(programs.items(), samples_of, strict=True)
    ]


def _deciding(n: int, count: int, mesh: Mesh, seed: int) -> Program:
    """Calls of an untrained network, over and over, the graphs spread over the mesh."""
    graphs = [layered(n, seed + i) for i in range(count)]
    rows = instances(graphs, [Problem("makespan", DEVICES)] * count, levels=CONFIG.levels)
    policy, tasks = networks(CONFIG.network).policy, CONFIG.network.tasks
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows)
    params = policy.init(jax.random.key(seed), seen(first, first.start, tasks, SENDS))

    def decide(rows: CompileParams) -> dict[str, jax.Array]:
        def one(row: CompileParams) -> dict[str, jax.Array]:
            chosen: dict[str, jax.Array] = likeliest(policy.apply(params, seen(row, row.start, tasks, SENDS)))
            return chosen

        return jax.lax.map(one, rows)

    spread = jax.shard_map(decide, mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    arguments = (jax.device_put(rows, NamedSharding(mesh, BY_GRAPH)),)
    compiled, compile_s = compile_program(spread, *arguments)
    return Program(over_and_over(compiled, arguments, count), compile_s)


def _learning(n: int, count: int, mesh: Mesh, seed: int) -> Program:
    """Updates with the same graphs, over and over, the graphs spread over the mesh."""
    functions, key = on_mesh(learner(CONFIG), mesh), jax.random.key(seed)
    graphs = [layered(n, seed + i) for i in range(count)]
    rows = batch(CONFIG, graphs, instances(graphs, [CONFIG.problem] * count).graph.sizes)
    rows = jax.device_put(rows, NamedSharding(mesh, BY_GRAPH))
    state = functions.init(key)
    started = time.perf_counter()
    state = jax.block_until_ready(functions.update(state, key, rows)[0])
    compile_s = time.perf_counter() - started

    def work(runs: int) -> int:
        nonlocal state
        for _ in range(runs):
            state = jax.block_until_ready(functions.update(state, key, rows)[0])
        return runs

    return Program(timed(work), compile_s)


def print_decisions(rows: Sequence[DecisionRow]) -> None:
    """Prints decisions and updates a second by size and number of graphs."""
    heading = f"GO: decisions of a graph, and updates of the policy, a second (layered graphs)\n{machine_line(rows)}"
    table = make_table(heading, "ops", "graphs", "work", "a second", "compile s")
    for row, following in zip(rows, (*rows[1:], None), strict=True):
        table.add_row(
            f"{row.n:,}",
            f"{row.graphs:,}",
            row.work,
            f"{row.per_s:.3g}",
            f"{row.compile_s:.1f}",
            end_section=following is None or (following.n, following.graphs) != (row.n, row.graphs),
        )
    make_console().print(table)


def write_decisions_plot(rows: Sequence[DecisionRow], file: IO[bytes]) -> None:
    """Writes a PNG: decisions and updates a second against graphs at once, a panel a size."""
    points = [(f"{row.n:,} ops", row.work, row.graphs, row.per_s) for row in rows]
    write_curves(f"GO\n{machine_line(rows)}", ("graphs at once", "a second"), points, file)
