"""Makes a folder of random graphs: graph JSON files, and `manifest.json`, which describes how each was made.

Every graph is a function of its seed; seeds count up from --seed. Files are written whole or not at all. The manifest
is written last: a folder without one is incomplete, and the same command makes the same files again.

  python scripts/make_graphs.py layered --count 100 --ops 500 --out data/layered-500
  python scripts/make_graphs.py layered --count 100 --ops 500 --set cost_per=node --out data/layered-500-node
  python scripts/make_graphs.py regal-like --count 50 --room-filter 160 5000 --out data/regal-like
"""

import argparse
import ast
import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import graphrl
from graphrl.commands.parser import Parser
from graphrl.files import write_atomically
from graphrl.graphs.datasets.families import FAMILIES, Sample, full_options, sample

_BATCH = 64  # candidates that the filter compares together
_TRIES = 20  # most candidates in total, for each requested graph


def main() -> None:
    """Makes the graphs; bad input is one line on standard error and exit code 1."""
    args = _arguments()
    try:
        _make(args)
    except (graphrl.GraphrlError, OSError) as error:
        sys.exit(f"make_graphs: {error}")


def _arguments() -> argparse.Namespace:
    families = "\n".join(f"  {name}: {', '.join(family.options)}" for name, family in FAMILIES.items())
    parser = Parser(description=__doc__, epilog=f"families and their options, for --set:\n{families}")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--count", type=int, default=100, metavar="N", help="graphs to make (default: 100)")
    parser.add_argument(
        "--ops", type=int, metavar="N", help="ops of each graph (by default regal-like: 50 to 200, kinds: 30 to 2,000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first graph (default: 0)")
    parser.add_argument("--set", type=_option, action="append", default=[], metavar="NAME=VALUE", help="see below")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    room = parser.add_argument_group("keep only graphs that leave BRKGA room to improve, by makespan")
    room.add_argument("--room-filter", type=int, nargs=2, metavar=("LOW", "HIGH"), help="evaluations to compare")
    room.add_argument("--shorter", type=float, default=0.2, help="that HIGH must be (default: 0.2)")
    room.add_argument("--devices", type=int, default=2, help="(default: 2)")
    room.add_argument("--transfer", choices=("rendezvous", "free", "link"), default="rendezvous")
    room.add_argument("--memory-limit", type=int, metavar="BYTES", help="a device; LOW exceeds it, HIGH fits: kept too")
    return parser.parse_args()


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, {"true": True, "false": False}[value] if value in ("true", "false") else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _make(args: argparse.Namespace) -> None:
    options = full_options(args.family, dict(args.set))
    if args.count < 1:
        raise graphrl.ProblemError(f"--count is {args.count}: must be at least 1")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "manifest.json"
    path.unlink(missing_ok=True)
    entries = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{args.family} graphs", total=args.count)
        for graph, facts in _samples(args, options):
            graphrl.write_json(graph, args.out / f"{graph.name}.json")
            entries.append({"file": f"{graph.name}.json", **facts})
            bar.advance(task)
    manifest = {"family": args.family, "ops": args.ops, "options": options, **_filter(args), "graphs": entries}
    write_atomically(path, lambda file: file.write(json.dumps(manifest, indent=1, allow_nan=False) + "\n"))
    print(f"{args.out}: {len(entries)} graphs and manifest.json")


def _samples(args: argparse.Namespace, options: dict[str, Any]) -> Iterator[Sample]:
    """Generates the graphs of the folder, each with its entry for the manifest."""
    if args.room_filter:
        yield from _with_room(args, options)
        return
    for seed in range(args.seed, args.seed + args.count):
        graph, facts = sample(args.family, args.ops, seed, options)
        yield graph, {"seed": seed, **facts}


def _with_room(args: argparse.Namespace, options: dict[str, Any]) -> Iterator[Sample]:
    from graphrl.files import enable_compilation_cache
    from graphrl.graphs.padding import common_sizes
    from graphrl.solvers.chromosomes.room_filter import room_to_improve

    enable_compilation_cache()
    problem = graphrl.Problem("makespan", args.devices, args.transfer, memory_limit=args.memory_limit)
    low, high = args.room_filter
    sizes, kept, tries = None, 0, _TRIES * max(_BATCH, args.count)
    for first in range(args.seed, args.seed + tries, _BATCH):
        seeds = range(first, first + _BATCH)
        graphs, facts = zip(*(sample(args.family, args.ops, seed, options) for seed in seeds), strict=True)
        if sizes is None or not sizes.covers(common_sizes(graphs)):  # else the program of the last batch is reused
            sizes = common_sizes(graphs)
        room = room_to_improve(graphs, seeds, problem, low, high, args.shorter, sizes=sizes)
        for i in room.kept.nonzero()[0].tolist():
            if kept < args.count:
                low_found = float(room.low[i]) if math.isfinite(room.low[i]) else None  # above the memory limit
                yield graphs[i], {"seed": seeds[i], **facts[i], "low": low_found, "high": float(room.high[i])}
                kept += 1
        if kept >= args.count:
            return
    raise graphrl.ProblemError(f"the filter kept {kept} of {tries}: choose other limits")


def _filter(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the manifest's entry for --room-filter."""
    if not args.room_filter:
        return {}
    from graphrl.solvers.chromosomes.brkga import Parameters

    low, high = args.room_filter
    limits = {"low_evaluations": low, "high_evaluations": high, "shorter": args.shorter}
    hardware = {"devices": args.devices, "transfer": args.transfer, "memory_limit": args.memory_limit}
    return {"room_filter": limits | hardware | {"brkga": dataclasses.asdict(Parameters()), "brkga_seed": "the graph's"}}


if __name__ == "__main__":
    main()
