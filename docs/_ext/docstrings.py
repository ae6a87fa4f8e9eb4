"""Our docstrings are plain text with `code` in backticks: what reStructuredText would read into it is escaped."""

import re
from typing import Any

STRESSED = r"(?<![\w*])\*{1,2}[A-Za-z](?:[^*]*[^*\s])?\*{1,2}(?![\w*])"
SPECIAL = re.compile(rf"({STRESSED})|([\\*|]|_(?=\W|$))")


def escaped(line: str) -> str:
    """A docstring's line as reStructuredText: code is literal, and `*`, `|` and a trailing `_` mean themselves, but for
    stars around words.
    """
    parts = re.split(r"`+([^`]+)`+", line)  # text, code, text, ...
    texts = (SPECIAL.sub(lambda match: match[1] or f"\\{match[2]}", text) for text in parts[::2])
    codes = [*(f"``{code}``\\ " for code in parts[1::2]), ""]
    return "".join(text + code for text, code in zip(texts, codes, strict=True)).rstrip()


def prepared(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText. Tables and blocks set off by four spaces stay as they are; lists stand apart."""
    out: list[str] = []
    literal = False
    for line, before in zip(lines, ["", *lines], strict=False):
        table, deep = line.startswith("|"), line.startswith("    ") and not before.strip()
        if line.strip() and literal and not (table or line.startswith("    ")):
            literal = False
            out += [""] if before.strip() else []
        elif not literal and (table or (deep and _margin(out) == 0)):
            literal = True
            out += ["", "::", ""]
        item = re.match(r"- |\d+\. ", line) and before.strip() and not re.match(r"- |\d+\. |  ", before)
        out += [""] if item else []
        out.append(("    " * table + line) if literal else escaped(line))
    return out


def _margin(lines: list[str]) -> int:
    """By how much the last line that is not empty is indented; 0 if there is none."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return len(last) - len(last.lstrip())


def prepare(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Changes a docstring in place, before napoleon reads its sections."""
    lines[:] = prepared(lines)
    if what in ("attribute", "data", "property"):  # or napoleon takes what stands before a colon for its type
        lines.insert(0, "")


def setup(app: Any) -> dict[str, bool]:
    """Comes before napoleon."""
    app.connect("autodoc-process-docstring", prepare, priority=100)
    return {"parallel_read_safe": True}
