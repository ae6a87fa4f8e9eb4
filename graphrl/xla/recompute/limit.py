"""How much may be computed again."""

from graphrl.errors import ProblemError


def check_limit(limit: float) -> None:
    """Raises ProblemError unless the limit is a part from 0 to 1."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= 1:
        raise ProblemError(f"recompute is {limit!r}: must be a part of the run time, a number from 0 to 1")
