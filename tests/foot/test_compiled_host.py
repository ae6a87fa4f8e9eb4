"""numba's compiled code is kept in the user's cache, and compiling prints a line."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import environment

from graphrl import compiled
from graphrl.compiled import background_compile
from graphrl.compiled.structures import rows_by, set_rows
from graphrl.process import count_cores


def twice(x: int) -> int:
    return 2 * x


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "USERS_FOLDER", "")
    compiled._folder.cache_clear()
    yield tmp_path
    compiled._folder.cache_clear()


def test_compiling_is_announced_once_in_one_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lines in (1, 0):
        with compiled.announced(twice, "a search"):
            assert len(capsys.readouterr().err.splitlines()) == lines
    assert compiled.folder(twice).is_relative_to(cache / "graphrl" / "numba")


def test_unfinished_compilations_are_announced_again(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), compiled.announced(twice, "a search"):
        raise KeyboardInterrupt
    with compiled.announced(twice, "a search"):
        assert capsys.readouterr().err.count("compiling a search") == 2


def test_a_function_is_kept_on_disk(cache: Path) -> None:
    assert compiled.entry(twice)(21) == 42
    assert list(compiled.folder(twice).rglob("*.nbi"))


def test_compiled_functions_depend_on_constants_of_other_folders(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    (tmp_path / "graphrl/loops").mkdir(parents=True)
    (tmp_path / "graphrl/marks/__pycache__").mkdir(parents=True)  # left where the module was once a package
    source = "from graphrl.marks import (\n    EDGE,\n)\n"
    path = tmp_path / "graphrl/loops/loop.py"
    path.write_text(source + "def loop():\n    return EDGE\n")
    marks, folders, scope = tmp_path / "graphrl/marks.py", list[Path](), dict[str, Any]()
    exec(compile(path.read_text().removeprefix(source), str(path), "exec"), scope)
    for content in ("EDGE = -1\n", "EDGE = 0\n", "EDGE = -1\n"):
        marks.write_text(content)
        compiled._folder.cache_clear()
        folders.append(compiled.folder(scope["loop"]))
    assert folders[0] == folders[2] != folders[1]


def test_unused_folders_of_other_sources_are_removed(cache: Path) -> None:
    here = compiled.folder(twice)
    old, young, others = (here.parent / name for name in ("0" * 16, "1" * 16, "not-ours"))
    for place, days in ((old, 31), (young, 29), (others, 31)):
        (place / "parts").mkdir(parents=True)
        os.utime(place, 2 * (time.time() - days * 24 * 3600,))
    compiled.entry(twice)
    assert {path.name for path in here.parent.iterdir()} == {here.name, young.name, others.name}
    os.utime(here, (0, 0))
    compiled.entry(twice)
    assert time.time() - here.stat().st_mtime < 3600


def test_a_cache_that_cannot_be_written_costs_the_compilation_alone(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / "graphrl").touch()
    with compiled.announced(twice, "a search"):
        assert f"{compiled.folder(twice)} cannot be written" in capsys.readouterr().err
    assert compiled.entry(twice)(21) == 42
    assert not list(Path(__file__).resolve().parents[1].rglob("*.nbi"))


def test_other_versions_of_numba_compile_parts_alone(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text("""
import numba
numba.__version__ = "99.1.0"  # whose internals may be others
from graphrl.compiled import PARTS, entry, part
@part
def twice(x):
    return 2 * x
@entry
def fourfold(x):
    return twice(twice(x))
assert "pipeline_class" not in PARTS
assert fourfold(3) == 12
""")
    own = environment(XDG_CACHE_HOME=str(tmp_path))
    subprocess.run([sys.executable, "search.py"], cwd=tmp_path, env=own, check=True, timeout=300)


@pytest.mark.skipif(count_cores() < 2, reason="with one core nothing is compiled in the background")
def test_list_schedules_are_compiled_by_another_process_without_scipy(tmp_path: Path) -> None:
    code = """
import sys
import numba
import numpy as np
from graphrl.compiled import ready
from graphrl.solvers.rules import plan_builder as build
with build.prepared_in_background():
    while not ready(build.build, build.NAME).exists():
        pass
build.prepare()
assert build.build.stats.cache_hits and not build.build.stats.cache_misses
with build.prepared_in_background():  # nothing is left to do
    pass
assert "scipy.linalg" not in sys.modules
assert numba.njit(lambda x, y: np.dot(x, y))(np.ones(3), np.ones(3)) == 3  # needs it
"""
    own, command = environment(NUMBA_CACHE_DIR=str(tmp_path)), [sys.executable, "-c", code]
    done = subprocess.run(command, env=own, check=True, timeout=300, capture_output=True, text=True)
    assert not done.stderr


def do_nothing() -> None:
    """Does nothing; another process cannot import its module."""


def test_this_process_compiles_if_the_other_one_fails(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(cache / "none"))
        with background_compile(twice, "a search", do_nothing):
            pass
    with background_compile(twice, "a search", do_nothing):
        pass
    with pytest.raises(ZeroDivisionError), background_compile(twice, "a search", do_nothing):
        raise ZeroDivisionError


@given(keys=st.lists(st.integers(0, 5), max_size=30))
def test_rows_hold_the_values_of_each_key_in_the_given_order(keys: list[int]) -> None:
    values = np.arange(100, 100 + len(keys))[::-1]
    begins, rows = rows_by(np.array(keys, np.int32), values, 7)
    assert begins[0] == 0
    assert begins[-1] == len(keys) == len(rows)
    for key in range(7):
        expected = [value for each, value in zip(keys, values.tolist(), strict=True) if each == key]
        assert rows[begins[key] : begins[key + 1]].tolist() == expected


def test_groups_of_rows_follow_each_other() -> None:
    records = np.zeros(3, [("first", np.int64), ("second", np.int64)])  # of two keys, and the end of the last rows
    rows = set_rows(
        (records, "first", np.array([1, 0, 1]), np.array([7, 8, 9])), (records, "second", np.array([1]), np.array([5]))
    )
    assert rows.tolist() == [8, 7, 9, 5]
    assert records["first"].tolist() == [0, 1, 3]
    assert records["second"].tolist() == [3, 3, 4]
