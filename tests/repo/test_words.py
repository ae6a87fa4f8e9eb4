"""Plain English: docstrings, comments and pages avoid turns of phrase that the field does not use.

A hit is a place to look at, since some uses are right ("the lock is held"). So a few are allowed per 100 texts.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 2.0  # hits per 100 texts; mctx, flashbax, jumanji and equinox have 0.3 to 0.5
VERBS = (
    "a|an|the|is|are|was|were|it|they|of|no|one|each|every|makes?|an?y|comes?|has|have|does|do|takes?|follows?|stands?"
    "|happens?|becomes?|goes|can|must|may|will"
)
ODD = re.compile(
    "|".join(
        (
            rf"(?:^|[.:;,(] )[Ww]hat (?!if\b)(?:{VERBS})\b",
            r"\b[Ww]ho (?:reads?|waits?|writes?|asks?|takes?|needs?|lives|wants|knows|runs|uses)\b",
            r"\b[Ss]tands?\b|\bstood\b",
            r"\bheld\b(?![ -]out)|\blies?\b|\blay\b",
            r"\b(?:is|are|was|were|be) told\b|\btells?\b|\b(?:is|are|as) said\b|\bsays?\b",
            r"\bforetold\b|\bforetells?\b|\bbeside\b|\banew\b|\bat once\b",
            r"\bgoes on\b|\bgo on\b|\bcomes? to\b|\bcame to\b",
            r"\b(?:or|if|where|with|for) none\b|\bthere (?:is|are) none\b|\bnone (?:is|do)\b",
            r"\bso many\b|\bas many\b|\bso much\b|\bby itself\b|\bby themselves\b|\bof their own\b",
            r"\bbegin(?:s|ning)? (?:with|at|from)\b|\bbegun\b|\bmakes? of (?:it|them)\b|\bis made of\b",
            r"\bhaste\b|\bhurry\b|\bmends?\b|\bspares?\b",
        )
    )
)


def texts(path: Path) -> Iterator[str]:
    """Docstrings and comments of a module, or the lines of a page outside code and tables."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for block in re.split(r"^```.*?^```", source, flags=re.MULTILINE | re.DOTALL):
            yield from (line for line in block.splitlines() if line.strip() and not line.startswith("|"))
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(None, [ast.get_docstring(node, clean=False)])
    yield from re.findall(r"(?:^|\s)# (.*)$", source, flags=re.MULTILINE)


def test_an_odd_turn_is_found(tmp_path: Path) -> None:
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    module.write_text('"""What is kept."""\n\nSIZE = 3  # so many\n')
    page.write_text("It lies here.\n```\nlies\n```\n| lies |\n")
    assert [bool(ODD.search(text)) for text in texts(module)] == [True, True]
    assert list(texts(page)) == ["It lies here."]
    assert ODD.search("Values that are kept.") is None


@pytest.mark.parametrize(
    "place", ["graphrl", "scripts", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_words_are_plain(place: str) -> None:
    files = [path for path in (ROOT / place).rglob("*") if path.suffix in (".py", ".md") and not path.is_symlink()]
    files = [ROOT / place] if (ROOT / place).is_file() else [path for path in files if "results" not in path.parts]
    found = {path: [ODD.findall(text) for text in texts(path)] for path in files}
    count = sum(map(len, found.values()))
    hits = {str(path.relative_to(ROOT)): n for path in files if (n := sum(map(len, found[path])))}
    assert 100 * sum(hits.values()) <= MOST * count, sorted(hits.items(), key=lambda item: -item[1])[:10]
