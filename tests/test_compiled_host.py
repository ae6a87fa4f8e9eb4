"""What numba compiles is kept in the user's cache, and said."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from graphrl import compiled


def twice(x: int) -> int:
    return 2 * x


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled.config, "CACHE_DIR", "")
    compiled._folder.cache_clear()
    yield tmp_path
    compiled._folder.cache_clear()


def test_compiling_is_announced_once_in_one_line(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lines in (1, 0):
        with compiled.announced(twice, "a search"):
            assert len(capsys.readouterr().err.splitlines()) == lines
    assert compiled.folder(twice).is_relative_to(cache / "graphrl" / "numba")


def test_what_was_not_compiled_to_the_end_is_announced_again(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), compiled.announced(twice, "a search"):
        raise KeyboardInterrupt
    with compiled.announced(twice, "a search"):
        assert capsys.readouterr().err.count("compiling a search") == 2


def test_a_function_is_kept_on_disk(cache: Path) -> None:
    assert compiled.entry(twice)(21) == 42
    assert list(compiled.folder(twice).rglob("*.nbi"))


def test_a_cache_that_cannot_be_written_costs_the_compilation_alone(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / "graphrl").touch()
    with compiled.announced(twice, "a search"):
        assert f"{compiled.folder(twice)} cannot be written" in capsys.readouterr().err
    assert compiled.entry(twice)(21) == 42
    assert not list(Path(__file__).parent.rglob("*.nbi"))
