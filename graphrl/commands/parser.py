"""The parser of options for the commands and the scripts, with errors of one line."""

import argparse
import difflib
import sys
from typing import Any, NoReturn

from graphrl.errors import clipped, shortened


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line and name the subcommand; options cannot be abbreviated.

    Attributes:
      rest: name of a positional argument with nargs="*", whose values may also follow options: argparse would reject
        them. None without such an argument.

    "--" is never a value: the result of argparse for `--option=--`, or for a second "--", differs between versions of
    Python (an empty list for a text, a ValueError, or the text).
    """

    rest: str | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        self._check_dashes(arguments)
        if arguments[-1:] == ["--"]:  # a last "--" has no effect, but is an unknown argument in some versions of Python
            del arguments[-1]
        parsed, unknown = super().parse_known_args(arguments, namespace)
        if self.rest is not None and not any(word.startswith("-") for word in unknown):
            setattr(parsed, self.rest, [*getattr(parsed, self.rest), *unknown])
            unknown = []
        if unknown and self._subparsers is None:  # of a subcommand: its parent parser has none of its options
            options = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            name = unknown[0].split("=")[0].lstrip("-") if unknown[0].startswith("-") else ""
            similar = difflib.get_close_matches(name, options, n=1)
            hint = f": did you mean --{similar[0]}?" if similar else ""
            self.error(f"unrecognized arguments: {clipped(' '.join(unknown))}{hint}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        line = " ".join(shortened(message).split())
        self.exit(2, f"{self.prog}: error: {line} (see {self.prog} --help)\n")

    def _check_dashes(self, arguments: list[str]) -> None:
        """Exits with an error if "--" is a value or an argument; the first "--" alone ends the options."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        for argument in arguments[:end]:
            option, _, value = argument.partition("=")
            if value == "--" and option in self._option_string_actions:
                self.error(f"argument {option}: '--' is not a value")
        if "--" in arguments[end + 1 :]:
            self.error("'--' is not an argument: write ./-- for a file of this name")
