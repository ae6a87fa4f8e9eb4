"""Writes the tables of all methods into docs/methods.md, from the registries; a test holds them together.

python scripts/methods_table.py
"""

from pathlib import Path

from graphrl.commands.parser import Parser
from graphrl.files import write_atomically
from graphrl.methods import describe, describe_map_methods

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
HEAD = ["| `--method` | what it does | devices | options |", "|---|---|---|---|"]
MAP_HEAD = ["| `graphrl map --method` | what it does | options |", "|---|---|---|"]


def with_tables(page: str) -> str:
    """The page, its tables of methods made anew."""
    plans = [f"| `{one.name}` | {one.help} | {one.devices} | {_options(one.options)} |" for one in describe()]
    maps = [f"| `{one.name}` | {one.help} | {_options(one.options)} |" for one in describe_map_methods()]
    return _with_table(_with_table(page, [*HEAD, *plans]), [*MAP_HEAD, *maps])


def _with_table(page: str, lines: list[str]) -> str:
    """The page with these lines in place of the table that begins with their first; it ends at an empty line."""
    before, _, rest = page.partition(lines[0])
    _, empty, after = rest.partition("\n\n")
    return before + "\n".join(lines) + empty + after


def _options(options: str) -> str:
    return ", ".join(f"`{option}`" for option in options.split(", ") if option)


def main() -> None:
    """Writes the page."""
    Parser(description=__doc__).parse_args()
    text = with_tables(PAGE.read_text(encoding="utf-8"))
    write_atomically(PAGE, lambda file: file.write(text))


if __name__ == "__main__":
    main()
