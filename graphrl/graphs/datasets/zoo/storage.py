"""Files of the zoo: xz-compressed JSON, one file for all batch sizes of an architecture, kind and level.

Programs that differ only in numbers share one structure: ops, names, edges and buffers, as columns. Ops with equal
numbers (including shapes) for every batch size share one row of a table. Files are a tenth of the size of the graphs as
graph JSON under the same compressor. Run times are stored to four digits, everything else exactly.

    {"format": "graphrl-zoo", "version": 2, "architecture", "family", "kind", "level", "versions", "date",
     "groups": [{"structure": {...}, "table": [[one batch's numbers of an op, ...], ...], "column": [n rows of it],
                 "inputs": [[bytes of the inputs], ...], "programs": [{"batch", "orders", "temp_bytes"}, ...]}, ...]}

Columns are small, relative numbers (the distance back to an input, the next weight after the last one). Networks repeat
their layers, so these numbers repeat too where absolute numbers do not, and they compress best.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphrl import files
from graphrl.errors import GraphError, GraphrlError
from graphrl.graphs.datasets.zoo.program import ZooProgram, program_name
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer

SHARINGS = ("alias", "reuses")

FORMAT, VERSION = "graphrl-zoo", 2
SUFFIX = ".json.xz"
_SHARED = ("architecture", "family", "kind", "level", "versions", "date")  # by all programs of a file

_Group = tuple[list[ZooProgram], list[list[int]], dict[str, Any]]  # programs, their stored orders, common structure


def write_programs(programs: Sequence[ZooProgram], folder: str | os.PathLike[str]) -> Path:
    """Writes programs that differ only in their batch (and its consequences) to a file of `folder`; returns its path.

    Raises:
      GraphrlError: the file cannot be written.
    """
    import lzma  # here and below: not in every Python, and only used here

    first = programs[0]
    value: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    value |= {key: getattr(first, key) for key in _SHARED} | {"versions": dict(first.versions)}
    value["groups"] = [_group(group, storage, structure) for group, storage, structure in _groups(programs)]
    data = lzma.compress(json.dumps(value, separators=(",", ":")).encode(), preset=6 | lzma.PRESET_EXTREME)
    path = Path(folder) / file_name(first.architecture, first.kind, first.level)
    files.write_atomically(path, lambda file: file.write(data), binary=True)
    return path


def read_program(path: str | os.PathLike[str], batch: int) -> ZooProgram:
    """Reads the program of one batch size from a file.

    Raises:
      GraphrlError: the file cannot be read, or has no such batch.
      GraphError: its content is not a file of the zoo.
    """
    value = _content(os.fspath(path))
    for group in value["groups"]:
        for number, entry in enumerate(group["programs"]):
            if entry["batch"] == batch:
                return _program(value, group, number)
    have = ", ".join(str(row[3]) for row in contents(path))
    raise GraphrlError(f"{files.quote_path(path)}: no program with a batch of {batch}: there are {have}")


def contents(path: str | os.PathLike[str]) -> list[tuple[str, str, str, int, str, int]]:
    """Lists a file's programs: architecture, family, kind, batch, level and number of ops of each.

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


def file_name(architecture: str, kind: str, level: str) -> str:
    """Returns the file name for a program, shared by all its batch sizes."""
    return f"{architecture}.{kind}.{level}{SUFFIX}"


def table(rows: Iterable[Hashable]) -> tuple[list[Any], list[int]]:
    """Deduplicates rows: returns the distinct ones by first appearance, and the index of every row among them."""
    places: dict[Hashable, int] = {}
    column = [places.setdefault(row, len(places)) for row in rows]
    return list(places), column


def ranks(order: Sequence[int], reference: Sequence[int]) -> list[int]:
    """Encodes an order as the index of each item among the remaining items of `reference`: equal orders give zeros."""
    left = list(reference)
    places = []
    for item in order:
        place = left.index(item)
        places.append(place)
        del left[place]
    return places


def unrank(places: Sequence[int], reference: Sequence[int]) -> list[int]:
    """Decodes an order; the inverse of `ranks`."""
    left = list(reference)
    return [left.pop(place) for place in places]


def zigzag(number: int) -> int:
    """Encodes the integers 0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    return 2 * number if number >= 0 else -2 * number - 1


def unzigzag(code: int) -> int:
    """Decodes an integer; the inverse of `zigzag`."""
    return code // 2 if code % 2 == 0 else -(code + 1) // 2


def texts(names: Sequence[str]) -> dict[str, Any]:
    """Encodes names as scopes (to the last slash), stems and the numbers at their ends.

    Numbers are relative to the previous name (readers that count all ops) or to the last one of the same stem (XLA
    counts each kind of instruction), whichever gives fewer different ones. A leading zero stays with the stem.
    """
    split = [_split(name) for name in names]
    scopes, scope = table(scope for scope, _, _ in split)
    stems, stem = table(stem for _, stem, _ in split)
    numbers = [number for _, _, number in split]
    relative = {by: _relative(numbers, keys) for by, keys in (("row", [0] * len(stem)), ("stem", stem))}
    by = min(relative, key=lambda by: len(set(relative[by])))
    return {"scopes": scopes, "scope": scope, "stems": stems, "stem": stem, "by": by, "number": relative[by]}


def names(coded: dict[str, Any]) -> list[str]:
    """Decodes names; the inverse of `texts`."""
    scopes, stems = coded["scopes"], coded["stems"]
    last = [0] * max(1, len(stems))
    texts = []
    for scope, stem, code in zip(coded["scope"], coded["stem"], coded["number"], strict=True):
        digits = ""
        if code:
            key = stem if coded["by"] == "stem" else 0
            last[key] += unzigzag(code - 1)
            digits = str(last[key])
        texts.append(f"{scopes[scope]}{stems[stem]}{digits}")
    return texts


def _relative(numbers: Sequence[int | None], keys: Sequence[int]) -> list[int]:
    """Encodes each number as its difference from the last one of the same key, from 1; None as 0."""
    last: dict[int, int] = {}
    distances = []
    for number, key in zip(numbers, keys, strict=True):
        if number is None:
            distances.append(0)
        else:
            distances.append(zigzag(number - last.get(key, 0)) + 1)
            last[key] = number
    return distances


def _split(name: str) -> tuple[str, str, int | None]:
    """Splits a name into its scope (with the slash), stem, and number at the end."""
    scope = name[: name.rfind("/") + 1]
    digits = name[len(name.rstrip("0123456789")) :]
    digits = digits[len(digits) - len(digits.lstrip("0")) :]
    return scope, name[len(scope) : len(name) - len(digits)], int(digits) if digits else None


class Values(NamedTuple):
    """The numbers that differ between batch sizes.

    Attributes:
      ops: for each op its runtime, workspace, weight bytes, FLOPs, the numbers of its `Layer` or None, and the bytes of
        each output.
      inputs: bytes of the external inputs.
    """

    ops: list[tuple[Any, ...]]
    inputs: list[int]


def structure_of(graph: ComputationGraph, order: Sequence[int]) -> dict[str, Any]:
    """Returns a graph without its numbers, as a JSON object with ops in topological `order`; `graph_of` inverts it."""
    ops = [graph.ops[index] for index in order]
    places = {op.name: place for place, op in enumerate(ops)}
    produced = {tensor.name: i for i, tensor in enumerate(tensor for op in ops for tensor in op.outputs)}
    external = {tensor.name: i for i, tensor in enumerate(graph.inputs)}
    kinds, kind = table((op.type, tuple(_suffix(op, tensor) for tensor in op.outputs)) for op in ops)
    reads, read = _reads(ops, produced, external)
    return {
        "names": texts([op.name for op in ops]),
        "kinds": kinds,
        "kind": kind,
        "reads": reads,
        "read": read,
        "shared": [_shared(op) for op in ops],
        "after": [[place - places[name] for name in op.after] for place, op in enumerate(ops)],
        "inputs": texts([tensor.name for tensor in graph.inputs]),
        "outputs": [produced.get(name, -1 - external.get(name, 0)) for name in graph.outputs],
    }


def _suffix(op: Op, tensor: Tensor) -> str | tuple[str]:
    """Returns the part of an output's name after the op's name; the whole name, in a tuple, without that prefix."""
    return tensor.name[len(op.name) :] if tensor.name.startswith(op.name) else (tensor.name,)


def _reads(ops: Sequence[Op], produced: dict[str, int], external: dict[str, int]) -> tuple[list[Any], list[int]]:
    """Encodes each op's inputs: distances back in tensors (> 0), or externals relative to the last one (< 0)."""
    rows, written, last = [], 0, -1
    for op in ops:
        row = []
        for name in op.inputs:
            if name in produced:
                row.append(written - produced[name])
            else:
                row.append(-1 - zigzag(external[name] - last - 1))
                last = external[name]
        rows.append(tuple(row))
        written += len(op.outputs)
    return table(rows)


def _shared(op: Op) -> list[int]:
    """Lists shared buffers as flat triples: output index, 0 for alias or 1 for reuses, input index."""
    numbers = []
    for number, tensor in enumerate(op.outputs):
        for code, sharing in enumerate(SHARINGS):
            if getattr(tensor, sharing) is not None:
                numbers += [number, code, op.inputs.index(getattr(tensor, sharing))]
    return numbers


def values_of(graph: ComputationGraph, order: Sequence[int]) -> Values:
    """Returns the numbers of a graph that its structure leaves out; run times are rounded to four digits."""
    ops = [graph.ops[index] for index in order]
    return Values(
        [
            (
                float(f"{op.runtime:.4g}"),
                int(op.workspace_bytes),
                int(op.weight_bytes),
                int(op.flops),
                None if op.layer is None else dataclasses.astuple(op.layer),
                *(int(tensor.bytes) for tensor in op.outputs),
            )
            for op in ops
        ],
        [int(tensor.bytes) for tensor in graph.inputs],
    )


def graph_of(name: str, structure: dict[str, Any], values: Values, order: Sequence[int]) -> ComputationGraph:
    """Rebuilds a graph from its structure and its numbers; `order` has the index in the structure of each op."""
    op_names = names(structure["names"])
    kinds, reads = structure["kinds"], structure["reads"]
    inputs = [Tensor(name, size) for name, size in zip(names(structure["inputs"]), values.inputs, strict=True)]
    tensors: list[str] = []
    ops, last = [], -1
    for place, op_name in enumerate(op_names):
        kind, suffixes = kinds[structure["kind"][place]]
        read = []
        for code in reads[structure["read"][place]]:
            if code > 0:
                read.append(tensors[len(tensors) - code])
            else:
                last += 1 + unzigzag(-1 - code)
                read.append(inputs[last].name)
        runtime, workspace, weights, flops, layer, *sizes = values.ops[place]
        shared = structure["shared"][place]
        sharing: dict[int, dict[str, Any]] = {
            shared[i]: {SHARINGS[shared[i + 1]]: read[shared[i + 2]]} for i in range(0, len(shared), 3)
        }
        outputs = tuple(
            Tensor(op_name + suffix if isinstance(suffix, str) else suffix[0], size, **sharing.get(number, {}))
            for number, (suffix, size) in enumerate(zip(suffixes, sizes, strict=True))
        )
        after = tuple(op_names[place - back] for back in structure["after"][place])
        shapes = None if layer is None else Layer(*layer)
        ops.append(Op(op_name, kind, runtime, tuple(read), outputs, after, workspace, weights, flops, shapes))
        tensors += [tensor.name for tensor in outputs]
    kept = tuple(tensors[code] if code >= 0 else inputs[-1 - code].name for code in structure["outputs"])
    return ComputationGraph(name, tuple(ops[place] for place in order), tuple(inputs), kept)


def _groups(programs: Sequence[ZooProgram]) -> list[_Group]:
    """Groups the programs that have the same structure.

    Ops are stored in the memory order of a group's first program, which keeps layers together.
    """
    groups: list[_Group] = []
    for program in programs:
        for members, storages, structure in groups:
            same_order = _stored_like(program, members[0], storages[0], structure)
            if same_order is not None:
                members.append(program)
                storages.append(same_order)
                break
        else:
            order = [int(op) for op in program.schedules.get("memory", program.graph.arrays.topological)]
            groups.append(([program], [order], _structure(program, order)))
    return groups


def _stored_like(
    program: ZooProgram, first: ZooProgram, storage: Sequence[int], structure: dict[str, Any]
) -> list[int] | None:
    """Finds the order of a program's ops that gives the first program's structure; None if there is none."""
    index = {op.name: i for i, op in enumerate(program.graph.ops)}
    names = [first.graph.ops[op].name for op in storage]
    if len(index) != len(names) or any(name not in index for name in names):
        return None
    order = [index[name] for name in names]
    return order if _structure(program, order) == structure else None


def _structure(program: ZooProgram, order: Sequence[int]) -> dict[str, Any]:
    structure = structure_of(program.graph, order)
    if program.colocation is not None:
        structure["colocation"] = np.diff(program.colocation[order], prepend=0).tolist()
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


@functools.lru_cache(maxsize=2)  # sets load all batch sizes of a file in turn
def _content(path: str) -> dict[str, Any]:
    import lzma

    with files.content(path) as data:
        try:
            value = json.loads(lzma.decompress(bytes(data)))
        except (lzma.LZMAError, ValueError, EOFError) as error:
            raise GraphError(f"{files.quote_path(path)}: broken or truncated file of the zoo: {error}") from None
    if not isinstance(value, dict) or (value.get("format"), value.get("version")) != (FORMAT, VERSION):
        raise GraphError(f"{files.quote_path(path)}: not a file of the zoo: must be {FORMAT!r}, version {VERSION}")
    return value


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
        colocation=None if groups is None else np.cumsum(groups, dtype=np.int32)[given],
    )
