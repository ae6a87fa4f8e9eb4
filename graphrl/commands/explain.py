"""`graphrl explain STEP`: why a compiled program needs its memory, and what would lower it."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from graphrl.commands.common import (
    add_common,
    add_read_limits,
    check_outputs,
    check_pictures,
    print_json,
    seconds,
    size,
)
from graphrl.errors import ProblemError
from graphrl.files import quote_path
from graphrl.graphs.datasets.zoo import PREFIX

if TYPE_CHECKING:
    from graphrl.xla.explain.report import Explanation

DEFAULT_SECONDS = 5.0  # as graphrl.explain

DESCRIPTION = """Explain why a compiled program needs its memory, and what would lower it.

STEP is a module as XLA compiled it: HLO text (compiled.as_text()), a serialized module, or a folder that XLA wrote:

  XLA_FLAGS=--xla_dump_to=dump python train.py

Of a folder with several programs, the largest is explained. STEP may also be a file with XLA's message that memory ran
out (RESOURCE_EXHAUSTED); without the module, the message tells the largest arrays only.

The table has four parts: bytes by cause, arrays at the peak by the line of your code that computes them, the least that
any order of the instructions needs, and remedies with the bytes that each is predicted to save. Bytes are those of one
device. Lines need the module's metadata, which as_text() and dumps have."""

EXAMPLES = """examples:
  graphrl explain dump --plot memory.png
      the largest program of XLA's dumps, with a picture of memory over the program's time
  graphrl explain step.hlo --message oom.txt
      a module, and by how much it misses the device's memory according to XLA's message
  graphrl explain step.hlo --limit 80GiB --seconds 60
      a longer search for a better order, and whether the program fits 80 GiB
  graphrl explain oom.txt
      the largest arrays that XLA's message lists, by cause and line
  graphrl explain step.hlo --json
      one JSON object, for a script

In Python: print(graphrl.explain(train_step, state, batch)). Exit codes: 0 done, 1 failed (no compiled module there), 2
wrong usage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("step", metavar="STEP", help="a file with HLO, a folder of XLA's dumps, or XLA's message")
    parser.add_argument("--message", metavar="FILE", help="XLA's message that memory ran out, for this module")
    parser.add_argument("--limit", type=size, metavar="BYTES", help="memory of the device, such as 80GiB")
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="time to search for an order that needs less memory, such as 500ms or 2min; 0 for none (default: "
        f"{DEFAULT_SECONDS:g} s)",
    )
    parser.add_argument("--plot", metavar="FILE", help="write a picture of memory over time: .png, .svg or .pdf")
    add_read_limits(parser)
    add_common(parser, seed="random seed of the search for an order (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Explains the program and prints the result; returns the exit code."""
    check_outputs({"--plot": args.plot}, args.step, *([args.message] if args.message else []))
    check_pictures(args.plot)
    if args.step.startswith(PREFIX):
        name = args.step
        raise ProblemError(
            f"{name}: the zoo has graphs without buffers: graphrl checkpoint {name}, or optimize, takes it"
        )
    explanation = _explained(args)
    if args.plot is not None:
        explanation.plot(args.plot)
    written = [args.plot] * (args.plot is not None)
    if args.json:
        print_json({**explanation.to_dict(), "seed": args.seed, "written": written})
        return 0
    print(explanation)
    for path in written:
        print(f"written: {quote_path(path)}")
    return 0


def _explained(args: argparse.Namespace) -> "Explanation":
    from graphrl.xla.explain import explain

    message = None if args.message is None else Path(args.message)
    explanation = explain(
        Path(args.step), message=message, seconds=args.seconds, seed=args.seed, limits=args.read_limits
    )
    return explanation if args.limit is None else dataclasses.replace(explanation, limit_bytes=args.limit)
