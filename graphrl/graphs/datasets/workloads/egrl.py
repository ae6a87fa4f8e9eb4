"""The workloads of EGRL, layer by layer, as graphs: ResNet-50 (57 ops), ResNet-101 (108), BERT (376).

8-bit weights and activations, batch 1. The paper gives only the numbers of nodes, so the choice of nodes is ours:

- ResNets: batch norm, activation and residual add are in the convolution that feeds them, which then also reads the
  shortcut. 53 (104) convolutions, two poolings, the classifier, and an input that quantises.
- BERT-base on 384 tokens: 31 ops a layer, with biases, reshapes and transposes as separate ops, and 4 outside of the
  layers. The embedding counts as read in full.
"""

import dataclasses

from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer

TOKENS, HIDDEN, HEADS, VOCABULARY = 384, 768, 12, 30522
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # inner channels and first stride of a ResNet's stages


@dataclasses.dataclass(frozen=True)
class _Map:
    """A feature map, the output of an op, with one byte per element."""

    name: str
    x: int
    y: int
    z: int

    @property
    def bytes(self) -> int:
        return self.x * self.y * self.z


class _Builder:
    """Builder of a graph whose ops are in program order, each with one output."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(
        self, name: str, type: str, shape: tuple[int, int, int], *inputs: _Map, macs: int = 0, weights: int = 0,
        kernel: int = 0, stride: int = 0,
    ) -> _Map:  # fmt: skip
        """Adds an op; returns its output."""
        output = _Map(f"{name}:0", *shape)
        read = max(inputs, key=lambda one: one.bytes) if inputs else output
        layer = Layer(
            1, read.x, read.y, read.z, *shape, int(kernel > 0), kernel, kernel, stride, kernel // 2, int(kernel > 0)
        )
        names = tuple(one.name for one in inputs)
        outputs = (Tensor(output.name, output.bytes),)
        self.ops.append(
            Op(name, type, inputs=names, outputs=outputs, weight_bytes=weights, flops=2 * macs, layer=layer)
        )
        return output

    def conv(self, name: str, x: _Map, channels: int, kernel: int, stride: int, *shortcut: _Map) -> _Map:
        """Adds a square convolution without bias, which also adds the shortcut; returns its output."""
        weights, side = x.z * channels * kernel**2, x.x // stride
        shape = (side, side, channels)
        macs = side**2 * weights
        return self.add(name, "Conv", shape, x, *shortcut, macs=macs, weights=weights, kernel=kernel, stride=stride)

    def matmul(self, name: str, x: _Map, columns: int) -> _Map:
        """Adds a product of `x` with a weight matrix, without bias; returns its output."""
        shape, weights = (x.x, x.y, columns), x.z * columns
        return self.add(name, "MatMul", shape, x, macs=x.x * x.y * weights, weights=weights)

    def graph(self, name: str) -> ComputationGraph:
        """Returns the graph of all ops; the last output is kept."""
        return ComputationGraph(name, tuple(self.ops), outputs=(self.ops[-1].outputs[0].name,))


def resnet50() -> ComputationGraph:
    """Returns ResNet-50: 57 ops, 25.50 MB of weights, 11.32 MB of outputs, 4.089 billion multiply-adds."""
    return _resnet("resnet50", (3, 4, 6, 3))


def resnet101() -> ComputationGraph:
    """Returns ResNet-101: 108 ops, 44.44 MB of weights, 16.44 MB of outputs, 7.80 billion multiply-adds."""
    return _resnet("resnet101", (3, 4, 23, 3))


def _resnet(name: str, blocks: tuple[int, ...]) -> ComputationGraph:
    """Builds a bottleneck ResNet with the stride in the 3x3 convolution (He et al. 2016, as commonly trained)."""
    b = _Builder()
    x = b.add("quantize", "QuantizeLinear", (224, 224, 3))
    x = b.conv("conv1", x, 64, 7, 2)
    x = b.add("maxpool", "MaxPool", (56, 56, 64), x, kernel=3, stride=2)
    for stage, ((inner, first_stride), count) in enumerate(zip(STAGES, blocks, strict=True), 2):
        for block in range(count):
            stride, at = (1, f"conv{stage}_{block + 1}") if block else (first_stride, f"conv{stage}_1")
            reduced = b.conv(f"{at}/reduce", x, inner, 1, 1)
            spatial = b.conv(f"{at}/spatial", reduced, inner, 3, stride)
            shortcut = x if block else b.conv(f"{at}/shortcut", x, 4 * inner, 1, stride)
            x = b.conv(f"{at}/expand", spatial, 4 * inner, 1, 1, shortcut)
    x = b.add("avgpool", "GlobalAveragePool", (1, 1, x.z), x, kernel=7, stride=1)
    b.matmul("classifier", x, 1000)
    return b.graph(name)


def bert() -> ComputationGraph:
    """Returns BERT-base (Devlin et al. 2018): 376 ops, 12 layers of 31 ops on 384 tokens."""
    b = _Builder()
    rows = (TOKENS, 1, HIDDEN)
    x = b.add("embedding", "Gather", rows, weights=VOCABULARY * HIDDEN)
    x = b.add("embedding/norm", "LayerNormalization", rows, x, weights=2 * HIDDEN)
    for layer in range(12):
        x = _bert_layer(b, f"layer{layer}", x)
    pooled = b.matmul("pooler", _Map(x.name, 1, 1, HIDDEN), HIDDEN)
    b.matmul("classifier", pooled, 2)
    return b.graph("bert")


def _bert_layer(b: _Builder, at: str, x: _Map) -> _Map:
    query, key, value = (_projected(b, f"{at}/{part}", x, HIDDEN) for part in ("query", "key", "value"))
    depth = HIDDEN // HEADS
    heads = (TOKENS, HEADS, depth)
    split = []
    for part, projected in (("query", query), ("key", key), ("value", value)):
        reshaped = b.add(f"{at}/{part}/reshape", "Reshape", heads, projected)
        split.append(b.add(f"{at}/{part}/transpose", "Transpose", heads, reshaped))
    columns = b.add(f"{at}/key/columns", "Transpose", (depth, HEADS, TOKENS), split[1])
    square, macs = (TOKENS, HEADS, TOKENS), TOKENS**2 * HIDDEN
    scores = b.add(f"{at}/scores", "MatMul", square, split[0], columns, macs=macs)
    scores = b.add(f"{at}/scale", "Mul", square, scores)
    scores = b.add(f"{at}/mask", "Add", square, scores, weights=TOKENS)
    scores = b.add(f"{at}/softmax", "Softmax", square, scores)
    context = b.add(f"{at}/context", "MatMul", heads, scores, split[2], macs=macs)
    context = b.add(f"{at}/context/transpose", "Transpose", heads, context)
    context = b.add(f"{at}/context/reshape", "Reshape", (TOKENS, 1, HIDDEN), context)
    x = _added(b, f"{at}/attention", _projected(b, f"{at}/attention", context, HIDDEN), x)
    inner = _projected(b, f"{at}/inner", x, 4 * HIDDEN)
    inner = b.add(f"{at}/gelu", "Gelu", (TOKENS, 1, 4 * HIDDEN), inner)
    return _added(b, f"{at}/outer", _projected(b, f"{at}/outer", inner, HIDDEN), x)


def _projected(b: _Builder, at: str, x: _Map, columns: int) -> _Map:
    """Adds a matrix product with a bias; returns its output."""
    product = b.matmul(f"{at}/matmul", x, columns)
    return b.add(f"{at}/bias", "Add", (x.x, x.y, columns), product, weights=columns)


def _added(b: _Builder, at: str, x: _Map, shortcut: _Map) -> _Map:
    """Adds a residual sum and its normalisation; returns the output."""
    total = b.add(f"{at}/sum", "Add", (x.x, x.y, x.z), x, shortcut)
    return b.add(f"{at}/norm", "LayerNormalization", (x.x, x.y, x.z), total, weights=2 * x.z)


WORKLOADS = {"resnet50": resnet50, "resnet101": resnet101, "bert": bert}
