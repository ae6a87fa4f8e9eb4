"""What tests ask of a program that was read from compiled HLO."""

from collections.abc import Sequence

import numpy as np

from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import Op
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.graphs.roofline import Chip

KIB = 1024
CHIP = Chip("unit", 1.0, 1e30)  # the run time in seconds is the number of operations


def of(program: HloProgram, name: str) -> Op:
    """The op of that name."""
    return next(op for op in program.graph.ops if op.name == name)


def peak(program: HloProgram, order: Sequence[int] | None = None) -> int:
    """Exact peak of an order, by default XLA's."""
    chosen = program.schedule if order is None else np.asarray(order)
    problem = Problem(devices=1, objective="peak_memory")
    return evaluate(program.graph, problem, np.zeros(len(chosen), int), chosen).peak_memory[0]
