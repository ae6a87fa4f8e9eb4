"""`graphrl bench`: throughput of environments, decoders, memory maps, networks and the search on this machine."""

import argparse
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graphrl.commands.common import check_outputs, integer, option, seconds
from graphrl.commands.progress import titles_bar
from graphrl.errors import GraphrlError
from graphrl.files import make_folder, write_atomically
from graphrl.optimize import check_seed
from graphrl.process import count_cores
from graphrl.units import parse_integer

if TYPE_CHECKING:
    from graphrl.bench.cases import Settings
    from graphrl.bench.report import Table
    from graphrl.bench.timing import Limit

DESCRIPTION = """Measure the throughput of environments, decoders, maps, networks or the search on this machine.

  ENV...       steps a second of environments (Ordering-v0, MemoryMap-v0, Compile-v0, Proposal-v0, Sharding-v0)
               against the number of parallel environments: with random valid actions, and with the actions of the
               environment's agent (the untrained network of topoformer, egrl, go or regal); on CPUs also in pure
               JAX; --models takes your graphs, --policies gymnasium measures the adapter
  --orders     orders a second that the decoders (greedy, 16 samples, a beam of 16) make for batches of layered
               graphs, compared with random-priority orders; up to 512 ops also updates a second of Topoformer
  --maps       memory maps made valid and evaluated a second, on ResNet-50 (57 ops), ResNet-101 (108), BERT (376) and
               layered graphs (other sizes), compared with the compiled host code; up to 64 ops also generations of
               EGRL
  --decisions  decisions a second of GO's network: a device and a priority for every op of layered graphs, on 8
               devices; up to 1,000 ops also updates of its policy
  (none)       evaluations a second of the search: decoding and costing of 100 chromosomes, on CPUs also in pure JAX,
               and BRKGA runs of about 5,000 evaluations, on random graphs of three families on two devices; the
               first lines are of one graph and of a batch of 64

Lines are printed as soon as they are measured, the most telling ones first. Of environments and of the search, what
would take more than 3 minutes (--seconds) is left out, and a last line counts it; --all measures everything."""

EXAMPLES = """examples:
  graphrl bench --envs all
      steps a second of all environments, in 3 minutes
  graphrl bench Ordering-v0 Compile-v0 --sizes 128 --counts 1,64,1024
      steps a second of 1, 64 and 1,024 parallel environments, on graphs of 128 ops
  graphrl bench Compile-v0 --models model.onnx,zoo:resnet50/training/b8/hlo --policies random,gymnasium
      on graphs of your own, also through gymnasium's adapter (one environment, or a vector environment)
  graphrl bench Ordering-v0 --policies random --all --threads 1 --output results
      all sizes and numbers of environments on one core, with results/bench.jsonl and a picture
  graphrl bench
      evaluations a second of the search, on all cores
  graphrl bench --threads 1 --sizes 512 --transfers link
      the same on one core, for one size and another transfer model
  graphrl bench --orders --threads 1 --output results
  graphrl bench --maps 22,256 --threads 1
  graphrl bench --decisions --sizes 1000,10000,50000 --threads 1

environments: graphs are random ones of three families, up to 64 different ones in turns, those of MemoryMap-v0 EGRL's
workload with about that number of ops (ResNet-50, ResNet-101, BERT) or layered graphs. Sharding-v0 takes sharding
problems, by default random models of layers; it has no agent. Options of the environments are their defaults. A call is
a scan of up to 64 steps from the start of an episode; resets are not timed. With Topoformer, whose network runs once an
episode, a call is that and the whole episode. Cells whose call would take more than 4 s or whose batch exceeds the
memory are marked.

measurement: programs take turns, a sample takes 0.2 s or more, rates are of the median sample. With one thread the
process is pinned to a core and CPU time counts, else wall time. With more threads, each has a host device and its share
of the graphs. Compile seconds are without a cache, "cached" those of a second process with one. Costs are compared
before anything is timed."""

SECONDS = 180.0  # default time limit of environments and of the search
ENVIRONMENTS = "ENV..."  # the kind of benchmark that environments are
SIZES = (64, 512, 2048)  # default ops of graphs of environments
SEARCH_SIZES, SEARCH_TRANSFERS = (64, 512), ("free",)  # of the search, without --all


class Kind(NamedTuple):
    """A benchmark that takes batch sizes (all but that of the search)."""

    bench: str  # the `Bench`, by name
    counts: tuple[int, ...]  # default batch sizes
    sizes: tuple[int, ...]  # default numbers of ops of graphs
    batch: str  # that is measured, for the help


KINDS = {
    "orders": Kind("graphrl.bench.policies:ORDERS", (1, 4, 16), (128, 512, 2048), "graphs in a batch of the decoders"),
    "maps": Kind("graphrl.bench.maps:MAPS", (1, 22, 256, 4096), (57, 108, 376, 2000), "memory maps in a batch"),
    "decisions": Kind("graphrl.bench.policies:DECISIONS", (1,), (1000, 10_000), "graphs in a batch of GO's network"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("ids", metavar="ENV", nargs="*", help="environments to measure, such as Ordering-v0")
    envs = parser.add_argument_group("environments")
    envs.add_argument("--envs", nargs="?", const="all", metavar="ENV,...", help="environments to measure; all: all")
    envs.add_argument(
        "--counts", type=option(_numbers), metavar="N,...", help="parallel environments (default: 1,16,256,4096)"
    )
    text = "policies: random, network, gymnasium (default: random,network)"
    envs.add_argument("--policies", type=_names, metavar="P,...", help=text)
    text = "files or names of models to measure instead of random graphs; save a JAX function's as graph JSON"
    envs.add_argument("--models", type=_names, metavar="MODEL,...", help=text)
    others = parser.add_argument_group("other benchmarks").add_mutually_exclusive_group()
    for name, kind in KINDS.items():
        text = f"numbers of {kind.batch} (default: {','.join(map(str, kind.counts))})"
        others.add_argument(
            f"--{name}", type=option(_numbers), nargs="?", const=kind.counts, metavar="N,...", help=text
        )
    search = parser.add_argument_group("the search")
    search.add_argument(
        "--graphs", type=integer, metavar="N", help="graphs in a batch, except in the first lines (default: 3 a thread)"
    )
    text = "transfer models (default: free; --all: free,rendezvous,link)"
    search.add_argument("--transfers", type=_names, metavar="T,...", help=text)
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all benchmarks."""
    defaults = "; ".join(f"--{name}: {','.join(map(str, kind.sizes))}" for name, kind in KINDS.items())
    parser.add_argument(
        "--sizes",
        type=option(_numbers),
        metavar="N,...",
        help=f"ops of the graphs (default: 64,512; --all: 64,128,512,2048; environments: 64,512,2048; {defaults})",
    )
    limits = parser.add_mutually_exclusive_group()
    text = "time limit: cases that would take longer are left out (default: 3min; --orders, --maps, --decisions: none)"
    limits.add_argument("--seconds", type=seconds, metavar="TIME", help=text)
    limits.add_argument("--all", action="store_true", help="measure all cases, without a time limit")
    parser.add_argument("--threads", type=integer, metavar="N", help="number of CPU threads (default: all cores)")
    text = "samples for each rate (default: 5; environments: 3; --quick: 2)"
    parser.add_argument("--repeats", type=integer, metavar="N", help=text)
    parser.add_argument("--quick", action="store_true", help="few cases and short samples, as a check that it works")
    parser.add_argument("--output", metavar="DIR", help="write bench.jsonl and bench.png into this folder")
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")


def run(args: argparse.Namespace) -> int:
    """Runs the benchmarks and prints their tables; returns the exit code."""
    # jax is imported here at the earliest, and initialises devices only after `measure` has set their number
    from graphrl.bench.report import json_lines
    from graphrl.bench.timing import Limit

    name = _kind(args)
    settings = _settings(args, name)
    default = None if args.all or name in KINDS else SECONDS
    limit = Limit(default if args.seconds is None else args.seconds)
    bench = _benchmark(args, name, settings)
    folder = None if args.output is None else _folder(args.output)
    rows: list[Any] = []
    interrupted, show = False, bench.table.printer()
    try:
        with titles_bar(bench.titles, lambda: limit.left) as report:
            for case in bench.measure(limit, report):
                rows += case
                if args.json:
                    print(json_lines(case), end="", flush=True)
                else:
                    show(bench.lines(case))
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    if not args.json:
        bench.finish(rows)
    if folder is not None:
        write_atomically(folder / "bench.jsonl", lambda file: file.write(json_lines(rows)))
        write_atomically(folder / "bench.png", lambda file: bench.table.plot(rows, file), binary=True)
    if limit.left_out:
        text = f"{limit.left_out} of {len(bench.titles)} cases were left out for time: --all measures all"
        print(f"graphrl: {text}, --seconds sets another limit", file=sys.stderr)
    if interrupted:
        print("graphrl: interrupted: these are the cases so far", file=sys.stderr)
    return int(interrupted)


class _Benchmark(NamedTuple):
    """A benchmark with its settings."""

    titles: list[str]  # of all cases
    measure: Callable[["Limit", Callable[[str], None]], Iterator[list[Any]]]  # takes a callback for progress
    table: "Table"
    lines: Callable[[list[Any]], list[Any]] = lambda rows: rows  # rows of a case -> rows of the table
    finish: Callable[[list[Any]], None] = lambda rows: None  # prints what is known at the end


def _benchmark(args: argparse.Namespace, name: str | None, settings: "Settings") -> _Benchmark:
    """Selects the benchmark of environments, one of `KINDS` by name, or that of the search."""
    if name == ENVIRONMENTS:
        from graphrl.bench.steps import COUNTS, DEFAULT_POLICIES, Steps

        counts = args.counts if args.counts is not None else COUNTS[1:2] if args.quick else COUNTS
        policies = DEFAULT_POLICIES if args.policies is None else args.policies
        steps = Steps(settings, _ids(args), counts, policies, args.models or ())
        return _Benchmark(steps.titles, steps.measure, steps.table)
    if name is not None:
        bench, counts = pkgutil.resolve_name(KINDS[name].bench), getattr(args, name)
        titles = bench.titles(settings, counts)
        return _Benchmark(titles, lambda *rest: bench.measure(settings, counts, *rest), bench.table)
    from graphrl.bench.measure import case_title, measure
    from graphrl.bench.report import SEARCH_TABLE, print_shares

    titles = [case_title(case) for case in settings.cases()]
    return _Benchmark(titles, lambda *rest: measure(settings, *rest), SEARCH_TABLE, lambda rows: [rows], print_shares)


def _kind(args: argparse.Namespace) -> str | None:
    """Returns the kind of benchmark that the arguments ask for; None is that of the search.

    Raises:
      GraphrlError: they ask for two, or it does not take one of the options.
    """
    other = next((name for name in KINDS if getattr(args, name) is not None), None)
    is_envs = bool(args.ids) or args.envs is not None
    if is_envs and other:
        raise GraphrlError(f"--{other} does not go with environments: leave one out")
    name = ENVIRONMENTS if is_envs else other
    refused = {ENVIRONMENTS: ("graphs", "transfers"), None: ("counts", "policies", "models")}
    for wrong in refused.get(name, ("graphs", "transfers", "counts", "policies", "models")):
        if getattr(args, wrong) is not None:
            raise GraphrlError(f"--{wrong} does not go with {_described(name)}: leave it out")
    if args.models is not None and args.sizes is not None:
        raise GraphrlError("--sizes does not go with --models, which have their own: leave one out")
    return name


def _described(name: str | None) -> str:
    return "environments" if name == ENVIRONMENTS else f"--{name}" if name else "the search"


def _ids(args: argparse.Namespace) -> tuple[str, ...]:
    """Returns the ids of the environments to measure.

    Raises:
      GraphrlError: --envs has numbers, which it took up to version 0.2.
    """
    from graphrl.bench.envs import ROLLOUTS

    names = _names(args.envs or "")
    if names and all(name.isdigit() for name in names):
        fault = f"as in `graphrl bench Proposal-v0 --counts {args.envs}`"
        raise GraphrlError(f"--envs is {args.envs}: must be names of environments, {fault}")
    if "all" in names:
        return tuple(id for id, rollouts in ROLLOUTS.items() if rollouts.takes_graphs or args.models is None)
    return tuple(dict.fromkeys((*args.ids, *names)))


def _settings(args: argparse.Namespace, name: str | None) -> "Settings":
    """Reads the settings of a benchmark from the command line.

    Raises:
      ProblemError: a value is out of range.
    """
    from graphrl.bench.cases import Settings

    check_seed(args.seed)
    quick = {"repeats": 2, "seconds": 0.02, "evaluations": 400} if args.quick else {}
    defaults: dict[str, Any] = {"repeats": 3} if name == ENVIRONMENTS else {}
    if name in KINDS:
        defaults["sizes"] = KINDS[name].sizes
    elif name == ENVIRONMENTS:
        defaults["sizes"] = SIZES[:1] if args.quick else SIZES
    elif not args.all:
        defaults |= {"sizes": SEARCH_SIZES, "transfers": SEARCH_TRANSFERS}
    options = {"sizes": args.sizes, "repeats": args.repeats, "transfers": args.transfers, "graphs": args.graphs}
    return Settings(
        threads=count_cores() if args.threads is None else args.threads,
        quick=args.quick,
        seed=args.seed,
        **{**defaults, **quick, **{name: value for name, value in options.items() if value is not None}},
    )


def _folder(path: str) -> Path:
    """Creates the folder of the output files. Raises GraphrlError if nothing can be written there."""
    folder = make_folder(path)
    check_outputs({name: str(folder / name) for name in ("bench.jsonl", "bench.png")}, os.devnull)
    return folder


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(parse_integer(part) for part in _names(text))


def _names(text: str) -> tuple[str, ...]:
    """Splits a comma-separated list of names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
