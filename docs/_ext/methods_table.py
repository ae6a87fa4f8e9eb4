"""The directive `methods`: a table of every method, made from the registry when the pages are built."""

from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from graphrl.methods import describe


class Methods(SphinxDirective):
    """A table of all methods."""

    def run(self) -> list[nodes.Node]:
        """One table."""
        lines = ["| `--method` | what it does | devices | options |", "|---|---|---|---|"]
        for method in describe():
            options = ", ".join(f"`{option}`" for option in method.options.split(", ") if option)
            lines.append(f"| `{method.name}` | {method.help} | {method.devices} | {options} |")
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Any) -> dict[str, bool]:
    """Makes the directive known to Sphinx."""
    app.add_directive("methods", Methods)
    return {"parallel_read_safe": True}
