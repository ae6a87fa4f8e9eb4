"""Reading and atomic writing of files, with error messages of one line.

`read_document` and `write_document` store dataclasses in JSON files, `{"format": ..., "version": ..., ...}`, and check
every type. msgspec is imported when one is read, so training without files does not need it.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import mmap
import os
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from graphrl.errors import MAX_REPEATED, GraphrlError

GZIP_MAGIC = b"\x1f\x8b"
PICTURES = ("png", "svg", "pdf")  # endings of supported picture formats

MAX_UNPACKED = 4 * 10**9  # bytes that a gzipped file may unpack to: some 4 MB of gzip can hold that many zeros
_CHUNK = 2**20  # bytes that are unpacked at a time

Content = bytes | mmap.mmap  # both give ints by index, bytes by slice, and len


def quote_path(path: str | os.PathLike[str]) -> str:
    """Formats a path as one printable line: quoted if it is long, or has line breaks or bytes that are no text."""
    name = str(path)
    return name if name and name.isprintable() and len(name) <= MAX_REPEATED else repr(name)


def check_path(path: object) -> None:
    """Raises GraphrlError if `path` is not a path; an int would be taken for the number of an open file."""
    if not isinstance(path, str | os.PathLike):
        raise GraphrlError(f"a path is of type {type(path).__name__}: must be text or an os.PathLike")


def descriptor_of(path: str | os.PathLike[str]) -> int | None:
    """Returns the file descriptor that a path such as /dev/stdout or /dev/fd/3 means; None for other paths."""
    match = re.fullmatch(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d{1,9})", os.fspath(path))
    if match is None:
        return None
    return int(match[2]) if match[2] else {"stdout": 1, "stderr": 2}[match[1]]


@contextlib.contextmanager
def content(path: str | os.PathLike[str], *, max_unpacked: float = MAX_UNPACKED) -> Iterator[Content]:
    """Context manager that gives the content of a file, unpacked if gzipped; a plain file is mapped, not read.

    Args:
      path: path of the file.
      max_unpacked: largest number of bytes that a gzipped file may unpack to.

    Raises:
      GraphrlError: on entry, one line, if the file is missing, a directory, a device, unreadable, broken gzip or gzip
        of more than `max_unpacked` bytes.
    """
    check_path(path)
    with contextlib.ExitStack() as stack:
        try:
            data = _contents(path, stack)
            if data[:2] == GZIP_MAGIC:
                data = _unpacked(data, max_unpacked)
        except GraphrlError as error:
            raise GraphrlError(f"{quote_path(path)}: {error}") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise GraphrlError(f"{quote_path(path)}: broken or truncated gzip: {error}") from None
        except (OSError, ValueError) as error:
            raise GraphrlError(f"cannot read {quote_path(path)}: {_reason(error)}") from None
        yield data


def _contents(path: str | os.PathLike[str], stack: contextlib.ExitStack) -> Content:
    # The kind is checked before opening: opening a tape or a terminal can have effects, and /dev/zero never ends.
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(None, "it is a directory")
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        raise OSError(None, "it is a device, not a file")
    file = stack.enter_context(open(path, "rb"))  # noqa: SIM115 (the caller's stack closes it)
    if not stat.S_ISREG(kind) or os.fstat(file.fileno()).st_size == 0:  # pipes, and /proc, which reports 0 bytes
        return file.read()
    return stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _unpacked(data: Content, limit: float) -> bytes:
    unpacked = io.BytesIO()
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        while chunk := packed.read(_CHUNK):
            unpacked.write(chunk)
            if unpacked.tell() > limit:
                raise GraphrlError(
                    f"its gzip unpacks to more than {limit:,.0f} bytes, the limit (limits=, --read-limits in commands)"
                )
    return unpacked.getvalue()


def cache_folder(name: str) -> Path:
    """Returns a cache folder of this user: `$XDG_CACHE_HOME/graphrl/name`, by default ~/.cache/graphrl/name."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphrl" / name


def enable_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache for this process, if none is set.

    Children inherit it if JAX is not imported yet.
    The folder is `$XDG_CACHE_HOME/graphrl/jax` (by default ~/.cache/graphrl/jax). Commands and `graphrl.training` call
    this; other functions leave it to the program that imports them. JAX itself is not imported: not every search needs
    it. JAX_ENABLE_COMPILATION_CACHE=0 turns the cache off. If the folder cannot be written, programs are compiled again
    in each process.
    """
    folder, seconds = str(cache_folder("jax")), "0.2"
    if "jax" not in sys.modules:
        if os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder) == folder:
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", seconds)
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))
        compilation_cache.reset_cache()  # a program may have been compiled without it


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Creates the folder of this path, with its parents, if it does not exist.

    Raises:
      GraphrlError: the path is a file, or the folder cannot be created.
    """
    folder = Path(path)
    try:
        if not os.fspath(path):
            raise ValueError("it is no name of a folder")
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise GraphrlError(f"cannot write into {quote_path(path)}: it is a file, and must be a folder") from None
    except (OSError, ValueError) as error:
        raise GraphrlError(f"cannot make the folder {quote_path(path)}: {_reason(error)}") from None
    return folder


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[Any]], object], *, binary: bool = False) -> None:
    """Writes a file atomically: `write` gets a temporary file in the same folder, which then replaces the file.

    A symbolic link is followed. An existing file keeps its permission bits; a new one gets those of the umask. A file
    that the user may not write is refused although its folder would allow the replacement. A path that is no plain file
    (a pipe, a device) is written directly, as it cannot be replaced. So are /dev/stdout and its like, whatever they
    are: they are written at their current position.

    Args:
      path: path of the file.
      write: called once with a file open for writing: UTF-8 text, or bytes if `binary`. Whatever it raises passes
        through (an OSError as GraphrlError) after the temporary file is gone.
      binary: True if `write` writes bytes.

    Raises:
      GraphrlError: one line, if the file cannot be written; the old file, if any, is untouched.
    """
    check_path(path)
    try:
        _write(path, write, binary)
    except (OSError, ValueError) as error:
        if isinstance(error, GraphrlError) or not (isinstance(error, OSError) or "null byte" in str(error)):
            raise
        raise GraphrlError(f"cannot write {quote_path(path)}: {_reason(error, path)}") from None


def _write(path: str | os.PathLike[str], write: Callable[[IO[Any]], object], binary: bool) -> None:
    number = descriptor_of(path)
    if number is not None:  # may be a file that the shell opened, perhaps to append: a replacement would lose the rest
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with _text_or_binary(os.dup(number), binary) as file:
            write(file)
        return
    target = Path(os.path.realpath(path))
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(None, "it is a directory")
    if mode is not None and not stat.S_ISREG(mode):
        with _text_or_binary(os.open(path, os.O_WRONLY), binary) as file:
            write(file)
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(None, "the file is write-protected")
    temporary = target.parent / f".graphrl-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with _text_or_binary(descriptor, binary) as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _text_or_binary(descriptor: int, binary: bool) -> IO[Any]:
    return os.fdopen(descriptor, "wb") if binary else os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")


def _reason(error: Exception, written: str | os.PathLike[str] | None = None) -> str:
    """States why a file operation failed, without error number and path: the caller names the path already."""
    if written is not None and isinstance(error, FileNotFoundError):
        return f"there is no folder {quote_path(Path(written).parent)}"
    return getattr(error, "strerror", None) or str(error)


T = TypeVar("T")


class BrokenError(GraphrlError):
    """A file is damaged: truncated, or changed since it was written."""


@dataclasses.dataclass(frozen=True)
class _Header:
    format: str
    version: int


def read_document(path: Path, kind: type[T], form: str, version: int) -> T:
    """Reads a dataclass of type `kind` from a JSON file of format `form`.

    Raises:
      GraphrlError: the file cannot be read, or has another format or version; a `BrokenError` if it states neither.
    """
    import msgspec

    with content(path) as data:
        text = bytes(data)
    try:
        header = msgspec.json.decode(text, type=_Header)
        if (header.format, header.version) == (form, version):
            return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise BrokenError(f"{quote_path(path)}: is no {form}: {error}") from None
    actual = f"{header.format[:60]!r} version {header.version}"
    raise GraphrlError(f"{quote_path(path)} is {actual}: must be {form} version {version}")


def write_document(path: Path, value: Any, form: str, version: int) -> None:
    """Writes a dataclass to a JSON file of format `form`, atomically.

    Raises:
      GraphrlError: the file cannot be written.
    """
    fields = {"format": form, "version": version, **dataclasses.asdict(value)}
    write_atomically(path, lambda file: json.dump(fields, file, indent=1))
