"""Python without its search for garbage."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def kept_garbage() -> Iterator[None]:
    """Work that makes many objects and little garbage, such as traces of programs: Python's search for cycles goes
    through all of them again and again, which takes a fifth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
