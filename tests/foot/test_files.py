"""Files are written whole or not at all, and every failure is one line."""

import gzip
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from graphrl import files
from graphrl.errors import GraphrlError


def _write(text: str = "new\n") -> Callable[[IO[str]], object]:
    return lambda file: file.write(text)


def test_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    files.write_atomically(path, _write("one\n"))
    files.write_atomically(path, _write("zwei ü\n"))
    assert path.read_bytes() == "zwei ü\n".encode()
    files.write_atomically(str(path), lambda file: file.write(b"\xff\r\n"), binary=True)
    assert path.read_bytes() == b"\xff\r\n"
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), ValueError("bad")])
def test_failure_while_writing_keeps_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def write(file: IO[str]) -> None:
        file.write("half of the n")
        raise error

    expected = GraphrlError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        files.write_atomically(path, write)
    if isinstance(error, OSError):
        assert str(caught.value) == f"cannot write {path}: No space left on device"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_mode_is_that_of_the_umask_or_of_the_old_file(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        files.write_atomically(tmp_path / "new", _write())
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    files.write_atomically(tmp_path / "new", _write())
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    link = tmp_path / "link"
    link.symlink_to(target)
    files.write_atomically(link, _write())  # dangling so far
    files.write_atomically(link, _write("again\n"))
    assert link.is_symlink()
    assert target.read_text() == "again\n"
    assert os.listdir(tmp_path / "folder") == ["target"]


def test_a_pipe_is_written_directly_and_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: files.write_atomically(pipe, _write("through\n")))
    writer.start()
    with files.content(pipe) as data:
        assert data[:] == b"through\n"
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_are_written_directly_and_never_replaced() -> None:
    files.write_atomically("/dev/null", _write())
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_what_is_open_is_written_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    with path.open("a") as log:
        files.write_atomically(f"/dev/fd/{log.fileno()}", _write())
        files.write_atomically(f"/proc/self/fd/{log.fileno()}", _write("more\n"))
        log.write("last\n")
    assert path.read_text() == "old\nnew\nmore\nlast\n"
    with pytest.raises(GraphrlError, match="cannot write /dev/fd/98765: Bad file descriptor"):
        files.write_atomically("/dev/fd/98765", _write())


@pytest.mark.parametrize("path", [None, 3, b"plan.json"])
def test_paths_of_other_types_are_refused(path: Any) -> None:
    fault = f"a path is of type {type(path).__name__}: must be text"
    with pytest.raises(GraphrlError, match=fault):
        files.write_atomically(path, _write())
    with pytest.raises(GraphrlError, match=fault), files.content(path):
        pass


def test_write_protected_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
    with pytest.raises(GraphrlError, match=r"cannot write .*plan\.json: the file is write-protected$"):
        files.write_atomically(path, _write())
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "it is a directory"),
        ("missing/plan.json", "there is no folder"),
        ("file/plan.json", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("nu\0ll", "null"),
    ],
)
def test_write_errors_are_one_line(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(GraphrlError) as caught:
        files.write_atomically(os.path.join(tmp_path, name), _write())
    message = str(caught.value)
    assert message.startswith("cannot write ")
    assert fault in message
    assert message.isprintable()
    assert os.listdir(tmp_path) == ["file"]


def test_content_unpacks_gzip(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    for data in (b"plain", gzip.compress(b"plain")):
        path.write_bytes(data)
        with files.content(path) as read:
            assert read[:] == b"plain"
            assert len(read) == 5
            assert read[0] == ord("p")


def test_errors_inside_a_with_are_not_taken_for_reading_errors(tmp_path: Path) -> None:
    (tmp_path / "graph").write_text("x")
    with pytest.raises(OSError, match="mine"), files.content(tmp_path / "graph"):
        raise OSError("mine")


def test_paths_are_shown_on_one_line() -> None:
    assert files.quote_path("a b/c.json") == "a b/c.json"
    assert files.quote_path(Path("a\nb")) == r"'a\nb'"
    assert files.quote_path("\udcff").isprintable()
