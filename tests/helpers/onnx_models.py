"""Hand-written ONNX models."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphrl.errors import GraphError
from graphrl.files import Content
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.onnx.reader import parse_onnx
from graphrl.graphs.roofline import Chip

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
CHIP = Chip("unit", 1.0, 1.0)  # a FLOP and a byte take a second each

Shape = Sequence[int | str | None] | None
node = helper.make_node
UNTYPED = onnx.ValueInfoProto(name="s")


def info(name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output of a model."""
    return helper.make_tensor_value_info(name, dtype, shape)


def array(name: str, values: object, dtype: type = np.int64) -> onnx.TensorProto:
    """A weight with these values."""
    return numpy_helper.from_array(np.array(values, dtype), name)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    """A weight of zeros."""
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape] | Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str] = ("y",),
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 20,
) -> bytes:
    """The file of a model."""
    given = [info(*item) for item in inputs.items()] if isinstance(inputs, Mapping) else list(inputs)
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=name) for name in outputs], weights)
    versions = [helper.make_opsetid(*item) for item in (("", opset), ("ai.onnx.ml", 3), ("custom", 1))]
    return helper.make_model(graph, opset_imports=versions, functions=functions, ir_version=9).SerializeToString()


def loop(
    *nodes: onnx.NodeProto,
    state: onnx.ValueInfoProto = UNTYPED,
    trips: str = "trips",
    start: str = "x",
    gives: Sequence[str] = ("t",),
    outputs: Sequence[str] = ("y",),
) -> onnx.NodeProto:
    """A Loop over a state, which is `start` first and then the body's first result; the other results are stacked.

    The body receives the number of its iteration as "i".
    """
    inputs = [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), state]
    results = [onnx.ValueInfoProto(name=name) for name in ("on", *gives)]
    body = helper.make_graph([*nodes, node("Identity", ["go"], ["on"])], "body", inputs, results)
    return node("Loop", [trips, "", start], outputs, body=body)


def read(data: Content, **options: object) -> ComputationGraph:
    """The graph of a file."""
    return parse_onnx(data, "model.onnx", **{"chip": CHIP, **options})  # type: ignore[arg-type]


def refused(data: Content, **options: object) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(GraphError) as caught:
        read(data, **options)
    assert str(caught.value).startswith("model.onnx: ")
    assert str(caught.value).isprintable()
    return str(caught.value)


def branch_body(
    name: str, nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto] = ()
) -> onnx.GraphProto:
    """A body; each reads x (or w) from the outer graph."""
    return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=nodes[-1].output[0])], weights)
