"""`graphrl optimize MODEL`: finds a plan, writes it, and prints its figures.

`plan_table` prints the figures as a table, `summary` has them for one JSON object.
"""

import argparse
import dataclasses
import gc
import sys
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
    enable_compilation_cache,
    print_json,
    problem_of,
    write_result,
)
from graphrl.commands.progress import progress_bar
from graphrl.files import quote_path
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import METHODS, find_solver
from graphrl.optimize import check_seed, make_budget, model_graph, optimize
from graphrl.plan import Plan
from graphrl.plan.format import Inlining
from graphrl.solvers.base import Interrupted
from graphrl.solvers.fusion.rules import DEFAULT_RULE, JOINT, RULES, check_rule
from graphrl.units import finite_or_none, format_bytes, format_objective, format_seconds

_MAX_DEVICES = 8  # with more, only the least and the largest peak and load are listed


def summary(plan: Plan) -> dict[str, Any]:
    """The plan's figures without placement and order, with bound and gap: bytes, seconds, null if not finite."""
    problem = plan.problem
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
        "fusion": None if plan.inlining is None else _fusion(plan, plan.inlining),
    }


def _fusion(plan: Plan, inlining: Inlining) -> dict[str, Any]:
    return {"kernels": len(plan.placement), "inlined": len(inlining.inlined), "chip": inlining.chip.name}


def plan_table(plan: Plan, graph: ComputationGraph, *, interrupted: bool, written: list[str]) -> None:
    """Prints the plan's figures to standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = f"{plan.graph} · {len(graph.ops):,} ops, {graph.arrays.num_tensors:,} tensors"
    table = Table(show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(plan, graph):
        table.add_row(escape(name), escape(value))
    if interrupted:
        table.add_row("interrupted", "this is the best plan until then")
    if written:
        table.add_row("written", escape("\n".join(quote_path(path) for path in written)))
    console = Console(highlight=False)
    console.print(escape(title), style="bold", soft_wrap=True)  # a table would break its title to its own width
    console.print(table)


def _rows(plan: Plan, graph: ComputationGraph) -> list[tuple[str, str]]:
    problem = plan.problem
    name = problem.objective.replace("_", " ")
    exact = f" ({plan.value:,} bytes)" if problem.objective == "peak_memory" and plan.value >= 1024 else ""
    rows = [(name, format_objective(problem.objective, plan.value) + exact)]
    if plan.bound is not None:
        gap = (
            ""
            if plan.gap is None or plan.excess
            else f": gap {100 * plan.gap:.1f}%"
            if plan.gap > 1e-9
            else ": optimal"
        )
        rows.append(("lower bound", format_objective(problem.objective, plan.bound) + gap))
    if problem.objective != "makespan":
        rows.append(("makespan", format_seconds(plan.makespan)))
    if problem.objective == "max_load":
        loads = plan.check(graph).loads
        rows.append(("load per device", _listed(loads, format_seconds)))
    transfers = len(plan.order) - len(plan.placement)
    if problem.devices > 1:
        rows.append(("transfers", f"{transfers:,}, model {problem.transfer}"))
    if problem.devices > 1 or problem.objective != "peak_memory":
        rows.append(
            ("peak per device" if problem.devices > 1 else "peak memory", _listed(plan.peak_memory, format_bytes))
        )
    if problem.memory_limit is not None:
        fits = "kept" if plan.excess == 0 else f"exceeded by {format_bytes(plan.excess)}"
        rows.append(("memory limit", f"{format_bytes(problem.memory_limit)}: {fits}"))
    if plan.inlining is not None:
        kernels, inlined = len(plan.placement), len(plan.inlining.inlined)
        rows.append(("kernels", f"{kernels:,}, which compute {inlined:,} more ops; times of {plan.inlining.chip.name}"))
    rows.append(("method", f"{plan.method}, seed {plan.seed}"))
    rate = plan.evaluations / plan.seconds if plan.seconds > 0 else 0
    per_second = f" ({rate:,.0f} a second)" if plan.evaluations > 1 else ""
    rows.append(("evaluations", f"{plan.evaluations:,} in {format_seconds(plan.seconds)}{per_second}"))
    return rows


def _listed(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Text of one value for each device; of the least and the largest if there are more than 8."""
    shown = values if len(values) <= _MAX_DEVICES else (min(values), max(values))
    return (", " if shown is values else " to ").join(map(text, shown))


def _bound(plan: Plan) -> float | None:
    """The plan's bound; bytes as an integer, like the value."""
    if plan.bound is not None and plan.problem.objective == "peak_memory":
        return int(plan.bound)
    return finite_or_none(plan.bound)


DESCRIPTION = f"""Find a plan for a model: which device runs each op, and in which order.

MODEL is graph JSON (see `graphrl convert`), ONNX, a compiled XLA module (HLO text or proto), CostGraphDef text, a
standard task graph (.stg) or JSON of dnn-partitioning (for --objective max_load), told apart by content; it may be
gzipped. Or it is a program of the model zoo, zoo:ARCHITECTURE/KIND/bBATCH/LEVEL, or a generated graph: layered:200 or,
with seed 7, layered:200@7 (`graphrl compare --help` has the other kinds).

methods: {", ".join(METHODS)}; some take options, as in name:option=value

With --fuse, elementwise ops and those that move data may be inlined: computed inside the kernels that read them, also
in several. What a kernel takes is the roofline's on --chip, whatever the model says of ops, and reshapes take nothing:
compare with --fuse none. Rules: single inlines what one op reads; xla that and what is 8 times as large as what it is
made from; all what is legal; flips, from both of these on, inlines one op or takes it out while the kernels, one after
the other, take less; anneal goes on from there by simulated annealing. None of them looks at memory: joint plans some
fusions for a fifth of the budget and the best for the rest, if memory is limited or the objective; if not, it is flips.
The time that a rule takes comes on top of --seconds. The plan names kernels by the ops that
they end with, and the inlined ops."""

EXAMPLES = """units:
  bytes    4096, 512MiB, 16GiB (powers of 1024) or 16GB (powers of 1000)
  rates    1e9, 1.5GB/s, inf
  times    0.5, 10us, 3ms, 2min

examples:
  graphrl optimize model.onnx
      the order with the least peak memory on one device, from 10 seconds of search
  graphrl optimize model.onnx --seconds 2min --output plan.json --plot plan.png
      search longer; write the plan and a picture of it
  graphrl optimize model.onnx --objective makespan --devices 4 --transfer link --latency 10us --bandwidth 50GB/s \\
      --memory-limit 16GiB --trace trace.json
      the fastest schedule on four devices that fits into them; open trace.json in ui.perfetto.dev
  graphrl optimize bert24_training.json --objective max_load
      stages for pipelined execution, on the accelerators and CPUs that a file of dnn-partitioning names
  graphrl optimize zoo:efficientnetb0/training/b8/hlo
      a training step as XLA compiles it, from the model zoo
  graphrl optimize layered:200@7 --method anneal --seconds 1
      a generated graph: layered, of 200 ops, with seed 7
  graphrl optimize zoo:bert_base/training/b8/jaxpr --fuse --objective makespan --chip v100 --output plan.json
      kernels in place of ops, and the plan names the ops that they compute
  graphrl optimize graph.json --evaluations 5000 --seed 1 --json
      the same result every time, for a script

Ctrl-C or SIGTERM ends the search; the best plan so far is written. Exit codes: 0 done, 1 failed (also: no plan within
the memory limit was found; the nearest one is written), 2 usage."""

# Python's garbage collector visits every op of a large graph repeatedly: half of the time of exact costs.
RARELY = 100_000, 50, 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="file to read, zoo:NAME, or a generated graph as layered:200")
    add_problem(parser.add_argument_group("problem"))
    search = parser.add_argument_group("search")
    search.add_argument(
        "--method",
        default="auto",
        metavar="M",
        help="one of those above, perhaps with options (default: auto, the portfolio that was best for the time)",
    )
    search.add_argument(
        "--fuse",
        nargs="?",
        const=DEFAULT_RULE,
        metavar="RULE",
        help=f"plan kernels in place of ops: {', '.join((*RULES, JOINT))} (default of RULE: {DEFAULT_RULE}); see above",
    )
    add_budget(search)
    files = parser.add_argument_group("files to write")
    files.add_argument("--output", metavar="FILE", help="the plan, as JSON")
    files.add_argument("--trace", metavar="FILE", help="trace events, as JSON, for ui.perfetto.dev")
    files.add_argument("--plot", metavar="FILE", help="a picture: .png, .svg or .pdf")
    add_model(parser)
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Optimises; returns the exit code."""
    enable_compilation_cache()  # before `find_solver`: some methods import JAX
    problem_of(args)  # report invalid options before the model is read
    budget = make_budget(args.evaluations, args.seconds)
    check_seed(args.seed)
    find_solver(args.method)
    if args.fuse is not None:
        check_rule(args.fuse)
    outputs = {"--output": args.output, "--trace": args.trace, "--plot": args.plot}
    for name in ("--output", "--trace"):
        check_json_name(name, outputs[name])
    check_outputs(outputs, args.model)
    check_pictures(args.plot)
    gc.set_threshold(*RARELY)
    graph = model_graph(args.model, chip=args.chip, dims=dict(args.dim), limits=args.read_limits)
    problem = problem_of(args, graph.machine)
    gc.freeze()
    interrupted = False
    try:
        limited = problem.memory_limit is not None
        with progress_bar(graph.name, problem.objective, budget, limited=limited) as progress:
            plan = optimize(
                graph,
                **dataclasses.asdict(problem),
                **dataclasses.asdict(budget),
                method=args.method,
                seed=args.seed,
                progress=progress,
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
        plan_table(plan, graph, interrupted=interrupted, written=written)
    return _verdict(plan)


def _verdict(plan: Plan) -> int:
    if plan.excess == 0:
        return 0
    limit = plan.problem.memory_limit or 0
    print(
        f"graphrl: error: no plan within the memory limit of {format_bytes(limit)} was found: "
        f"the nearest needs {format_bytes(plan.excess)} more",
        file=sys.stderr,
    )
    return 1
