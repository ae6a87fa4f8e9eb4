"""Units in which bytes and seconds are the integers that OR-Tools and SciPy take, which abort or wrap where sums or
products leave 32 or 64 bits.
"""

import math

import numpy as np


def unit_of(amounts: np.ndarray, most: int) -> float:
    """A unit of which all amounts together have fewer than `most`, and half of that or more: a power of two, by which
    floats are divided exactly; 1 where all amounts are 0.

    Args:
      amounts: `[...]` float64, finite and at least 0.
      most: units, of all amounts together; rounding up adds at most one unit to each.
    """
    return math.ldexp(1.0, math.frexp(float(amounts.sum()) / most)[1])
