"""Topoformer against classical methods on graphs that it has not seen: the tables of the paper, with their pictures.

sections:
  layered       statistics of layered graphs beside appendix A's text and published graphs
  table1        every method on unseen layered graphs of --sizes; picture: gap against seconds
  encoders      the encoders of table 3, trained here with --seeds seeds, on graphs of --ablation-sizes
  decoders      auto-regressive decoders beside priorities (table 4), likewise
  real          compiled training programs of the model zoo, of families that no policy has seen, by size (table 2)
  budget        quality against the length of training (--run)
  inference     seconds of one graph of each of --sizes, part by part

Table 1, real and inference measure --checkpoint, or the policy that ships with graphrl. Ablations train with
--set settings.

Writes to --out: runs.jsonl with a row a run (a stopped run goes on where it was), a Markdown file a section, pictures
and runs of training. Everything takes days on two cores: --sections, --sizes, --graphs, --slow, --seeds and --methods
make it shorter, and --quick only looks whether everything works.

  python scripts/reproduce_topoformer.py --sections table1 --sizes 500 --graphs 40 --slow 10 --width 10000
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from opponents.sections import (
    add_training,
    check_known,
    check_positive,
    make_parser,
    make_sections,
    parse_arguments,
    parse_names,
    parse_numbers,
    parse_times,
)
from topoformer import ablations, budget, inference, layered, tables
from topoformer.policies import Policies
from topoformer.settings import METHODS, Settings

from graphrl.errors import GraphrlError

SECTIONS: dict[str, Callable[[Settings], Iterator[str]]] = {
    "layered": layered.layered,
    "table1": tables.table1,
    "encoders": ablations.encoders,
    "decoders": ablations.decoders,
    "real": tables.real,
    "budget": budget.budget,
    "inference": inference.inference,
}
TRAINING = 5_000  # seeds of layered graphs from here on are for training


def main() -> None:
    """Makes the sections; bad input is one line on standard error and exit code 1."""
    make_sections(_arguments(), _settings, SECTIONS)


def _arguments() -> argparse.Namespace:
    parser = make_parser(str(__doc__), SECTIONS, "1,10", f"of {', '.join(METHODS)}", "out/topoformer-tables")
    parser.add_argument("--graphs", type=int, default=300, metavar="N", help="unseen ones of each size (default: 300)")
    parser.add_argument(
        "--slow", type=int, metavar="N",
        help="of these for approximate DP, dfs-dp and what takes over 1 s (default: all)",
    )  # fmt: skip
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first graph (default: 0)")
    parser.add_argument(
        "--sizes", type=parse_numbers, default=(100, 500, 1000, 2000), metavar="OPS,...",
        help="(default: 100,500,1000,2000)",
    )  # fmt: skip
    parser.add_argument(
        "--ablation-sizes", type=parse_numbers, default=(100, 500), metavar="OPS,...", help="(default: 100,500)"
    )
    parser.add_argument("--width", type=int, default=10_000, metavar="K", help="of approximate DP (default: 10000)")
    parser.add_argument("--dfs-dp", type=float, default=60.0, metavar="S", help="seconds of dfs-dp (default: 60)")
    parser.add_argument("--most-ops", type=int, default=2_000, metavar="OPS", help="of section real (default: 2000)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="of training (default: 3)")
    parser.add_argument("--networks", type=parse_names, metavar="NAME,...", help="of the ablations (default: all)")
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="a run, a checkpoint or a policy's file")
    parser.add_argument("--run", type=Path, metavar="PATH", help="of training, for section budget")
    parser.add_argument("--train-real", action="store_true", help="section real also trains on programs")
    add_training(parser)
    return parse_arguments(parser, SECTIONS)


def _settings(args: argparse.Namespace) -> Settings:
    """
    Raises:
      GraphrlError: a value is out of range, an unknown method, or a checkpoint that cannot be read.
    """
    slow = args.graphs if args.slow is None else args.slow
    check_positive(graphs=args.graphs, slow=slow, seeds=args.seeds, width=args.width)
    if not 0 <= args.first <= TRAINING - args.graphs:
        raise GraphrlError(
            f"--first {args.first}: with {args.graphs} graphs seeds must stay below {TRAINING}: others train"
        )
    check_known("method", args.methods or (), METHODS)
    check_known("network", args.networks or (), sorted({*ablations.ENCODERS, *ablations.DECODERS}))
    quick = args.quick
    return Settings(
        graphs=2 if quick else args.graphs,
        slow=1 if quick else min(slow, args.graphs),
        first=args.first,
        sizes=(20, 30) if quick else args.sizes,
        ablation_sizes=(20,) if quick else args.ablation_sizes,
        times=(0.2, 0.5) if quick else parse_times(args.times),
        width=100 if quick else args.width,
        dfs_seconds=0.2 if quick else args.dfs_dp,
        most_ops=args.most_ops,
        methods=args.methods,
        networks=args.networks,
        processes=args.processes,
        out=args.out,
        quick=quick,
        retry=args.retry,
        train_real=args.train_real,
        run=args.run,
        policies=Policies(args.out, args.seeds, args.checkpoint, args.set, quick),
    )


if __name__ == "__main__":
    main()
