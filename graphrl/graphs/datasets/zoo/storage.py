"""Files of the zoo: all batch sizes of one architecture, kind and level in one, as xz-compressed JSON.

Programs that differ in numbers only share one structure (`structure.py`), and equal ops one row of numbers, shapes
among them, for all their batch sizes. This takes a tenth of what the graphs take as graph JSON under the same
compressor. Run times are kept to four digits, everything else exactly.

    {"format": "graphrl-zoo", "version": 2, "architecture", "family", "kind", "level", "versions", "date",
     "groups": [{"structure": {...}, "table": [[one batch's numbers of an op, ...], ...], "column": [n places in it],
                 "inputs": [[bytes of the inputs], ...], "programs": [{"batch", "orders", "temp_bytes"}, ...]}, ...]}
"""

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphrl import files
from graphrl.errors import GraphError, GraphrlError
from graphrl.graphs.datasets.zoo.columns import ranks, steps, table, unrank, unsteps
from graphrl.graphs.datasets.zoo.program import ZooProgram, program_name
from graphrl.graphs.datasets.zoo.structure import Values, graph_of, structure_of, values_of

FORMAT, VERSION = "graphrl-zoo", 2
SUFFIX = ".json.xz"
_SHARED = ("architecture", "family", "kind", "level", "versions", "date")  # by all programs of a file


def file_name(architecture: str, kind: str, level: str) -> str:
    """The file that holds a program, whatever its batch."""
    return f"{architecture}.{kind}.{level}{SUFFIX}"


def write_programs(programs: Sequence[ZooProgram], folder: str | os.PathLike[str]) -> Path:
    """Writes programs that differ in their batch only (and what follows from it) to a file of `folder`; its path.

    Raises:
      GraphrlError: the file cannot be written.
    """
    import lzma  # here and below: not in every Python, and nothing else needs it

    first = programs[0]
    value: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    value |= {key: getattr(first, key) for key in _SHARED} | {"versions": dict(first.versions)}
    value["groups"] = [_group(group, storage, structure) for group, storage, structure in _groups(programs)]
    data = lzma.compress(json.dumps(value, separators=(",", ":")).encode(), preset=6 | lzma.PRESET_EXTREME)
    path = Path(folder) / file_name(first.architecture, first.kind, first.level)
    files.write_atomically(path, lambda file: file.write(data), binary=True)
    return path


_Group = tuple[list[ZooProgram], list[list[int]], dict[str, Any]]  # programs, how each is stored, what they share


def _groups(programs: Sequence[ZooProgram]) -> list[_Group]:
    """Programs by structure: each group's ops stand in the first program's memory order, where layers are together."""
    groups: list[_Group] = []
    for program in programs:
        for members, storages, structure in groups:
            like = _stored_like(program, members[0], storages[0], structure)
            if like is not None:
                members.append(program)
                storages.append(like)
                break
        else:
            order = [int(op) for op in program.schedules.get("memory", program.graph.arrays.topological)]
            groups.append(([program], [order], _structure(program, order)))
    return groups


def _stored_like(
    program: ZooProgram, first: ZooProgram, storage: Sequence[int], structure: dict[str, Any]
) -> list[int] | None:
    """The order of a program's ops in which it has the first one's structure, if there is one."""
    index = {op.name: i for i, op in enumerate(program.graph.ops)}
    names = [first.graph.ops[op].name for op in storage]
    if len(index) != len(names) or any(name not in index for name in names):
        return None
    order = [index[name] for name in names]
    return order if _structure(program, order) == structure else None


def _structure(program: ZooProgram, order: Sequence[int]) -> dict[str, Any]:
    structure = structure_of(program.graph, order)
    if program.colocation is not None:
        structure["colocation"] = steps(program.colocation[order].tolist())
    return structure


def _group(programs: list[ZooProgram], storages: list[list[int]], structure: dict[str, Any]) -> dict[str, Any]:
    values = [values_of(program.graph, storage) for program, storage in zip(programs, storages, strict=True)]
    rows, column = table(zip(*(value.ops for value in values), strict=True))
    entries = []
    reference: dict[str, list[int]] = {}
    for program, storage in zip(programs, storages, strict=True):
        place = {op: i for i, op in enumerate(storage)}
        orders = {"given": [place[i] for i in range(len(storage))]}
        orders |= {key: [place[int(op)] for op in schedule] for key, schedule in program.schedules.items()}
        coded = {key: ranks(order, reference.get(key, range(len(storage)))) for key, order in orders.items()}
        reference = orders
        entries.append({"batch": program.batch, "orders": coded, "temp_bytes": dict(program.temp_bytes)})
    return {
        "structure": structure,
        "table": rows,
        "column": column,
        "inputs": [value.inputs for value in values],
        "programs": entries,
    }


def read_program(path: str | os.PathLike[str], batch: int) -> ZooProgram:
    """The program of this batch size.

    Raises:
      GraphrlError: the file cannot be read, or has no such batch.
      GraphError: its content is no file of the zoo.
    """
    value = _content(os.fspath(path))
    for group in value["groups"]:
        for number, entry in enumerate(group["programs"]):
            if entry["batch"] == batch:
                return _program(value, group, number)
    have = ", ".join(str(row[3]) for row in contents(path))
    raise GraphrlError(f"{files.shown(path)}: no program with a batch of {batch}: there are {have}")


@functools.lru_cache(maxsize=2)  # sets load all batch sizes of a file in turn
def _content(path: str) -> dict[str, Any]:
    import lzma

    with files.content(path) as data:
        try:
            value = json.loads(lzma.decompress(bytes(data)))
        except (lzma.LZMAError, ValueError, EOFError) as error:
            raise GraphError(f"{files.shown(path)}: broken or truncated file of the zoo: {error}") from None
    if not isinstance(value, dict) or (value.get("format"), value.get("version")) != (FORMAT, VERSION):
        raise GraphError(f"{files.shown(path)}: no file of the zoo: must be {FORMAT!r}, version {VERSION}")
    return value


def contents(path: str | os.PathLike[str]) -> list[tuple[str, str, str, int, str, int]]:
    """Architecture, family, kind, batch, level and number of ops of each program of a file.

    Raises:
      GraphrlError: see `read_program`.
    """
    value = _content(os.fspath(path))
    head = value["architecture"], value["family"], value["kind"]
    return [
        (*head, entry["batch"], value["level"], len(group["column"]))
        for group in value["groups"]
        for entry in group["programs"]
    ]


def _program(value: dict[str, Any], group: dict[str, Any], number: int) -> ZooProgram:
    rows = [row[number] for row in group["table"]]
    orders: dict[str, list[int]] = {}
    for entry in group["programs"][: number + 1]:
        orders = {key: unrank(places, orders.get(key, range(len(places)))) for key, places in entry["orders"].items()}
    given = orders.pop("given")
    place = {stored: op for op, stored in enumerate(given)}
    shared = {key: value[key] for key in _SHARED}
    batch = group["programs"][number]["batch"]
    name = program_name(value["architecture"], value["kind"], batch, value["level"])
    values = Values([rows[i] for i in group["column"]], group["inputs"][number])
    groups = group["structure"].get("colocation")
    return ZooProgram(
        **shared,
        batch=batch,
        graph=graph_of(name, group["structure"], values, given),
        schedules={key: np.array([place[i] for i in order], np.int32) for key, order in orders.items()},
        temp_bytes=group["programs"][number]["temp_bytes"],
        colocation=None if groups is None else np.array(unsteps(groups), np.int32)[given],
    )
