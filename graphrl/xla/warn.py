"""Warnings that are said once in a process."""

import warnings

_said: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, unless the same has been said before."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=3)
