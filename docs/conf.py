"""How Sphinx builds the documentation: `make docs`. It fetches nothing and runs no notebook."""

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "_ext"))

project = "graphrl"
author = "the graphrl authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "docstrings", "sphinx.ext.napoleon"]
suppress_warnings = ["misc.highlighting_failure"]  # notebooks call commands over several lines

myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/repo/test_notebooks.py runs them; here their stored outputs are shown

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_use_ivar = True  # fields as one list

html_theme = "sphinx_book_theme"
html_title = "graphrl"
html_static_path = ["_static"]
html_copy_source = False
html_theme_options = {"show_toc_level": 2}


def links_to_notebooks(app: Any, docname: str, source: list[str]) -> None:
    """Turns links between files of the repository into links between pages, from guides to notebooks and back."""
    if docname.startswith("notebooks/"):  # through a link, so that relative paths lead elsewhere
        source[0] = source[0].replace("](../docs/", "](/")
    link = r"\[([^][]+)\]\((?:\.\./\.\./notebooks/)?(\w+)\.ipynb\)"
    source[0] = re.sub(link, r"{doc}`\1 </notebooks/\2>`", source[0])


def setup(app: Any) -> None:
    """Registers the handlers of this file with Sphinx."""
    app.connect("source-read", links_to_notebooks)
