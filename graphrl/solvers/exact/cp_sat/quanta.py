"""Seconds and bytes as the integers that CP-SAT takes."""

import dataclasses
import math
from collections.abc import Sequence

from graphrl.errors import ProblemError

MAX_EXACT = 2**32  # quanta of all lengths together, if they are exact: with many more, bounds only creep
FINE = 2**20  # at least, on the average of the lengths above 0, if they must be rounded: an error of 1e-6 at most
COARSE = 2**6  # the same: few enough for quick search
MAX_UNITS = 2**50  # units of memory: products with positions stay inside int64


@dataclasses.dataclass(frozen=True)
class Quanta:
    """Seconds as whole quanta, rounded down, so that what is a bound in quanta is one in seconds.

    Attributes:
      lengths: quanta, one for each of the seconds given.
      exact: nothing was rounded, and sums of them are exact in float64.
    """

    lengths: tuple[int, ...]
    numerator: int  # a quantum is numerator / denominator seconds
    denominator: int
    exact: bool

    @classmethod
    def of(cls, seconds: Sequence[float], coarse: bool = False) -> "Quanta":
        """The coarsest exact quanta if the seconds add up to at most 2^32 of them, else 2^20 or more on their average.

        `coarse` ones are exact up to 2^8 on the average of the seconds above 0, else 2^6 or more.
        """
        total = math.fsum(seconds)
        if total == 0:
            return cls((0,) * len(seconds), 1, 1, True)
        ratios = [value.as_integer_ratio() for value in seconds]
        denominator = max(below for _, below in ratios)  # a power of two
        whole = [above * (denominator // below) for above, below in ratios]
        numerator = math.gcd(*whole)
        count = sum(value > 0 for value in seconds)
        if sum(whole) // numerator <= (4 * COARSE * count if coarse else MAX_EXACT) and sum(whole) < 2**53:
            return cls(tuple(value // numerator for value in whole), numerator, denominator, True)
        wanted = count * (COARSE if coarse else FINE)
        exponent = math.frexp(total)[1] - 1 - (wanted - 1).bit_length()  # a quantum is 2^exponent
        numerator, shift = 2 ** max(exponent, 0), max(-exponent, 0)
        lengths = tuple((above << shift) // (below * numerator) for above, below in ratios)
        return cls(lengths, numerator, 2**shift, False)

    def bound(self, quanta: int) -> float:
        """Seconds that no plan is below if none is below so many quanta."""
        seconds = quanta * self.numerator / self.denominator
        # A plan's float64 clock may be below the exact sum by its rounding.
        return seconds if self.exact else seconds * (1 - (len(self.lengths) + 4) * 2**-50)

    def at_least(self, seconds: float) -> int:
        """Quanta that every plan has if its makespan is at least `seconds`."""
        above, below = seconds.as_integer_ratio()
        quanta, rest = divmod(above * self.denominator, below * self.numerator)
        return quanta + (rest > 0) if self.exact else max(0, quanta - len(self.lengths) - 2)


def byte_unit(sizes: Sequence[int]) -> int:
    """Bytes that all sizes are multiples of.

    Raises:
      ProblemError: there would be more than 2^50 of them in all.
    """
    unit = math.gcd(*sizes) or 1
    if sum(sizes) // unit > MAX_UNITS:
        raise ProblemError(
            f"method 'cp-sat' counts up to 2^50 units of {unit} bytes: the graph's bytes are more in all"
        )
    return unit
