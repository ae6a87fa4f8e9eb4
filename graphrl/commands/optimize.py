"""`graphrl optimize MODEL`: finds a plan, writes it, and prints its figures. `--batch` plans many graphs.

`plan_table` prints the figures as a table, `summary` has them for one JSON object.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from graphrl.commands.common import (
    add_budget,
    add_common,
    add_model,
    add_problem,
    check_json_name,
    check_outputs,
    check_pictures,
    methods_help,
    print_json,
    problem_of,
    write_result,
)
from graphrl.commands.progress import progress_bar
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.files import enable_compilation_cache, quote_path, write_atomically
from graphrl.graphs.datasets.sets import load_graphs, model_graph
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import KINDS, METHODS, find_solver
from graphrl.optimize import check_seed, make_budget, optimize, optimize_batch
from graphrl.plan import Plan
from graphrl.progress import compile_clock, on_terminal, progress
from graphrl.solvers.base import Interrupted
from graphrl.solvers.fusion.rules import DEFAULT_RULE, JOINT, RULES, check_rule
from graphrl.units import finite_or_none, format_bytes, format_objective, format_seconds

_MAX_DEVICES = 8  # with more, only the least and the largest peak and load are listed
_COMPILED = 0.05  # share of the time above which compilation is noted


def summary(plan: Plan) -> dict[str, Any]:
    """Returns a plan's figures, without placement and order: bytes, seconds, bound and gap; None if not finite."""
    problem, fused = plan.problem, plan.inlining
    return {
        "graph": plan.graph,
        "method": plan.method,
        "objective": problem.objective,
        "value": finite_or_none(plan.value),
        "bound": _bound(plan),
        "gap": finite_or_none(plan.gap),
        "feasible": plan.excess == 0,
        "makespan": finite_or_none(plan.makespan),
        "peak_memory": list(plan.peak_memory),
        "seconds": plan.seconds,
        "evaluations": plan.evaluations,
        "seed": plan.seed,
        "model": {
            "devices": problem.devices,
            "transfer": problem.transfer,
            "latency": problem.latency,
            "bandwidth": finite_or_none(problem.bandwidth),
            "resident_weights": problem.resident_weights,
            "memory_limit": problem.memory_limit,
            "cpus": problem.cpus,
        },
        "fusion": fused and {"kernels": len(plan.placement), "inlined": len(fused.inlined), "chip": fused.chip.name},
    }


def plan_table(
    plan: Plan, graph: ComputationGraph, *, interrupted: bool, written: list[str], compiling: float = 0.0
) -> None:
    """Prints the plan's figures to standard output, and the seconds of compiling if they are a large share."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = f"{plan.graph} · {len(graph.ops):,} ops, {graph.arrays.num_tensors:,} tensors"
    table = Table(show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(plan, graph, compiling):
        table.add_row(escape(name), escape(value))
    if interrupted:
        table.add_row("interrupted", "this is the best plan so far")
    if written:
        table.add_row("written", escape("\n".join(quote_path(path) for path in written)))
    console = Console(highlight=False)
    console.print(escape(title), style="bold", soft_wrap=True)  # a table would break its title to its own width
    console.print(table)


def _rows(plan: Plan, graph: ComputationGraph, compiling: float) -> list[tuple[str, str]]:
    problem = plan.problem
    name = problem.objective.replace("_", " ")
    exact = f" ({plan.value:,} bytes)" if problem.objective == "peak_memory" and plan.value >= 1024 else ""
    rows = [(name, format_objective(problem.objective, plan.value) + exact)]
    if plan.bound is not None:
        gap = ""
        if plan.gap is not None and not plan.excess:
            gap = f": gap {100 * plan.gap:.1f}%" if plan.gap > 1e-9 else ": optimal"
        rows.append(("lower bound", format_objective(problem.objective, plan.bound) + gap))
    if problem.objective != "makespan":
        rows.append(("makespan", format_seconds(plan.makespan)))
    if problem.objective == "max_load":
        rows.append(("load per device", _join(plan.check(graph).loads, format_seconds)))
    transfers = len(plan.order) - len(plan.placement)
    if problem.devices > 1:
        rows.append(("transfers", f"{transfers:,} ({problem.transfer})"))
    if problem.devices > 1 or problem.objective != "peak_memory":
        name = "peak per device" if problem.devices > 1 else "peak memory"
        rows.append((name, _join(plan.peak_memory, format_bytes)))
    if problem.memory_limit is not None:
        fits = "met" if plan.excess == 0 else f"exceeded by {format_bytes(plan.excess)}"
        rows.append(("memory limit", f"{format_bytes(problem.memory_limit)}: {fits}"))
    if plan.inlining is not None:
        kernels, inlined = len(plan.placement), len(plan.inlining.inlined)
        rows.append(("kernels", f"{kernels:,}, with {inlined:,} inlined ops; run times of {plan.inlining.chip.name}"))
    rows.append(("method", f"{plan.method}, seed {plan.seed}"))
    rate = plan.evaluations / plan.seconds if plan.seconds > 0 else 0
    detail = f" ({rate:,.0f} a second)" if plan.evaluations > 1 else ""
    if compiling > _COMPILED * plan.seconds:
        detail = f", of which {format_seconds(compiling)} were compilation"
    rows.append(("evaluations", f"{plan.evaluations:,} in {format_seconds(plan.seconds)}{detail}"))
    return rows


def _join(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Formats one value per device; for more than 8 devices, only the least and the largest."""
    if len(values) > _MAX_DEVICES:
        return f"{text(min(values))} to {text(max(values))}"
    return ", ".join(map(text, values))


def _bound(plan: Plan) -> float | None:
    """Returns the plan's bound, rounded to an integer if it is in bytes."""
    if plan.bound is not None and plan.problem.objective == "peak_memory":
        return int(plan.bound)
    return finite_or_none(plan.bound)


DESCRIPTION = f"""Search for a plan of a model: a device for each op, and an order.

MODEL is one of
  a file             graph JSON (see `graphrl convert`), ONNX, a compiled XLA module (HLO text or proto), CostGraphDef
                     text, a standard task graph (.stg) or JSON of dnn-partitioning (for --objective max_load),
                     recognised by content, also gzipped
  a zoo program      zoo:ARCHITECTURE/KIND/bBATCH/LEVEL, for example zoo:resnet50/inference/b1/jaxpr
  a generated graph  layered:200, or layered:200@7 with seed 7 (`graphrl compare --help` has other kinds)
With --batch there may be several, also folders and sets as of `graphrl compare`: each graph gets a plan.

{methods_help(METHODS, KINDS)}"""

EXAMPLES = """examples:
  graphrl optimize model.onnx
      the order with the least peak memory on one device, from 10 seconds of search
  graphrl optimize model.onnx --seconds 2min --output plan.json --plot plan.png
      a longer search; write the plan and a picture of it
  graphrl optimize model.onnx --objective makespan --devices 4 --transfer link --latency 10us --bandwidth 50GB/s \\
      --memory-limit 16GiB --trace trace.json
      a fast schedule on four devices of 16 GiB; open trace.json in ui.perfetto.dev
  graphrl optimize bert24_training.json --objective max_load
      stages for pipelined execution, on the accelerators and CPUs of a dnn-partitioning file
  graphrl optimize zoo:efficientnetb0/training/b8/hlo
      a training step of the model zoo as XLA compiles it
  graphrl optimize zoo:bert_base/training/b8/jaxpr --fuse --objective makespan --chip v100 --output plan.json
      kernels instead of ops; the plan lists the ops of each kernel
  graphrl optimize graph.json --evaluations 5000 --seed 1 --json
      the same result every time, for a script
  graphrl optimize --batch kinds:100x1000 --objective makespan --devices 2 --output plans.jsonl
      a list schedule of each of a thousand graphs, in a second or two; one plan a line
  graphrl optimize --batch graphs/ --objective makespan --devices 2 --method regal-once:samples=64
      the best of 64 plans that REGAL's policy draws for each graph of a folder

units:
  bytes    4096, 512MiB, 16GiB (powers of 1024) or 16GB (powers of 1000)
  rates    1e9, 1.5GB/s, inf
  times    0.5, 10us, 3ms, 2min

fusion rules of --fuse, for kernels instead of ops:
  none     one kernel for each op, the baseline for the other rules
  single   inlines ops with one reader
  xla      like single, and also ops whose result is at least 8 times as large as their inputs
  all      inlines every op that may be inlined
  flips    local search from xla and all: inlines or separates one op while the sum of the kernels' times falls
  anneal   simulated annealing from the result of flips
  joint    if memory is limited or the objective: plans several fusions with a fifth of the budget in total, then the
           best of them with the rest; else flips
  Elementwise ops and ops that only move data may be inlined: computed inside all kernels that read them. Kernels take
  the roofline's time on --chip, whatever the model's own run times are; reshapes take none. The time of a rule is not
  part of --seconds. A kernel has the name of its last op.

many graphs:
  With --batch, the methods list (the default there), regal-once and topoformer plan graphs in batches; any other
  method plans one after another, with --evaluations or --seconds for each. There is no --fuse, --trace or --plot, and
  no lower bound, which may take longer than the plans.

Ctrl-C or SIGTERM ends the search and writes the best plan so far. Exit codes: 0 done, 1 failed (also: no plan within
the memory limit; the nearest one is written), 2 wrong usage."""

# Collect garbage rarely: the collector visits every op of a large graph repeatedly, half of the time of exact costs.
GC_THRESHOLDS = 100_000, 50, 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="file, zoo program or generated graph, see above")
    parser.add_argument("--batch", action="store_true", help="plan every graph of all MODELs, see below")
    add_problem(parser.add_argument_group("problem"))
    search = parser.add_argument_group("search")
    search.add_argument(
        "--method",
        metavar="M",
        help="method of the search, see above (default: auto, a portfolio that depends on the budget, and list with "
        "--batch)",
    )
    search.add_argument(
        "--fuse",
        nargs="?",
        const=DEFAULT_RULE,
        metavar="RULE",
        help=f"plan kernels instead of ops: {', '.join((*RULES, JOINT))}, see below (RULE by default: {DEFAULT_RULE})",
    )
    add_budget(search)
    files = parser.add_argument_group("files to write")
    files.add_argument("--output", metavar="FILE", help="write the plan as JSON; with --batch a plan on each line")
    files.add_argument("--trace", metavar="FILE", help="write trace events as JSON, for ui.perfetto.dev")
    files.add_argument("--plot", metavar="FILE", help="write a picture of the plan: .png, .svg or .pdf")
    add_model(parser)
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Searches for a plan, writes it and prints its figures; returns the exit code."""
    enable_compilation_cache()  # before `find_solver`: some methods import JAX
    problem_of(args)  # report invalid options before the model is read
    budget = make_budget(args.evaluations, args.seconds)
    check_seed(args.seed)
    method = args.method or ("list" if args.batch else "auto")
    find_solver(method)
    if args.batch:
        return _run_batch(args, method)
    if len(args.models) > 1:
        raise ProblemError(f"{len(args.models)} models, where one is planned: for a plan of each of them, add --batch")
    (model,) = args.models
    if args.fuse is not None:
        check_rule(args.fuse)
    outputs = {"--output": args.output, "--trace": args.trace, "--plot": args.plot}
    for name in ("--output", "--trace"):
        check_json_name(name, outputs[name])
    check_outputs(outputs, model)
    check_pictures(args.plot)
    gc.set_threshold(*GC_THRESHOLDS)
    graph = model_graph(model, chip=args.chip, dims=dict(args.dim), limits=args.read_limits)
    problem = problem_of(args, graph.machine)
    gc.freeze()
    interrupted = False
    try:
        limited = problem.memory_limit is not None
        # without JAX the method compiles nothing; importing it would take longer than many methods
        clock = compile_clock() if "jax" in sys.modules else contextlib.nullcontext(lambda: 0.0)
        with clock as compiling, progress_bar(graph.name, problem.objective, budget, limited=limited) as update:
            plan = optimize(
                graph,
                **dataclasses.asdict(problem),
                **dataclasses.asdict(budget),
                method=method,
                seed=args.seed,
                progress=update,
                fuse=args.fuse,
                chip=args.chip,
            )
    except Interrupted as stop:
        plan, interrupted = stop.plan, True
    others = (args.trace, plan.trace), (args.plot, plan.plot)
    written = write_result(plan, "plan", args.output, others)
    if args.json:
        print_json({**summary(plan), "interrupted": interrupted, "written": written})
    else:
        plan_table(plan, graph, interrupted=interrupted, written=written, compiling=compiling())
    return _verdict(plan)


def _verdict(plan: Plan) -> int:
    if plan.excess == 0:
        return 0
    limit, excess = format_bytes(plan.problem.memory_limit or 0), format_bytes(plan.excess)
    fault = f"no plan within the memory limit of {limit} was found: the nearest needs {excess} more"
    print(f"graphrl: error: {fault}", file=sys.stderr)
    return 1


def _run_batch(args: argparse.Namespace, method: str) -> int:
    """Plans all graphs of the models, writes the plans and prints their number; returns the exit code."""
    for name in ("fuse", "trace", "plot"):
        if getattr(args, name) is not None:
            raise ProblemError(f"--{name} is for one graph: leave it out with --batch")
    check_json_name("--output", args.output, ending=".jsonl")
    check_outputs({"--output": args.output}, *args.models)
    gc.set_threshold(*GC_THRESHOLDS)
    graphs = load_graphs(args.models, chip=args.chip, dims=dict(args.dim), limits=args.read_limits)
    gc.freeze()
    options = {field.name: getattr(args, field.name) for field in dataclasses.fields(Problem)}
    limits = {"evaluations": args.evaluations, "seconds": args.seconds}
    start, interrupted = time.perf_counter(), False
    with progress(len(graphs)) if on_terminal() else contextlib.nullcontext() as show:

        def update(done: int) -> None:
            if show is not None:
                show(done, f"{done / (time.perf_counter() - start):,.0f} plans a second")

        try:
            plans = optimize_batch(graphs, **options, **limits, method=method, seed=args.seed, progress=update)
        except Interrupted as stop:
            plans, interrupted = [plan for plan in stop.plan if plan is not None], True
    seconds = time.perf_counter() - start
    if args.output is not None:
        lines = (json.dumps(plan.to_dict()) for plan in plans)
        write_atomically(args.output, lambda file: file.writelines(f"{line}\n" for line in lines))
    if args.json:
        print_json(_batch_summary(plans, len(graphs), method, seconds))
    else:
        _batch_table(plans, len(graphs), method, seconds, args.output)
    if interrupted:
        print(f"graphrl: interrupted: {len(plans)} of {len(graphs)} graphs planned", file=sys.stderr)
        return 1
    if above := sum(plan.excess > 0 for plan in plans):
        fault = f"{above} of {len(graphs)} graphs have no plan within the memory limit"
        print(f"graphrl: error: {fault}", file=sys.stderr)
    return int(above > 0)


def _batch_summary(plans: Sequence[Plan], graphs: int, method: str, seconds: float) -> dict[str, Any]:
    """Returns the figures of a batch of plans for one JSON object."""
    each = [{"graph": plan.graph, "value": finite_or_none(plan.value), "feasible": plan.excess == 0} for plan in plans]
    return {"graphs": graphs, "method": method, "seconds": seconds, "plans": each}


def _batch_table(plans: Sequence[Plan], graphs: int, method: str, seconds: float, output: str | None) -> None:
    """Prints the figures of a batch of plans to standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rows = [("graphs", f"{graphs:,}"), ("method", method)]
    if plans:
        objective, values = plans[0].problem.objective, [plan.value for plan in plans]
        least, largest = (format_objective(objective, value) for value in (min(values), max(values)))
        rows.append((objective.replace("_", " "), f"{least} to {largest}"))
        evaluations = sum(plan.evaluations for plan in plans)
        rows.append(("plans", f"{len(plans):,}, the best of {evaluations:,}"))
        rows.append(("time", f"{format_seconds(seconds)}: {len(plans) / seconds:,.0f} plans a second"))
    if output is not None:
        rows.append(("written", quote_path(output)))
    table = Table(show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    Console(highlight=False).print(table)
