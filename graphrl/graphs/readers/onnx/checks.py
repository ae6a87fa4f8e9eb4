"""Models whose shapes or types cannot be: refused with the op's name."""

import re
from collections.abc import Mapping

from onnx import ModelProto, NodeProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.functions import hide_other_versions, schema_of, show_other_versions, versions_of

_FAULT = re.compile(r"\(op_type:.*?, node name: (.*?)\): (.*)")
_INSIDE = "Inference error(s): "  # begins what is wrong inside a function or body
_NOISE = re.compile(r"\[\w*InferenceError\] |Inference error\(s\): ")
_LONGEST = 200  # characters of a reason


def check_model(model: ModelProto, foreign: Foreign) -> None:
    """Raises GraphError if no run of the model can have the types and shapes that are inferred."""
    calls = hide_other_versions(model)
    faults = foreign.call("shape_faults", model.SerializeToString()).decode(errors="replace")
    show_other_versions(model, calls)
    versions = versions_of(model)
    nodes = {node.name: node for node in model.graph.node}
    for line in faults.splitlines():
        match = _FAULT.search(line)
        node = nodes.get(match[1]) if match else None
        if match is None or node is None or (_INSIDE in match[2] and _is_function(node, versions)):
            continue  # a part of another line, or the text of a function in ONNX itself
        reason = " ".join(_NOISE.sub("", match[2]).split())[:_LONGEST]
        raise GraphError(f"op {node.name!r}: its {node.op_type} is impossible: {reason}")


def _is_function(node: NodeProto, versions: Mapping[str, int]) -> bool:
    """Whether inference sees the operator as the function by which ONNX defines it."""
    schema = schema_of(node, versions)
    return schema is not None and schema.has_function and not schema.has_type_and_shape_inference_function
