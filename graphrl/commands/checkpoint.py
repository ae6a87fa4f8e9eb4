"""`graphrl checkpoint MODEL`: chooses the values that a training step keeps or recomputes, to save memory."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from graphrl.commands.common import (
    add_common,
    add_model,
    check_outputs,
    check_pictures,
    option,
    print_json,
    seconds,
)
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import enable_compilation_cache, quote_path
from graphrl.graphs.graph import ComputationGraph
from graphrl.optimize import DEFAULT_SECONDS, model_graph
from graphrl.progress import progress
from graphrl.units import format_seconds, parse_bytes
from graphrl.xla.checkpoint.solvers.auto import SOLVERS

if TYPE_CHECKING:
    from graphrl.xla.checkpoint.report import CheckpointCurve, CheckpointReport
    from graphrl.xla.checkpoint.settings import Settings

DESCRIPTION = f"""Choose what a training step keeps for its backward pass and what it recomputes, to save memory.

Without a limit it prints the curve of memory against slowdown; with --budget or --slowdown, one plan. It is the search
of graphrl.checkpoint, for a graph instead of a JAX function.

MODEL is a training step of the model zoo, zoo:ARCHITECTURE/training/bBATCH/jaxpr, one of GO's workloads
(workloads:NAME), or a file with the graph of a gradient that JAX traced (graphrl.from_jax and graphrl.write_json): its
ops have JAX's scopes in their names, jvp(...) and transpose(jvp(...)). Inference and compiled programs are refused.

Kernels and loops have the run times of the graph, fused ops those of the roofline of --chip (the zoo's run times are of
the default chip). Memory is that of live values in the graph's order, without arguments, results and gradients. Bodies
of loops do not change.

methods: {", ".join(SOLVERS)}"""

EXAMPLES = """examples:
  graphrl checkpoint zoo:distilbert/training/b8/jaxpr --plot curve.png
      the least memory at a slowdown of 0, 2, 5, 10, 20 and 33% (a minute), with a picture
  graphrl checkpoint zoo:distilbert/training/b8/jaxpr --budget 0.5
      the fastest step that keeps half of the bytes that JAX keeps; lists kept and recomputed ops
  graphrl checkpoint zoo:vgg16/training/b32/jaxpr --budget 3GiB --plot memory.png
      the whole step, with weights and gradients, below 3 GiB; a picture of memory over the step
  graphrl checkpoint graph.json --slowdown 0.1 --method greedy --json
      the least memory for 10% more time, for a script

In Python: loss = graphrl.checkpoint(loss, budget=0.5). Exit codes: 0 done, 1 failed (also: the budget cannot be met, or
there is no backward pass), 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="zoo:NAME, workloads:NAME, or a file")
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument(
        "--budget",
        type=option(_budget),
        metavar="SHARE|BYTES",
        help="maximum of the kept bytes as a share of those that JAX keeps, 0 to 1, or peak of the step, such as 12GiB",
    )
    limits.add_argument(
        "--slowdown", type=option(_share), metavar="SHARE", help="maximum added share of the step's time, such as 0.1"
    )
    parser.add_argument("--offload", action="store_true", help="also move values to the host's memory, over PCIe 5")
    parser.add_argument("--method", default="auto", metavar="M", help="method of the search, see above (default: auto)")
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"maximum search time for each point of the curve, such as 500ms or 2min (default: {DEFAULT_SECONDS:g} s)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="write a picture of the curve, or of memory over the step: .png, .svg or .pdf"
    )
    add_model(parser, chip="chip for which run times of fused ops are predicted")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Searches for the values to keep and prints the result; returns the exit code."""
    enable_compilation_cache()
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

        curve = CheckpointCurve.of([settings.slowdown or 0.0 for settings in searches[: len(reports)]], reports)
        _show(curve, args, {"interrupted": interrupted}, _lines(curve, graph, interrupted))
    return 0


def _search(graph: ComputationGraph, searches: "list[Settings]") -> "tuple[list[CheckpointReport], bool]":
    """Runs a search per setting; returns their reports, and True if Ctrl-C ended them early.

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
                    show(number + 1, f"{graph.name}: {_outcome(reports[-1])}")
        except UnmetError as error:
            raise GraphrlError(str(error)) from None
        except KeyboardInterrupt:
            if not reports:
                raise
            return reports, True
    return reports, False


def _outcome(report: "CheckpointReport") -> str:
    share = report.planned.peak_bytes / max(report.plain.peak_bytes, 1.0)
    return f"{report.slowdown:+.1%} time, {share:.0%} of the memory, in {format_seconds(report.search_seconds)}"


def _show(
    result: "CheckpointReport | CheckpointCurve", args: argparse.Namespace, more: dict[str, Any], lines: list[str]
) -> None:
    """Writes the picture; prints the result, and further lines after it."""
    if args.plot is not None:
        result.plot(args.plot)
    written = [args.plot] * (args.plot is not None)
    if args.json:
        print_json({**result.to_dict(), **more, "seed": args.seed, "written": written})
        return
    print(result)
    for line in [*lines, *(f"written: {quote_path(path)}" for path in written)]:
        print(line)


def _lines(curve: "CheckpointCurve", graph: ComputationGraph, interrupted: bool) -> list[str]:
    lines = [
        f"{graph.name}: a step takes {format_seconds(curve.plain.seconds)} (predicted for {curve.chip})",
        "peaks are without arguments, results and gradients; values are those in memory",
    ]
    return lines + ["interrupted: these are the points so far"] * interrupted


def _budget(text: str) -> float | str:
    """Parses a budget: a number is a share of the peak, text with a unit is bytes."""
    try:
        share = float(text)
    except ValueError:
        if not text[:1].isdigit():
            raise ProblemError(f"{text[:40]!r} is no share and no bytes: write for example 0.5 or 12GiB") from None
        parse_bytes(text)
        return text
    return share if share <= 1 else text


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ProblemError(f"{text[:40]!r} is not a share of the step's time: write for example 0.1") from None
