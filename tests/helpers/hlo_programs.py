"""Queries of a program read from compiled HLO, and HLO text parsed in this process."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import Op
from graphrl.graphs.readers.hlo.head import with_header
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
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


def proto(text: str) -> bytes:
    """The serialized module of whole HLO text, by jaxlib's parser in this process: a separate process takes 0.2 s."""
    from jaxlib._hlo import hlo_module_from_text  # type: ignore[import-not-found]

    return hlo_module_from_text(with_header(text.encode()).decode()).as_serialized_hlo_module_proto()


def module_of(text: str) -> HloModule:
    return parse_module(proto(text))


def program_of(text: str, **options: Any) -> HloProgram:
    """The program that `read_hlo` reads from whole HLO text."""
    return read_hlo(proto(text), **options)
