"""The directive `methods`: a table of every method, made from the registry when the pages are built."""

import importlib
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from graphrl.solvers import SOLVERS


def methods() -> list[tuple[str, str]]:
    """Name and one line of help of every method, as the registry has them."""
    rows = []
    for name, place in SOLVERS.items():
        module, function = place.split(":")
        solver = getattr(importlib.import_module(module), function)
        rows.append((name, (solver.__doc__ or "").partition("\n")[0]))
    return rows


class Methods(SphinxDirective):
    """A table of all methods."""

    def run(self) -> list[nodes.Node]:
        lines = ["| `--method` | what it is |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in methods())]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Any) -> dict[str, bool]:
    """Makes the directive known to Sphinx."""
    app.add_directive("methods", Methods)
    return {"parallel_read_safe": True}
