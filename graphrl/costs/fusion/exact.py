"""Inlining by priorities, exact run times of the kernels, and the computation graph whose ops are the kernels.

The terms are defined in `graphrl.costs.fusion`.
"""

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from graphrl.costs.fusion.problem import FusionProblem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined, Tensor
from graphrl.graphs.roofline import runtime


@dataclasses.dataclass(frozen=True, eq=False)
class Fusion:
    """Kernels of a graph of n ops, each identified by its root.

    Attributes:
      problem: the graph and its chip.
      inlined: `[n]` bool.
      members: for each root, the ops of its kernel, ascending.
      arguments: for each root, the tensors that its kernel reads: the root's own first, then in the order of readers.
    """

    problem: FusionProblem
    inlined: np.ndarray
    members: dict[int, tuple[int, ...]]
    arguments: dict[int, tuple[int, ...]]

    @functools.cached_property
    def op_seconds(self) -> np.ndarray:
        """Run time of each root's kernel in seconds, 0 for an inlined op: `[n]` float64."""
        seconds = np.zeros(self.problem.num_ops)
        for root, members in self.members.items():
            seconds[root] = kernel_seconds(self.problem, root, members, self.arguments[root])
        return seconds

    @property
    def seconds(self) -> float:
        """Total run time of all kernels, in seconds."""
        return float(self.op_seconds.sum())


def kernel_seconds(problem: FusionProblem, root: int, members: Iterable[int], arguments: Iterable[int]) -> float:
    """Returns the run time of a kernel with these members and arguments, in seconds."""
    members = list(members)
    if problem.renames[members].all():
        return 0.0
    moved = problem.tensor_bytes[list(arguments)].sum() + problem.output_bytes[root]
    return runtime(float(problem.flops[members].sum()), float(moved), problem.chip)


def fuse(problem: FusionProblem, priorities: ArrayLike) -> Fusion:
    """Decides which ops are inlined, by priorities `[n]`: integers from 0.

    Raises:
      PlanError: they are not n integers from 0.
    """
    priority = np.asarray(priorities)
    if priority.shape != (problem.num_ops,) or priority.dtype.kind not in "iu":
        shape = f"of shape {priority.shape} and type {priority.dtype}"
        raise PlanError(f"fusion priorities {shape}: must be {problem.num_ops} integers")
    if priority.size and priority.min() < 0:
        raise PlanError(f"fusion priority {priority.min()}: must be at least 0")
    inlined = problem.legal & (priority > 0)
    while _one_round(problem, priority, inlined):
        pass
    return fusion_of(problem, inlined)


def fusion_of(problem: FusionProblem, inlined: ArrayLike) -> Fusion:
    """Builds the kernels if exactly the ops of `inlined` `[n]` are inlined.

    Raises:
      PlanError: one of them may not be inlined, or a kernel exceeds a limit.
    """
    chosen = np.asarray(inlined, bool)
    graph, inlines = problem.graph, chosen.tolist()
    for op in np.flatnonzero(chosen & ~problem.legal).tolist():
        raise PlanError(f"op {graph.ops[op].name!r} of type {graph.ops[op].type!r} cannot be inlined")
    members: dict[int, tuple[int, ...]] = {}
    arguments: dict[int, tuple[int, ...]] = {}
    for root in np.flatnonzero(~chosen).tolist():
        members[root], arguments[root] = _kernel(problem, inlines, root)
        if len(members[root]) == 1:
            continue
        for count, limit, what in (
            (len(members[root]), problem.max_ops, "ops"),
            (len(arguments[root]), problem.max_arguments, "arguments"),
        ):
            if count > limit:
                name = graph.ops[root].name
                raise PlanError(f"the kernel of op {name!r} has {count} {what}: must be at most {limit}")
    return Fusion(problem, chosen, members, arguments)


def _kernel(problem: FusionProblem, inlined: list[bool], root: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the members and the arguments of a root's kernel."""
    members, arguments, queue = {root}, dict[int, None](), [root]
    for op in queue:
        for tensor in problem.read(op).tolist():
            source = int(problem.producer[tensor])
            if source < 0 or not inlined[source]:
                arguments[tensor] = None
            elif source not in members:
                members.add(source)
                queue.append(source)
    return tuple(sorted(members)), tuple(arguments)


def _one_round(problem: FusionProblem, priority: np.ndarray, inlined: np.ndarray) -> bool:
    """Lets every op take its turn, and clears `inlined` `[n]` for ops that become kernels. Returns True if any do."""
    gathered: list[tuple[set[int], set[int]]] = [(set(), set())] * problem.num_ops  # members, arguments
    changed = False
    for op in problem.graph.arrays.topological.tolist():
        read = problem.read(op).tolist()
        source = {tensor: int(problem.producer[tensor]) for tensor in read}
        inside = [tensor for tensor in read if source[tensor] >= 0 and inlined[source[tensor]]]
        inside.sort(key=lambda tensor: (priority[source[tensor]], source[tensor]))
        outside = set(read) - set(inside)
        for fallen in range(len(inside) + 1):
            members, arguments = {op}, outside.union(inside[:fallen])
            for tensor in inside[fallen:]:
                members |= gathered[source[tensor]][0]
                arguments |= gathered[source[tensor]][1]
            if len(members) <= problem.max_ops and len(arguments) <= problem.max_arguments:
                break
        for tensor in inside[:fallen]:
            inlined[source[tensor]] = False
            changed = True
        gathered[op] = members, arguments
    return changed


@dataclasses.dataclass(frozen=True, eq=False)
class KernelGraph(ComputationGraph):
    """The kernels of a fusion, in the order of their roots and under their names.

    Attributes:
      fusion: the fusion that the kernels belong to.
    """

    fusion: Fusion = dataclasses.field(kw_only=True)

    def inlined(self, kernel: int) -> tuple[str, ...]:
        """Returns the names of the ops that a kernel computes in addition to its root."""
        root = int(self._roots[kernel])
        return tuple(self.fusion.problem.graph.ops[op].name for op in self.fusion.members[root] if op != root)

    @functools.cached_property
    def _roots(self) -> np.ndarray:
        return np.flatnonzero(~self.fusion.inlined)


def fused_graph(fusion: Fusion) -> KernelGraph:
    """Builds the graph of a fusion's kernels.

    A kernel has its root's type, outputs, control predecessors and colocation, and the operations and workspaces of all
    members. Weights of an inlined op stay with the first kernel that computes it, so that their sum is the model's. An
    output shares a buffer as before if that is still an argument. An output that takes a buffer over (`reuses`) does so
    only if no member other than the root reads it.
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
    """Returns a root's output as its kernel's; `inside`: tensors that other members read, `aliases`: all aliases."""
    alias = tensor.alias
    while alias is not None and alias not in arguments:
        alias = aliases.get(alias)
    kept = tensor.reuses is not None and tensor.reuses in arguments and tensor.reuses not in inside
    return Tensor(tensor.name, tensor.bytes, alias, tensor.reuses if kept else None)
