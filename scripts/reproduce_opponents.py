"""Every classical method on the same graphs at the same times: the tables and pictures of docs/systems/opponents.md.

sections:
  dags      makespan of random DAGs (REGAL's generator as we document it, four models in turn) under each transfer
            model on 2 and 4 devices
  layered   peak memory of layered graphs (Topoformer's generator) of 500, 1,000 and 2,000 ops
  optima    known optima: the share of 50-op graphs that CP-SAT closes, auto's gap to proven optima, trees and
            series-parallel graphs, small graphs against exact dynamic programming
  annealing annealing against a compiled yardstick (--yardstick), auto against approximate dynamic programming, on
            layered graphs of 500 and 1,000 ops
  scale     graphs of 10,000 and 100,000 ops read, planned and written

Writes to --out: runs.jsonl with a row a run (a stopped run goes on where it was), a Markdown file a section, and
pictures of quality against time and of improvements over BRKGA. Everything takes days on two cores: --sections,
--graphs, --times and --methods make it shorter, and --quick only looks whether everything works.

  python scripts/reproduce_opponents.py --sections layered --graphs 4 --times 1,10
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from opponents import annealing, optima, scale, tables
from opponents.sections import check_known, make_parser, make_sections, parse_arguments, parse_times
from opponents.settings import Settings

from graphrl.solvers import find_solver

# what a section makes, and the methods that it needs
SECTIONS: dict[str, tuple[Callable[[Settings], Iterator[str]], tuple[str, ...]]] = {
    "dags": (tables.dags, tables.PLACERS),
    "layered": (tables.layered, tables.ORDERERS),
    "optima": (optima.optima, optima.METHODS),
    "annealing": (annealing.annealing, annealing.METHODS),
    "scale": (scale.scale, scale.METHODS),
}


def main() -> None:
    """Makes the sections; bad input is one line on standard error and exit code 1."""
    make_sections(_arguments(), _settings, {name: made for name, (made, _) in SECTIONS.items()})


def _arguments() -> argparse.Namespace:
    parser = make_parser(str(__doc__), SECTIONS, "1,10,60", "leave out all others", "out/opponents")
    parser.add_argument("--graphs", type=int, default=20, metavar="N", help="in each table (default: 20)")
    parser.add_argument(
        "--first", type=int, default=0, metavar="SEED", help="of the first graph; 0-3 chose auto's rule (default: 0)"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of each method on each graph (default: 1)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--quick", action="store_true", help="2 small graphs, 0.2 and 0.5 s: does everything work?")
    parser.add_argument("--yardstick", type=Path, metavar="CPP", help="compiled annealing to compare with")
    return parse_arguments(parser, SECTIONS)


def _settings(args: argparse.Namespace) -> Settings:
    """
    Raises:
      GraphrlError: --times are no numbers, or a method is unknown.
    """
    times = (0.2, 0.5) if args.quick else parse_times(args.times)
    graphs = 2 if args.quick else args.graphs
    found = Settings(
        graphs,
        args.first,
        times,
        args.methods,
        args.seeds,
        args.processes,
        args.out,
        args.quick,
        args.retry,
        args.yardstick,
    )
    methods = [method for section in args.sections for method in SECTIONS[section][1]]
    check_known("method", args.methods or (), dict.fromkeys(methods))
    for method in found.among(methods):
        find_solver(method)
    return found


if __name__ == "__main__":
    main()
