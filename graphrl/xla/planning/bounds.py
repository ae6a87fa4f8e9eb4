"""What XLA's temporaries need in any order of a module's entry computation."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.xla.planning.temp_search import counted
from graphrl.xla.settings import PROBLEM


def order_of(program: HloProgram, sequence: Sequence[str]) -> np.ndarray:
    """The order `[n]` of the graph's ops in a sequence of all instructions."""
    place = {op.name: k for k, op in enumerate(program.graph.ops)}
    return np.array([place[name] for name in sequence if name in place], np.int64)


def temp_bound(program: HloProgram, sequence: Sequence[str], *, bodies_as_they_are: bool = False) -> float:
    """Bytes that XLA's temporaries need in any order, beside the results; a good order makes the bound tight.

    Args:
      program: of the module.
      sequence: of all instructions.
      bodies_as_they_are: count what loops, branches and calls need inside. No proof: that may lie in buffers that hold
        nothing meanwhile.
    """
    everything, results = counted(program)
    graph = everything.graph
    if not bodies_as_they_are:
        graph = ComputationGraph(graph.name, tuple(_least(graph.ops)), graph.inputs, graph.outputs)
    return max(0.0, lower_bound(graph, PROBLEM, order_of(program, sequence)) - results)


def _least(ops: Sequence[Op]) -> Iterator[Op]:
    """Ops with the bytes that they need for certain. What a loop or a branch needs inside may lie in the buffers of
    what it is given and what it gives, while they hold nothing; the results of a call in those of its operands.
    """
    called = {t.name for op in ops if op.type == "call" for t in op.outputs if t.alias is None}
    for op in ops:
        outputs = (dataclasses.replace(t, bytes=0, reuses=None) if t.name in called else t for t in op.outputs)
        outputs = (dataclasses.replace(t, reuses=None) if t.reuses in called else t for t in outputs)
        yield dataclasses.replace(op, outputs=tuple(outputs), workspace_bytes=0)
