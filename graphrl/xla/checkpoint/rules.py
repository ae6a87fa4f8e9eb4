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
        return product_of(program, eqn)
    if not is_of_variables(eqn):
        return None
    if eqn.primitive.name == "gather":
        return functools.partial(gathered, eqn)
    if eqn.primitive.name == "scatter-add" and eqn.invars[0] in program.place_of:
        filled = program.equations[program.place_of[eqn.invars[0]]]
        if is_fill(filled) and isinstance(filled.invars[0], core.Literal):
            return functools.partial(scattered, filled.invars[0].val, eqn)
    return None


def product_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """A function that gives the result of a product for its operands; None if it is made from sums."""
    left, right = map(program.size, eqn.invars)
    return None if is_of_sums(program, eqn) else functools.partial(product, eqn, 0 if left < right else 1)


def is_of_sums(program: Program, product: Any) -> bool:
    """Whether a product's larger operand is made from sums over many times as much, by what compilers fuse into one
    kernel: equations whose results one other equation reads.

    The gradient of what is summed reads its factors once more. If that does not wait for the operand, as it does in
    `products`, compilers read them once for both and never write what is summed.
    """
    larger = max(product.invars, key=program.size)
    waiting, seen = [larger], {larger}
    while waiting:
        atom = waiting.pop()
        place = program.place_of.get(atom)
        if place is None or program.readers[atom] > 1 or not is_fused(program.equations[place]):
            continue
        read = variables(program.equations[place].invars)
        if program.equations[place].primitive.name == "reduce_sum" and any(
            program.size(summed) >= MANY * program.size(larger) and summed in program.place_of for summed in read
        ):
            return True
        new = {other for other in read if program.size(other) >= program.size(larger)} - seen
        seen |= new
        waiting += new
    return False
