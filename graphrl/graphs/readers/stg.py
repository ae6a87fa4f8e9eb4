"""The standard task graphs of Kasahara's laboratory (`.stg`): P|prec|Cmax instances.

A file has the number of tasks, then a line for each task, "id time predecessors id id ...", with the number of
predecessors before their ids. The first and the last of these lines are dummy entry and exit tasks that the number does
not count. `#` starts a comment.

Tasks become ops "task0", "task1" and so on, by their ids and in the order of the file, dummies included; a unit of time
is a second. Edges become control edges, not tensors: the format has no sizes, and a tensor, even of 0 bytes, would
cause a transfer that occupies both devices under `rendezvous`. Therefore all transfer models agree, and the makespan
problem is P|prec|Cmax.
"""

import os
import re

from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op

# The number of tasks and the entry task's line; comments may precede both.
_HEAD = re.compile(rb"(?:#[^\n]*\n|\s)*\d+[ \t\r]*(?:#[^\n]*)?\n\s*\d+[ \t]+\d+[ \t]+\d+[ \t\r]*(?:#[^\n]*)?(?:\n|$)")


def is_stg(head: bytes) -> bool:
    """True if a file that starts with `head` may be a standard task graph."""
    return _HEAD.match(head) is not None


def parse_stg(data: bytes, source: str) -> ComputationGraph:
    """Parses the content `data` of the file `source`.

    Raises:
      GraphError: one line that names the file and the line, if it breaks the format.
    """
    numbered = _numbered_lines(data, source)
    if not numbered:
        raise GraphError(f"{source}: only comments: a standard task graph begins with its number of tasks")
    (number, first), *tasks = numbered
    if len(first) != 1:
        raise GraphError(f"{source}, line {number}: {len(first)} numbers: must be one, the number of tasks")
    if len(tasks) != first[0] + 2:
        raise GraphError(
            f"{source}, line {number}: {first[0]} tasks, but {len(tasks)} lines follow: must be "
            f"{first[0] + 2}, a dummy entry and a dummy exit task among them"
        )
    lines: dict[int, int] = {}
    for number, task in tasks:
        if len(task) < 3 or len(task) != 3 + task[2]:
            raise GraphError(
                f"{source}, line {number}: {len(task)} numbers: must be a task's id, its time, its number of "
                "predecessors and as many ids"
            )
        if task[0] in lines:
            raise GraphError(f"{source}, line {number}: task {task[0]} is already in line {lines[task[0]]}")
        lines[task[0]] = number
    for number, task in tasks:
        for before in task[3:]:
            if before not in lines:
                raise GraphError(f"{source}, line {number}: predecessor {before} is no task of the file")
    ops = tuple(
        Op(f"task{task[0]}", runtime=float(task[1]), after=tuple(f"task{before}" for before in task[3:]))
        for _, task in tasks
    )
    try:
        return ComputationGraph(os.path.basename(source).removesuffix(".gz").removesuffix(".stg"), ops)
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def _numbered_lines(data: bytes, source: str) -> list[tuple[int, list[int]]]:
    """Parses every line that has numbers: returns its line number and the numbers."""
    numbered = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        words = line.split(b"#", 1)[0].split()
        for word in words:
            if not word.isdigit() or len(word) > 18:
                quoted = ascii(word[:20].decode("latin-1"))
                raise GraphError(f"{source}, line {number}: {quoted}: must be a whole number of up to 18 digits")
        if words:
            numbered.append((number, [int(word) for word in words]))
    return numbered
