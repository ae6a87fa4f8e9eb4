"""Work that a test does in spawned processes, in a module that they can import."""

import os
import time
from pathlib import Path


def cores(item: int) -> tuple[int, set[int]]:
    """The item, and the cores of the process."""
    return item, os.sched_getaffinity(0)


def die(item: int) -> None:
    """Ends the process with that status."""
    os._exit(item)


def stay(path: Path) -> None:
    """Writes the id of its process, and sleeps."""
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    time.sleep(600)
