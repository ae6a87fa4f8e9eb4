"""The computation graph whose ops are kernels."""

import dataclasses
import functools

import numpy as np

from graphrl.costs.fusion.exact import Fusion
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.pipelined import Pipelined


@dataclasses.dataclass(frozen=True, eq=False)
class KernelGraph(ComputationGraph):
    """The kernels of a fusion, in the order of their roots and under their names.

    Attributes:
      fusion: whose kernels they are.
    """

    fusion: Fusion = dataclasses.field(kw_only=True)

    def inlined(self, kernel: int) -> tuple[str, ...]:
        """The names of the ops that a kernel computes beside its root."""
        root = int(self._roots[kernel])
        return tuple(self.fusion.problem.graph.ops[op].name for op in self.fusion.members[root] if op != root)

    @functools.cached_property
    def _roots(self) -> np.ndarray:
        return np.flatnonzero(~self.fusion.inlined)


def fused_graph(fusion: Fusion) -> KernelGraph:
    """The graph of a fusion's kernels.

    A kernel has its root's type, outputs, control predecessors and colocation, and the operations and workspaces of all
    members. Weights of an inlined op stay with the first kernel that computes it, so that their sum is the model's. An
    output shares a buffer as before where that is still an argument; one that takes a buffer over (`reuses`) only if no
    member but the root reads it.
    """
    graph = fusion.problem.graph
    names = (*graph.tensor_names, *(tensor.name for tensor in graph.inputs))
    aliases = {tensor.name: tensor.alias for op in graph.ops for tensor in op.outputs if tensor.alias is not None}
    weighed: set[int] = set()  # ops whose weights a kernel holds
    seconds = fusion.op_seconds.tolist()
    ops = []
    for root, members in fusion.members.items():
        own = graph.ops[root]
        arguments = tuple(names[tensor] for tensor in fusion.arguments[root])
        inside = {name for op in members if op != root for name in graph.ops[op].inputs}
        ops.append(
            Op(
                name=own.name,
                type=own.type,
                runtime=seconds[root],
                inputs=arguments,
                outputs=tuple(_output(tensor, set(arguments), inside, aliases) for tensor in own.outputs),
                after=own.after,
                workspace_bytes=sum(graph.ops[op].workspace_bytes for op in members),
                weight_bytes=sum(graph.ops[op].weight_bytes for op in members if op not in weighed),
                flops=sum(graph.ops[op].flops for op in members),
                layer=own.layer if len(members) == 1 else None,
                pipelined=None if own.pipelined is None else Pipelined(colocation=own.pipelined.colocation),
            )
        )
        weighed.update(members)
    return KernelGraph(graph.name, tuple(ops), graph.inputs, graph.outputs, fusion=fusion)


def _output(tensor: Tensor, arguments: set[str], inside: set[str], aliases: dict[str, str]) -> Tensor:
    """A root's output as the kernel's; `inside` is what other members read, `aliases` the buffers of all tensors."""
    alias = tensor.alias
    while alias is not None and alias not in arguments:
        alias = aliases.get(alias)
    kept = tensor.reuses is not None and tensor.reuses in arguments and tensor.reuses not in inside
    return Tensor(tensor.name, tensor.bytes, alias, tensor.reuses if kept else None)
