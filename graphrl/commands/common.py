"""What the commands share: options, checks of output files before the work, and printing."""

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import shown
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, chip
from graphrl.optimize import DEFAULT_SECONDS
from graphrl.units import parse_bytes, parse_rate, parse_seconds

T = TypeVar("T")


def add_common(parser: argparse.ArgumentParser, *, seed: str = "of everything random (default: 0)") -> None:
    """Adds --seed and --json, which every command takes."""
    parser.add_argument("--seed", type=option(whole_number), default=0, metavar="N", help=seed)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for machines, in place of a table")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds what says how a model file is read."""
    parser.add_argument(
        "--chip",
        type=option(_chip),
        default=DEFAULT_CHIP,
        metavar="CHIP",
        help="what gives ONNX ops their run times: a name (a wrong one lists the known) or FLOP/s,BYTES/s,LAUNCH as in "
        f"300e12,2TB/s,4us (default: {DEFAULT_CHIP})",
    )
    parser.add_argument(
        "--dim",
        action="append",
        type=option(_dimension),
        default=[],
        metavar="NAME=SIZE",
        help="size of a dimension that an ONNX model leaves open, for example batch=8; may be given again",
    )


def add_problem(group: Any) -> None:
    """Adds what says what a plan must be good at; `problem_of` reads it."""
    group.add_argument("--objective", choices=("peak_memory", "makespan"), default="peak_memory")
    group.add_argument(
        "--devices", type=option(whole_number), default=1, metavar="N", help="identical ones (default: 1)"
    )
    group.add_argument(
        "--transfer",
        choices=("rendezvous", "free", "link"),
        default="rendezvous",
        help="whom a transfer occupies: both devices (default), nobody, or the sender's link",
    )
    group.add_argument(
        "--latency", type=option(parse_seconds), default=0.0, metavar="S", help="of a transfer, for example 10us"
    )
    group.add_argument(
        "--bandwidth",
        type=option(parse_rate),
        default=math.inf,
        metavar="B/s",
        help="of a transfer, for example 50GB/s",
    )
    group.add_argument(
        "--memory-limit",
        type=option(parse_bytes),
        metavar="BYTES",
        help="of each device, for example 16GiB; with --objective makespan",
    )
    group.add_argument("--resident-weights", action="store_true", help="count the weights on the devices of their ops")


def problem_of(args: argparse.Namespace) -> Problem:
    """The problem that the options of `add_problem` say.

    Raises:
      ProblemError: a value is out of range.
    """
    return Problem(
        args.objective,
        args.devices,
        args.transfer,
        args.latency,
        args.bandwidth,
        args.memory_limit,
        args.resident_weights,
    )


def add_budget(group: Any, *, of: str = "", clock: str = "compilation included") -> None:
    """Adds --evaluations and --seconds; `make_budget` takes them.

    Args:
      of: whose budget it is, at the end of a clause (" in each run").
      clock: what the seconds count.
    """
    group.add_argument(
        "--evaluations", type=option(whole_number), metavar="N", help=f"decode and cost at most so many solutions{of}"
    )
    group.add_argument(
        "--seconds",
        type=option(parse_seconds),
        metavar="S",
        help=f"search for at most so long{of}, {clock} (default, without --evaluations: {DEFAULT_SECONDS:g})",
    )


def option(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as an argparse type: its errors become the option's."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except GraphrlError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def whole_number(text: str) -> int:
    """An integer, also as "5_000" or "1e6".

    Raises:
      ProblemError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number == int(number) and abs(number) < 2**53:
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ProblemError(f"{text[:40]!r} is not an integer")


def _chip(text: str) -> Chip:
    """A known chip by name, or the user's own by its figures."""
    figures = text.split(",")
    if len(figures) == 1:
        return chip(text)
    if len(figures) > 3:
        raise ProblemError(f"{text!r} is neither a chip's name nor FLOP/s,BYTES/s,LAUNCH")
    launch = parse_seconds(figures[2]) if len(figures) == 3 else 0.0
    try:
        return Chip(text, float(figures[0]), parse_rate(figures[1]), launch)
    except ValueError as error:
        raise (
            error if isinstance(error, GraphrlError) else ProblemError(f"{figures[0]!r} is no number of FLOP/s")
        ) from None


def _dimension(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name:
        raise ProblemError(f"{text!r} is not NAME=SIZE")
    return name, whole_number(size)


def check_outputs(outputs: Mapping[str, str | None], *models: str) -> None:
    """Finds out before the work whether the output files can be written; touches none.

    Args:
      outputs: path, or None, by what the command line calls it.
      *models: the input files, which no output may replace.

    Raises:
      ProblemError: two outputs are one file, or one is the model.
      GraphrlError: a path is a directory, or its folder is missing or write-protected.
    """
    taken: dict[str, str] = {os.path.realpath(model): "the model itself" for model in models}
    for name, path in outputs.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in taken and not _is_special(real):
            raise ProblemError(f"{name} {shown(path)} is {taken[real]}: name another file")
        taken[real] = f"the file of {name} already"
        _check_writable(path)


def _is_special(path: str) -> bool:
    """Whether it is a pipe or a device, such as /dev/stdout: written directly, as often as wished."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _check_writable(path: str) -> None:
    if not path or "\0" in path:
        raise GraphrlError(f"cannot write {shown(path)!r}: it is no file name")
    if os.path.isdir(path):
        raise GraphrlError(f"cannot write {shown(path)}: it is a directory")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise GraphrlError(f"cannot write {shown(path)}: the file is write-protected")
    if _is_special(path):
        return
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # a file without a name: also finds read-only mounts and full disks
            pass
    except FileNotFoundError:
        raise GraphrlError(f"cannot write {shown(path)}: there is no folder {shown(folder)}") from None
    except OSError as error:
        raise GraphrlError(f"cannot write {shown(path)}: {error.strerror or error} (folder {shown(folder)})") from None


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line."""
    print(json.dumps(data, allow_nan=False), flush=True)
