"""Throughput of memory maps: maps made valid and costed per second, for each number of maps in a batch.

The compiled JAX kernel (costs/maps/device.py) and the compiled host engine that searches without learning use
(solvers/maps/task.py) are compared on the same maps. For small graphs, generations of EGRL are measured too: each
evaluates the population's maps, evolves the population and takes gradient steps.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import domain, layers
from graphrl.agents.egrl.network import networks
from graphrl.bench.cases import Settings
from graphrl.bench.report import Table
from graphrl.bench.timing import REPLICATED, Bench, Prepared, Program, Sample, Timed, Timing, compile_program, timed
from graphrl.costs.maps import device
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.device import PaddedMapProblem, pad
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.learning import collaborative
from graphrl.mesh import AXIS
from graphrl.solvers.maps.task import evaluate_all, maps_of

KERNEL, GENERATION = "kernel", "generation of EGRL"
MAX_MAPS = 1 << 16
LARGEST_LEARNT = 64  # ops: a generation takes half a minute to compile, for each size
AGREEMENT = 1e-5  # relative tolerance between float32 latencies
BY_MAP = PartitionSpec(None, AXIS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapRow(Timing):
    """A table row: the measured rate of the kernel on a batch of maps, or of a generation of EGRL."""

    work: str  # `KERNEL` or `GENERATION`
    graph: str  # name of the graph
    n: int  # number of ops
    maps: int  # number of maps in a batch, or of a generation's individuals and learners
    maps_per_s: float  # from the median time
    ratio_to_host: float  # `maps_per_s` / the rate of the host engine on one core


def _programs(settings: Settings, n: int, count: int, mesh: Mesh, first: bool) -> Prepared:
    """Compiles the kernel and, for the first batch size and up to `LARGEST_LEARNT` ops, an EGRL generation.

    Raises:
      GraphrlError: the kernel and the host engine compute different latencies.
    """
    problem = _problem(settings, n)
    requested = np.random.default_rng(settings.seed).integers(0, problem.memories, (count, 2 * problem.steps))
    host, latency = _host(problem, requested)
    programs = {KERNEL: _kernel(problem, requested, latency, mesh)}
    if first and n <= LARGEST_LEARNT:
        programs[GENERATION] = generation_program(problem, EgrlConfig(), settings.seed)
    return Prepared(programs, host)


def _problem(settings: Settings, n: int) -> MapProblem:
    """Returns the map problem of EGRL's workload with n ops, or of a layered graph if no workload has n ops."""
    by_ops = {len(graph.ops): graph for graph in (make() for make in WORKLOADS.values())}
    return map_problem(by_ops[n] if n in by_ops else layered(n, settings.seed), NNP_I)


def _row(settings: Settings, timed: Timed, fields: dict[str, Any]) -> MapRow:
    return MapRow(
        work=timed.work,
        graph=_problem(settings, timed.ops).graph.name,
        n=timed.ops,
        maps=timed.number if timed.work == KERNEL else EgrlConfig().settings.rollouts,
        maps_per_s=timed.rate,
        ratio_to_host=timed.ratio,
        **fields,
    )


def _host(problem: MapProblem, requested: np.ndarray) -> tuple[Callable[[int], Sample], np.ndarray]:
    """Returns a function that times repeated runs of the host engine on maps `[p, 2n]`, and their latencies `[p]`."""
    maps, assigned = maps_of(problem), np.empty_like(requested)
    latency, moved = np.empty(len(requested)), np.empty(len(requested), np.int64)
    evaluate_all(maps, requested, assigned, latency, moved)

    def work(runs: int) -> int:
        for _ in range(runs):
            evaluate_all(maps, requested, assigned, latency, moved)
        return runs * len(requested)

    return timed(work), latency


def _kernel(problem: MapProblem, requested: np.ndarray, latency: np.ndarray, mesh: Mesh) -> Program:
    """Compiles one program that runs the kernel repeatedly on the same maps, sharded over the mesh.

    Raises:
      GraphrlError: its latencies differ from the host engine's, `latency`.
    """
    padded, n = pad(problem), problem.steps
    room = np.zeros((2, padded.sizes.steps, len(requested)), np.int32)
    room[:, :n] = requested.T.reshape(2, n, -1)

    def repeated_calls(padded: PaddedMapProblem, weights: jax.Array, outputs: jax.Array, runs: jax.Array) -> Any:
        def repeat(_: jax.Array, state: tuple) -> tuple:
            # a memory of each kind depends on the last result: else XLA may hoist computations out of the loop
            (weights, outputs), costs = state
            least = jnp.where(costs.latency[0] + costs.error[0] < 0, 0, MAX_MAPS)
            requested = weights.at[0, 0].min(least), outputs.at[0, 0].min(least)
            return requested, device.evaluate(padded, *requested)

        empty = jax.tree.map(jnp.zeros_like, jax.eval_shape(device.evaluate, padded, weights, outputs))
        return lax.fori_loop(0, runs, repeat, ((weights, outputs), empty))[1]

    specs = (REPLICATED, BY_MAP, BY_MAP, REPLICATED)
    of_map = PartitionSpec(AXIS)
    costs: Any = device.DeviceMapCosts(BY_MAP, BY_MAP, of_map, of_map, of_map)  # type: ignore[arg-type]
    spread = jax.shard_map(repeated_calls, mesh=mesh, in_specs=specs, out_specs=costs, check_vma=False)
    weights, outputs = jax.device_put(tuple(room), NamedSharding(mesh, BY_MAP))
    padded, once = jax.device_put((padded, jnp.int32(1)), NamedSharding(mesh, REPLICATED))
    compiled, compile_s = compile_program(spread, padded, weights, outputs, once)
    if not np.allclose(compiled(padded, weights, outputs, once).latency, latency, rtol=AGREEMENT, atol=0):
        raise GraphrlError(f"kernel and host engine disagree on maps of graph {problem.graph.name!r}")

    def work(runs: int) -> int:
        times = jax.device_put(jnp.int32(runs), NamedSharding(mesh, REPLICATED))
        jax.block_until_ready(compiled(padded, weights, outputs, times))
        return runs * len(requested)

    return Program(timed(work), compile_s)


def generation_program(problem: MapProblem, config: EgrlConfig, seed: int) -> Program:
    """Compiles a generation of EGRL's search; every run continues from the state after the last one."""
    key = jax.random.key(seed)
    parts = (
        config.settings,
        domain(problem.memories, config.reward),
        networks(config, problem.memories),
    )
    instances = layers([problem], hint=config.hint)

    @jax.jit
    def init(instances: object) -> collaborative.State:
        return collaborative.init(*parts, instances, key)

    def generation(state: collaborative.State, instances: object) -> collaborative.State:
        return collaborative.generation(*parts, state, jax.random.fold_in(key, state.step), instances)[0]

    started = time.perf_counter()
    state, next_generation = init(instances), jax.jit(generation, donate_argnums=0)
    state = jax.block_until_ready(next_generation(state, instances))
    compile_s = time.perf_counter() - started

    def work(runs: int) -> int:
        nonlocal state
        for _ in range(runs):
            state = next_generation(state, instances)
        jax.block_until_ready(state)
        return runs * config.settings.rollouts

    return Program(timed(work), compile_s)


MAPS = Bench(
    option="maps",
    what="maps",
    unit="map",
    largest=MAX_MAPS,
    prepare=_programs,
    row=_row,
    table=Table(
        heading="Memory maps made valid and costed a second",
        columns={
            "ops": lambda row: f"{row.n:,}",
            "maps": lambda row: f"{row.maps:,}",
            "work": lambda row: row.work,
            "maps / s": lambda row: f"{row.maps_per_s:,.0f}",
            "calls / s": lambda row: f"{row.maps_per_s / row.maps:,.3g}",
            "/ host engine": lambda row: f"{row.ratio_to_host:.2g}",
            "compile s": lambda row: f"{row.compile_s:.1f}",
        },
        section=lambda row: row.n,
        labels=("maps in a batch", "maps / s"),
        point=lambda row: ("kernel", f"{row.n:,} ops", row.maps, row.maps_per_s) if row.work == KERNEL else None,
    ),
)
