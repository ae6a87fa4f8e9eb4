"""Exceptions for mistakes of the user, which the command line prints as one line without a traceback.

Messages are short: `shortened` cuts the values in them, `suggest` lists few names. `require` imports a library that is
an optional dependency (an extra), `import_entry_point` what a user names as "module:NAME".
"""

import difflib
import importlib
import itertools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_REPEATED = 200  # characters of a value that a message repeats
_MAX_LISTED = 8  # names, up to which a message lists all
# A quoted text, as repr writes it, or a bracket. The apostrophe of "it's" opens nothing, nor does an escaped quote:
# each would be tried up to the end of the message.
_MARK = re.compile(r"""(?<![\w\\])'(?:[^'\\]|\\.)*'|(?<![\w\\])"(?:[^"\\]|\\.)*"|[\[({]|[\])}]""", re.DOTALL)
_NOT_OF_USERS = (Path(__file__).parent, Path(sysconfig.get_path("stdlib")))
_WORD = re.compile(rf"\S{{{MAX_REPEATED + 1},}}")


class GraphrlError(ValueError):
    """Base class of errors that bad input causes: the message names the fault, its place, and the remedy.

    Values in the message are shortened, see `shortened`.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message)))


class GraphError(GraphrlError):
    """A graph that breaks a rule of its format: a cycle, a dangling or duplicate name, a bad number, a bad file."""


class ArgumentError(GraphrlError, TypeError):
    """An argument or a result of a user's function that jax cannot trace; a TypeError, like jax's own."""


class PlanError(GraphrlError):
    """A plan that does not fit its graph, or whose stated costs are not those of its decisions."""


class ProblemError(GraphrlError):
    """A problem, budget or option outside its range."""


class MissingExtraError(GraphrlError):
    """A library that only an extra of graphrl requires is not installed."""


def require(module: str, extra: str, use: str) -> ModuleType:
    """Imports a module of an optional dependency; the error says that the feature `use` needs it.

    Raises:
      MissingExtraError: the library is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise MissingExtraError(f'{use} needs {package}: pip install "graphrl[{extra}]"') from None


def import_entry_point(entry_point: str, what: str) -> Any:
    """Returns what "module:NAME" names. The working directory counts as the last folder of the path, as `python -m`
    has it, so that the commands find a user's own modules.

    Args:
      entry_point: the module and the name.
      what: the start of messages, as in "agent 'mine'".

    Raises:
      GraphrlError: the text has another form, the module cannot be imported, or does not have the name.
    """
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", entry_point):
        raise GraphrlError(f"{what}: {entry_point!r} must be 'module:NAME'")
    module_name, _, name = entry_point.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        if module_name.startswith("graphrl."):
            raise
        raise GraphrlError(f"{what} cannot be imported: {one_line(error)}") from error
    if not hasattr(module, name):
        names = [known for known in vars(module) if not known.startswith("_")]
        raise GraphrlError(f"{what}: module {module_name!r} has no {name!r}: {suggest(name, names)}")
    return getattr(module, name)


def one_line(error: BaseException) -> str:
    """Returns the type and the first line of an error of a user's code, and the place where it was raised."""
    return f"{type(error).__name__}: {error}".strip(": ").partition("\n")[0] + place(error)


def place(error: BaseException) -> str:
    """Returns the place of an error in a user's code, as in " (my_module.py, line 7)": its innermost frame outside
    graphrl, Python and installed packages; "" if there is none.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
        if not (is_installed or frame.filename.startswith("<") or any(map(path.is_relative_to, _NOT_OF_USERS))):
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f" ({shown}, line {frame.lineno})"
    return ""


def shortened(message: str) -> str:
    """Cuts each value in a message (quoted text, a list in brackets, or a word) to at most 200 characters."""
    if len(message) <= MAX_REPEATED:
        return message
    parts, end = [], 0
    for start, stop in _values(message):
        parts += [message[end:start], clipped(message[start:stop])]
        end = stop
    return _WORD.sub(lambda word: clipped(word[0]), "".join([*parts, message[end:]]))


def clipped(text: str) -> str:
    """Cuts a text to at most 200 characters, keeping its start and its end."""
    if len(text) <= MAX_REPEATED:
        return text
    return f"{text[:110]}...{text[-40:]}"  # well below the limit, as punctuation may follow without a space


def suggest(name: object, names: Iterable[str]) -> str:
    """Builds the end of a message about an unknown name: all known names if at most 8, else the 3 nearest ones."""
    names = list(names)
    if len(names) <= _MAX_LISTED:
        return f"known are {', '.join(names)}"
    return f"the nearest of {len(names)} known are {', '.join(nearest(name, names))}"


def nearest(name: object, names: Iterable[str]) -> list[str]:
    """Returns the 3 names most similar to an unknown one, most similar first; equal beginnings weigh most."""
    text = str(name)[:MAX_REPEATED].lower()

    def similarity(known: str) -> float:
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, known.lower(), strict=False))
        prefix = len(list(equal)) / max(1, len(text))
        return prefix + difflib.SequenceMatcher(None, text, known.lower()).ratio()

    return sorted(names, key=similarity, reverse=True)[:3]


def _values(message: str) -> Iterator[tuple[int, int]]:
    """Yields start and end of each quoted text and each pair of brackets that is not inside another."""
    opened: list[int] = []
    quoted: list[tuple[int, int]] = []  # inside brackets that may never close
    for mark in _MARK.finditer(message):
        if mark[0] in ("[", "(", "{"):
            opened.append(mark.start())
        elif mark[0] in ("]", ")", "}"):
            if len(opened) == 1:
                yield opened[0], mark.end()
                quoted.clear()
            del opened[-1:]
        elif opened:
            quoted.append(mark.span())
        else:
            yield mark.span()
    yield from quoted
