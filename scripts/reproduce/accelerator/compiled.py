"""Programs compiled for an accelerator that is not there, by XLA's compiler for it: memory, kernels, and roofline time.

Programs are rollouts of the environments, BRKGA, and an update of every agent with its own settings. Nothing runs, so
nothing is measured but the compiler. A GPU needs the packages of the extra `gpu-compile`, a TPU the package libtpu,
both JAX_PLATFORMS=cpu in the environment.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from graphrl.agents import find_agent
from graphrl.bench.cases import PARAMETERS, Settings, problem, random_graphs
from graphrl.compare.report import markdown
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.errors import GraphrlError
from graphrl.files import write_atomically
from graphrl.graphs.padding import common_sizes, pad_batch
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.learning.learner import on_mesh
from graphrl.mesh import AXIS
from graphrl.solvers.chromosomes import brkga
from graphrl.training.run import default_config, run_data
from graphrl.units import format_bytes
from reproduce import gpu_compile
from reproduce.accelerator.job import faults
from reproduce.accelerator.rates import ENVS, rollout
from reproduce.launcher import command
from reproduce.results import Table, here, results_text

COUNT, SEARCHES, OPS, EVALUATIONS = 4096, 64, 128, 5000  # environments; graphs of BRKGA, ops and evaluations of each
AGENTS = "regal", "topoformer", "go", "egrl"
# instructions that neither compute nor move data
FREE = ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"]
HEAD = "program", "temporaries", "arguments", "kernels", "of them in loops", "roofline s", "compile s"


class Target(NamedTuple):
    """An accelerator to compile for.

    Attributes:
      platform: platform of jax's lowering.
      chip: chip of graphrl that gives the roofline.
      device: function that returns a device without hardware.
      options: options of XLA's compiler.
    """

    platform: str
    chip: str
    device: Callable[[], Any]
    options: dict[str, Any]


def _tpu() -> Any:
    if importlib.util.find_spec("libtpu") is None:
        raise GraphrlError("compiling for a TPU needs its compiler: pip install libtpu")
    return topologies.get_topology_desc("v5e:2x2", "tpu").devices[0]


TARGETS = {
    "h100": Target("cuda", "h100-sxm", partial(gpu_compile.gpu_device, 80_000_000_000), gpu_compile.OPTIONS),
    "h200": Target("cuda", "h200", gpu_compile.gpu_device, gpu_compile.OPTIONS),
    "tpu-v5e": Target("tpu", "tpu-v5e", _tpu, {}),
}

Lowered = Any  # `jax.stages.Lowered`
Program = Callable[[Mesh, str], Lowered]  # mesh of the device, and platform


def programs(small: bool, seed: int) -> dict[str, Program]:
    """Returns functions that trace and lower every program, by its title; `small` takes 64 environments."""
    count = 64 if small else COUNT
    found: dict[str, Program] = {f"`{id}`, {count:,} rollouts": partial(_rollouts, id, count, seed) for id in ENVS}
    found[f"BRKGA, {SEARCHES} graphs, {EVALUATIONS:,} evaluations each"] = partial(_search, seed)
    found |= {f"update of `{agent}`": partial(_update, agent) for agent in AGENTS}
    return found


def _rollouts(id: str, count: int, seed: int, mesh: Mesh, platform: str) -> Lowered:
    episode = ENVS[id](Settings(threads=1, sizes=(OPS,), evaluations=EVALUATIONS, seed=seed))
    instance = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), episode.instances)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(seed), count))
    mapped = jax.jit(jax.vmap(lambda key, instance: rollout(episode, key, instance)))
    return _lower(mapped, platform, _on(mesh, PartitionSpec(AXIS), (keys, instance)))


def _search(seed: int, mesh: Mesh, platform: str) -> Lowered:
    graphs = random_graphs(OPS, SEARCHES, seed)
    batch = pad_batch(graphs, common_sizes(graphs))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(seed), SEARCHES))
    task = DeviceProblem.of(problem("makespan", "rendezvous"))
    by_graph, whole = _on(mesh, PartitionSpec(AXIS), (keys, batch)), _on(mesh, PartitionSpec(), task)
    static = {"parameters": PARAMETERS, "generations": PARAMETERS.generations(EVALUATIONS), "mesh": mesh}
    return _lower(brkga._sharded, platform, (*by_graph, None, None, whole), **static)


def _update(name: str, mesh: Mesh, platform: str) -> Lowered:
    agent = find_agent(name)
    config = default_config(agent)
    data = run_data(agent, config, mesh)
    learner = on_mesh(agent.learner(config.agent, mesh, data), mesh)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(learner.init, key, None)
    update: Any = learner.update
    return _lower(update.jitted, platform, update.shapes(state, key, data.batch(1).rows))


def _lower(function: Any, platform: str, arguments: tuple[Any, ...], **static: Any) -> Lowered:
    return function.trace(*arguments, **static).lower(lowering_platforms=(platform,))


def _on(mesh: Mesh, spec: PartitionSpec, tree: Any) -> Any:
    """Returns the shapes of a tree's arrays, sharded over the mesh."""

    sharding = NamedSharding(mesh, spec)

    def shape(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(shape, jax.eval_shape(lambda: tree))


class Figures(NamedTuple):
    """XLA's figures of a compiled program: bytes, numbers of kernels, and the estimated seconds of one run."""

    temporaries: int
    arguments: int
    kernels: int
    looped: int
    seconds: float


def figures(compiled: Any, chip: str) -> Figures:
    """Reads XLA's figures of a `jax.stages.Compiled`; kernels are instructions that compute or move data."""
    memory = compiled.memory_analysis()
    (text,) = (module.as_serialized_hlo_module_proto() for module in compiled.runtime_executable().hlo_modules())
    module = parse_module(text)
    looped = {name for loop in _loops(module) for name in loop.called}
    counts = {one.name: sum(i.opcode not in FREE for i in one.instructions) for one in module.sequential}
    graph = read_hlo(module, chip=chip).graph
    seconds = sum(op.runtime for op in graph.ops)
    return Figures(
        memory.temp_size_in_bytes,
        memory.argument_size_in_bytes,
        sum(counts.values()),
        sum(counts[name] for name in counts if name in looped),
        seconds,
    )


def _loops(module: HloModule) -> Iterator[Any]:
    return (i for one in module.sequential for i in one.instructions if i.opcode == "while")


def run(args: argparse.Namespace) -> int:
    """Compiles every program for the target and writes the page; returns the exit code."""
    target = TARGETS[args.target]
    try:
        mesh = Mesh(np.array([target.device()]), (AXIS,), axis_types=(AxisType.Auto,))
    except GraphrlError as error:
        print(f"accelerator: {error}", file=sys.stderr)
        return 1
    lines: list[list[str]] = []
    notes: list[str] = []
    todo = programs(args.small, args.seed)
    for number, (title, program) in enumerate(todo.items(), 1):
        print(f"accelerator: {number}/{len(todo)} {title}", file=sys.stderr, flush=True)
        started = time.perf_counter()
        with faults(lambda row: notes.append(f"{row['part']}: {row['fault']}"), part=title):
            compiled = program(mesh, target.platform).compile(compiler_options=target.options)
            taken, found = time.perf_counter() - started, figures(compiled, target.chip)
            sizes = format_bytes(found.temporaries), format_bytes(found.arguments)
            lines.append(
                [title, *sizes, f"{found.kernels:,}", f"{found.looped:,}", f"{found.seconds:.3g}", f"{taken:.1f}"]
            )
        write_page(args, lines, notes)
    return int(bool(notes))


def write_page(args: argparse.Namespace, lines: list[list[str]], notes: list[str]) -> None:
    """Writes the page with all programs so far."""
    summary = f"{len(lines)} of {len(lines) + len(notes)} programs compile for {args.target} on a machine without one."
    text = (
        "Memory is XLA's figure for one device. Kernels are instructions that compute or move data, those in loops run "
        "once an iteration. Roofline seconds are the estimate of one run from bytes and operations at the chip's peak "
        "rates; a loop counts as often as XLA knows its trips, else once. GPU kernels are not tuned. Nothing ran."
    )
    parts = (text, markdown(HEAD, lines), "\n".join(f"- {note}" for note in notes))
    title = f"graphrl compiled for {args.target}"
    table = Table(title, here(), parts, summary)
    write_atomically(args.output, lambda file: file.write(results_text(title, [table], command())))
