"""Launcher of scripts with sections: settings as options, a results file for each section, errors in one line."""

import argparse
import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from graphrl.commands.parser import Parser
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, suggest
from graphrl.files import enable_compilation_cache, quote_path, write_atomically
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import split_methods
from graphrl.solvers.base import Budget
from reproduce.contest import Contest, Entrant, Interrupted, run_contest
from reproduce.measurements import Measurements
from reproduce.results import NOT_MEASURED, Table, results_text

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def option(
    default: Any, help: str, *, quick: Any = None, parse: Callable[[str], Any] | None = None, **more: Any
) -> Any:
    """Declares a settings field that is also an option, --name.

    Args:
      default: value if the option is absent; a bool makes it a flag.
      help: text of --help, without the default.
      quick: value under --quick, whatever is given; None leaves the given one.
      parse: parser of the text. By default it follows the type of the default; whole numbers are from 1 on.
      **more: further arguments of `argparse.ArgumentParser.add_argument`.
    """
    return dataclasses.field(default=default, metadata={"help": help, "quick": quick, "parse": parse, "more": more})


def whole_number(text: str, least: int = 1) -> int:
    """Parses a whole number.

    Raises:
      ArgumentTypeError: it is not a whole number, or is below the least.
    """
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{text}: must be at least {least}")
    return number


def names(text: str) -> tuple[str, ...]:
    """Splits names at commas."""
    return tuple(text.split(","))


def methods(text: str) -> tuple[str, ...]:
    """Splits methods at commas; an option of a method may have commas too."""
    return tuple(split_methods(text))


def numbers(text: str) -> tuple[int, ...]:
    """Parses comma-separated whole numbers from 0; returns the distinct ones in ascending order."""
    return tuple(sorted({whole_number(part, 0) for part in text.split(",")}))


def seconds(text: str) -> tuple[float, ...]:
    """Parses comma-separated times in seconds; returns them in ascending order.

    Raises:
      ArgumentTypeError: an item is not a number.
    """
    try:
        return tuple(sorted(float(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be numbers of seconds, as in 1,10,60") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the command line that all scripts share; a script adds its own fields with `option`.

    Attributes:
      sections: names of the sections to run.
      page: name of the results file in place of the section's; "" for the section's.
      out: folder of runs.jsonl, pictures and everything else that is kept.
      results: folder of the tables.
      seeds: number of seeds of each method on each graph, unless a script makes it an option.
    """

    sections: tuple[str, ...] = ()
    page: str = ""
    seeds: int = 1
    out: Path = option(Path("out"), "folder of measurements and pictures")
    results: Path = option(RESULTS, "folder of the tables (default: docs/results; with --out or --quick that of --out)")
    times: tuple[float, ...] = option((1.0, 10.0), "seconds of a run", quick=(0.2, 0.5), parse=seconds, metavar="S,...")
    methods: tuple[str, ...] | None = option(None, "the only ones to run", parse=methods, metavar="M,...")
    processes: int = option(1, "parallel runs")
    retry: bool = option(False, "repeat failed runs")
    stored: bool = option(False, "measure nothing: tables of the figures in --out")
    quick: bool = option(False, "small graphs and short runs, to test whether everything works")

    @functools.cached_property
    def measurements(self) -> Measurements:
        """Stored measurements of the folder --out."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry, stored=self.stored)

    def check(self) -> None:
        """Checks the settings. Scripts override it.

        Raises:
          GraphrlError: a setting is wrong.
        """

    def among(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Returns the selected methods among `labels`."""
        return tuple(label for label in labels if self.methods is None or label in self.methods)

    def contest(self, graphs: Sequence[ComputationGraph], problem: Problem, entrants: Sequence[Entrant]) -> Contest:
        """Runs all entrants; rows that --out has are reused.

        Raises:
          Interrupted: Ctrl-C; finished rows stay in the file.
        """
        return run_contest(graphs, problem, entrants, self.out, processes=self.processes, retry=self.retry)

    def at_time(
        self, graphs: Sequence[ComputationGraph], problem: Problem, methods: Sequence[str], seconds: float
    ) -> Contest:
        """Runs the methods with one time limit; see `contest`."""
        budget = Budget(None, seconds)
        return self.contest(graphs, problem, [Entrant(method, [method] * self.seeds, budget) for method in methods])


S = TypeVar("S", bound=Settings)


class Section(NamedTuple):
    """A section of a script.

    Attributes:
      title: title of its results file.
      make: function that yields its tables.
      missing: reason why it cannot run here, "" if it can. A section with a reason runs only if it is named.
    """

    title: str
    make: Callable[[Any], Iterator[Table]]
    missing: Callable[[], str] = str

    @property
    def file(self) -> str:
        """Path of the section's code, relative to scripts/."""
        make = self.make.func if isinstance(self.make, functools.partial) else self.make
        return f"{make.__module__.replace('.', '/')}.py"


def main(system: str, description: str, settings: type[S], sections: Mapping[str, Section]) -> None:
    """Runs --sections. Bad input is one line on standard error and exit code 1 or 2.

    Args:
      system: prefix of the results files' names.
      description: text of --help before the list of sections.
      settings: class of the script's settings.
      sections: all sections by name.
    """
    script = Path(sys.argv[0]).stem
    try:
        options = _parsed(description, settings, sections)
        options.check()
        if options.stored and not options.measurements.exists():
            raise GraphrlError(f"{quote_path(options.out)}: {NOT_MEASURED}")
        enable_compilation_cache()
        for folder in (options.out, options.results):
            folder.mkdir(parents=True, exist_ok=True)
        for name in options.sections:
            text = results_text(sections[name].title, list(sections[name].make(options)), command())
            path = options.results / f"{system}-{options.page or name}.md"
            write_atomically(path, lambda file, text=text: file.write(text))  # type: ignore[misc]
            print(f"written: {path}", file=sys.stderr)
            print(text)
    except (Interrupted, KeyboardInterrupt):
        sys.exit(f"{script}: interrupted: run the same command to resume")
    except (GraphrlError, OSError) as error:
        sys.exit(f"{script}: {error}")


def command() -> str:
    """Returns the command line of this process."""
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def check_known(what: str, given: Collection[str], names: Collection[str]) -> None:
    """Checks the names of an option.

    Raises:
      GraphrlError: one is not known.
    """
    if unknown := set(given) - set(names):
        raise GraphrlError(f"unknown {what} {min(unknown)!r}: {suggest(min(unknown), names)}")


def _parsed(description: str, settings: type[S], sections: Mapping[str, Section]) -> S:
    width = max(map(len, sections))
    listed = "".join(f"  {name:{width}} {section.title} ({section.file})\n" for name, section in sections.items())
    parser = Parser(description=f"{description.rstrip()}\n\nsections:\n{listed}")
    possible = tuple(name for name, section in sections.items() if not section.missing())
    parser.add_argument(
        "--sections", type=names, default=possible, metavar="NAME,...", help="(default: all that can run here)"
    )
    parser.add_argument(
        "--as", dest="page", default="", metavar="NAME", help="of the results file of one section (default: its own)"
    )
    fields = {field.name: field for field in dataclasses.fields(settings) if field.metadata}
    for name, field in fields.items():
        _add(parser, f"--{name.replace('_', '-')}", field)
    args = parser.parse_args()
    check_known("section", args.sections, sections)
    if args.page and len(args.sections) != 1:
        raise GraphrlError(f"--as {args.page}: takes one section, as in --sections {args.sections[0]}")
    values = vars(args)
    if args.quick:
        small = {name: field.metadata["quick"] for name, field in fields.items()}
        values |= {name: value for name, value in small.items() if value is not None}
    if args.results == RESULTS and (args.quick or args.out != fields["out"].default):
        values["results"] = args.out
    return settings(**values)


def _add(parser: argparse.ArgumentParser, flag: str, field: dataclasses.Field[Any]) -> None:
    default: Any
    default, help, more = field.default, field.metadata["help"], field.metadata["more"]
    if isinstance(default, bool):
        parser.add_argument(flag, action="store_true", help=help)
        return
    parse = field.metadata["parse"] or {int: whole_number, float: float, str: str}.get(type(default), Path)
    text = ",".join(map(str, default)) if isinstance(default, tuple) else default
    if default is not None and default != () and flag != "--results":
        help += f" (default: {text})"
    if "choices" not in more:
        more = {"metavar": {int: "N", float: "S", tuple: "N,..."}.get(type(default), "PATH")} | more
    first = list(default) if more.get("action") == "append" else default
    parser.add_argument(flag, type=cast(Any, parse), default=first, help=help, **more)
