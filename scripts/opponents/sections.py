"""A script of sections: its command line, the Markdown file of each section, and faults in one line."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar

from graphrl.commands.cache import keep_compiled
from graphrl.errors import GraphrlError
from graphrl.files import write_atomically
from opponents.settings import Interrupted

S = TypeVar("S")  # settings of a script


def make_sections(
    args: argparse.Namespace,
    settings: Callable[[argparse.Namespace], S],
    sections: Mapping[str, Callable[[S], Iterator[str]]],
) -> None:
    """Writes --sections to --out; bad input is one line on standard error and exit code 1.

    Args:
      args: of `parse_arguments`.
      settings: checks them.
      sections: what makes each, a text a table.
    """
    script = Path(sys.argv[0]).stem
    try:
        known = settings(args)
        keep_compiled()
        args.out.mkdir(parents=True, exist_ok=True)
        for name in args.sections:
            _write(args.out / f"{name}.md", "\n".join(sections[name](known)))
    except (Interrupted, KeyboardInterrupt):
        sys.exit(f"{script}: interrupted: the same command goes on from here")
    except (GraphrlError, OSError) as error:
        sys.exit(f"{script}: {error}")


def make_parser(
    description: str, sections: Collection[str], times: str, methods: str, out: str
) -> argparse.ArgumentParser:
    """The options that every script of sections has.

    Args:
      description: for --help.
      sections: names.
      times, out: by default.
      methods: what --methods is for.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--sections", default=",".join(sections), help="(default: all)")
    parser.add_argument("--times", default=times, metavar="S,...", help=f"seconds of a run (default: {times})")
    parser.add_argument("--methods", type=parse_names, metavar="M,...", help=methods)
    parser.add_argument("--out", type=Path, default=Path(out), help=f"(default: {out})")
    parser.add_argument("--retry", action="store_true", help="make again what failed before")
    return parser


def add_training(parser: argparse.ArgumentParser) -> None:
    """The options of a script that trains what it compares: --set, --processes and --quick."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of `graphrl train` where policies are trained"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--quick", action="store_true", help="2 small graphs, short runs: does everything work?")


def parse_arguments(parser: argparse.ArgumentParser, sections: Collection[str]) -> argparse.Namespace:
    """What the command line says, `sections` as a list of some of the names."""
    args = parser.parse_args()
    args.sections = args.sections.split(",")
    for name in args.sections:
        if name not in sections:
            parser.error(f"unknown section {name!r}: known are {', '.join(sections)}")
    return args


def parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(text.split(","))


def parse_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, ascending, each once."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def parse_times(text: str) -> tuple[float, ...]:
    """The seconds of --times, ascending.

    Raises:
      GraphrlError: they are no numbers.
    """
    try:
        return tuple(sorted(float(part) for part in text.split(",")))
    except ValueError:
        raise GraphrlError(f"--times {text}: must be numbers of seconds, as in 1,10,60") from None


def check_positive(**values: int) -> None:
    """Looks at the numbers of options.

    Raises:
      GraphrlError: one is below 1.
    """
    for name, value in values.items():
        if value < 1:
            raise GraphrlError(f"--{name} {value}: must be at least 1")


def check_known(what: str, names: Collection[str], known: Collection[str]) -> None:
    """Looks at the names of an option.

    Raises:
      GraphrlError: one is not known.
    """
    if unknown := set(names) - set(known):
        raise GraphrlError(f"unknown {what} {min(unknown)!r}: known are {', '.join(known)}")


def _write(path: Path, text: str) -> None:
    """Writes a section's Markdown, whole or not at all, and prints it."""

    def write(file: IO[str]) -> None:
        file.write(text)

    write_atomically(path, write)
    print(f"written: {path}", file=sys.stderr)
    print(text)
