"""Seconds of what a plan makes of a program, by `gradient_seconds`: traced, so that all that jax adds counts."""

import functools
from collections.abc import Sequence

from graphrl.graphs.roofline import Chip
from graphrl.xla.checkpoint.derivative import gradient_jaxpr
from graphrl.xla.checkpoint.plan import CheckpointPlan
from graphrl.xla.checkpoint.program import Program
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.seconds import gradient_seconds


class TracedSeconds:
    """Seconds of a program and its gradient by the arguments that are `wanted`, on a chip."""

    def __init__(self, program: Program, wanted: Sequence[bool], chip: Chip) -> None:
        self._program, self._wanted, self._chip = program, wanted, chip

    def __call__(self, plan: CheckpointPlan) -> float:
        """Under a plan."""
        run = functools.partial(evaluate, self._program, plan)
        return gradient_seconds(gradient_jaxpr(self._program, self._wanted, run)[0], self._chip)
