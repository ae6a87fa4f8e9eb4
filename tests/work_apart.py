"""Work that a test has done in spawned processes: in a module that they can import."""

import os


def cores(item: int) -> tuple[int, set[int]]:
    """The item, and the cores of the process."""
    return item, os.sched_getaffinity(0)


def die(item: int) -> None:
    """Ends the process with that status."""
    os._exit(item)
