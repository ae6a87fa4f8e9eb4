"""Equations that run in a way of their own, such that compilers need less memory for them or for their gradients."""

import functools
from collections.abc import Callable
from typing import Any

from jax.extend import core

from graphrl.xla.checkpoint.kinds import is_fill, is_fused, is_of_variables, is_product
from graphrl.xla.checkpoint.products import product
from graphrl.xla.checkpoint.program import Program, variables
from graphrl.xla.checkpoint.zeros import gathered, scattered

MANY = 4  # times as many elements


def rule_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """What gives the result of a program's equation for its operands; None for most equations."""
    if is_product(eqn):
        return None if _is_summed(program, eqn) else functools.partial(product, eqn)
    if not is_of_variables(eqn):
        return None
    if eqn.primitive.name == "gather":
        return functools.partial(gathered, eqn)
    if eqn.primitive.name == "scatter-add" and eqn.invars[0] in program.place_of:
        filled = program.equations[program.place_of[eqn.invars[0]]]
        if is_fill(filled) and isinstance(filled.invars[0], core.Literal):
            return functools.partial(scattered, filled.invars[0].val, eqn)
    return None


def _is_summed(program: Program, eqn: Any) -> bool:
    """Whether a product's larger operand is made from sums over many times as much, in what compilers fuse.

    What the sums read is then read once more by their gradient. If that does not wait for the operand, as it does in
    `products`, compilers read it once for both and never write it.
    """
    larger = max(eqn.invars[::-1], key=lambda atom: atom.aval.size)
    waiting, seen = [larger], {larger}
    while waiting:
        place = program.place_of.get(waiting.pop())
        maker = None if place is None else program.equations[place]
        if maker is None or not is_fused(maker):
            continue
        read = variables(maker.invars)
        if maker.primitive.name == "reduce_sum" and read[0].aval.size >= MANY * larger.aval.size:
            return True
        new = {atom for atom in read if atom.aval.size >= larger.aval.size} - seen
        seen |= new
        waiting += new
    return False
