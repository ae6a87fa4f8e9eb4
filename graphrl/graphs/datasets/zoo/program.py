"""A program of the zoo, its split (training, validation or test), and its variants.

A fixed table gives the split of each family of architectures. REGAL keeps its three sets of graphs disjoint by topology
(section 4.1). Models of one family share their blocks, so here whole families stay together: test graphs have blocks
that no training graph has. A model that contains another family's (a detector on a ResNet) belongs to that family.

Variants (`augmented`) have the same ops and edges, but other sizes and times (REGAL, section 4.1 "Tasks and datasets").
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.seeds import generator
from graphrl.graphs.graph import ComputationGraph

Split = Literal["train", "valid", "test"]

SPLITS: dict[str, Split] = {
    **dict.fromkeys(str.split("bert densenet gpt llama mobilenet recurrent resnet vgg vit"), "train"),
    **dict.fromkeys(str.split("bart convnext efficientnet segformer t5 xlnet"), "valid"),
    **dict.fromkeys(str.split("cspnet deberta diffusion fnet inception mixer nasnet rwkv swin unet whisper"), "test"),
}
KINDS = ("inference", "training")
LEVELS = ("jaxpr", "hlo")


@dataclasses.dataclass(frozen=True)
class ZooProgram:
    """A traced model as a graph, with XLA's schedules and memory for it.

    Attributes:
      architecture, family: model architecture, and its family, a key of `SPLITS`.
      kind: "inference", or "training": value and gradient of a loss.
      batch: number of examples.
      level: "jaxpr" (one op per equation, as in `from_jax`) or "hlo" (XLA's optimised instructions).
      graph: graph of n ops, at level "hlo" in the order of XLA's default schedule.
      schedules: at level "hlo", orders by XLA's schedulers "default" and "memory", `[n] int32` op indices each.
      temp_bytes: at level "hlo", bytes that XLA allocates in addition to arguments and results in these orders, by our
        model of its buffer assignment.
      versions: versions of jax, jaxlib and, if they are used, keras and keras_hub.
      date: date on which the model was traced, such as 2026-11-21.
      colocation: `[n] int32`, the group of each op (`workloads/go.py`), or None.
    """

    architecture: str
    family: str
    kind: str
    batch: int
    level: str
    graph: ComputationGraph
    schedules: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    temp_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    date: str = ""
    colocation: np.ndarray | None = None

    @property
    def name(self) -> str:
        """The program's name, as in `efficientnetb0/training/b8/hlo`."""
        return program_name(self.architecture, self.kind, self.batch, self.level)

    @property
    def split(self) -> Split:
        """The split of its family."""
        return SPLITS[self.family]


def program_name(architecture: str, kind: str, batch: int, level: str) -> str:
    """Builds the name of a program from architecture, kind, batch and level."""
    return f"{architecture}/{kind}/b{batch}/{level}"


def augmented(graph: ComputationGraph, seed: int, sigma: float = 0.3) -> ComputationGraph:
    """Returns a copy of the graph with random noise on run times and bytes; equal arguments give equal graphs.

    REGAL applies "multiplicative noise to tensor sizes and op running times" without naming the distribution. Ours is
    log-normal: factors exp(sigma z), z standard normal, independent for each run time, workspace, weight and buffer.
    Tensors that share a buffer through `alias` or `reuses` get one common factor, so that a tensor that reuses a buffer
    still fits it. Sizes of 0 stay 0, any other size is at least 1 byte. FLOPs and external inputs do not change.

    Args:
      graph: any graph.
      seed: at least 0.
      sigma: deviation of the factors' logarithm, from 0 to 3; at 0.3, two thirds of the factors are in 0.74 to 1.35.

    Raises:
      ProblemError: the seed or sigma is out of range.
    """
    if not 0 <= sigma <= 3:
        raise ProblemError(f"sigma is {sigma!r}: must be from 0 to 3")
    random = generator("augmented", seed)
    n = len(graph.ops)
    runtime, workspace, weights = np.exp(sigma * random.standard_normal((3, n)))
    buffers = _buffers(graph)
    factor = np.exp(sigma * random.standard_normal(len(buffers)))
    factors = iter(factor[buffers].tolist())
    ops = [
        dataclasses.replace(
            op,
            runtime=op.runtime * float(runtime[i]),
            workspace_bytes=_scaled(op.workspace_bytes, float(workspace[i])),
            weight_bytes=_scaled(op.weight_bytes, float(weights[i])),
            outputs=tuple(dataclasses.replace(t, bytes=_scaled(t.bytes, next(factors))) for t in op.outputs),
        )
        for i, op in enumerate(graph.ops)
    ]
    return ComputationGraph(f"{graph.name}~{seed}", tuple(ops), graph.inputs, graph.outputs)


def _scaled(size: int, factor: float) -> int:
    return max(1, round(size * factor)) if size else 0


def _buffers(graph: ComputationGraph) -> np.ndarray:
    """Finds tensors that share a buffer through `alias` or `reuses`: `[t] int`, one representative tensor for each."""
    a = graph.arrays
    parent = list(range(a.num_tensors))

    def root(tensor: int) -> int:
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for shared in (a.alias.tolist(), a.reuses.tolist()):
        for tensor, source in enumerate(shared):
            if source >= 0:
                parent[root(tensor)] = root(source)
    return np.array([root(tensor) for tensor in range(a.num_tensors)], np.int64)
