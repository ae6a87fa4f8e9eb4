"""`graphrl bench`: throughput of environments, decoders, memory maps, networks and the search on this machine."""

import argparse
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from graphrl.commands.common import check_outputs, integer, option
from graphrl.commands.progress import case_bar
from graphrl.errors import GraphrlError
from graphrl.files import make_folder, write_atomically
from graphrl.optimize import check_seed
from graphrl.process import count_cores
from graphrl.units import parse_integer

if TYPE_CHECKING:
    from graphrl.bench.cases import Measured, Settings

DESCRIPTION = """Measure the throughput of environments, decoders, maps, networks or the search on this machine.

  --envs       steps a second of Proposal-v0 (each evaluates the proposals of a BRKGA run) in several parallel
               environments, compared with run_batch on the same graphs
  --orders     orders a second that the decoders (greedy, 16 samples, a beam of 16) make for batches of layered
               graphs, compared with random-priority orders; up to 512 ops also updates a second of Topoformer
  --maps       memory maps made valid and evaluated a second, on ResNet-50 (57 ops), ResNet-101 (108), BERT (376) and
               layered graphs (other sizes), compared with the compiled host code; up to 64 ops also generations of
               EGRL
  --decisions  decisions a second of GO's network: a device and a priority for every op of layered graphs, on 8
               devices; up to 1,000 ops also updates of its policy
  (none)       evaluations a second of the search: decoding and costing of 100 chromosomes, on CPUs also in pure JAX,
               and BRKGA runs of about 5,000 evaluations, on random graphs of three families on two devices; the
               first lines are of one graph and of a batch of 64"""

EXAMPLES = """examples:
  graphrl bench --envs 1,8,64 --sizes 128,512
      steps a second of 1, 8 and 64 parallel environments, on graphs of 128 and 512 ops
  graphrl bench
      evaluations a second of the search, on all cores
  graphrl bench --threads 1 --sizes 512 --transfers free
      the same on one core, for one size
  graphrl bench --orders --threads 1 --output results
      orders a second, with results/bench.jsonl and a picture
  graphrl bench --maps 22,256 --threads 1
  graphrl bench --decisions --sizes 1000,10000,50000 --threads 1

measurement: programs take turns, a sample takes 0.2 s or more, rates are of the median sample. With one thread the
process is pinned to a core and CPU time counts, else wall time. With more threads, each has a host device and its share
of the graphs. Compile seconds are without a cache, "cached" those of a second process with one. Costs are compared
before anything is timed."""


class Kind(NamedTuple):
    """A benchmark that takes batch sizes (all but that of the search)."""

    bench: str  # the `Bench`, by name
    counts: tuple[int, ...]  # default batch sizes
    sizes: tuple[int, ...]  # default numbers of ops of graphs
    batch: str  # that is measured, for the help
    refused: tuple[str, ...] = ("graphs", "transfers")  # options that it does not take


KINDS = {
    "envs": Kind("graphrl.bench.envs:ENVS", (1, 4, 16, 64), (128,), "parallel environments", ("graphs",)),
    "orders": Kind("graphrl.bench.policies:ORDERS", (1, 4, 16), (128, 512, 2048), "graphs in a batch of the decoders"),
    "maps": Kind("graphrl.bench.maps:MAPS", (1, 22, 256, 4096), (57, 108, 376, 2000), "memory maps in a batch"),
    "decisions": Kind("graphrl.bench.policies:DECISIONS", (1,), (1000, 10_000), "graphs in a batch of GO's network"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    defaults = "; ".join(f"--{name}: {','.join(map(str, kind.sizes))}" for name, kind in KINDS.items())
    parser.add_argument(
        "--sizes",
        type=option(_numbers),
        metavar="N,...",
        help=f"ops of the graphs (default: 64,128,512,2048; {defaults})",
    )
    parser.add_argument("--threads", type=integer, metavar="N", help="number of CPU threads (default: all cores)")
    parser.add_argument("--repeats", type=integer, metavar="N", help="samples for each rate (default: 5; --quick: 2)")
    parser.add_argument(
        "--graphs",
        type=integer,
        default=0,
        metavar="N",
        help="graphs in a batch, except in the first lines (default: 3 a thread)",
    )
    parser.add_argument(
        "--transfers",
        type=_names,
        metavar="T,...",
        help="transfers (default: free,rendezvous,link; --envs: rendezvous)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="two cases for each size and short samples, as a check that it works"
    )
    parser.add_argument("--output", metavar="DIR", help="write bench.jsonl and bench.png into this folder")
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    others = parser.add_mutually_exclusive_group()
    for name, kind in KINDS.items():
        text = f"numbers of {kind.batch} (default: {','.join(map(str, kind.counts))})"
        others.add_argument(
            f"--{name}", type=option(_numbers), nargs="?", const=kind.counts, metavar="N,...", help=text
        )


def run(args: argparse.Namespace) -> int:
    """Runs the benchmarks and prints their tables; returns the exit code."""
    # jax is imported here at the earliest, and initialises devices only after `measure` has set their number
    from graphrl.bench.report import json_lines

    name = next((name for name in KINDS if getattr(args, name) is not None), None)
    settings = _settings(args, name)
    folder = None if args.output is None else _folder(args.output)
    measured = _measured(settings, name, () if name is None else getattr(args, name))
    rows: list[Measured] = []
    interrupted = False
    try:
        with case_bar(measured.cases) as report:
            for case in measured.rows(report):
                rows += case
                if args.json:
                    print(json_lines(case), end="", flush=True)
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    if not args.json:
        measured.print(rows)
    if folder is not None:
        write_atomically(folder / "bench.jsonl", lambda file: file.write(json_lines(rows)))
        write_atomically(folder / "bench.png", lambda file: measured.plot(rows, file), binary=True)
    if interrupted:
        print("graphrl: interrupted: these are the cases so far", file=sys.stderr)
    return int(interrupted)


class _Measured(NamedTuple):
    """A benchmark with its settings: how to run it, and how to print and draw its result."""

    cases: int
    rows: Callable[[Callable[[str], None]], Iterator[list[Any]]]  # measures; takes a callback for progress
    print: Callable[[Any], None]
    plot: Callable[[Any, IO[bytes]], None]


def _measured(settings: "Settings", name: str | None, counts: tuple[int, ...]) -> _Measured:
    """Selects the benchmark of the search, or one of `KINDS` by name with the batch sizes `counts`."""
    if name is not None:
        bench = pkgutil.resolve_name(KINDS[name].bench)
        cases = len(settings.sizes) * len(counts)
        return _Measured(
            cases, lambda report: bench.measure(settings, counts, report), bench.table.print, bench.table.plot
        )
    from graphrl.bench.measure import measure
    from graphrl.bench.report import print_table, write_plot

    return _Measured(len(list(settings.cases())), lambda report: measure(settings, report), print_table, write_plot)


def _settings(args: argparse.Namespace, name: str | None) -> "Settings":
    """Reads the settings of a benchmark from the command line.

    Raises:
      GraphrlError: the benchmark does not take one of the options.
      ProblemError: a value is out of range.
    """
    from graphrl.bench.cases import Settings

    check_seed(args.seed)
    if name is not None:
        for other in KINDS[name].refused:
            if getattr(args, other):
                raise GraphrlError(f"--{other} does not go with --{name}: leave it out")
        args.sizes = KINDS[name].sizes if args.sizes is None else args.sizes
    if name == "envs" and args.transfers is None:
        args.transfers = ("rendezvous",)
    quick = {"repeats": 2, "seconds": 0.02, "evaluations": 400} if args.quick else {}
    options = {"sizes": args.sizes, "repeats": args.repeats, "transfers": args.transfers}
    return Settings(
        threads=count_cores() if args.threads is None else args.threads,
        graphs=args.graphs,
        quick=args.quick,
        seed=args.seed,
        **{**quick, **{name: value for name, value in options.items() if value is not None}},
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
