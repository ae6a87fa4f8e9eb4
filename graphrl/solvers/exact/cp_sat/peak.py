"""Peak memory as a model: an order on each device, and the most that any device holds along it."""

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.exact.cp_sat.clock import Clock
from graphrl.solvers.exact.cp_sat.engine import Model
from graphrl.solvers.exact.cp_sat.memory import add_memory
from graphrl.solvers.exact.cp_sat.model import Built, built, most_nodes, unit_lengths
from graphrl.solvers.exact.cp_sat.placement import Placement
from graphrl.solvers.exact.cp_sat.reference import Reference


def peak_model(
    graph: ComputationGraph, problem: Problem, reference: Reference, unit: int, low: int, high: int
) -> Built:
    """Minimises the largest device peak.

    Args:
      reference: a plan.
      unit: bytes, of `memory.check_memory`.
      low: units at which a peak is as good as any lower one.
      high: units of the reference's peak, at least `low`.
    """
    model = Model()
    where = Placement(model, graph, problem.devices, reference.placement)
    lengths = unit_lengths(graph)
    starts = reference.starts(lengths, "rendezvous")
    axis = Clock(model, graph, where, "rendezvous", lengths, most_nodes(graph, problem.devices), starts)
    peak = model.integer(low, high, high)
    add_memory(axis, graph, problem, unit, peak)
    return built(model, peak, axis, graph, problem)
