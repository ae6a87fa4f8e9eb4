"""Throughput of policies on layered graphs, by batch size: Topoformer's decoders, GO's decisions, and updates of both.

Orders: the decoders `greedy`, `sample` and `beam` decode orders from random priorities, and compute their costs. They
are compared with sampling random-priority orders and computing their peaks on the host: a decoder must not be slower
than that. An update is a gradient update of `graphrl train topoformer`.

Decisions: one call of GO's network, then the most likely option of each task for every op. An update is one of
`graphrl train go`, on plans of the same graphs on 8 devices.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from graphrl.agents.go import learner as go
from graphrl.agents.go.config import SENDS, GoSettings
from graphrl.agents.go.network import networks
from graphrl.agents.topoformer import learner as topoformer
from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.bench.cases import Settings
from graphrl.bench.report import Table
from graphrl.bench.timing import BY_GRAPH, Bench, Prepared, Program, Sample, Timed, Timing, mapped_program, timed
from graphrl.costs.problem import Problem
from graphrl.decoding.beam import beam
from graphrl.decoding.rollout import Rollout, greedy, sample
from graphrl.envs.compile.generator import CompileParams
from graphrl.envs.compile.generator import instances as compile_instances
from graphrl.envs.compile.observation import observe
from graphrl.envs.ordering import instances as ordering_instances
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.learning.learner import on_mesh
from graphrl.learning.ppo.settings import likeliest
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.random_orders import LANES, Drawing

MAX_GRAPHS = 4096
DECISIONS_WORK, LEARNING = "deciding", "learning"

Decoder = Literal["greedy", "sample", "beam"]
DECODERS: tuple[Decoder, ...] = get_args(Decoder)
CONFIG = TopoformerConfig()  # settings of the measured learner: the defaults, which trained the shipped policy
ORDERS_LEARNT = 512  # ops; attention is quadratic: an update of 16 graphs of 2,048 would take about 10 s on a core
SAMPLES = 16  # number of orders per graph that "sample" and "beam" decode, as in the paper
SPREAD = 5.0  # standard deviation of the priorities, alpha in the paper's eq. 17

DEVICES = 8
GO = GoSettings(transfers=("rendezvous",), devices=(DEVICES,), communication_ratios=(0.0,), rounds=1)
DECISIONS_LEARNT = 1000  # ops: an update of one graph of 10,000 takes minutes on a core


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderRow(Timing):
    """A table row: the rate of a decoder, or of policy updates (without the first, which compiles), on a batch."""

    work: str  # one of `DECODERS`, or `LEARNING`
    n: int  # number of ops in each graph
    graphs: int  # number of graphs in a batch
    orders: int  # decoded per graph: greedy 1, learning `CONFIG.samples`, sample and beam `SAMPLES`
    orders_per_s: float  # from the median time
    ratio_to_drawing: float  # `orders_per_s` / the rate of sampling and costing random-priority orders on one core


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecisionRow(Timing):
    """A table row: the rate of decisions, or of policy updates (without the first, which compiles), on a batch."""

    work: str  # `DECISIONS_WORK` or `LEARNING`
    n: int  # number of ops in each graph
    graphs: int  # number of graphs in a batch
    per_s: float  # graphs decided, or updates, per second, from the median time


def _order_programs(settings: Settings, n: int, count: int, mesh: Mesh, first: bool) -> Prepared:
    """Compiles the decoders and, up to `ORDERS_LEARNT` ops, policy updates; the yardstick is sampling on the host."""
    graphs = [layered(n, settings.seed + i) for i in range(count)]
    batch = pad_batch(graphs)
    programs: dict[str, Program] = {decoder: _decoding(decoder, batch, mesh, settings.seed) for decoder in DECODERS}
    if n <= ORDERS_LEARNT:
        learnt = ordering_instances(graphs)
        programs[LEARNING] = _learning(topoformer.learner(CONFIG), learnt, mesh, settings.seed, count * CONFIG.samples)
    return Prepared(programs, _drawing(graphs[0], settings.seed))


def _order_row(settings: Settings, timed: Timed, fields: dict[str, Any]) -> OrderRow:
    return OrderRow(
        work=timed.work,
        n=timed.ops,
        graphs=timed.number,
        orders=_orders(timed.work),
        orders_per_s=timed.rate,
        ratio_to_drawing=timed.ratio,
        **fields,
    )


def _orders(work: str) -> int:
    return {"greedy": 1, LEARNING: CONFIG.samples}.get(work, SAMPLES)


def _decoding(decoder: Decoder, batch: PaddedGraph, mesh: Mesh, seed: int) -> Program:
    """Compiles a decoder for a batch of graphs with random priorities, sharded over the mesh."""
    count, n = batch.runtime.shape
    priorities = SPREAD * np.random.default_rng(seed).normal(size=(count, n)).astype(np.float32)

    def decode(graph: PaddedGraph, priorities: jax.Array, keys: jax.Array) -> Rollout:
        if decoder == "greedy":
            return greedy(graph, priorities)
        return sample(graph, priorities, keys, SAMPLES) if decoder == "sample" else beam(graph, priorities, SAMPLES)

    keys = jax.random.split(jax.random.key(seed), count)
    on_one = jax.tree.map(jnp.asarray, batch), jnp.asarray(priorities), keys
    return mapped_program(decode, on_one, mesh, count * _orders(decoder))


def _drawing(graph: ComputationGraph, seed: int) -> Callable[[int], Sample]:
    """Returns a function that times the method `random-priorities` on the host: it samples and costs orders."""
    flow = Flow(graph)
    drawing, usage, rng = Drawing(flow), Usage(flow), np.random.default_rng(seed)

    def work(runs: int) -> int:
        for _ in range(runs):
            orders = drawing.draw(rng, LANES, by_priority=True)
            assert orders is not None
            usage.peaks(orders)
        return runs * LANES

    return timed(work)


def _decision_programs(settings: Settings, n: int, count: int, mesh: Mesh, first: bool) -> Prepared:
    """Compiles decisions by an untrained network and, up to `DECISIONS_LEARNT` ops, policy updates."""
    graphs = [layered(n, settings.seed + i) for i in range(count)]
    programs = {DECISIONS_WORK: _deciding(graphs, mesh, settings.seed)}
    if n <= DECISIONS_LEARNT:
        sizes = compile_instances(graphs, [GO.problem] * count).graph.sizes
        programs[LEARNING] = _learning(go.learner(GO), go.batch(GO, graphs, sizes), mesh, settings.seed, 1)
    return Prepared(programs)


def _decision_row(settings: Settings, timed: Timed, fields: dict[str, Any]) -> DecisionRow:
    return DecisionRow(work=timed.work, n=timed.ops, graphs=timed.number, per_s=timed.rate, **fields)


def _deciding(graphs: list[ComputationGraph], mesh: Mesh, seed: int) -> Program:
    rows = compile_instances(graphs, [Problem("makespan", DEVICES)] * len(graphs), levels=GO.levels)
    policy, tasks = networks(GO.network).policy, GO.network.tasks
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows)
    params = policy.init(jax.random.key(seed), observe(one, one.start, tasks, sends=SENDS))

    def decide(row: CompileParams) -> dict[str, jax.Array]:
        chosen: dict[str, jax.Array] = likeliest(policy.apply(params, observe(row, row.start, tasks, sends=SENDS)))
        return chosen

    return mapped_program(lambda rows: jax.lax.map(decide, rows), (rows,), mesh, len(graphs))


def _learning(learner: Any, batch: Any, mesh: Mesh, seed: int, each: int) -> Program:
    """Compiles a learner's update; every run repeats it on the same batch, with its graphs sharded over the mesh.

    The time excludes generating batches: in training, threads generate the next ones during the update.

    Args:
      each: number of evaluations that an update counts as.
    """
    functions, key = on_mesh(learner, mesh), jax.random.key(seed)
    batch = jax.device_put(batch, NamedSharding(mesh, BY_GRAPH))
    state = functions.init(key)
    started = time.perf_counter()
    state = jax.block_until_ready(functions.update(state, key, batch)[0])
    compile_s = time.perf_counter() - started

    def work(runs: int) -> int:
        nonlocal state
        for _ in range(runs):
            state = jax.block_until_ready(functions.update(state, key, batch)[0])
        return runs * each

    return Program(timed(work), compile_s)


ORDERS = Bench(
    option="orders",
    what="orders",
    unit="graph",
    largest=MAX_GRAPHS,
    prepare=_order_programs,
    row=_order_row,
    table=Table(
        heading="Orders decoded and costed a second (layered graphs)",
        columns={
            "ops": lambda row: f"{row.n:,}",
            "graphs": lambda row: f"{row.graphs:,}",
            "work": lambda row: row.work,
            "orders / graph": lambda row: f"{row.orders:,}",
            "orders / s": lambda row: f"{row.orders_per_s:,.0f}",
            "graphs / s": lambda row: f"{row.orders_per_s / row.orders:,.0f}",
            "/ drawing": lambda row: f"{row.ratio_to_drawing:.3g}",
            "compile s": lambda row: f"{row.compile_s:.1f}",
        },
        section=lambda row: (row.n, row.graphs),
        labels=("graphs at once", "orders / s"),
        point=lambda row: (f"{row.n:,} ops", row.work, row.graphs, row.orders_per_s),
    ),
)

DECISIONS = Bench(
    option="decisions",
    what="decisions",
    unit="graph",
    largest=MAX_GRAPHS,
    prepare=_decision_programs,
    row=_decision_row,
    table=Table(
        heading="GO: decisions of a graph, and updates of the policy, a second (layered graphs)",
        columns={
            "ops": lambda row: f"{row.n:,}",
            "graphs": lambda row: f"{row.graphs:,}",
            "work": lambda row: row.work,
            "a second": lambda row: f"{row.per_s:.3g}",
            "compile s": lambda row: f"{row.compile_s:.1f}",
        },
        section=lambda row: (row.n, row.graphs),
        labels=("graphs at once", "a second"),
        point=lambda row: (f"{row.n:,} ops", row.work, row.graphs, row.per_s),
    ),
)
