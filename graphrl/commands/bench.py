"""`graphrl bench`: evaluations a second on this machine."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from graphrl.commands.common import check_outputs, option
from graphrl.commands.progress import case_bar
from graphrl.errors import GraphrlError
from graphrl.files import make_folder, write_atomically
from graphrl.optimize import check_seed
from graphrl.process import count_cores
from graphrl.units import whole_number

if TYPE_CHECKING:
    from graphrl.bench.cases import Settings
    from graphrl.bench.measure import Yardstick
    from graphrl.costs.problem import Transfer

DESCRIPTION = """Measure the throughput of the search on this machine: decoding and costing populations of 100
chromosomes, and whole BRKGA runs of about 5,000 evaluations a graph, on random graphs of three families
and 2 to 3 edges an op, on two devices, beside the same in numba, as an expert would write it for a CPU.
The first lines are of one graph and of 64 at once. scripts/bench.py of the repository has a plain JAX version too.

With --envs, the throughput of an environment instead: steps of Proposal-v0 a second (the proposals of a BRKGA
run, evaluated) for numbers of environments at once, against run_batch on the same graphs.

With --orders, that of the decoders of priorities: complete orders a second of layered graphs (greedy, 16 samples,
a beam of 16) for numbers of graphs at once, against drawing random-priority orders; and, up to 512 ops, of updates
of Topoformer's policy, each from several orders a graph.

With --maps, that of memory maps: maps made valid and costed a second on ResNet-50 (57 ops), ResNet-101 (108), BERT
(376) and layered graphs (all other sizes), for numbers of maps at once, against the compiled host engine; and, up to
64 ops, of generations of EGRL.

With --decisions, that of GO's network: decisions a second of device and priority of every op of layered graphs, on 8
devices, for numbers of graphs at once; and, up to 1,000 ops, of updates of its policy."""

HOW = """how it is measured: programs take turns, samples last about 0.2 s or more, rates are by the median sample.
With one thread the process is pinned to one core and CPU time counts, else wall time. With more threads,
each has a host device of its own and its share of the graphs. Compile seconds are without a cache;
"cached" are those of a second process with one. Costs are compared before anything is timed."""

EXAMPLES = f"""{HOW}

examples:
  graphrl bench
  graphrl bench --threads 1 --sizes 512 --transfers free
  graphrl bench --envs 1,8,64 --sizes 128,512
  graphrl bench --orders --threads 1 --output results
  graphrl bench --maps 22,256 --threads 1
  graphrl bench --decisions --sizes 1000,10000,50000 --threads 1"""


class _Kind(NamedTuple):
    """What is measured in place of the search, by `measure_KIND` and its like of bench/KIND.py."""

    what: str
    counts: tuple[int, ...]  # at once, by default
    sizes: tuple[int, ...]  # ops of graphs, by default
    measures: str  # for messages


_KINDS = {
    "envs": _Kind("an environment, so many", (1, 4, 16, 64), (128,), "Proposal-v0 alone"),
    "orders": _Kind(
        "the decoders of orders and learning, so many graphs", (1, 4, 16), (128, 512, 2048), "decoders on one device"
    ),
    "maps": _Kind(
        "memory maps and EGRL, so many maps", (1, 22, 256, 4096), (57, 108, 376, 2000), "memory maps on one chip"
    ),
    "decisions": _Kind(
        "GO's network and its learning, so many graphs", (1,), (1000, 10_000), "GO's network on 8 devices"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    add_options(parser)
    others = parser.add_mutually_exclusive_group()
    for name, kind in _KINDS.items():
        text = f"measure {kind.what} at once ({','.join(map(str, kind.counts))})"
        numbers = option(_numbers)
        others.add_argument(f"--{name}", type=numbers, nargs="?", const=kind.counts, metavar="N,...", help=text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says what is measured of the search, and how; `run` reads it."""
    number = option(whole_number)
    parser.add_argument(
        "--sizes",
        type=option(_numbers),
        metavar="N,...",
        help="ops of graphs (default: 64,128,512,2048; --envs: 128; --orders: 128,512,2048; --maps: 57,108,376,2000; "
        "--decisions: 1000,10000)",
    )
    parser.add_argument("--threads", type=number, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--repeats", type=number, metavar="N", help="samples of each method (default: 5; --quick: 2)")
    parser.add_argument(
        "--graphs", type=number, default=0, metavar="N", help="at once, but in the headline (default: 3 a thread)"
    )
    parser.add_argument(
        "--transfers", type=_names, metavar="T,...", help="default: free,rendezvous,link; --envs: rendezvous"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two cases a size and short samples: does everything work?"
    )
    parser.add_argument("--output", metavar="DIR", help="write bench.jsonl and bench.png there")
    parser.add_argument("--seed", type=number, default=0, metavar="N", help="of everything random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON lines, for machines, in place of a table")
    parser.set_defaults(**dict.fromkeys(_KINDS))


def run(args: argparse.Namespace, yardsticks: Mapping[str, "Yardstick"] = {}) -> int:
    """Measures; returns the exit code.

    Args:
      args: of `add_options`.
      yardsticks: what to measure the search against, beside numba, by name.
    """
    # jax is imported here at the earliest, and looks for devices only once `measure` has said how many there are
    from graphrl.bench.report import json_lines

    settings = _settings(args)
    folder = None if args.output is None else _folder(args.output)
    measured = _measured(settings, args, yardsticks)
    rows: list[Any] = []
    interrupted = False
    try:
        with case_bar(measured.cases) as say:
            for case in measured.rows(say):
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
        print("graphrl: interrupted: these are the cases until then", file=sys.stderr)
    return int(interrupted)


class _Measured(NamedTuple):
    """What is measured, and how it is shown."""

    cases: int
    rows: Callable[[Callable[[str], None]], Iterator[list[Any]]]  # measures; takes what shows how far it is
    print: Callable[[Any], None]
    plot: Callable[[Any, IO[bytes]], None]


def _kind(args: argparse.Namespace) -> str | None:
    """What is measured; None for the search."""
    return next((name for name in _KINDS if getattr(args, name) is not None), None)


def _measured(settings: "Settings", args: argparse.Namespace, yardsticks: Mapping[str, "Yardstick"]) -> _Measured:
    """How that is measured and shown."""
    kind = _kind(args)
    if kind is None:
        from graphrl.bench.measure import measure
        from graphrl.bench.report import print_table, write_plot

        cases = len(list(settings.cases()))
        return _Measured(cases, lambda say: measure(settings, yardsticks, say), print_table, write_plot)
    module, counts = importlib.import_module(f"graphrl.bench.{kind}"), getattr(args, kind)
    measured, show, plot = (
        getattr(module, name) for name in (f"measure_{kind}", f"print_{kind}", f"write_{kind}_plot")
    )
    return _Measured(len(settings.sizes) * len(counts), lambda say: measured(settings, counts, say), show, plot)


def _settings(args: argparse.Namespace) -> "Settings":
    """
    Raises:
      GraphrlError: an option that does not go with --envs, --orders, --maps or --decisions.
      ProblemError: a value is out of range.
    """
    from graphrl.bench.cases import TRANSFERS, Settings

    check_seed(args.seed)
    kind = _kind(args)
    if kind is not None:
        for name in ("graphs",) if kind == "envs" else ("graphs", "transfers"):
            if getattr(args, name):
                raise GraphrlError(f"--{name} does not go with --{kind}, which measures {_KINDS[kind].measures}")
        args.sizes = _KINDS[kind].sizes if args.sizes is None else args.sizes
    transfers: tuple[Transfer, ...] = ("rendezvous",) if kind == "envs" else TRANSFERS
    quick = {"repeats": 2, "seconds": 0.02, "evaluations": 400} if args.quick else {}
    given = {"sizes": args.sizes, "repeats": args.repeats}
    return Settings(
        threads=count_cores() if args.threads is None else args.threads,
        graphs=args.graphs,
        transfers=transfers if args.transfers is None else args.transfers,
        quick=args.quick,
        seed=args.seed,
        **{**quick, **{name: value for name, value in given.items() if value is not None}},
    )


def _folder(path: str) -> Path:
    """The folder of the output files, made if there is none.

    Raises:
      GraphrlError: it is a file, or nothing can be written there.
    """
    folder = make_folder(path)
    files = {name: str(folder / name) for name in ("bench.jsonl", "bench.png")}
    check_outputs(files, os.devnull)
    return folder


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(whole_number(part) for part in _names(text))


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
