"""ONNX files that no reader may accept, as in broken.py: `BROKEN_ONNX`."""

import gzip

import onnx
from broken import Broken, add_file
from onnx import TensorProto, helper

BROKEN_ONNX: dict[str, Broken] = {}


def _model(
    *nodes: onnx.NodeProto,
    shape: tuple[int | str | None, ...] | None = (2, 3),
    output: str = "y",
    inputs: tuple[onnx.ValueInfoProto, ...] | None = None,
    opset: int = 20,
    ir_version: int = 9,
) -> bytes:
    """A model with input x [2, 3] and one output of unknown shape."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = onnx.ValueInfoProto(name=output)
    graph = helper.make_graph(list(nodes), "broken", [x] if inputs is None else list(inputs), [y])
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=ir_version)
    return model.SerializeToString()


def _onnx(name: str, says: str, content: bytes) -> None:
    add_file(BROKEN_ONNX, name, says, content, ".onnx")


_relu = helper.make_node("Relu", ["x"], ["y"], name="relu")
_good = _model(_relu)
_weight = helper.make_model(
    helper.make_graph([_relu], "g", [], [], [TensorProto(name="x", data_type=1, dims=[5000], raw_data=bytes(20000))])
).SerializeToString()
_onnx("truncated ONNX", "truncated or broken ONNX", _good[:-9])
_onnx("ONNX truncated in a weight", "truncated or broken ONNX", _weight[:-3000])
_onnx("ONNX garbage", "broken ONNX", bytes(range(8, 256)))
_onnx("text named ONNX", "broken ONNX", b"graph { node { relu } }\n")
add_file(BROKEN_ONNX, "truncated gzipped ONNX", "broken or truncated gzip", gzip.compress(_good)[:-12], ".onnx.gz")
_onnx("ONNX without graph", "no graph or no ir_version", onnx.ModelProto(ir_version=9).SerializeToString())
_onnx("ONNX without nodes", "has no nodes", _model())
_onnx("ONNX without ir_version", "no graph or no ir_version", _model(_relu, ir_version=0))
_onnx("ONNX of newer IR version", "ONNX IR version 999: onnx", _model(_relu, ir_version=999))
_onnx("ONNX of newer opset", "ONNX opset version 999: onnx", _model(_relu, opset=999))
_onnx("ONNX of opset 0", "ONNX opset version 0: onnx", _model(_relu, opset=0))
_onnx(
    "ONNX cycle",
    "cycle: 'p' -> 'q' -> 'p'",
    _model(helper.make_node("Add", ["x", "y"], ["z"], name="p"), helper.make_node("Relu", ["z"], ["y"], name="q")),
)
_onnx("ONNX dangling input", "op 'Relu.0': input 'z' is not a tensor", _model(helper.make_node("Relu", ["z"], ["y"])))
_onnx("ONNX dangling output", "graph output 'z' is not a tensor", _model(_relu, output="z"))
_onnx("ONNX two producers", "op 'Exp.1': output 'y' is already", _model(_relu, helper.make_node("Exp", ["x"], ["y"])))
_onnx("ONNX name is no UTF-8", "a name is not UTF-8 text", _good.replace(b"relu", b"re\xff\xff"))
_onnx("ONNX unknown op", "op 'Foo.0': the type of 'y' is unknown", _model(helper.make_node("Foo", ["x"], ["y"])))
_onnx(
    "ONNX op of a domain without version",
    "No opset import for domain other",
    _model(helper.make_node("Foo", ["x"], ["y"], domain="other")),
)
_onnx(
    "ONNX huge dimensions",
    "op 'relu', output 'y': bytes is 2^",
    _model(_relu, shape=(2**62, 2**62)),
)
_onnx(
    "ONNX text tensor",
    "input 'x': 'x' is of kind text",
    _model(
        helper.make_node("Identity", ["x"], ["y"]),
        inputs=(helper.make_tensor_value_info("x", TensorProto.STRING, [2]),),
    ),
)
_onnx(
    "ONNX equation with other characters",
    "must be of letters",
    _model(helper.make_node("Einsum", ["x"], ["y"], equation="ij\u00b3->i")),
)
_onnx("ONNX only constants", "has no ops", _model(helper.make_node("Constant", [], ["y"], value_int=3)))
