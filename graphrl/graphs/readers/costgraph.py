"""TensorFlow's CostGraphDef as protobuf text (`.pbtxt`): the format of REGAL's released data.

Fields of a node (tensorflow/core/framework/cost_graph.proto; absent means 0, as in all of proto3) and what they become:

- `name`: the op's; "node" and its id if empty. `id`: what other nodes call it.
- `input_info {preceding_node preceding_port}`: it reads that output of that node.
- `output_info {size alias_input_port}`: a tensor "name:port" of `size` bytes. An `alias_input_port` of at least 0 says
  that it is that input's buffer (by place in `input_info`), -1 that it has its own. Absent it means input 0, which is
  ignored where the node has no inputs.
- `control_input`: control edge. `is_final`: all its outputs are the graph's.
- `compute_cost`: microseconds of run time. `temporary_memory_size`: workspace bytes. `persistent_memory_size`: weight
  bytes. All other fields of the format are skipped; one that it does not have is refused.

`parse` reads protobuf's text format without a schema, as nested fields with names, values and line numbers. It reads
messages in {} or <>, lists in [], optional colons and separators, comments, strings in either quotes with C escapes,
and adjacent strings joined. It does not read extensions and Any (names in []), as no format here has any.
"""

import os
import re
from typing import NamedTuple

from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

_TOKEN = re.compile(
    r"(?P<space>(?:[\s,;]|#[^\n]*)+)|(?P<mark>[{}<>\[\]:])|(?P<word>[-+]?[\w.][\w.+-]*)"
    r"|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
)
_CLOSING = {"{": "}", "<": ">"}
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Field(NamedTuple):
    """One field of a message; repeated fields stand there several times."""

    name: str
    value: "str | list[Field]"  # a number, identifier or string as text; or a message's fields
    line: int

    def text(self) -> str:
        """The value of a scalar field.

        Raises:
          GraphError: it is a message.
        """
        if isinstance(self.value, list):
            raise GraphError(f"line {self.line}: {self.name} is a message: must be a single value")
        return self.value

    def fields(self) -> "list[Field]":
        """The fields of a message.

        Raises:
          GraphError: it is a single value.
        """
        if not isinstance(self.value, list):
            raise GraphError(f"line {self.line}: {self.name} is {self.value[:30]!a}: must be a message in {{}}")
        return self.value

    def integer(self) -> int:
        """The value as an integer of 64 bits.

        Raises:
          GraphError: it is none.
        """
        text = self.text()
        if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not -(2**63) <= int(text) < 2**63:
            raise GraphError(f"line {self.line}: {self.name} is {text[:30]!a}: must be an integer of 64 bits")
        return int(text)


class _Token(NamedTuple):
    kind: str  # "mark", "word" or "text"
    text: str
    line: int


def parse(text: str) -> list[Field]:
    """The fields of the message that `text` holds.

    Raises:
      GraphError: broken text, one line that begins with the number of the line.
    """
    tokens = _tokens(text)
    end = len(tokens)
    tokens.append(_Token("end", "the end of the file", tokens[-1].line if tokens else 1))
    top: list[Field] = []
    open_messages: list[tuple[list[Field], str]] = []  # what surrounds the message being read, and its closing mark
    message, i = top, 0
    while i < end:
        token = tokens[i]
        if open_messages and token.text == open_messages[-1][1] and token.kind == "mark":
            message, i = open_messages.pop()[0], i + 1
            continue
        if token.kind != "word":
            raise _error(token, "a field's name" + (f" or {open_messages[-1][1]!r}" if open_messages else ""))
        i += 1
        colon = tokens[i].text == ":" and tokens[i].kind == "mark"
        i += colon
        if tokens[i].kind == "mark" and tokens[i].text in _CLOSING:
            fields: list[Field] = []
            message.append(Field(token.text, fields, token.line))
            open_messages.append((message, _CLOSING[tokens[i].text]))
            message, i = fields, i + 1
        elif not colon:
            raise _error(tokens[i], f"':' or '{{' after {token.text}")
        else:
            values, i = _scalars(tokens, i)
            message += [Field(token.text, value, token.line) for value in values]
    if open_messages:
        raise _error(tokens[end], f"{open_messages[-1][1]!r}")
    return top


def _tokens(text: str) -> list[_Token]:
    tokens, line, place = [], 1, 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise GraphError(f"line {line}: {text[place : place + 20]!a}: is no protobuf text")
        if match.lastgroup == "space":
            line += match.group().count("\n")
        else:
            tokens.append(_Token(match.lastgroup, match.group(), line))
        place = match.end()
    return tokens


def _scalars(tokens: list[_Token], i: int) -> tuple[list[str], int]:
    """The value, or the values of a list, that begin at token i; and the token after them."""
    if tokens[i].text != "[" or tokens[i].kind != "mark":
        value, i = _scalar(tokens, i)
        return [value], i
    i += 1
    values = []
    while tokens[i].text != "]" or tokens[i].kind != "mark":
        value, i = _scalar(tokens, i)
        values.append(value)
    return values, i + 1


def _scalar(tokens: list[_Token], i: int) -> tuple[str, int]:
    token = tokens[i]
    if token.kind == "word":
        return token.text, i + 1
    if token.kind != "text":
        raise _error(token, "a value")
    parts = []
    while tokens[i].kind == "text":
        parts.append(tokens[i].text[1:-1].encode())
        i += 1
    try:
        return _ESCAPE.sub(_unescaped, b"".join(parts)).decode(), i
    except UnicodeDecodeError:
        raise GraphError(f"line {token.line}: a string is not UTF-8 text") from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code[:1] in b"01234567":
        return bytes([int(code, 8) & 255])
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _LETTERS.get(code, code)


def _error(token: _Token, wanted: str) -> GraphError:
    shown = token.text if token.kind == "end" else ascii(token.text[:30])
    return GraphError(f"line {token.line}: {shown}: expected {wanted}")


_HEAD = re.compile(rb"(?:#[^\n]*\n|\s)*(?:node|cost)\s*:?\s*[{<]")
_SCALARS = ("id", "compute_cost", "temporary_memory_size", "persistent_memory_size")
_IGNORED = frozenset(("device", "compute_time", "memory_time", "inaccurate")).union(
    f"{where}_{kind}_memory_size" for where in ("host", "device") for kind in ("temp", "persistent")
)
_TRUTH = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_MICROSECOND = 1e-6


class _Node:
    """A node as its fields say, before ids are resolved."""

    def __init__(self, field: Field) -> None:
        self.line = field.line
        self.name = ""
        self.numbers = dict.fromkeys(_SCALARS, 0)
        self.is_final = False
        self.inputs: list[tuple[int, int, int]] = []  # node, port, line
        self.outputs: list[tuple[int, int | None, int]] = []  # bytes, alias, line
        self.controls: list[tuple[int, int]] = []  # node, line
        for inner in field.fields():
            self._take(inner)
        self.name = self.name or f"node{self.numbers['id']}"

    def _take(self, field: Field) -> None:
        if field.name == "name":
            self.name = field.text()
        elif field.name in _SCALARS:
            self.numbers[field.name] = field.integer()
            if self.numbers[field.name] < 0:
                raise GraphError(f"line {field.line}: {field.name} is {field.text()}: must be at least 0")
        elif field.name == "is_final":
            if field.text() not in _TRUTH:
                raise GraphError(f"line {field.line}: is_final is {field.text()[:30]!a}: must be true or false")
            self.is_final = _TRUTH[field.text()]
        elif field.name == "control_input":
            self.controls.append((field.integer(), field.line))
        elif field.name == "input_info":
            values = _integers(field, ("preceding_node", "preceding_port"))
            self.inputs.append((values.get("preceding_node", 0), values.get("preceding_port", 0), field.line))
        elif field.name == "output_info":
            values = _integers(field, ("size", "alias_input_port"), ("shape", "dtype"))
            self.outputs.append((values.get("size", 0), values.get("alias_input_port"), field.line))
        elif field.name not in _IGNORED:
            hint = ": this is a GraphDef, which has no costs" if field.name in ("op", "attr", "input") else ""
            raise GraphError(f"line {field.line}: {field.name!a} is no field of a CostGraphDef's node{hint}")


def is_costgraph(head: bytes) -> bool:
    """Whether a file that starts with `head` may be a CostGraphDef as text."""
    return _HEAD.match(head) is not None


def parse_costgraph(data: bytes, source: str) -> ComputationGraph:
    """The graph that the file `source` of content `data` holds.

    Raises:
      GraphError: one line that names the file and the line or the op, if it breaks the format.
    """
    name = os.path.basename(source).removesuffix(".gz").removesuffix(".pbtxt")
    try:
        return _graph(parse(data.decode("utf-8-sig")), name)
    except UnicodeDecodeError as error:
        raise GraphError(f"{source}: not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
    except GraphError as error:
        separator = ", " if str(error).startswith("line ") else ": "
        raise GraphError(f"{source}{separator}{error}") from None


def _graph(fields: list[Field], name: str) -> ComputationGraph:
    nodes: dict[int, _Node] = {}
    for field in fields:
        if field.name == "cost":  # totals, which follow from the nodes
            continue
        if field.name != "node":
            raise GraphError(f"line {field.line}: {field.name!a} is no field of a CostGraphDef: node and cost are")
        node = _Node(field)
        key = node.numbers["id"]
        if key in nodes:
            raise GraphError(f"line {node.line}: id {key} is that of the node in line {nodes[key].line} already")
        nodes[key] = node
    ops = tuple(_op(node, nodes) for node in nodes.values())
    final = tuple(
        tensor.name for op, node in zip(ops, nodes.values(), strict=True) if node.is_final for tensor in op.outputs
    )
    return ComputationGraph(name, ops, outputs=final)


def _op(node: _Node, nodes: dict[int, _Node]) -> Op:
    inputs = []
    for key, port, line in node.inputs:
        writes = len(_node(nodes, key, line).outputs)
        if not 0 <= port < writes:
            raise GraphError(f"line {line}: preceding_port is {port}: {nodes[key].name!r} has {writes} outputs")
        inputs.append(f"{nodes[key].name}:{port}")
    outputs = []
    for port, (size, alias, line) in enumerate(node.outputs):
        if size < 0:
            raise GraphError(f"line {line}: size is {size}: must be at least 0 bytes")
        if alias is not None and alias >= len(inputs):
            raise GraphError(f"line {line}: alias_input_port is {alias}: {node.name!r} has {len(inputs)} inputs")
        shared = 0 if alias is None else alias
        outputs.append(Tensor(f"{node.name}:{port}", size, inputs[shared] if 0 <= shared < len(inputs) else None))
    return Op(
        name=node.name,
        runtime=node.numbers["compute_cost"] * _MICROSECOND,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        after=tuple(_node(nodes, key, line).name for key, line in node.controls),
        workspace_bytes=node.numbers["temporary_memory_size"],
        weight_bytes=node.numbers["persistent_memory_size"],
    )


def _node(nodes: dict[int, _Node], key: int, line: int) -> _Node:
    if key not in nodes:
        raise GraphError(f"line {line}: no node has the id {key}")
    return nodes[key]


def _integers(field: Field, names: tuple[str, ...], ignored: tuple[str, ...] = ()) -> dict[str, int]:
    """The integers of a small message."""
    values = {}
    for inner in field.fields():
        if inner.name in names:
            values[inner.name] = inner.integer()
        elif inner.name not in ignored:
            raise GraphError(f"line {inner.line}: {inner.name!a} is no field of {field.name}: {', '.join(names)} are")
    return values
