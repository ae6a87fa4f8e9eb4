"""`graphrl map MODEL`: places each weight and each tensor of a model in a memory of a chip."""

import argparse
import functools
from typing import Any

import numpy as np

from graphrl.commands.common import (
    add_budget,
    add_common,
    add_reading,
    check_json_name,
    check_outputs,
    check_pictures,
    methods_help,
    print_json,
    write_result,
)
from graphrl.commands.progress import progress_bar
from graphrl.costs.maps.chip import CHIPS, find_chip
from graphrl.costs.maps.problem import map_problem
from graphrl.errors import PlanError
from graphrl.files import enable_compilation_cache, quote_path
from graphrl.graphs.datasets.sets import layers_of
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import MAP_KINDS, MAP_METHODS, find_map_solver
from graphrl.optimize import check_seed, make_budget
from graphrl.plan import Plan
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Interrupted
from graphrl.solvers.maps.task import MapTask
from graphrl.units import format_seconds

DESCRIPTION = f"""Assign a model's weights and tensors to the memories of a chip.

It searches for the map with the least latency: a memory for the weights and for the outputs of each layer, so that
everything fits. Models are coarsened to their layers; graph JSON is used as it is (`graphrl convert MODEL OUT --layers`
writes the layers).

{methods_help(MAP_METHODS, MAP_KINDS)}"""

EXAMPLES = """examples:
  graphrl map zoo:resnet50/inference/b1/jaxpr --method cp-sat --seconds 1min
      a map of ResNet-50 on Intel's NNP-I
  graphrl map workloads:resnet50 --evaluations 4000
      the ResNet-50 of the EGRL paper, with a budget of evaluations: the same map every time
  graphrl map model.onnx --dim batch=1 --output map.json --plot map.png
      your own model; write the map and a picture of it
  graphrl map graph.json --chip chip.json --evaluations 4000 --seed 1 --json
      another chip, for a script

chip files: {"format": "graphrl-chip", "version": 1, "name": ..., "peak": operations/s, "memories": [...]}, optionally
with "launch" (seconds) and "page" (bytes). Memories are ordered from the largest and slowest to the smallest and
fastest: {"name": ..., "capacity": bytes or null, "read": bytes/s, "write": bytes/s, "setup": seconds}. The peak is
from 1e-6 to 1e30, bandwidths from 1e-15 to 1e30, seconds up to 1e6."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="file, zoo:NAME or workloads:NAME")
    parser.add_argument(
        "--chip", default="nnp-i", metavar="CHIP", help=f"{', '.join(CHIPS)}, or a chip file (default: nnp-i)"
    )
    parser.add_argument("--method", default="auto", metavar="M", help="method of the search, see above (default: auto)")
    add_budget(parser)
    parser.add_argument(
        "--order", metavar="PLAN", help="file of a plan whose order the ops run in (default: the graph's order)"
    )
    parser.add_argument("--output", metavar="FILE", help="write the map as JSON")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the map: .png, .svg or .pdf")
    add_reading(parser)
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Searches for a map, writes it and prints its figures; returns the exit code."""
    enable_compilation_cache()
    budget = make_budget(args.evaluations, args.seconds)
    check_seed(args.seed)
    solver, chip = find_map_solver(args.method), find_chip(args.chip)
    check_json_name("--output", args.output)
    inputs = args.model, args.order, None if args.chip in CHIPS else args.chip
    check_outputs({"--output": args.output, "--plot": args.plot}, *filter(None, inputs))
    check_pictures(args.plot)
    graph = layers_of(args.model, dict(args.dim), args.read_limits)
    problem = map_problem(graph, chip, None if args.order is None else _order(args.order, graph))
    interrupted = False
    try:
        with progress_bar(graph.name, "latency", budget) as progress:
            memory_map = solver(MapTask(problem, budget, args.seed, progress))
    except Interrupted as stop:
        memory_map, interrupted = stop.plan, True
    written = write_result(memory_map, "map", args.output, [(args.plot, functools.partial(memory_map.plot, graph))])
    if args.json:
        print_json({**summary(memory_map), "interrupted": interrupted, "written": written})
    else:
        print("\n".join(_lines(memory_map, written, interrupted)))
    return 0


def _order(path: str, graph: ComputationGraph) -> np.ndarray:
    """Reads a plan of the graph; returns its order of ops, `[n]` op indices.

    Raises:
      GraphrlError: the file cannot be read.
      PlanError: the file is not a plan, or is a plan of another graph or of kernels.
    """
    plan = Plan.load(path)
    if plan.inlining is not None:
        raise PlanError(f"{quote_path(path)} is a plan of kernels: --order needs one of ops, without --fuse")
    _, order = plan.decisions(graph)
    return order[order < len(graph.ops)]  # without transfers


def summary(memory_map: MemoryMap) -> dict[str, Any]:
    """Returns a map's figures, without the map itself: seconds, speed-up over the compiler's map, bound and gap."""
    fields = memory_map.to_dict()
    stored = ("graph", "method", "latency", "compiler_latency", "seconds", "evaluations", "seed")
    derived = {"speedup": memory_map.speedup, "bound": memory_map.bound, "gap": memory_map.gap}
    return {key: fields[key] for key in stored} | {"chip": memory_map.chip.name} | derived


def _lines(memory_map: MemoryMap, written: list[str], interrupted: bool) -> list[str]:
    latency, compiler = format_seconds(memory_map.latency), format_seconds(memory_map.compiler_latency)
    lines = [
        f"{memory_map.graph} on {memory_map.chip.name}: {len(memory_map.order):,} ops",
        f"latency      {latency}, {memory_map.speedup:.3f} times as fast as the compiler's map ({compiler})",
    ]
    if memory_map.bound and memory_map.gap is not None:
        gap = "optimal" if memory_map.proved else f"gap {100 * memory_map.gap:.1f}%"
        lines.append(f"lower bound  {format_seconds(memory_map.bound)}: {gap}")
    for number, name in enumerate(memory_map.chip.names):
        weights, outputs = (list(part.values()).count(number) for part in (memory_map.weights, memory_map.outputs))
        lines.append(f"{name:<12.12} weights of {weights:,} ops, outputs of {outputs:,}")
    lines.append(f"method       {memory_map.method}, {memory_map.evaluations:,} evaluations, seed {memory_map.seed}")
    if interrupted:
        lines.append("interrupted  this is the best map so far")
    if written:
        lines.append(f"written      {', '.join(map(quote_path, written))}")
    return lines
