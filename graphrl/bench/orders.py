"""Throughput of the decoders of orders: complete orders a second, by the number of graphs at once.

`greedy`, `sample` and `beam` of decoding/ make orders of layered graphs from random priorities, costs of the orders
included. They are compared with drawing random-priority orders and computing their peaks on the host: a decoder must
not be slower than that. Updates of Topoformer's policy on such orders, as in `graphrl train topoformer`, are measured
too.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.learner import learner
from graphrl.bench import machine
from graphrl.bench.cases import Settings
from graphrl.bench.programs import BY_GRAPH, compile_program, over_and_over
from graphrl.bench.report import machine_line, make_console, make_table, write_curves
from graphrl.bench.timing import (
    Program,
    Sample,
    Samples,
    Say,
    TimedRow,
    by_size_and_count,
    interleaved,
    timed,
    timed_fields,
)
from graphrl.decoding.beam import beam
from graphrl.decoding.rollout import Rollout, greedy, sample
from graphrl.envs.ordering import instances
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.learning.learner import on_mesh
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.random_orders import LANES, Drawing
from graphrl.solvers.orders.usage import Usage

Decoder = Literal["greedy", "sample", "beam"]
DECODERS: tuple[Decoder, ...] = get_args(Decoder)
LEARNING = "learning"
CONFIG = TopoformerConfig()  # of what learns: the default, which trained the policy that the package ships
LARGEST_LEARNT = 512  # ops; attention is quadratic: an update of 16 graphs of 2,048 would take some 10 s on a core
SAMPLES = 16  # orders of a graph that sample and beam decode: the paper's
SPREAD = 5.0  # of the priorities: alpha of eq. 17
MOST_GRAPHS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderRow(TimedRow):
    """What a decoder, or an update of a policy (compiled once the first is done), took for so many graphs at once."""

    work: str  # of `DECODERS`, or `LEARNING`
    n: int  # ops of each graph
    graphs: int  # at once
    orders: int  # of each graph: greedy 1, learning `CONFIG.samples`, sample and beam (the best of them) `SAMPLES`
    orders_per_s: float  # by the median
    ratio_to_drawing: float  # of that and random-priority orders drawn and costed a second, on one core


def measure_orders(settings: Settings, counts: tuple[int, ...], say: Say) -> Iterator[list[OrderRow]]:
    """A row for each decoder, and for learning up to `LARGEST_LEARNT` ops, of each size and number of graphs at once;
    see `by_size_and_count`.
    """
    return by_size_and_count(settings, "orders", counts, MOST_GRAPHS, _rows, say)


def _rows(settings: Settings, n: int, count: int, pinned: bool, say: Say) -> list[OrderRow]:
    mesh = machine.make_mesh(settings.threads, count)
    title = f"n = {n}, {count} graph{'s' * (count > 1)}"
    say(f"{title}: preparing")
    graphs = [layered(n, settings.seed + i) for i in range(count)]
    batch = pad_batch(graphs)
    programs: dict[str, Program] = {decoder: _decoding(decoder, batch, mesh, settings.seed) for decoder in DECODERS}
    if n <= LARGEST_LEARNT:
        programs[LEARNING] = _learning(graphs, mesh, settings.seed)
    say(f"{title}: timing")
    runs = [_drawing(graphs[0], settings.seed), *(program.run for program in programs.values())]
    drawing, *samples_of = interleaved(runs, settings.repeats, settings.seconds)
    clock = machine.clock(pinned)

    def row(work: str, compile_s: float, samples: Samples) -> OrderRow:
        rate = samples.per_second(clock)
        return OrderRow(
            what="orders",
            work=work,
            n=n,
            graphs=count,
            orders=_orders(work),
            orders_per_s=rate,
            ratio_to_drawing=rate / drawing.per_second(clock),
            **timed_fields(settings, pinned, compile_s, samples),
        )

    return [
        row(work, program.compile_s, samples)
        for (work, program), samples in zip(programs.items(), samples_of, strict=True)
    ]


def _orders(work: str) -> int:
    return {"greedy": 1, LEARNING: CONFIG.samples}.get(work, SAMPLES)


def _decoding(decoder: Decoder, batch: PaddedGraph, mesh: Mesh, seed: int) -> Program:
    """The decoder on a batch of graphs with random priorities, over and over, the graphs spread over the mesh."""
    count, n = batch.runtime.shape
    priorities = SPREAD * np.random.default_rng(seed).normal(size=(count, n)).astype(np.float32)

    def decode(graph: PaddedGraph, priorities: jax.Array, keys: jax.Array) -> Rollout:
        if decoder == "greedy":
            return greedy(graph, priorities)
        return sample(graph, priorities, keys, SAMPLES) if decoder == "sample" else beam(graph, priorities, SAMPLES)

    spread = jax.shard_map(decode, mesh=mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
    keys = jax.random.split(jax.random.key(seed), count)
    on_one = jax.tree.map(jnp.asarray, batch), jnp.asarray(priorities), keys
    arguments = jax.device_put(on_one, NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(spread, *arguments)

    return Program(over_and_over(compiled, arguments, count * _orders(decoder)), compile_s)


def _drawing(graph: ComputationGraph, seed: int) -> Callable[[int], Sample]:
    """Random-priority orders of a graph drawn and costed as the solver of that name does."""
    flow = Flow(graph)
    drawing, usage, rng = Drawing(flow), Usage(flow), np.random.default_rng(seed)

    def work(runs: int) -> int:
        for _ in range(runs):
            orders = drawing.draw(rng, LANES, by_priority=True)
            assert orders is not None
            usage.peaks(orders)
        return runs * LANES

    return timed(work)


def _learning(graphs: Sequence[ComputationGraph], mesh: Mesh, seed: int) -> Program:
    """Updates on the same batch, over and over, its graphs spread over the mesh.

    A batch is not made anew: in training, threads make the next ones while the device learns from this one.
    """
    functions, key = on_mesh(learner(CONFIG), mesh), jax.random.key(seed)
    batch = jax.device_put(instances(graphs), NamedSharding(mesh, BY_GRAPH))
    state = functions.init(key)
    started = time.perf_counter()
    state = jax.block_until_ready(functions.update(state, key, batch)[0])
    compile_s = time.perf_counter() - started

    def work(runs: int) -> int:
        nonlocal state
        for _ in range(runs):
            state = jax.block_until_ready(functions.update(state, key, batch)[0])
        return runs * len(graphs) * CONFIG.samples

    return Program(timed(work), compile_s)


def print_orders(rows: Sequence[OrderRow]) -> None:
    """Prints orders and graphs a second by size, number of graphs and decoder, and what an update learns from."""
    columns = "graphs", "work", "orders / graph", "orders / s", "graphs / s", "/ drawing", "compile s"
    table = make_table(f"Orders decoded and costed a second (layered graphs)\n{machine_line(rows)}", "ops", *columns)
    for row, following in zip(rows, (*rows[1:], None), strict=True):
        table.add_row(
            f"{row.n:,}",
            f"{row.graphs:,}",
            row.work,
            f"{row.orders:,}",
            f"{row.orders_per_s:,.0f}",
            f"{row.orders_per_s / row.orders:,.0f}",
            f"{row.ratio_to_drawing:.3g}",
            f"{row.compile_s:.1f}",
            end_section=following is None or (following.n, following.graphs) != (row.n, row.graphs),
        )
    make_console().print(table)


def write_orders_plot(rows: Sequence[OrderRow], file: IO[bytes]) -> None:
    """Writes a PNG: orders a second against graphs at once, a panel a size, a line a work."""
    points = [(f"{row.n:,} ops", row.work, row.graphs, row.orders_per_s) for row in rows]
    heading = f"Orders decoded and costed a second\n{machine_line(rows)}"
    write_curves(heading, ("graphs at once", "orders / s"), points, file)
