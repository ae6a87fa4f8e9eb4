"""Cost of an ONNX node: single ops by their FLOPs, traffic and the roofline; loops and branches by their bodies.

Conventions for FLOPs, as in `jaxpr/work.py`: a multiply-add is two operations; every element-wise op is one per output
element; moving data costs none; padding is counted (as kernels compute it). Ops that ONNX defines by a formula count
the formula's element-wise steps and reductions. Unknown types count one per output element.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx.helper
from onnx import AttributeProto, GraphProto, NodeProto

from graphrl.graphs.graph import MAX_WORK
from graphrl.graphs.readers.onnx.sequences import loop_states, scope_of
from graphrl.graphs.readers.onnx.values import Scope, reads_of, subgraphs, trip_count
from graphrl.graphs.readers.work import Step, Work, costliest, in_turn, peak_bytes, repeated, traffic
from graphrl.graphs.roofline import Chip, runtime

Shape = tuple[int, ...]
# Types of the attributes that costs depend on.
INTEGER, INTEGERS, TEXT = "INT", "INTS", "STRING"
ATTRIBUTES = {
    **dict.fromkeys(["axis", "group", "kv_num_heads", "num_scan_inputs", "q_num_heads", "size", "transA"], INTEGER),
    **dict.fromkeys(["kernel_shape", "scan_input_axes"], INTEGERS),
    "equation": TEXT,
}
DATA_MOVEMENT = frozenset(
    str.split(
        """
        BitCast Cast CastLike CenterCropPad Col2Im Compress Concat ConcatFromSequence Constant ConstantOfShape
        DepthToSpace Dropout Expand EyeLike Flatten Gather GatherElements GatherND Identity MaxUnpool NonZero OneHot
        Optional OptionalGetElement OptionalHasElement Pad Reshape ReverseSequence Scatter ScatterElements ScatterND
        SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice
        SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unsqueeze Where
        """
    )
)
# Ops that read no more of their first input than they write.
PARTIAL_READS = frozenset(("Gather", "GatherElements", "GatherND", "SequenceAt", "SequenceErase", "Slice"))
# Steps per element of the first input: reductions one, the rest by the formula in the ONNX specification.
_PER_INPUT = {
    **dict.fromkeys(
        str.split(
            """
            ArgMax ArgMin CumProd CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool MaxRoiPool ReduceMax ReduceMean
            ReduceMin ReduceProd ReduceSum
            """
        ),
        1,
    ),
    **dict.fromkeys(["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"], 2),
    "ReduceLogSumExp": 3,
    "BatchNormalization": 2,  # mean and variance are constants: one multiply-add
    **dict.fromkeys(["RMSNormalization", "SimplifiedLayerNormalization", "LpNormalization"], 4),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], 5),
    **dict.fromkeys(
        ["LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"], 7
    ),
    "SkipLayerNormalization": 8,
    "RotaryEmbedding": 3,
}
_PER_OUTPUT = {
    **dict.fromkeys(["Sigmoid", "Softplus", "Softsign", "HardSigmoid", "Elu", "Selu", "Celu", "Swish", "HardSwish"], 3),
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear", "Clip", "LeakyRelu", "PRelu"], 2),
    **dict.fromkeys(["Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Mish"], 5),
}


def node_work(node: NodeProto, scope: Scope, chip: Chip) -> Work:
    """Computes the cost of a node from the values in `scope`; values of unknown size inside bodies count as 0."""
    bodies = subgraphs(node)
    if not bodies:
        return _single(node, scope, chip)
    if node.op_type == "Loop" and "body" in bodies:
        return _loop_work(node, bodies["body"], scope, chip)
    works = [_body_work(body, scope_of(body, scope), chip, results=node.op_type != "If") for body in bodies.values()]
    if node.op_type == "If":
        return costliest(works)
    return repeated(in_turn(works), _scan_length(node, scope) if node.op_type == "Scan" else 1)


def node_attributes(node: NodeProto) -> dict[str, Any]:
    """Returns the attributes that costs depend on; one with another type than ONNX defines is ignored."""
    return {
        a.name: onnx.helper.get_attribute_value(a)
        for a in node.attribute
        if AttributeProto.AttributeType.Name(a.type) == ATTRIBUTES.get(a.name)
    }


def _single(node: NodeProto, scope: Scope, chip: Chip) -> Work:
    inputs = [scope.get(name) for name in node.input]
    outputs = [scope[name] for name in node.output if name in scope]
    call = Call(
        type=node.op_type,
        attributes=node_attributes(node),
        inputs=[value.sizes if value else () for value in inputs],
        outputs=[value.sizes for value in outputs if value.bytes is not None],
    )
    operations = min(max(0, flops(call)), MAX_WORK)
    read = [scope[name].bytes or 0 for name in dict.fromkeys(node.input) if name in scope]
    written = sum(value.bytes or 0 for value in outputs)
    moved = min(traffic(read, written, partial=node.op_type in PARTIAL_READS), MAX_WORK)
    return Work(operations, runtime(operations, moved, chip))


def _loop_work(node: NodeProto, body: GraphProto, scope: Scope, chip: Chip) -> Work:
    """Computes the cost of a Loop.

    Its sequences grow by the same amount in each run, so the mean run time is that of the first and the last run.
    """
    count = trip_count(node, scope)
    trips = 1 if count is None else count
    first, last = (
        _body_work(body, scope_of(body, scope, loop_states(node, scope, times)), chip, results=True)
        for times in (0, max(0, trips - 1))
    )
    runtime = first.runtime + (last.runtime - first.runtime) / 2
    return last._replace(flops=trips * last.flops, runtime=trips * runtime)


def _body_work(body: GraphProto, scope: Scope, chip: Chip, *, results: bool) -> Work:
    """Computes the cost of one run of a body, in the file's order; with `results`, its results count as its memory."""
    sizes = {info.name: scope[info.name].bytes or 0 for info in (*body.value_info, *body.output)}
    weights = sum(scope[tensor.name].bytes or 0 for tensor in body.initializer)
    works = []
    for node in body.node:
        if node.op_type == "Constant":
            weights += sum(sizes.pop(name, 0) for name in node.output)
        works.append(Work() if node.op_type == "Constant" else node_work(node, scope, chip))
    kept = {info.name for info in body.output}
    steps = [
        Step(
            {name: sizes.get(name, 0) if results or name not in kept else 0 for name in node.output},
            reads_of(node),
            work.workspace_bytes,
        )
        for node, work in zip(body.node, works, strict=True)
    ]
    total = in_turn(works)
    return total._replace(workspace_bytes=peak_bytes(steps, kept), weight_bytes=weights + total.weight_bytes)


def _scan_length(node: NodeProto, scope: Scope) -> int:
    """Returns the size of the scanned axis of the first scanned input; 1 if it is not known."""
    attributes = node_attributes(node)
    first = len(node.input) - attributes.get("num_scan_inputs", 0)
    name = node.input[first] if 0 <= first < len(node.input) else ""
    sizes = scope[name].sizes if name in scope else ()
    axis = next(iter(attributes.get("scan_input_axes", ())), 0)
    return sizes[axis] if -len(sizes) <= axis < len(sizes) else 1


class Call(NamedTuple):
    """An op as its FLOPs rule sees it: type, attributes and shapes.

    Attributes:
      type: ONNX op type, such as "Conv".
      attributes: attributes by name, those in `ATTRIBUTES` with the type given there.
      inputs: shape of each input; () for one that is omitted or unknown.
      outputs: shape of each output.
    """

    type: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]

    def input(self, index: int) -> Shape:
        return self.inputs[index] if index < len(self.inputs) else ()

    @property
    def written(self) -> int:
        """Number of elements of all outputs."""
        return sum(map(math.prod, self.outputs))

    @property
    def read(self) -> int:
        """Number of elements of the first input."""
        return math.prod(self.input(0))


def flops(call: Call) -> int:
    """Counts the FLOPs of one op without a body (`node_work` costs loops and branches)."""
    if call.type in DATA_MOVEMENT:
        return 0
    if call.type in _PER_INPUT:
        return _PER_INPUT[call.type] * call.read
    rule = _RULES.get(call.type)
    return _PER_OUTPUT.get(call.type, 1) * call.written if rule is None else rule(call)


def _convolution(weights: int = 1) -> Callable[[Call], int]:
    def rule(call: Call) -> int:
        bias = len(call.input(2)) == 1 and call.type == "Conv"
        return 2 * call.written * math.prod(call.input(weights)[1:]) + bias * call.written

    return rule


def _gemm(call: Call) -> int:
    contracted = call.input(0)[:1] if call.attributes.get("transA") else call.input(0)[-1:]
    return 2 * call.written * math.prod(contracted) + bool(call.input(2)) * call.written


def _einsum(call: Call) -> int:
    """Counts the naive sum over all letters; an ellipsis counts as the dimensions that it represents."""
    equation = call.attributes.get("equation", b"")
    terms = (equation.decode("utf-8", "replace") if isinstance(equation, bytes) else "").replace(" ", "")
    sizes: dict[object, int] = {}
    for term, shape in zip(terms.split("->")[0].split(","), call.inputs, strict=False):
        head, dots, tail = term.partition("...")
        sizes |= zip(head, shape, strict=False)
        if dots:
            sizes |= zip(reversed(tail), reversed(shape), strict=False)
            for axis, size in enumerate(reversed(shape[len(head) : len(shape) - len(tail)])):
                sizes[axis] = max(size, sizes.get(axis, 1))
    return len(call.inputs) * math.prod(sizes.values())


def _recurrent(call: Call) -> int:
    """Counts RNN, GRU, LSTM: a step multiplies input and state by the matrices of all gates and directions."""
    steps = math.prod(call.input(0)[:2])
    return 2 * steps * (math.prod(call.input(1)) + math.prod(call.input(2)))


def _attention(call: Call) -> int:
    """Counts softmax(Q K^T) V: two products, five steps a score. 4-D: batch, heads, length, size; 3-D: heads merged."""
    query, key, value = call.input(0), call.input(1), call.input(2)
    if len(query) not in (3, 4) or len(key) != len(query) or len(value) != len(query):
        return call.written
    length, past = key[-2], call.input(4)[-2:-1]
    length += math.prod(past) if past else 0
    if len(query) == 4:
        scores, sizes = math.prod(query[:3]) * length, query[3] + value[3]
        return scores * (2 * sizes + 5)
    heads = call.attributes.get("q_num_heads", 1)
    groups = heads // max(1, call.attributes.get("kv_num_heads", heads))
    scores = query[0] * query[1] * length
    return scores * (2 * (query[2] + value[2] * max(1, groups)) + 5 * heads)


def _top_k(call: Call) -> int:
    kept = call.outputs[0] if call.outputs else ()
    axis = call.attributes.get("axis", -1)
    k = kept[axis] if -len(kept) <= axis < len(kept) else 1
    return call.read * max(1, math.ceil(math.log2(k + 1)))


def _fourier(call: Call) -> int:
    axis_size = max(call.input(0)[1:-1], default=1)
    return 5 * max(call.read, call.written) * math.ceil(math.log2(max(2, axis_size)))


_RULES: dict[str, Callable[[Call], int]] = {
    **dict.fromkeys(["Conv", "ConvInteger", "DeformConv", "FusedConv"], _convolution()),
    "QLinearConv": _convolution(weights=3),
    "ConvTranspose": lambda call: 2 * call.read * math.prod(call.input(1)[1:]) + bool(call.input(2)) * call.written,
    **dict.fromkeys(
        ["MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul"],
        lambda call: 2 * call.written * math.prod(call.input(0)[-1:]),
    ),
    **dict.fromkeys(["Gemm", "FusedGemm"], _gemm),
    "Einsum": _einsum,
    **dict.fromkeys(
        ["AveragePool", "MaxPool", "LpPool"],
        lambda call: call.written * math.prod(call.attributes.get("kernel_shape", ())),
    ),
    **dict.fromkeys(["RNN", "GRU", "LSTM"], _recurrent),
    "Attention": _attention,
    "LRN": lambda call: call.read * (2 * call.attributes.get("size", 1) + 3),
    "TopK": _top_k,
    "DFT": _fourier,
    "Det": lambda call: 2 * call.read * math.prod(call.input(0)[-1:]) // 3,
    **dict.fromkeys(
        ["Sum", "Max", "Min", "Mean"], lambda call: call.written * max(1, len(call.inputs) - (call.type != "Mean"))
    ),
}
