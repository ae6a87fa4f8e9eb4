"""Reading and writing of graphs as JSON, in the format `graphrl-graph`, version 1 (see `graphrl/graphs`).

Every field except an op's and a tensor's `name` may be omitted and is then empty or 0. Present fields are checked: an
unknown or repeated key is more likely a spelling mistake than intended. Bytes, FLOPs and other integers may be written
as 1e6 or 1000000.0, and are exact to the last digit, also beyond 2^53.
"""

import dataclasses
import gzip
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from graphrl import files
from graphrl.errors import GraphError, GraphrlError, suggest
from graphrl.graphs.graph import ComputationGraph, Machine, Op, Pipelined, Tensor
from graphrl.graphs.layers import Layer
from graphrl.units import as_integer, parse_exact_number

T = TypeVar("T")

FORMAT = "graphrl-graph"
VERSION = 1

_GRAPH_KEYS = frozenset(("format", "version", "name", "inputs", "ops", "outputs", "machine"))
_OP_KEYS = frozenset(Op.__dataclass_fields__)
_TENSOR_KEYS = frozenset(Tensor.__dataclass_fields__)
_LAYER_KEYS = frozenset(Layer.__dataclass_fields__)
_PIPELINED_KEYS = frozenset(Pipelined.__dataclass_fields__)
_MACHINE_KEYS = frozenset(Machine.__dataclass_fields__)


def parse_json(data: bytes, source: str) -> ComputationGraph:
    """Parses the content `data` of the file `source`, in our format or that of `readers/partitioning.py`.

    Raises:
      GraphError: one line that names the file and, if known, the op, if it breaks a rule of the format.
    """
    try:
        value = strict_json(data)
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None
    if isinstance(value, dict) and _is_partitioning(value):
        from graphrl.graphs.readers.partitioning import partitioning_graph  # needs msgspec

        return partitioning_graph(value, source)
    return graph_from_dict(value, source=source)


def strict_json(data: bytes) -> object:
    """Parses UTF-8 text as one JSON value without repeated keys in an object; numbers as in `parse_exact_number`.

    Raises:
      GraphError: the text is not such a value; one line.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object, parse_float=parse_exact_number)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise GraphError("a text has half of a surrogate pair: must be valid Unicode") from None
    except UnicodeDecodeError as error:
        raise GraphError(f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise GraphError(f"broken or truncated JSON: {error}") from None
    except RecursionError:
        raise GraphError("JSON nested too deeply: must have at most five levels") from None
    except GraphError:
        raise
    except ValueError:  # Python refuses to convert integers of more than 4300 digits
        raise GraphError("an integer has thousands of digits: no size or count needs them") from None


def read_strict_json(path: str | os.PathLike[str], parse: Callable[[object], T], error: type[GraphrlError]) -> T:
    """Applies `parse` to the JSON value of a file, see `strict_json`.

    Raises:
      GraphrlError: the file cannot be read; of type `error` if it has no such value, or `parse` rejects it: one line
        that names the file.
    """
    with files.content(path) as data:
        text = bytes(data)
    try:
        return parse(strict_json(text))
    except GraphrlError as fault:
        raise error(f"{files.quote_path(path)}: {fault}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        owner = f" of {_show(value['name'])}" if duplicate != "name" and "name" in value else ""
        raise GraphError(f"key {_show(duplicate)}{owner} appears twice")
    return value


def graph_from_dict(value: object, *, source: str = "graph") -> ComputationGraph:
    """Builds the graph that a `graphrl-graph` object (as returned by `json.load`) describes.

    Args:
      value: the object. A float without fraction is accepted as an integer of exactly its value.
      source: name for error messages, usually the file.

    Raises:
      GraphError: one line that names `source` and, if known, the op.
    """
    try:
        _check_header(value)
        top = _checked(value, "the top level", _GRAPH_KEYS)
        return ComputationGraph(
            name=_text(top, "name", "the graph", ""),
            ops=tuple([_op(entry, i) for i, entry in enumerate(_list(top, "ops", "the graph", "op objects"))]),
            inputs=_tensors(top, "inputs", "the graph", "input"),
            outputs=_names(top, "outputs", "the graph", "tensor names"),
            machine=_machine(top["machine"]) if "machine" in top else None,
        )
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def _is_partitioning(value: dict[str, Any]) -> bool:
    """True if an object is meant for `partitioning.py`: nodes, no format, and a machine or a time of the first node."""
    nodes = value.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    timed = isinstance(first, dict) and ("cpuLatency" in first or "fpgaLatency" in first)
    has_machine = any(key in value for key in ("maxFPGAs", "maxCPUs", "maxSizePerFPGA"))
    return "nodes" in value and "format" not in value and (timed or has_machine)


def _check_header(top: object) -> None:
    if type(top) is not dict:
        return  # rejected next, like any other value of the wrong kind
    format = top.get("format")
    if format != FORMAT:
        what = f"format is {_show(format)}" if "format" in top else 'has no "format"'
        raise GraphError(f'{what}: must have "format": "{FORMAT}"')
    version = top.get("version")
    if type(version) is not int or version != VERSION:
        what = f"version is {_show(version)}" if "version" in top else 'has no "version"'
        raise GraphError(f'{what}: this graphrl reads "version": {VERSION}')


def _op(entry: object, index: int) -> Op:
    op = _checked(entry, f"op number {index}", _OP_KEYS)
    name = _name(op, f"op number {index}")
    where = f"op {name!r}"
    return Op(
        name=name,
        type=_text(op, "type", where, ""),
        runtime=op.get("runtime", 0.0),  # numbers are checked by ComputationGraph
        inputs=_names(op, "inputs", where, "tensor names"),
        outputs=_tensors(op, "outputs", where, "output"),
        after=_names(op, "after", where, "op names"),
        workspace_bytes=as_integer(op.get("workspace_bytes", 0)),
        weight_bytes=as_integer(op.get("weight_bytes", 0)),
        flops=as_integer(op.get("flops", 0)),
        layer=_layer(op["layer"], where) if "layer" in op else None,
        pipelined=_pipelined(op["pipelined"], where) if "pipelined" in op else None,
    )


def _layer(entry: object, where: str) -> Layer:
    layer = _checked(entry, f"{where}: layer", _LAYER_KEYS)
    return Layer(**{key: as_integer(value) for key, value in layer.items()})


def _pipelined(entry: object, where: str) -> Pipelined:
    pipelined = Pipelined(**_checked(entry, f"{where}: pipelined", _PIPELINED_KEYS))
    return dataclasses.replace(pipelined, colocation=as_integer(pipelined.colocation))


def _machine(entry: object) -> Machine:
    machine = _checked(entry, "machine", _MACHINE_KEYS)
    if "accelerators" not in machine:
        raise GraphError('machine has no "accelerators": it is needed')
    return Machine(**{key: as_integer(value) for key, value in machine.items()})


def _tensors(owner: dict[str, Any], key: str, where: str, what: str) -> tuple[Tensor, ...]:
    return tuple([_tensor(entry, where, what, i) for i, entry in enumerate(_list(owner, key, where, "tensor objects"))])


def _tensor(entry: object, where: str, what: str, index: int) -> Tensor:
    place = f"{where}, {what} number {index}"
    tensor = _checked(entry, place, _TENSOR_KEYS)
    name = _name(tensor, place)
    alias, reuses = (_text(tensor, key, place, "") if key in tensor else None for key in ("alias", "reuses"))
    return Tensor(name, as_integer(tensor.get("bytes", 0)), alias, reuses, tensor.get("transfer_seconds"))


def _name(owner: dict[str, Any], where: str) -> str:
    name = owner.get("name")
    if type(name) is not str:
        what = f"its name is {_show(name)}" if "name" in owner else "it has no name"
        raise GraphError(f"{where}: {what}: must be text")
    return name


def _checked(entry: object, where: str, keys: frozenset[str]) -> dict[str, Any]:
    """Returns `entry` if it is an object without keys outside of `keys`; raises otherwise."""
    if type(entry) is not dict:
        raise GraphError(f"{where} is {_show(entry)}: must be an object")
    if not entry.keys() <= keys:
        unknown = next(key for key in entry if key not in keys)
        owner = f"op {entry['name']!r}" if keys is _OP_KEYS and type(entry.get("name")) is str else where
        raise GraphError(f"{owner}: unknown key {_show(unknown)}: {suggest(unknown, sorted(keys))}")
    return entry


def _list(owner: dict[str, Any], key: str, where: str, what: str) -> list[Any]:
    value = owner.get(key, [])
    if type(value) is not list:
        raise GraphError(f"{where}: {key} is {_show(value)}: must be a list of {what}")
    return value


def _names(owner: dict[str, Any], key: str, where: str, what: str) -> tuple[str, ...]:
    names = _list(owner, key, where, what)
    for name in names:
        if type(name) is not str:
            raise GraphError(f"{where}: {key} contains {_show(name)}: must be a list of {what}")
    return tuple(names)


def _text(owner: dict[str, Any], key: str, where: str, default: str) -> str:
    value = owner.get(key, default)
    if type(value) is not str:
        raise GraphError(f"{where}: {key} is {_show(value)}: must be text")
    return value


def _show(value: object) -> str:
    """Describes a value for a message: a container by its kind, long text by its start."""
    if isinstance(value, list | dict):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 100:  # Python refuses to print some of them
        return "a huge integer"
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else text[:37] + "..."


def graph_to_dict(graph: ComputationGraph) -> dict[str, Any]:
    """Converts a graph to a `graphrl-graph` object without empty or zero fields; inverse of `graph_from_dict`."""
    value: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": graph.name}
    if graph.inputs:
        value["inputs"] = [_tensor_to_dict(tensor) for tensor in graph.inputs]
    value["ops"] = [_op_to_dict(op) for op in graph.ops]
    if graph.outputs:
        value["outputs"] = list(graph.outputs)
    if graph.machine is not None:
        value["machine"] = dataclasses.asdict(graph.machine)
    return value


def _op_to_dict(op: Op) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": op.name,
        "type": op.type,
        "runtime": float(op.runtime),
        "inputs": list(op.inputs),
        "after": list(op.after),
        "outputs": [_tensor_to_dict(tensor) for tensor in op.outputs],
        "workspace_bytes": int(op.workspace_bytes),
        "weight_bytes": int(op.weight_bytes),
        "flops": int(op.flops),
        "layer": None
        if op.layer is None
        else {key: item for key, item in dataclasses.asdict(op.layer).items() if item},
        "pipelined": None if op.pipelined is None else _pipelined_to_dict(op.pipelined),
    }
    return {key: item for key, item in value.items() if item or item == {} or key == "name"}


def _pipelined_to_dict(pipelined: Pipelined) -> dict[str, Any]:
    return {key: item for key, item in dataclasses.asdict(pipelined).items() if item is not None and item is not False}


def _tensor_to_dict(tensor: Tensor) -> dict[str, Any]:
    value = dataclasses.asdict(tensor) | {"bytes": int(tensor.bytes) or None}
    return {key: item for key, item in value.items() if item is not None}


def write_json(graph: ComputationGraph, path: str | os.PathLike[str]) -> None:
    """Writes the graph file atomically, one op a line; gzipped if the name ends in .gz. Equal graphs give equal bytes.

    Raises:
      GraphrlError: one line, if the file cannot be written; nothing is left behind.
    """
    text = _lines(graph_to_dict(graph)).encode()
    if os.fspath(path).endswith(".gz"):
        text = gzip.compress(text, mtime=0)  # no time stamp, for equal bytes
    files.write_atomically(path, lambda file: file.write(text), binary=True)


def _lines(value: dict[str, Any]) -> str:
    fields = []
    for key, item in value.items():
        if key in ("inputs", "ops"):
            fields.append(f'"{key}": [\n  ' + ",\n  ".join(map(json.dumps, item)) + "\n ]")
        else:
            fields.append(f'"{key}": {json.dumps(item)}')
    return "{" + ",\n ".join(fields) + "}\n"
