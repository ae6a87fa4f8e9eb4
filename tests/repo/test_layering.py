"""Imports run downwards only, through the floors of rooms below; no two files import each other.

Every import counts, also those inside functions and under TYPE_CHECKING: an import hidden from the interpreter at start
is still a dependency on a higher room.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "graphrl"
MOST_MODULES, MOST_WITH_ONE_NEIGHBOUR = 404, 32

# From the top floor down. A module may import from its own room and from the floors below. Rooms on one floor do not
# import one another, except on the top floor, which is one program in several files.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("", "__main__", "cli", "commands", "bench", "compare"),  # "" is graphrl itself: the public names
    ("xla",),
    ("optimize",),
    ("methods",),
    ("agents",),
    ("training",),
    ("learning",),
    ("envs",),
    ("sharding",),
    ("decoding", "solvers", "networks"),
    ("plan",),
    ("costs",),
    ("graphs",),
    ("compiled", "progress", "signals"),
    ("colours", "files", "mesh", "process", "random_bits", "units"),
    ("errors",),
)
MODULE = re.compile(r"graphrl(\.[a-z_]\w*)+(:\w+)?")  # a string that names a module
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module: str) -> str:
    """The room of a dotted module name: `graphrl.costs.exact` is in `costs`, `graphrl` in ""."""
    return (*module.partition(":")[0].split("."), "")[1]


def module_of(path: Path, package: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted target of every import of `graphrl` in `source`, relative ones resolved.

    The target of `from a import b` is a.b, for a module or a name b in a.
    """
    for node in ast.walk(ast.parse(source)):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(node, module, is_package)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            # Imported by name, or a name stored for a later import: as in a registry, "graphrl.room.module:NAME".
            targets = [node.value.partition(":")[0]] if room_of(node.value) in FLOOR_OF else []
        yield from ((node.lineno, t) for t in targets if t.split(".")[0] == "graphrl")  # type: ignore[attr-defined]


def _resolve(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join(parts + ([node.module] if node.module else []))


@functools.cache
def package_imports(package: Path) -> dict[str, list[tuple[int, str]]]:
    """Line and target of every import, by module."""
    return {
        (module := module_of(path, package)): list(
            imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        )
        for path in sorted(package.rglob("*.py"))
    }


def violations(package: Path) -> list[str]:
    """One line for every import that does not run downwards, and for every module in no known room."""
    faults = []
    for module, targets in package_imports(package).items():
        room = room_of(module)
        if room not in FLOOR_OF:
            faults.append(f"{module}: stands on no floor: give {room!r} its place in tests/repo/test_layering.py")
            continue
        for line, target in targets:
            if not _may_import(room, room_of(target)):
                faults.append(f"{module}:{line}: {room or 'graphrl'!r} may not import {target}")
    return faults


def _may_import(room: str, target: str) -> bool:
    target = target if target in FLOOR_OF else ""  # a public name of graphrl; a room on no floor is reported itself
    return room == target or FLOOR_OF[room] < FLOOR_OF[target] or FLOOR_OF[room] == FLOOR_OF[target] == 0


def test_imports_run_downwards() -> None:
    assert list(PACKAGE.rglob("*.py")), f"no modules under {PACKAGE}"
    assert violations(PACKAGE) == []


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """A package of these files."""
    for file, source in files.items():
        path = folder / "graphrl" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder / "graphrl"


VIOLATIONS = [
    ("costs/a.py", "import graphrl.plan", "graphrl.costs.a:1: 'costs' may not import graphrl.plan"),
    (
        "costs/a.py",
        "def f():\n    import graphrl.plan",
        "graphrl.costs.a:2: 'costs' may not import graphrl.plan",
    ),
    (
        "plan.py",
        "if TYPE_CHECKING:\n    from graphrl import optimize",
        "graphrl.plan:2: 'plan' may not import graphrl.o",
    ),
    ("plan.py", "from graphrl import Plan", "'plan' may not import graphrl"),
    ("plan.py", "from . import solvers", "'plan' may not import graphrl.solvers"),
    ("graphs/readers/onnx/reader.py", "from ....plan import Plan", "'graphs' may not import graphrl.plan"),
    ("solvers/__init__.py", "from ..networks import encoder", "'solvers' may not import graphrl.networks"),
    ("solvers/__init__.py", "SOLVERS = {'regal': 'graphrl.agents.regal:solve'}", "may not import graphrl.agents"),
    ("errors.py", "import graphrl.files", "'errors' may not import graphrl.files"),
    ("attic/old.py", "", "graphrl.attic.old: stands on no floor"),
]


@pytest.mark.parametrize(("file", "source", "fault"), VIOLATIONS)
def test_a_violation_is_found(tmp_path: Path, file: str, source: str, fault: str) -> None:
    assert [fault in line for line in violations(write(tmp_path, {file: source}))] == [True]


def test_imports_downwards_are_allowed(tmp_path: Path) -> None:
    files = {
        "cli.py": "from graphrl.commands import optimize\nimport graphrl\nfrom graphrl import Plan",
        "plan.py": "from graphrl.costs.exact import evaluate\nfrom .graphs.graph import Op\nimport numpy",
        "graphs/readers/__init__.py": "from .json import read_json\nfrom ..graph import Op\nfrom ...errors import E",
    }
    assert violations(write(tmp_path, files)) == []


def imported_files(package: Path) -> dict[str, set[str]]:
    """For each module: the other modules of the package that it imports, in whatever way."""
    modules = package_imports(package)
    return {
        module: {name if name in modules else name.rpartition(".")[0] for _, name in targets}
        & modules.keys() - {module}
        for module, targets in modules.items()
    }


def circles(package: Path) -> list[list[str]]:
    """Groups of modules that import one another, directly or through others, each sorted."""
    files = imported_files(package)
    reached = {module: _reached(module, files) for module in files}
    groups = {frozenset(one for one in reached[module] if module in reached[one]) for module in files}
    return sorted(sorted(group) for group in groups if group)


def _reached(module: str, files: Mapping[str, set[str]]) -> set[str]:
    """All modules that a module imports, directly or through others."""
    reached: set[str] = set()
    waiting = list(files[module])
    while waiting:
        if (one := waiting.pop()) not in reached:
            reached.add(one)
            waiting += files[one]
    return reached


def test_no_two_files_import_each_other() -> None:
    assert circles(PACKAGE) == []


TYPED = "import typing\nif typing.TYPE_CHECKING:\n    from graphrl.a import A"


@pytest.mark.parametrize(
    ("sources", "circle"),
    [
        ({"a": "from graphrl.b import f", "b": "def g():\n    import graphrl.a"}, ["a", "b"]),
        ({"a": "from graphrl import b", "b": "from .c import f", "c": TYPED, "d": "import graphrl.a"}, ["a", "b", "c"]),
        ({"files": "METHODS = {'b': 'graphrl.units:solve'}", "units": "import graphrl.files"}, ["files", "units"]),
        ({"a": "from graphrl import b, c", "b": "from graphrl import c", "c": ""}, None),
    ],
)
def test_a_circle_is_found(tmp_path: Path, sources: dict[str, str], circle: list[str] | None) -> None:
    package = write(tmp_path, {f"{name}.py": source for name, source in {"__init__": "", **sources}.items()})
    assert circles(package) == ([] if circle is None else [[f"graphrl.{name}" for name in circle]])


def test_files_are_chapters() -> None:
    """Limits the number of modules, and of those with a single importer in the same folder."""
    files = imported_files(PACKAGE)
    importers: dict[str, list[str]] = {module: [] for module in files}
    for module, imported in files.items():
        for one in imported:
            importers[one].append(module)
    alone = [
        one for one, by in importers.items() if len(by) == 1 and by[0].rpartition(".")[0] == one.rpartition(".")[0]
    ]
    assert len(files) <= MOST_MODULES
    assert len(alone) <= MOST_WITH_ONE_NEIGHBOUR, alone
