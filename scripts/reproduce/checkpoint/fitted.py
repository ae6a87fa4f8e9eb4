"""A gradient planned for a budget in bytes."""

import time
from typing import Any

import jax

import graphrl
from graphrl.xla.checkpoint.settings import UnmetError
from reproduce.checkpoint.methods import CHIP
from reproduce.checkpoint.program import Program, undecorated
from reproduce.gpu_compile import executable_for_gpu
from reproduce.measurements import Figures


def fitted(program: Program, budget: int, *, verify: bool) -> tuple[Any, Figures]:
    """Plans a step for so many bytes in all.

    Returns:
      Its gradient function; and of its temporaries what was foretold and what XLA compiled for an H200 while it was
      planned, if it was to verify, the slowdown as foretold, and seconds of planning. Where the budget was refused,
      only the least that was found, None if that is unknown, and seconds.
    """
    compiler = executable_for_gpu if verify else False
    own = graphrl.checkpoint(program.loss(undecorated), budget=f"{budget}B", chip=CHIP, verify=compiler, cache=False)
    gradient, began = jax.value_and_grad(own), time.perf_counter()
    try:
        jax.eval_shape(gradient, *program.args)
    except UnmetError as error:
        return gradient, {"foretold": None, "least": error.least, "seconds": time.perf_counter() - began}
    seconds, report = time.perf_counter() - began, own.report()
    return gradient, {
        "foretold": report.planned.peak_bytes,
        "compiled": report.compiled_bytes,
        "slowdown": report.slowdown,
        "seconds": seconds,
    }
