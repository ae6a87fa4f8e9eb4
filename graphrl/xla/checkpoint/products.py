"""Products whose gradients are computed one after the other.

A product's two gradients read the other operand each. Compilers compute them in any order, and while the gradient of
the larger operand lies there already, that operand does, too, for the other one to read. Here the gradient of the
smaller operand comes first: the larger one is done with before as much is written again. Not all products have that:
see `rules.is_of_sums`.
"""

from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from graphrl.xla.checkpoint.program import Piece
from graphrl.xla.checkpoint.ties import together


def product(equation: Any, smaller: int, left: Any, right: Any) -> Any:
    """The result of an equation that is linear in each of two operands.

    Args:
      equation: of a product or a convolution, of two different variables.
      smaller: which operand is the smaller one, 0 or 1.
      left, right: its operands.
    """
    multiply = Piece.of([equation])

    def bind(*operands: Any) -> Any:
        return multiply(*operands)[0]

    def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Of both terms the one by the larger operand's tangent waits, when it is transposed, for the other one's."""
        some = [k for k in (1 - smaller, smaller) if type(tangents[k]) is not SymbolicZero]
        terms: list[Any] = []
        for k in some:
            own = tangents[k]
            if terms:
                terms[0], own = together([terms[0], own])
            terms.append(bind(*(own if number == k else operand for number, operand in enumerate(primals))))
        return bind(*primals), sum(terms[1:], terms[0])

    run = jax.custom_jvp(bind)
    run.defjvp(tangent, symbolic_zeros=True)
    return run(left, right)
