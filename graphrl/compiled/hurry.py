"""Compiling without what takes a tenth of its time."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, cast

from numba.core.targetconfig import TargetConfig

from graphrl.garbage import uncollected


@contextlib.contextmanager
def hurry() -> Iterator[None]:
    """Without collecting garbage, and with numba's settings hashed and compared as it does, but quicker: it finds what
    it has typed by them, thousands of times, and goes through all of them each time.
    """
    config = cast(Any, TargetConfig)
    slow = config.__hash__, config.__eq__

    def equal(one: TargetConfig, other: object) -> bool:
        is_same = one is other or (isinstance(other, TargetConfig) and one._values == other._values)
        return is_same or bool(slow[1](one, other))

    config.__hash__, config.__eq__ = _hash, equal
    try:
        with uncollected():
            yield
    finally:
        config.__hash__, config.__eq__ = slow


def _hash(config: TargetConfig) -> int:
    return _hash_of(type(config))


@functools.cache
def _hash_of(kind: type[TargetConfig]) -> int:
    return hash(tuple(sorted(kind.options)))  # all that numba's own looks at
