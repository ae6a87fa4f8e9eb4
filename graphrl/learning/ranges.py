"""Checks of a learner's settings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from graphrl.errors import ProblemError

MOST = 2**31 - 1  # of what costs time alone; what is built before training gets a limit of its own


def check_ranges(
    settings: Any,
    *,
    integers: Mapping[str, tuple[int, int]],
    above_zero: Sequence[str],
    options: Mapping[str, Sequence[str]],
) -> None:
    """Looks at the fields of settings.

    Args:
      settings: whose fields are named.
      integers: the lowest and the highest that is right.
      above_zero: numbers.
      options: of names, all that there are.

    Raises:
      ProblemError: a value is out of range.
    """
    for name, (low, high) in integers.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            upper = f"of at least {low}" if high == MOST else f"from {low} to {high:,}"
            raise ProblemError(f"{name} is {value!r}: must be an integer {upper}")
    for name in above_zero:
        if not 0 < getattr(settings, name) < math.inf:
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be a number above 0")
    for name, names in options.items():
        if getattr(settings, name) not in names:
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be one of {', '.join(names)}")
