"""`graphrl compare MODEL... --methods a,b,c`: a table of methods' results on the same graphs at equal budget."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from graphrl.commands.common import (
    add_budget,
    add_common,
    add_model,
    add_problem,
    check_json_name,
    check_outputs,
    check_pictures,
    keep_compiled,
    option,
    print_json,
    problem_of,
)
from graphrl.commands.progress import runs_bar
from graphrl.errors import GraphrlError, ProblemError, clipped
from graphrl.methods import METHODS, find_solver, split_methods
from graphrl.optimize import check_seed, make_budget
from graphrl.units import whole_number

if TYPE_CHECKING:
    from graphrl.compare.comparison import Comparison
    from graphrl.compare.runs import Run
    from graphrl.graphs.datasets.sets import LeftOut
    from graphrl.graphs.graph import Machine

T = TypeVar("T", bound=Sequence[Any])

DESCRIPTION = f"""Compare methods on many graphs: every method on every graph with every seed, at equal budget.

MODEL is a file (as for `graphrl optimize`), a folder of such files, or a generated set:
  layered:500x20        20 layered graphs of 500 ops, seeds 0 to 19; layered:500x20@100 has seeds 100 to 119
  regal-like:x20        20 random graphs as REGAL describes them, of 50 to 200 ops; regal-like:100x20 of 100
  in-tree:100x20        20 trees of 100 ops; likewise out-tree, series-parallel, planted, and pipeline (for max_load)
  zoo:training/hlo      compiled training steps of the model zoo; words between slashes, all of which must hold: an
                        architecture, inference or training, a batch size (b8), jaxpr or hlo, train-split, valid-split
                        or test-split, a family (resnet-family), * and ? as in file names

methods: {", ".join(METHODS)}; some take options, as in name:option=value"""

EXAMPLES = """how it is compared:
  Values are exact, and every plan is checked. "best known" is the lowest value of a graph over all methods, seeds
  and rows of the --output file, whatever their budgets; "to bound" is to the highest lower bound known, "optimal"
  the share of runs that reach it. A method's figure on a graph is the mean over seeds; a graph is won or tied by
  the methods with the lowest. Methods that ignore the budget (list, given, ...) take what they take.

  Under --seconds, each method first runs for a second at most on each size of graph, so that the clock sees searching,
  not compiling; the table says where it saw compiling all the same. --no-warm-up leaves that out.

  A method that crashes or fills the memory ends a comparison in one process, and costs one run of several. With
  --cluster, an address as in tcp://10.0.0.5:8786, all machines need the same graphrl and see the same checkpoints;
  each worker makes one run at a time, with all the cores that it may use: `dask scheduler`, and `dask worker ADDRESS
  --nthreads 1` (under `taskset`, if several share a machine), start one. A method that holds Python's lock for longer
  than the scheduler's `distributed.scheduler.worker-ttl` (5 minutes by default) gets its worker removed: raise that.

  With --output, a comparison that was stopped goes on where it was: runs with the same graph content, problem, method,
  seed and budget (under --seconds: also cores and warm-up) are not made again. More methods, seeds or graphs
  are added by asking for them.

examples:
  graphrl compare model.onnx --methods auto,list,brkga --seconds 30
  graphrl compare regal-like:x20 --objective makespan --devices 2 --methods auto,list,brkga,random --seeds 3 \\
      --evaluations 5000 --output runs.jsonl --plot quality.png --histogram hist.png --baseline brkga
  graphrl compare graphs/ layered:500x20 --methods list,auto --processes 4 --json

A file that cannot be read, given by itself or in a folder, is left out: a line on standard error names it, --json under
"unreadable", and the rest is compared.

Ctrl-C or SIGTERM ends it; what is done stays and is shown. Exit codes: 0 done, 1 failed (also: interrupted, a file was
left out, or no run gave a plan), 2 usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="files, folders or sets of graphs")
    add_problem(parser.add_argument_group("problem"))
    add_runs(parser, "what to compare", required=True)
    add_model(parser)
    add_common(parser, seed="the first of --seeds (default: 0)")


def add_runs(parser: Any, methods: str, *, required: bool = False, **budget: str) -> None:
    """Adds the options for methods, seeds, budget (see `add_budget`) and output files, which `run` reads.

    Args:
      parser: to add them to.
      methods: help of --methods.
      required: True if --methods is required.
      **budget: further arguments of `add_budget`.
    """
    search = parser.add_argument_group("search")
    search.add_argument("--methods", type=option(_methods), required=required, metavar="M,...", help=methods)
    search.add_argument(
        "--seeds",
        type=option(_seeds),
        default=1,
        metavar="K|S,...",
        help="how many, counted from --seed, or which, as in 0,1,5 (default: 1)",
    )
    add_budget(search, of=" in each run", clock="after the warm-up", **budget)
    search.add_argument(
        "--warm-up",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="under --seconds, compile before the clock starts (default: yes)",
    )
    search.add_argument(
        "--processes",
        type=option(whole_number),
        default=1,
        metavar="N",
        help="make so many runs at once, each with its share of the cores (default: 1)",
    )
    search.add_argument(
        "--cluster", metavar="ADDRESS", help="make a run at a time on each worker of this Dask scheduler instead"
    )
    files = parser.add_argument_group("files to write")
    files.add_argument("--output", metavar="FILE", help="a row a run, as JSON lines; what it has is not run again")
    files.add_argument("--retry", action="store_true", help="run again what failed, according to --output")
    files.add_argument("--plot", metavar="FILE", help="quality against time, on a log axis: .png, .svg or .pdf")
    files.add_argument("--histogram", metavar="FILE", help="of improvements over --baseline: .png, .svg or .pdf")
    files.add_argument("--baseline", metavar="M", help="one of the methods (default: the first)")


def run(args: argparse.Namespace, names: Mapping[str, str] | None = None) -> int:
    """Compares; returns the exit code.

    Args:
      args: of `add_arguments`.
      names: of some methods in tables and pictures, by full name; rows of --output have full names.
    """
    runs, workers, unreadable = _runs(args)
    from graphrl.compare.comparison import compare

    comparison = compare(
        runs,
        args.output,
        processes=args.processes,
        cluster=args.cluster,
        retry=args.retry,
        watch=lambda missing: runs_bar(missing, workers),
        prepare=keep_compiled,
    )
    if comparison.interrupted and not comparison.rows:
        raise KeyboardInterrupt
    names, baseline = names or {}, args.baseline or args.methods[0]
    rows = [dataclasses.replace(row, method=names.get(row.method, row.method)) for row in comparison.rows]
    comparison = comparison._replace(rows=rows)
    written = _write(comparison, args, names.get(baseline, baseline))
    if args.json:
        _print_json(comparison, len(runs), unreadable, written)
    else:
        from graphrl.compare.report import print_tables

        print_tables(comparison.rows, comparison.others)
        for path in written:
            print(f"written: {path}")
    return _verdict(comparison, len(runs)) or int(bool(unreadable))


def _runs(args: argparse.Namespace) -> tuple[list["Run"], int, dict[str, str]]:
    """The checked runs of the options, the number of workers, and the errors of unreadable files by path.

    Raises:
      GraphrlError: an option is invalid, or no file can be read.
    """
    from graphrl.compare.cluster import share, survey
    from graphrl.compare.runs import make_runs
    from graphrl.graphs.datasets.sets import load_graphs, model_files

    problem_of(args)  # report invalid options before graphs are read
    budget = make_budget(args.evaluations, args.seconds)
    seeds = seeds_of(args)
    for method in args.methods:
        find_solver(method)
    if args.baseline is not None and args.baseline not in args.methods:
        raise ProblemError(f"baseline is {args.baseline!r}: must be one of {clipped(', '.join(args.methods))}")
    workers, cores = args.processes, share(args.processes)
    if args.cluster is not None and workers > 1:
        raise ProblemError("--processes does not go with --cluster, whose workers are as many as were started")
    outputs = {"--output": args.output, "--plot": args.plot, "--histogram": args.histogram}
    check_json_name("--output", args.output, ending=".jsonl")
    check_outputs(outputs, *(file for model in args.models for file in model_files(model)))
    check_pictures(args.plot, args.histogram)
    if args.cluster is not None:
        workers, cores = survey(args.cluster)
    given = {"chip": args.chip, "dims": dict(args.dim), "limits": args.read_limits}
    graphs, unreadable = readable(lambda left_out: load_graphs(args.models, **given, left_out=left_out))
    problem = problem_of(args, _machine(args, [graph.machine for graph in graphs]))
    runs = make_runs(graphs, problem, args.methods, seeds, budget, cores=cores, warm_up=args.warm_up)
    return runs, workers, unreadable


def seeds_of(args: argparse.Namespace) -> Sequence[int]:
    """The seeds that --seed and --seeds define.

    Raises:
      ProblemError: there are no seeds, or one is out of range.
    """
    seeds = range(args.seed, args.seed + args.seeds) if isinstance(args.seeds, int) else args.seeds
    if not seeds:
        raise ProblemError("--seeds names no seed: give how many, or which, as in 0,1,5")
    for seed in (args.seed, *seeds[:1], *seeds[-1:], *seeds):
        check_seed(seed)
    return seeds


def readable(load: Callable[["LeftOut"], T]) -> tuple[T, dict[str, str]]:
    """The readable graphs, and the errors of unreadable files, which are also printed to standard error.

    Args:
      load: returns graphs; it calls its argument with each file that it leaves out and the error, as `load_graphs`.

    Raises:
      GraphrlError: none of the files can be read, and there are no other graphs.
    """
    unreadable: dict[str, GraphrlError] = {}
    graphs = load(unreadable.setdefault)
    if not graphs and len(unreadable) == 1:
        raise next(iter(unreadable.values()))
    for error in unreadable.values():
        print(f"graphrl: left out: {error}", file=sys.stderr)
    if not graphs:
        raise GraphrlError(f"none of the {len(unreadable)} files can be read")
    return graphs, {file: str(error) for file, error in unreadable.items()}


def _machine(args: argparse.Namespace, machines: Sequence["Machine | None"]) -> "Machine | None":
    """The machine that all graphs name; None if they name different ones.

    Raises:
      ProblemError: they name different machines, and the problem needs one.
    """
    if len(set(machines)) == 1:
        return machines[0]
    if args.objective == "max_load" and args.devices is None:
        raise ProblemError("the graphs' files name different machines: say --devices, --cpus and --memory-limit")
    return None


def _write(comparison: "Comparison", args: argparse.Namespace, baseline: str) -> list[str]:
    """Draws the requested pictures; returns the paths of all written files."""
    written = [] if args.output is None else [args.output]
    if args.plot is not None or args.histogram is not None:
        from graphrl.compare.pictures import histogram_figure, quality_figure
        from graphrl.plan.plot import write_figure

        if args.plot is not None:
            write_figure(quality_figure(comparison.rows, comparison.others), args.plot)
            written.append(args.plot)
        if args.histogram is not None:
            write_figure(histogram_figure(comparison.rows, baseline), args.histogram)
            written.append(args.histogram)
    return written


def _print_json(comparison: "Comparison", runs: int, unreadable: Mapping[str, str], written: list[str]) -> None:
    from graphrl.compare.report import as_dict

    first = comparison.rows[0].to_dict()
    settings = {key: first[key] for key in ("objective", "model", "budget", "cores", "machine")}
    counts = {"runs": runs, "done": len(comparison.rows), "made": comparison.new, "interrupted": comparison.interrupted}
    files = {"unreadable": unreadable, "written": written}
    print_json({**settings, **counts, **as_dict(comparison.rows, comparison.others), **files})


def _verdict(comparison: "Comparison", runs: int) -> int:
    if comparison.interrupted:
        print(f"graphrl: interrupted: {len(comparison.rows)} of {runs} runs are done", file=sys.stderr)
        return 1
    if not any(row.feasible for row in comparison.rows):
        reason = next((row.error for row in comparison.rows if row.error), "no plan is within the memory limit")
        print(f"graphrl: error: no run gave a plan: {reason}", file=sys.stderr)
        return 1
    return 0


def _methods(text: str) -> tuple[str, ...]:
    """The methods of `split_methods`, checked to be distinct."""
    methods = split_methods(text)
    twice = [name for name in methods if methods.count(name) > 1]
    if not methods or twice:
        raise ProblemError(f"{text!r} names " + (f"{twice[0]} twice" if twice else "no method"))
    return tuple(methods)


def _seeds(text: str) -> int | tuple[int, ...]:
    """Parses --seeds: their number, or, with a comma, the seeds."""
    if "," not in text:
        count = whole_number(text)
        if not 1 <= count <= 10_000:
            raise ProblemError(f"{count} seeds: must be from 1 to 10000; a single seed is --seed {count}")
        return count
    return tuple(dict.fromkeys(whole_number(part) for part in text.split(",") if part.strip()))
