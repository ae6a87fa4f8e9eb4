"""REGAL against classical methods on graphs that it has not seen: the tables of the paper, with their pictures.

sections:
  synthetic         makespan of random DAGs (rendezvous, 2 devices): every method at equal evaluations
  synthetic-memory  the same for their peak memory on 2 devices
  zoo-makespan      the same for programs of the model zoo and variants of them (link, 2 devices)
  zoo-memory        the same for the peak memory of training steps of the zoo on 2 devices
  time              some methods at equal time (--times, --task)
  limits            quality against the evaluation limit (--limits, --task)
  ablation          rounds of messages, training curves, entropy of actions (--rounds, --task)
  overhead          seconds of REGAL beside BRKGA's (--task)
  throughput        proposals evaluated a second, against the number of environments

Policies are --checkpoints (runs or checkpoints of `graphrl train regal`, or files of policies; as many as --seeds for
every task, network, hint and number of rounds that a section needs), or are trained here, into --out/training. What
is trained, and from what, tells their settings: a policy with a recurrent encoder is GAS, and REGAL as published sees
no plan of list scheduling ("regal without hint").

Writes to --out: runs.jsonl with a row a run (a stopped run goes on where it was), a Markdown file a section, pictures
and policies. Everything takes days on two cores: --sections, --graphs, --seeds and --methods make it shorter, and
--quick only looks whether everything works.

  python scripts/reproduce_regal.py --sections synthetic --graphs 20 --seeds 1 --methods brkga,regal,list
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
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
from regal import limits, tables, timed
from regal.ablation import ablation
from regal.overhead import overhead, throughput
from regal.policies import Policies
from regal.settings import ONCE, Settings
from regal.tasks import TASKS

SECTIONS: dict[str, Callable[[Settings], Iterator[str]]] = {
    **{task: partial(tables.table, task=task) for task in TASKS},
    "time": timed.timed,
    "limits": limits.limits,
    "ablation": ablation,
    "overhead": overhead,
    "throughput": throughput,
}
METHODS = tuple(dict.fromkeys((*tables.PAPER, *tables.BESIDE, *timed.METHODS)))


def main() -> None:
    """Makes the sections; bad input is one line on standard error and exit code 1."""
    make_sections(_arguments(), _settings, SECTIONS)


def _arguments() -> argparse.Namespace:
    parser = make_parser(str(__doc__), SECTIONS, "1,5", f"of {', '.join(METHODS)}", "out/regal-tables")
    parser.add_argument("--graphs", type=int, default=200, metavar="N", help="unseen ones, of a task (default: 200)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="of search and of training (default: 3)")
    parser.add_argument("--evaluations", type=int, default=5_000, metavar="N", help="of each search (default: 5000)")
    parser.add_argument(
        "--limits", type=parse_numbers, default=(1_000, 2_000, 5_000, 10_000, 20_000, 50_000), metavar="N,...",
        help="evaluations, of section limits (default: 1000,2000,5000,10000,20000,50000)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=parse_numbers, default=(0, 1, 2, 4), metavar="T,...", help="(default: 0,1,2,4)"
    )
    parser.add_argument("--task", choices=list(TASKS), default="synthetic", help="of the later sections")
    parser.add_argument(
        "--once", type=parse_names, default=ONCE, metavar="M,...",
        help=f"methods with one seed only (default: {','.join(ONCE)})",
    )  # fmt: skip
    parser.add_argument("--cp-sat", type=float, default=60.0, metavar="S", help="seconds of CP-SAT (default: 60)")
    parser.add_argument("--checkpoints", type=Path, nargs="+", default=[], metavar="PATH", help="policies to measure")
    add_training(parser)
    return parse_arguments(parser, SECTIONS)


def _settings(args: argparse.Namespace) -> Settings:
    """
    Raises:
      GraphrlError: a value is out of range, an unknown method, or a checkpoint that cannot be read.
    """
    check_positive(graphs=args.graphs, seeds=args.seeds, evaluations=args.evaluations)
    check_known("method", [*(args.methods or ()), *args.once], METHODS)
    quick = args.quick
    return Settings(
        graphs=2 if quick else args.graphs,
        seeds=args.seeds,
        evaluations=400 if quick else args.evaluations,
        limits=(200, 400) if quick else args.limits,
        times=(0.2, 0.5) if quick else parse_times(args.times),
        proof=0.5 if quick else args.cp_sat,
        rounds=args.rounds,
        task=args.task,
        methods=args.methods,
        once=args.once,
        processes=args.processes,
        out=args.out,
        quick=quick,
        retry=args.retry,
        policies=Policies(args.out, args.seeds, args.checkpoints, args.set, quick),
    )


if __name__ == "__main__":
    main()
