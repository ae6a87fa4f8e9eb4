"""Equations that run in a way of their own, such that compilers need less memory for them or for their gradients."""

import functools
from collections.abc import Callable
from typing import Any

from jax.extend import core

from graphrl.xla.checkpoint.kinds import is_fill, is_of_variables, is_product
from graphrl.xla.checkpoint.products import product
from graphrl.xla.checkpoint.program import Program
from graphrl.xla.checkpoint.zeros import gathered, scattered


def rule_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """What gives the result of a program's equation for its operands; None for most equations."""
    if is_product(eqn):
        return functools.partial(product, eqn)
    if not is_of_variables(eqn):
        return None
    if eqn.primitive.name == "gather":
        return functools.partial(gathered, eqn)
    if eqn.primitive.name == "scatter-add" and eqn.invars[0] in program.place_of:
        filled = program.equations[program.place_of[eqn.invars[0]]]
        if is_fill(filled) and isinstance(filled.invars[0], core.Literal):
            return functools.partial(scattered, filled.invars[0].val, eqn)
    return None
