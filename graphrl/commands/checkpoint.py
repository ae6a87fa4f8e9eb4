"""`graphrl checkpoint MODEL`: finds the values that a training step keeps or computes again, and the memory saved."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from graphrl.commands.common import (
    add_common,
    add_model,
    check_outputs,
    check_pictures,
    keep_compiled,
    option,
    print_json,
)
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import shown
from graphrl.graphs.graph import ComputationGraph
from graphrl.optimize import DEFAULT_SECONDS, model_graph
from graphrl.progress import progress
from graphrl.units import format_seconds, parse_bytes, parse_seconds
from graphrl.xla.checkpoint.solvers.auto import SOLVERS

if TYPE_CHECKING:
    from graphrl.xla.checkpoint.report import CheckpointCurve, CheckpointReport
    from graphrl.xla.checkpoint.settings import Settings

DESCRIPTION = f"""Find what a training step should keep between its passes, and what it should compute again: memory
against slowdown, to choose a budget from, or one plan for a budget. It is what graphrl.checkpoint does to a JAX
function, here for a graph.

MODEL is a program of the model zoo, zoo:ARCHITECTURE/training/bBATCH/jaxpr, one of GO's workloads, or a file with the
graph of a gradient traced from JAX (graphrl.from_jax and graphrl.write_json): its ops have jax's scopes in their names,
jvp(...) and transpose(jvp(...)). Inference, and programs as XLA compiled them, have none, and are refused.

Kernels and loops take the run times of the graph (the zoo's are those of --chip's default); what is fused into them
takes the roofline's of --chip. Memory is by liveness in the graph's order, beside arguments, results and gradients. The
bodies of loops stay as they are.

methods: {", ".join(SOLVERS)}"""

EXAMPLES = """examples:
  graphrl checkpoint zoo:distilbert/training/b8/jaxpr --plot curve.png
      the least memory at a slowdown of 0, 2, 5, 10, 20 and 33% (a minute); a picture of it
  graphrl checkpoint zoo:distilbert/training/b8/jaxpr --budget 0.5
      keep half of the bytes that jax keeps, at the least time: what is kept and what is computed again, op by op
  graphrl checkpoint zoo:vgg16/training/b32/jaxpr --budget 3GiB --plot memory.png
      bring the whole step, weights and gradients too, below 3 GiB; memory over the step as a picture
  graphrl checkpoint graph.json --slowdown 0.1 --method greedy --json
      a tenth more time for the least memory, for a script

In Python, for a function: loss = graphrl.checkpoint(loss, budget=0.5). Exit codes: 0 done, 1 failed (also: the budget
cannot be met, or there is no backward pass), 2 usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="zoo:NAME, workloads:NAME, or a file to read")
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument(
        "--budget",
        type=option(_budget),
        metavar="PART|BYTES",
        help="a part, 0 to 1, of the bytes that jax keeps, or the peak of the whole step, such as 12GiB",
    )
    limits.add_argument(
        "--slowdown", type=option(_part), metavar="PART", help="of the step's time that may be added, such as 0.1"
    )
    parser.add_argument("--offload", action="store_true", help="values may wait in the memory of the host, over PCIe 5")
    parser.add_argument("--method", default="auto", metavar="M", help="one of those above (default: auto)")
    parser.add_argument(
        "--seconds",
        type=option(parse_seconds),
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"search for at most so long, for each point of the curve (default: {DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="a picture of the curve, or of memory over the step: .png, .svg or .pdf"
    )
    add_model(parser, chip="what gives fused ops their run times (kernels and loops have the graph's own)")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Searches; returns the exit code."""
    keep_compiled()
    from graphrl.xla.checkpoint.function import SLOWDOWNS
    from graphrl.xla.checkpoint.settings import Settings

    options = (args.chip, args.offload, args.method, args.seconds, args.seed)
    limited = args.budget is not None or args.slowdown is not None
    if limited:
        searches = [Settings(args.budget, args.slowdown, *options)]
    else:
        searches = [Settings(None, limit, *options) for limit in SLOWDOWNS]
    check_outputs({"--plot": args.plot}, args.model)
    check_pictures(args.plot)
    graph = model_graph(args.model, chip=args.chip, dims=dict(args.dim), limits=args.read_limits)
    reports, interrupted = _search(graph, searches)
    if limited:
        _show(reports[0], args, {}, [])
    else:
        from graphrl.xla.checkpoint.report import CheckpointCurve

        done = searches[: len(reports)]
        curve = CheckpointCurve.of([settings.slowdown or 0.0 for settings in done], reports)
        _show(curve, args, {"interrupted": interrupted}, _lines(curve, graph, interrupted))
    return 0


def _search(graph: ComputationGraph, searches: "list[Settings]") -> "tuple[list[CheckpointReport], bool]":
    """Reports of the searches, one for each setting; and True if Ctrl-C ended them early.

    Raises:
      KeyboardInterrupt: before the first report.
      GraphrlError: there is no backward pass, or the budget cannot be met.
    """
    from graphrl.xla.checkpoint.graph_gradient import gradient_of_graph
    from graphrl.xla.checkpoint.search import search
    from graphrl.xla.checkpoint.settings import UnmetError
    from graphrl.xla.checkpoint.solvers.anneal import prepare
    from graphrl.xla.checkpoint.solvers.choice import Pricing

    reports: list[CheckpointReport] = []
    with progress(len(searches), text=graph.name) as show:
        gradient = gradient_of_graph(graph, searches[0].resolved_chip)
        try:
            for number, settings in enumerate(searches):
                pricing = Pricing(gradient.gradient)  # one each: searches would reuse a shared one's results
                prepare(pricing)
                reports.append(search(graph.name, gradient, pricing, settings, time.monotonic()).report)
                if len(searches) > 1:
                    show(number + 1, f"{graph.name}: {_said(reports[-1])}")
        except UnmetError as error:
            raise GraphrlError(str(error)) from None
        except KeyboardInterrupt:
            if not reports:
                raise
            return reports, True
    return reports, False


def _said(report: "CheckpointReport") -> str:
    share = report.planned.peak_bytes / max(report.plain.peak_bytes, 1.0)
    return f"{report.slowdown:+.1%} time, {share:.0%} of the memory, in {format_seconds(report.search_seconds)}"


def _show(
    answer: "CheckpointReport | CheckpointCurve", args: argparse.Namespace, more: dict[str, Any], lines: list[str]
) -> None:
    """Writes the picture, and prints the answer with some lines after it."""
    if args.plot is not None:
        answer.plot(args.plot)
    written = [args.plot] * (args.plot is not None)
    if args.json:
        print_json({**answer.to_dict(), **more, "seed": args.seed, "written": written})
        return
    print(answer)
    for line in [*lines, *(f"written: {shown(path)}" for path in written)]:
        print(line)


def _lines(curve: "CheckpointCurve", graph: ComputationGraph, interrupted: bool) -> list[str]:
    step = format_seconds(curve.plain.seconds)
    lines = [
        f"{graph.name}: a step takes {step} by run times and roofline of {curve.chip}; peaks are beside arguments,"
    ]
    lines.append("results and gradients; values are those that lie in memory")
    return lines + ["interrupted: these are the points until then"] * interrupted


def _budget(text: str) -> float | str:
    """Parses a budget: a part as a number, bytes as text."""
    try:
        part = float(text)
    except ValueError:
        parse_bytes(text)
        return text
    return part if part <= 1 else text


def _part(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ProblemError(f"{text[:40]!r} is not a part of the step's time: write for example 0.1") from None
