"""Peaks of hand-made graphs."""

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph


def peaks(graph: ComputationGraph, placement: list[int], order: list[int], **problem: object) -> tuple[int, ...]:
    """Bytes of the fullest moment of each device."""
    devices = max(placement) + 1
    return exact.evaluate(graph, Problem(devices=devices, **problem), placement, order).peak_memory  # type: ignore[arg-type]
