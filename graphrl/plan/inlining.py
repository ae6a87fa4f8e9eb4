"""What a plan of kernels says of them."""

import dataclasses

import numpy as np

from graphrl.costs.fusion.exact import fusion_of
from graphrl.costs.fusion.fused_graph import KernelGraph, fused_graph
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.roofline import Chip


@dataclasses.dataclass(frozen=True)
class Inlining:
    """Which ops kernels compute.

    Attributes:
      chip: whose figures the run times of kernels follow from.
      inlined: names of the ops that do not run by themselves, in the graph's order.
    """

    chip: Chip
    inlined: tuple[str, ...]

    @classmethod
    def of(cls, graph: ComputationGraph) -> "Inlining | None":
        """That of a graph of kernels; None if its ops are none."""
        if not isinstance(graph, KernelGraph):
            return None
        problem = graph.fusion.problem
        return cls(problem.chip, problem.names(graph.fusion.inlined))

    def kernels(self, graph: ComputationGraph) -> KernelGraph:
        """The kernels of a graph of single ops, or the graph itself if it is that of these kernels.

        Raises:
          PlanError: an op is not the graph's, may not be inlined, or makes a kernel too large.
        """
        if isinstance(graph, KernelGraph) and self.of(graph) == self:
            return graph
        number = {op.name: index for index, op in enumerate(graph.ops)}
        chosen = np.zeros(len(graph.ops), bool)
        for name in self.inlined:
            if name not in number:
                raise PlanError(f"inlined names op {name!r}, which graph {graph.name!r} does not have")
            if chosen[number[name]]:
                raise PlanError(f"inlined names op {name!r} twice: once is enough")
            chosen[number[name]] = True
        return fused_graph(fusion_of(fusion_problem(graph, self.chip), chosen))
