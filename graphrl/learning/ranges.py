"""Checks of a learner's settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphrl.errors import ProblemError


def check_ranges(
    settings: Any, *, least: Mapping[str, int], above_zero: Sequence[str], known: Mapping[str, Sequence[str]]
) -> None:
    """Looks at the fields of settings.

    Args:
      settings: whose fields are named.
      least: of integers, the lowest that is right.
      above_zero: numbers.
      known: of names, all that there are.

    Raises:
      ProblemError: a value is out of range.
    """
    for name, low in least.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ProblemError(f"{name} is {value!r}: must be an integer of at least {low}")
    for name in above_zero:
        if not getattr(settings, name) > 0:
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be above 0")
    for name, names in known.items():
        if getattr(settings, name) not in names:
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be one of {', '.join(names)}")
