"""The files of an answer that a search took long for, written so that it is not lost with them."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphrl.errors import GraphrlError
from graphrl.plan import Plan

if TYPE_CHECKING:
    from graphrl.plan.memory_map import MemoryMap

File = tuple[str | None, Callable[[str], object]]  # where it is to be, None for nowhere, and what writes it


def write_answer(answer: "Plan | MemoryMap", what: str, output: str | None, others: Sequence[File] = ()) -> list[str]:
    """Writes the files that were asked for, the answer's own first; gives their names.

    Args:
      answer: of the search.
      what: it is, in words.
      output: its own file.
      others: the other files.

    Raises:
      GraphrlError: one cannot be written; the message says where the answer is all the same.
    """
    written = []
    for path, write in ((output, answer.save), *others):
        if path is not None:
            try:
                write(path)
            except GraphrlError as error:
                raise type(error)(f"{error}{_rescued(answer, what, output)}") from None
            written.append(path)
    return written


def _rescued(answer: "Plan | MemoryMap", what: str, output: str | None) -> str:
    """Where the answer is, after a file could not be written: a long search must not be lost to a full disk."""
    if output is not None and os.path.exists(output):
        with contextlib.suppress(GraphrlError):
            if answer.load(output) == answer.from_dict(answer.to_dict()):
                return f"; the {what} is in {output}"
    with contextlib.suppress(GraphrlError, OSError):
        path = Path(tempfile.mkdtemp(prefix="graphrl-")) / f"{what}.json"
        answer.save(path)
        return f"; the {what} is in {path}"
    return ""
