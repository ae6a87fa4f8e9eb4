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
    integer,
    methods_help,
    option,
    print_json,
    problem_of,
)
from graphrl.commands.progress import runs_bar
from graphrl.errors import GraphrlError, ProblemError, clipped
from graphrl.files import enable_compilation_cache
from graphrl.methods import KINDS, METHODS, find_solver, split_methods
from graphrl.optimize import check_seed, make_budget
from graphrl.units import parse_integer

if TYPE_CHECKING:
    from graphrl.compare.comparison import Comparison
    from graphrl.compare.runs import Run
    from graphrl.graphs.datasets.sets import LeftOut
    from graphrl.graphs.graph import Machine

T = TypeVar("T", bound=Sequence[Any])

DESCRIPTION = f"""Compare methods on many graphs at equal budget: every method on every graph with every seed.

MODEL is a file (as for `graphrl optimize`), a folder of such files, or a set of graphs:
  layered:500x20        20 layered graphs of 500 ops, seeds 0 to 19; layered:500x20@100 has seeds 100 to 119
  regal-like:x20        20 random graphs as in the REGAL paper, of 50 to 200 ops; regal-like:100x20 of 100 ops
  kinds:100x20          20 graphs of many kinds, as agents train on; kinds-recurrent:100x20 only unrolled recurrences
  in-tree:100x20        20 trees of 100 ops; likewise out-tree, series-parallel, planted, and pipeline (for max_load)
  zoo:training/hlo      all compiled training steps of the model zoo. The words between slashes select programs: an
                        architecture, inference or training, a batch size (b8), jaxpr or hlo, train-split, valid-split
                        or test-split, a family (resnet-family); * and ? are wildcards

{methods_help(METHODS, KINDS)}"""

EXAMPLES = """examples:
  graphrl compare model.onnx --methods auto,list,brkga --seconds 30
      three methods on your model, 30 seconds each
  graphrl compare regal-like:x20 --objective makespan --devices 2 --methods auto,list,brkga,random --seeds 3 \\
      --evaluations 5000 --output runs.jsonl --plot quality.png --histogram hist.png --baseline brkga
      20 graphs and 3 seeds at 5,000 evaluations a run; a file of all runs, and two pictures
  graphrl compare graphs/ layered:500x20 --methods list,auto --processes 4 --json
      a folder and a generated set, four runs at a time, for a script

the table:
  Values are exact, and every plan is checked. A method's value on a graph is the mean over seeds. "gap" is to the best
  known value of the graph: the lowest over all methods, seeds and rows of the --output file, whatever their budgets.
  "to bound" is the gap to the highest known lower bound, "optimal" the share of runs that reach it. The methods with
  the lowest value on a graph win or tie it. Methods that ignore the budget (list, given, ...) take the time they need.

compilation:
  With --seconds, each method first runs for up to a second on each size of graph, so that its programs are compiled
  before the clock starts. A note under the table names methods that still compiled. --no-warm-up skips this.

parallel runs:
  --processes N also isolates runs: a method that crashes or runs out of memory then costs one run, not the comparison.
  --cluster takes the address of a Dask scheduler, for example tcp://10.0.0.5:8786. All machines need the same graphrl
  and the same checkpoints. Start the scheduler with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads
  1` (under `taskset` if several share a machine): each makes one run at a time, on all cores that it may use. If a
  method keeps Python's lock for more than 5 minutes, raise `distributed.scheduler.worker-ttl` of the scheduler, which
  would otherwise remove the worker.

files:
  --output resumes a stopped comparison: runs in the file are not repeated if graph, problem, method, seed and budget
  are equal (with --seconds also cores and warm-up). To add methods, seeds or graphs, give the larger set.
  A file that cannot be read is left out: a line on standard error names it, and so does "unreadable" of --json.

Ctrl-C or SIGTERM ends the comparison and prints the finished runs. Exit codes: 0 done, 1 failed (also: interrupted, a
file left out, or no run gave a plan), 2 wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="file, folder or set of graphs, see above")
    add_problem(parser.add_argument_group("problem"))
    add_runs(parser, "methods to compare, for example auto,list,brkga", required=True)
    add_model(parser)
    add_common(parser, seed="first seed of --seeds (default: 0)")


def add_runs(parser: Any, methods: str, *, required: bool = False, **budget: str) -> None:
    """Adds the options for methods, seeds, budget (see `add_budget`) and output files, which `run` reads.

    Args:
      parser: parser to add them to.
      methods: help text of --methods.
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
        help="number of seeds, counted from --seed, or a list such as 0,1,5 (default: 1)",
    )
    add_budget(search, scope=" of each run", clock="after the warm-up", **budget)
    search.add_argument(
        "--warm-up",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --seconds, compile before the clock starts (default: yes)",
    )
    search.add_argument(
        "--processes",
        type=integer,
        default=1,
        metavar="N",
        help="number of parallel runs, each with its share of the cores (default: 1)",
    )
    search.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="use the workers of this Dask scheduler instead, for example tcp://10.0.0.5:8786",
    )
    files = parser.add_argument_group("files to write")
    files.add_argument(
        "--output", metavar="FILE", help="a row for each run, as JSON lines; runs in it are not repeated"
    )
    files.add_argument("--retry", action="store_true", help="repeat the runs that failed according to --output")
    files.add_argument("--plot", metavar="FILE", help="quality against time: .png, .svg or .pdf")
    files.add_argument("--histogram", metavar="FILE", help="improvements over --baseline: .png, .svg or .pdf")
    files.add_argument("--baseline", metavar="M", help="method that --histogram compares with (default: the first)")


def run(args: argparse.Namespace, names: Mapping[str, str] | None = None) -> int:
    """Runs the comparison and prints its tables; returns the exit code.

    Args:
      args: parsed options of `add_arguments`.
      names: short names for tables and pictures, by full method name; rows of --output have full names.
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
        prepare=enable_compilation_cache,
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
    """Creates the runs of the options; also returns the number of workers, and errors of unreadable files by path.

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
        raise ProblemError(
            f"--baseline is {args.baseline!r}: must be one of --methods {clipped(', '.join(args.methods))}"
        )
    workers, cores = args.processes, share(args.processes)
    if args.cluster is not None and workers > 1:
        raise ProblemError("--processes does not go with --cluster, which uses all workers: leave one of them out")
    outputs = {"--output": args.output, "--plot": args.plot, "--histogram": args.histogram}
    check_json_name("--output", args.output, ending=".jsonl")
    check_outputs(outputs, *(file for model in args.models for file in model_files(model)))
    check_pictures(args.plot, args.histogram)
    if args.cluster is not None:
        workers, cores = survey(args.cluster)
    reading = {"chip": args.chip, "dims": dict(args.dim), "limits": args.read_limits}
    graphs, unreadable = readable(lambda left_out: load_graphs(args.models, **reading, left_out=left_out))
    problem = problem_of(args, _machine(args, [graph.machine for graph in graphs]))
    runs = make_runs(graphs, problem, args.methods, seeds, budget, cores=cores, warm_up=args.warm_up)
    return runs, workers, unreadable


def seeds_of(args: argparse.Namespace) -> Sequence[int]:
    """Returns the seeds that --seed and --seeds select.

    Raises:
      ProblemError: there are no seeds, or one is out of range.
    """
    seeds = range(args.seed, args.seed + args.seeds) if isinstance(args.seeds, int) else args.seeds
    if not seeds:
        raise ProblemError("--seeds names no seed: write a number such as 3, or a list such as 0,1,5")
    for seed in (args.seed, *seeds[:1], *seeds[-1:], *seeds):
        check_seed(seed)
    return seeds


def readable(load: Callable[["LeftOut"], T]) -> tuple[T, dict[str, str]]:
    """Loads the readable graphs; prints and returns the errors of unreadable files, by path.

    Args:
      load: function that returns graphs, and calls its argument with each file left out and its error, as
        `load_graphs`.

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
    """Returns the machine that all graphs define; None if they define different ones.

    Raises:
      ProblemError: they name different machines, and the problem needs one.
    """
    if len(set(machines)) == 1:
        return machines[0]
    if args.objective == "max_load" and args.devices is None:
        raise ProblemError("the graphs' files name different machines: give --devices, --cpus and --memory-limit")
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
        print(f"graphrl: interrupted: {len(comparison.rows)} of {runs} runs done", file=sys.stderr)
        return 1
    if not any(row.feasible for row in comparison.rows):
        reason = next((row.error for row in comparison.rows if row.error), "no plan is within the memory limit")
        print(f"graphrl: error: no run gave a plan: {reason}", file=sys.stderr)
        return 1
    return 0


def _methods(text: str) -> tuple[str, ...]:
    """Parses --methods with `split_methods`, and checks that methods are distinct."""
    methods = split_methods(text)
    repeated = [name for name in methods if methods.count(name) > 1]
    if repeated:
        raise ProblemError(f"{text!r} names {repeated[0]} twice: name each method once")
    if not methods:
        raise ProblemError(f"{text!r} names no method: write for example auto,list,brkga")
    return tuple(methods)


def _seeds(text: str) -> int | tuple[int, ...]:
    """Parses --seeds: one number is the number of seeds; numbers with commas are the seeds."""
    if "," not in text:
        count = parse_integer(text)
        if not 1 <= count <= 10_000:
            raise ProblemError(f"{count} seeds: must be from 1 to 10000; for this seed alone, write --seed {count}")
        return count
    return tuple(dict.fromkeys(parse_integer(part) for part in text.split(",") if part.strip()))
