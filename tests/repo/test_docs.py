"""Claims of the pages are true: their code runs, their commands parse, their links and paths exist.

The pages themselves are built by `make docs`, with every warning an error.
"""

import argparse
import dataclasses
import re
import runpy
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_models
import pytest
from methods_table import PAGE, with_tables

from graphrl import agents
from graphrl.cli import main
from graphrl.graphs import features
from graphrl.methods import find_solver
from graphrl.training.config import Schedule
from graphrl.xla.hook import why_unavailable

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "graphrl"
SETTINGS = {f"training.{field.name}" for field in dataclasses.fields(Schedule)}
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in RESULTS),
]
FENCED = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXTS = {path: path.read_text(encoding="utf-8") for path in [*PAGES, *RESULTS]}
# Split, so that this file does not match its own pattern.
CITATIONS = re.compile("|".join(("DES" + "IGN", "fac" + "ts/", "pap" + "ers/", r"\bissue" + r" #?\d")))


def blocks(path: Path, language: str) -> list[str]:
    """The code of a page in one language."""
    return [code for name, code in FENCED.findall(TEXTS[path]) if name == language]


def commands() -> list[str]:
    """Every command of the pages and of the tables of results, once, without environment variables in front of it."""
    lines = [line for path in PAGES for code in blocks(path, "shell") for line in code.splitlines()]
    heads = [re.findall(r"^Command: .*", TEXTS[path], re.MULTILINE)[0].split(" Seed")[0] for path in RESULTS]
    spans = [span for head in heads for span in re.findall(r"`([^`]+)`", head) if not span.startswith("-")]
    words = [shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", line), comments=True) for line in [*lines, *spans]]
    return list(dict.fromkeys(shlex.join(command) for command in words if command))


COMMANDS = commands()
PYTHON = [path for path in PAGES if blocks(path, "python")]


def shown(path: object) -> str:
    """A page's name, for the names of tests."""
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else str(path)


class Parsed(Exception):
    """Raised once a command line is parsed."""


@pytest.fixture
def only_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs end with `Parsed` once their command line is read."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        parse(self, *args, **kwargs)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)


def test_the_readme_is_read_in_two_minutes() -> None:
    text = TEXTS[ROOT / "README.md"]
    assert len(text.splitlines()) <= 150
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize("path", PYTHON, ids=shown)
def test_python_of_the_pages_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the code from top to bottom, in less time than the page states."""
    if "graphrl.compile" in TEXTS[path] and why_unavailable() is not None:
        pytest.skip(str(why_unavailable()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(agents, "AGENTS", dict(agents.AGENTS))  # a page may register its own
    code = re.sub(r"\bseconds=\d+", "seconds=0.3", "\n".join(blocks(path, "python")))
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, page.__name__, page)  # so that a page can name its own classes, as a file can
    exec(compile(code, str(path), "exec"), vars(page))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("graphrl ")])
@pytest.mark.usefixtures("only_parsed")
def test_commands_are_ones(command: str) -> None:
    with pytest.raises(Parsed):
        main(shlex.split(command)[1:])


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("graphrl train ")])
def test_settings_of_training_are_ones(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands list their settings instead of training."""
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command)[1:], "--settings"]) == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if re.match(r"graphrl (optimize|compare) .*--methods? ", c)])
def test_methods_are_ones(command: str) -> None:
    for method in re.findall(r"--methods? (\S+)", command)[0].split(","):
        find_solver(method)


CHEAP = [c for c in COMMANDS if re.match(r"graphrl (optimize|compare|convert) (?!MODEL|zoo:)", c)]


@pytest.mark.parametrize("command", CHEAP)
def test_cheap_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With smaller graphs, less time, one process, and only methods that need no compilation."""
    monkeypatch.chdir(tmp_path)
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx_models.model([relu], [onnx_models.info("x", (4,))], ["y"]), "model.onnx")
    for long, short in (
        (r"\b\d+x\d+", "12x2"), (r":x\d+", ":8x1"), (r":200\b", ":12"), (r"--methods \S+", "--methods list,given"),
        (r"--seconds \S+", "--seconds 0.1"), (r"--evaluations \S+", "--evaluations 200"), (r"--processes \S+", ""),
        (r"--baseline \S+", ""),
    ):  # fmt: skip
        command = re.sub(long, short, command)
    arguments = shlex.split(command)[1:]
    if arguments[0] != "convert" and not {"--seconds", "--evaluations"} & set(arguments):
        arguments += ["--seconds", "0.1"]
    assert main(arguments) == 0
    outputs = [arguments[i + 1] for i, word in enumerate(arguments) if word in ("--output", "--plot", "--trace")]
    assert [name for name in outputs if not Path(name).stat().st_size] == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python ")])
@pytest.mark.usefixtures("only_parsed")
def test_scripts_take_what_the_pages_give_them(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, script, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith(("python ", "graphrl "))])
def test_other_commands_are_ones(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        variables = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in arguments if "=" in word and word.split("=")[0] not in variables] == []
        assert {word for word in arguments if "=" not in word} <= targets()
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert arguments[0] == "install"
        assert set(re.findall(r"\[([\w-]+)\]", arguments[1])) <= set(extras)
    else:
        assert program in ("jupyter-execute", "bash", ".venv/bin/pytest", ".venv/bin/python")
        assert [word for word in arguments if "/" in word and not (ROOT / word).exists()] == []


def targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_links_and_paths_lead_somewhere(path: Path) -> None:
    text = TEXTS[path]
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith(("http", "#"))]
    paths = re.findall(r"`((?:graphrl|scripts|tests|docs|notebooks)/[\w./+-]*)`", text)
    assert [link for link in links if link and not (path.parent / link).exists()] == []
    assert [name for name in paths if not (ROOT / name).exists()] == []
    assert set(re.findall(r"`make ([a-z]+)", text)) <= targets()


def test_names_of_modules_lead_somewhere() -> None:
    """Checks names in backticks, in code and pages alike: `costs.device.evaluate`, `graphrl.learning.learner`."""
    rooms = "|".join(path.stem for path in PACKAGE.iterdir() if not path.stem.startswith("_"))
    dotted = re.compile(rf"`(?:graphrl\.)?((?:{rooms})(?:\.\w+)+)")
    names = [
        (str(path.relative_to(ROOT)), name)
        for path in texts()
        if path.suffix in (".py", ".md", ".ipynb")
        for name in dotted.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(names) > 20
    assert [(path, name) for path, name in names if not leads_somewhere(name)] == []


def leads_somewhere(name: str) -> bool:
    """True if it names a module, or a module that mentions the rest.

    Also true for file names (`progress.py`) and settings.
    """
    if name.endswith(".py") or name in SETTINGS:
        return True
    module, rest = PACKAGE, name.split(".")
    while rest and (module / rest[0]).is_dir():
        module /= rest.pop(0)
    if rest and (module / f"{rest[0]}.py").exists():
        source = module / f"{rest.pop(0)}.py"
    else:
        source = module / "__init__.py"
    words = re.findall(r"\w+", source.read_text(encoding="utf-8"))
    return set(rest) <= set(words)


def test_names_of_modules_that_have_moved_are_seen() -> None:
    here = ("costs.device.decode", "decoding.beam", "training.steps", "progress.py", "costs.exact.evaluate")
    gone = ("costs.fitness", "costs.device.gone", "envs.ordering.gone", "decoding.beam.gone", "mesh.gone")
    assert [name for name in (*here, *gone) if leads_somewhere(name)] == list(here)


@pytest.mark.parametrize("path", RESULTS, ids=shown)
def test_results_say_where_they_come_from(path: Path) -> None:
    title, _, summary, _, head, _, *rest = TEXTS[path].splitlines()
    assert title.startswith("# ")
    assert re.match(r"(?!Command: ).+\.$", summary), "no main result between the title and the command"
    assert re.match(r"Command: .*`.+ Seeds?: .+\. Hardware: .+\. Date: \d{4}-\d\d-\d\d( to .+)?\.$", head)
    assert any(line.startswith("| ") for line in rest)
    assert any(f"results/{path.name}" in TEXTS[page] for page in PAGES), "no page shows it"
    # Where pages are not built, included text does not show: they link it.
    pages = [page for page in PAGES if f"{{include}} ../results/{path.name}" in TEXTS[page]]
    assert [page.name for page in pages if f"](../results/{path.name})" not in TEXTS[page]] == []


def test_pages_of_results_have_the_names_of_their_sections() -> None:
    """A page of a script with sections is SYSTEM-SECTION.md, or SYSTEM-NAME.md with --as NAME."""
    wrong = []
    for path in RESULTS:
        words = re.search(r"^Command: `python scripts/reproduce_(\w+)\.py (.+?)`", TEXTS[path], re.MULTILINE)
        if words:
            system = words[1].replace("real_programs", "programs")
            (sections,) = re.findall(r"--sections (\S+)", words[2])
            names = re.findall(r"--as (\S+)", words[2]) or sections.split(",")
            wrong += [path.name] if path.stem not in {f"{system}-{name}" for name in names} else []
    assert wrong == []


def test_the_tables_of_methods_are_those_of_the_registries() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run: python scripts/methods_table.py"
    assert with_tables(page.replace("| `brkga`", "| `beam`")) == page
    assert with_tables(page.replace("| `greedy-dp`", "| `greedy`")) == page


def test_the_columns_of_observations_are_those_of_the_features() -> None:
    page = TEXTS[ROOT / "docs/guides/environment.md"]
    columns = (features.OP_FEATURES, features.LAYER_FEATURES, features.NODE_FEATURES, features.EDGE_FEATURES)
    for names in (*columns, features.TYPE_FEATURES[:2]):
        assert f"| {', '.join(f'`{name}`' for name in names)}" in page
    rows = re.findall(r"^\| (\d[\d, ]*) \| (`\w+`[`\w, ]*) \|", page, re.MULTILINE)
    codes = {int(code): name for row in rows for code, name in zip(*(cell.split(", ") for cell in row), strict=True)}
    assert codes == {i: f"`{name}`" for i, name in enumerate((*features.RELATIONS, "padding"))}


def test_no_file_cites_what_a_reader_does_not_have() -> None:
    cited = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in texts()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if CITATIONS.search(line)
    ]
    assert cited == []


def texts() -> Iterator[Path]:
    """The text files of the project."""
    endings = {".py", ".cpp", ".md", ".toml", ".ipynb", ".txt", ".json", ".lock", ""}
    for folder in ("graphrl", "scripts", "tests", "docs", "notebooks", ".ci"):
        yield from (p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in endings and p.is_file())
    yield from (p for p in sorted(ROOT.iterdir()) if p.suffix in endings and p.is_file())
