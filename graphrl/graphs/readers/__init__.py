"""Graphs from files: `read_graph` recognises the format by the file's content."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping

from graphrl import files
from graphrl.errors import GraphError, require
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits
from graphrl.graphs.readers.hlo.head import FROM_MLIR, is_hlo, is_mlir
from graphrl.graphs.readers.json import parse_json
from graphrl.graphs.readers.stg import is_stg, parse_stg
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip

Parser = Callable[[files.Content, str, str | Chip, Mapping[str, int], ReadLimits], ComputationGraph]


@dataclasses.dataclass(frozen=True)
class Format:
    """A file format for graphs.

    Attributes:
      name: format name, for error messages.
      recognises: returns True if a file that starts with these bytes may have this format.
      suffixes: file-name endings that select this format for any content, so that errors refer to the intended format.
      parse: function of content, file name (for messages), chip, dims and limits (see `read_graph`); returns the graph.
    """

    name: str
    recognises: Callable[[bytes], bool]
    suffixes: tuple[str, ...]
    parse: Parser


def _onnx(
    data: files.Content, source: str, chip: str | Chip, dims: Mapping[str, int], limits: ReadLimits
) -> ComputationGraph:
    require("onnx", "onnx", f"{source}: reading ONNX")
    from graphrl.graphs.readers.onnx.reader import parse_onnx  # slow to import

    return parse_onnx(data, source, chip=chip, dims=dims, limits=limits)


def _hlo(
    data: files.Content, source: str, chip: str | Chip, dims: Mapping[str, int], limits: ReadLimits
) -> ComputationGraph:
    from graphrl.graphs.readers.hlo.reader import read_hlo  # needs protobuf

    return read_hlo(data[:], chip=chip, source=source, limits=limits).graph


def _costgraph(data: files.Content, source: str, *_: object) -> ComputationGraph:
    from graphrl.graphs.readers.costgraph import parse_costgraph  # needs protobuf

    return parse_costgraph(bytes(data), source)


def _plain(parse: Callable[[bytes, str], ComputationGraph]) -> Parser:
    """Wraps the parser of a format that needs no chip, has no open dimensions, and is parsed in Python."""
    return lambda data, source, *_: parse(bytes(data), source)


def _text(head: bytes) -> bytes:
    """Removes the byte-order mark and leading white space."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")


_COSTGRAPH = re.compile(rb"(?:#[^\n]*\n|\s)*(?:node|cost)\s*:?\s*[{<]")
# ONNX starts with field 1, the integer ir_version: protobuf's tag 0x08, which starts no text.
FORMATS = (
    Format("XLA's HLO (text or proto)", is_hlo, (".hlo", ".hlo.txt", ".pb"), _hlo),
    Format(
        "JSON (graphrl-graph, dnn-partitioning)",
        lambda head: _text(head)[:1] in (b"{", b"["),
        (".json",),
        _plain(parse_json),
    ),
    Format("ONNX", lambda head: head[:1] == b"\x08", (".onnx",), _onnx),
    Format("standard task graph", lambda head: is_stg(_text(head)), (".stg",), _plain(parse_stg)),
    Format("CostGraphDef text", lambda head: _COSTGRAPH.match(_text(head)) is not None, (".pbtxt",), _costgraph),
)
_HEAD = 1 << 17  # bytes that recognition examines: a licence may come first


def read_graph(
    path: str | os.PathLike[str],
    *,
    chip: str | Chip | None = None,
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> ComputationGraph:
    """Reads a computation graph from a file of any format in `FORMATS`, gzipped or not.

    Args:
      path: path of the file.
      chip: determines run times in formats without run times (ONNX, HLO); by default `roofline.DEFAULT_CHIP`.
      dims: sizes, from 0, of dimensions that an ONNX model leaves open, by name (`{"batch": 8}`) or by tensor and axis
        (`{"input_ids:1": 128}`), as in `parse_onnx`; other formats have no open dimensions.
      limits: limits on time and memory, for ONNX's and XLA's own code, which runs in a separate process, and for gzip.

    Raises:
      GraphrlError: one line, if the file is missing, a directory, a device or unreadable, or the chip is unknown.
      GraphError: one line that names the file and, if known, the op, if the content is not a graph.
    """
    source = files.quote_path(path)
    with files.content(path, max_unpacked=limits.memory) as data:
        if not len(data):
            raise GraphError(f"{source}: the file is empty: a graph has at least one op")
        head = data[:_HEAD]
        if is_mlir(head):
            raise GraphError(f"{source}: {FROM_MLIR}")
        named = os.fspath(path).removesuffix(".gz")
        for reader in (
            *(f for f in FORMATS if f.recognises(head)),
            *(f for f in FORMATS if named.endswith(f.suffixes)),
        ):
            return reader.parse(data, source, DEFAULT_CHIP if chip is None else chip, dims or {}, limits)
    raise GraphError(f"{source}: not a graph that graphrl can read: {', '.join(f.name for f in FORMATS)}")
