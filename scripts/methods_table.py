"""Writes the table of all methods into docs/methods.md, from the registry; a test holds the two together.

python scripts/methods_table.py
"""

import argparse
from pathlib import Path

from graphrl.files import write_atomically
from graphrl.methods import describe

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
HEAD = ["| `--method` | what it does | devices | options |", "|---|---|---|---|"]


def with_table(page: str) -> str:
    """The page, its table of methods (which begins with `HEAD` and ends at an empty line) made anew."""
    before, _, rest = page.partition(HEAD[0])
    _, empty, after = rest.partition("\n\n")
    lines = [*HEAD]
    for method in describe():
        options = ", ".join(f"`{option}`" for option in method.options.split(", ") if option)
        lines.append(f"| `{method.name}` | {method.help} | {method.devices} | {options} |")
    return before + "\n".join(lines) + empty + after


def main() -> None:
    """Writes the page."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    text = with_table(PAGE.read_text(encoding="utf-8"))
    write_atomically(PAGE, lambda file: file.write(text))


if __name__ == "__main__":
    main()
