"""Shared code of the commands: options, output files, and printing.

Output files are checked before the search. `write_result` saves a result elsewhere if its file cannot be written, so
that a long search is not lost.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from graphrl.costs.problem import Objective, Problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import PICTURES, descriptor_of, quote_path
from graphrl.graphs.graph import Machine
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits
from graphrl.graphs.roofline import CHIPS, DEFAULT_CHIP, Chip, find_chip
from graphrl.optimize import DEFAULT_SECONDS
from graphrl.plan import Plan
from graphrl.units import parse_bytes, parse_integer, parse_rate, parse_seconds

if TYPE_CHECKING:
    from graphrl.plan.memory_map import MemoryMap


T = TypeVar("T")


def option(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wraps a parser of values as an argparse type: its GraphrlErrors become errors of the option."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except GraphrlError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


integer, size, rate, seconds = (option(parse) for parse in (parse_integer, parse_bytes, parse_rate, parse_seconds))


def add_common(parser: argparse.ArgumentParser, *, seed: str = "random seed (default: 0)") -> None:
    """Adds --seed and --json, which every command takes."""
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help=seed)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def add_model(
    parser: argparse.ArgumentParser, *, chip: str = "chip for predicted run times of ONNX and HLO files"
) -> None:
    """Adds the options for reading a model file; `chip` is the help of --chip."""
    group = add_reading(parser)
    known = f"{', '.join(CHIPS)}, or another one as FLOP/s,BYTES/s,LAUNCH, for example 300e12,2TB/s,4us"
    text = f"{chip}: {known} (default: {DEFAULT_CHIP})"
    group.add_argument("--chip", type=option(_chip), default=DEFAULT_CHIP, metavar="CHIP", help=text)


def add_reading(parser: argparse.ArgumentParser) -> Any:
    """Adds --dim, for dimensions that ONNX models leave open, and --read-limits; returns their group."""
    group = parser.add_argument_group("model file")
    group.add_argument(
        "--dim",
        action=_Dimensions,
        type=option(_dimension),
        default=[],
        metavar="NAME=SIZE",
        help="size of a symbolic dimension of an ONNX model, by name (batch=8) or by tensor and axis "
        "(input_ids:1=128); may be repeated",
    )
    add_read_limits(group)
    return group


def add_read_limits(group: Any) -> None:
    """Adds --read-limits."""
    group.add_argument(
        "--read-limits",
        type=option(_read_limits),
        default=DEFAULT_LIMITS,
        metavar="S,BYTES",
        help="time and memory limits for parsing an ONNX or XLA file, which runs in another process; BYTES also limits "
        "the unpacked size of a gzipped file (default: 60s,4GB)",
    )


def add_problem(group: Any) -> None:
    """Adds the options of a `Problem`, which `problem_of` reads."""
    group.add_argument(
        "--objective",
        choices=get_args(Objective),
        default="peak_memory",
        help="value to minimise: peak memory in bytes (default), makespan (seconds of one run), or the largest load of "
        "a device in pipelined execution (seconds)",
    )
    group.add_argument(
        "--devices", type=integer, metavar="N", help="number of devices (default: 1; for max_load, as in the file)"
    )
    group.add_argument(
        "--cpus", type=integer, metavar="N", help="number of devices that are CPUs, the last ones; only for max_load"
    )
    group.add_argument(
        "--transfer",
        choices=("rendezvous", "free", "link"),
        default="rendezvous",
        help="what a transfer occupies: both devices (rendezvous, default), nothing (free) or the sender's link (link)",
    )
    group.add_argument(
        "--latency", type=seconds, default=0.0, metavar="S", help="latency of a transfer, such as 10us (default: 0)"
    )
    group.add_argument(
        "--bandwidth", type=rate, default=math.inf, metavar="B/s", help="of a transfer, such as 50GB/s (default: inf)"
    )
    group.add_argument(
        "--memory-limit", type=size, metavar="BYTES", help="memory of each device, such as 16GiB (not for peak_memory)"
    )
    group.add_argument(
        "--resident-weights", action="store_true", help="count weights in the memory of the devices that use them"
    )


def methods_help(methods: Iterable[str], kinds: Mapping[str, str]) -> str:
    """Lists methods for the help of a command: by kind, as `methods.KINDS`; those without a kind are agents."""
    by_kind = {kind.replace("`", ""): names.split() for kind, names in kinds.items()}
    kind_of = {name: kind for kind, names in by_kind.items() for name in names}
    groups: dict[str, list[str]] = {kind: [] for kind in (*by_kind, "agent")}
    for name in methods:
        groups[kind_of.get(name, "agent")].append(name)
    wrapper = textwrap.TextWrapper(118, subsequent_indent=22 * " ", break_on_hyphens=False)
    lines = [wrapper.fill(f"  {kind:20}{', '.join(names)}") for kind, names in groups.items()]
    return "\n".join(["methods (see Methods in the documentation; some take options: NAME:OPTION=VALUE,...):", *lines])


def problem_of(args: argparse.Namespace, machine: Machine | None = None) -> Problem:
    """Builds the problem from the options of `add_problem`, for a graph with this machine (see `Problem.on`).

    Raises:
      ProblemError: a value is out of range.
    """
    return Problem.on(machine, **{field.name: getattr(args, field.name) for field in dataclasses.fields(Problem)})


def add_budget(
    group: Any, *, scope: str = "", clock: str = "including compilation", default: str = f"{DEFAULT_SECONDS:g} s"
) -> None:
    """Adds --evaluations and --seconds; `make_budget` takes them.

    Args:
      group: argparse group to add them to.
      scope: words for the work that the budget limits, such as " of each run".
      clock: words for the parts of the work that the seconds include.
      default: words for the budget if neither is given.
    """
    group.add_argument("--evaluations", type=integer, metavar="N", help=f"maximum number of evaluated solutions{scope}")
    group.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help=f"maximum search time{scope}, {clock}, such as 500ms or 2min (default without --evaluations: {default})",
    )


def _chip(text: str) -> Chip:
    """Parses a chip: the name of a known one, or the figures of the user's own."""
    figures = text.split(",")
    if len(figures) == 1 and not text[:1].isdigit():
        return find_chip(text)
    if len(figures) not in (2, 3):
        raise ProblemError(f"{text!r} is no chip: write a name, or FLOP/s,BYTES/s,LAUNCH as in 300e12,2TB/s,4us")
    launch = parse_seconds(figures[2]) if len(figures) == 3 else 0.0
    try:
        return Chip(text, float(figures[0]), parse_rate(figures[1]), launch)
    except ValueError as error:
        if isinstance(error, GraphrlError):
            raise
        raise ProblemError(f"{figures[0]!r} is no number of FLOP/s: write for example 300e12") from None


def _read_limits(text: str) -> ReadLimits:
    time, comma, memory = text.partition(",")
    if not comma:
        raise ProblemError(f"{text!r} is not S,BYTES: write for example 5min,16GB")
    return ReadLimits(parse_seconds(time), parse_bytes(memory))


class _Dimensions(argparse.Action):
    """Collects the (name, size) pairs of --dim; a repeated name is an error."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, flag: str | None = None
    ) -> None:
        earlier: list[tuple[str, int]] = getattr(namespace, self.dest)
        if value[0] in dict(earlier):
            parser.error(f"argument {flag}: {value[0]!r} is given twice: give each dimension one size")
        setattr(namespace, self.dest, [*earlier, value])


def _dimension(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name:
        raise ProblemError(f"{text!r} is not NAME=SIZE: write for example batch=8")
    return name, parse_integer(number)


def check_outputs(outputs: Mapping[str, str | None], *models: str) -> None:
    """Checks before the search that the output files can be written; changes no file.

    Args:
      outputs: path (or None) of each output option, by option name.
      *models: the input files, which no output may replace.

    Raises:
      ProblemError: two outputs are the same file, or one is an input file.
      GraphrlError: a path is a directory, or its folder is missing or write-protected.
    """
    owners: dict[str, str] = {os.path.realpath(model): "an input file" for model in models}
    for name, path in outputs.items():
        if path is None or descriptor_of(path) is not None:
            continue
        real = os.path.realpath(path)
        if real in owners and not _is_special(real):
            raise ProblemError(f"{name} {quote_path(path)} is {owners[real]}: name another file")
        owners[real] = f"the file of {name} already"
        if path == "-":
            raise ProblemError(f"{name} is '-': name a file, or /dev/stdout for standard output")
        _check_writable(path)


def check_pictures(*paths: str | None) -> None:
    """Raises GraphrlError if a picture's name does not end in a supported image format."""
    for path in paths:
        if path is not None:
            from graphrl.plan.plot import image_format

            image_format(path)


def check_json_name(name: str, path: str | None, *, ending: str = ".json") -> None:
    """Checks that the name of a JSON output does not end as a file of another format that graphrl knows.

    Args:
      name: output option, for the error.
      path: path of the file, or None.
      ending: correct ending, for the error.

    Raises:
      ProblemError: its ending is that of a model in another format or of a picture.
    """
    from graphrl.graphs.readers import FORMATS

    if path is None:
        return
    foreign = [suffix for other in FORMATS for suffix in other.suffixes if suffix != ".json"]
    foreign += [f".{picture}" for picture in PICTURES]
    for wrong in foreign:
        if path.lower().removesuffix(".gz").endswith(wrong):
            fault = f"{name} {quote_path(path)} is written as JSON: must end in {ending}, not in {wrong}"
            raise ProblemError(fault)


def _is_special(path: str) -> bool:
    """True for a pipe or a device, such as /dev/stdout, which is written directly, also for several outputs."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _check_writable(path: str) -> None:
    if not path or "\0" in path:
        raise GraphrlError(f"cannot write {quote_path(path)}: it is not a file name")
    if os.path.isdir(path):
        raise GraphrlError(f"cannot write {quote_path(path)}: it is a directory")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise GraphrlError(f"cannot write {quote_path(path)}: the file is write-protected")
    if _is_special(path):
        return
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # an unnamed file also detects read-only mounts and full disks
            pass
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not folder.exists()
        reason = f"{error.strerror or error} (folder {quote_path(folder)})"
        reason = f"there is no folder {quote_path(folder)}" if missing else reason
        raise GraphrlError(f"cannot write {quote_path(path)}: {reason}") from None


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line."""
    print(json.dumps(data, allow_nan=False), flush=True)


File = tuple[str | None, Callable[[str], object]]  # its path, None to skip it, and the function that writes it


def write_result(result: "Plan | MemoryMap", kind: str, output: str | None, others: Sequence[File] = ()) -> list[str]:
    """Writes the result of a search (`kind` names it, such as "plan") and the other files; returns all paths.

    Raises:
      GraphrlError: a file cannot be written; the message names the file in which the result is saved, if any.
    """
    written = []
    for path, write in ((output, result.save), *others):
        if path is not None:
            try:
                write(path)
            except GraphrlError as error:
                raise type(error)(f"{error}{_save_elsewhere(result, kind, output)}") from None
            written.append(path)
    return written


def _save_elsewhere(result: "Plan | MemoryMap", kind: str, output: str | None) -> str:
    """Saves the result in a temporary folder, so that a full disk does not cost a long search.

    Returns:
      The end of an error about an output file: the path of the saved result, or "" if that failed too.
    """
    if output is not None and os.path.exists(output):
        with contextlib.suppress(GraphrlError):
            if result.load(output) == result.from_dict(result.to_dict()):
                return f"; the {kind} is in {output}"
    with contextlib.suppress(GraphrlError, OSError):
        path = Path(tempfile.mkdtemp(prefix="graphrl-")) / f"{kind}.json"
        result.save(path)
        return f"; the {kind} is in {path}"
    return ""
