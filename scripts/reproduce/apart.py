"""Work in processes of a core each, side by side, whose times then do not depend on how many there are."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from typing import TypeVar

from graphrl.compare.cluster import share
from graphrl.errors import GraphrlError

T = TypeVar("T")
R = TypeVar("R")


def each_apart(work: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[R]:
    """What work makes of each item, as it comes. A process does one item after another.

    Raises:
      GraphrlError: a process died, or there are fewer cores than processes.
    """
    share(processes)
    if not items:
        return
    context = multiprocessing.get_context("spawn")  # JAX has threads
    cores: SimpleQueue[int] = context.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:processes]:
        cores.put(core)
    with ProcessPoolExecutor(processes, context, _begin, (cores,)) as pool:
        try:
            for future in as_completed([pool.submit(work, item) for item in items]):
                yield future.result()
        except BrokenProcessPool:
            raise GraphrlError("a process died: the same command goes on from here") from None
        finally:
            for process in multiprocessing.active_children():
                process.kill()


def _begin(cores: "SimpleQueue[int]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.sched_setaffinity(0, {cores.get()})


def _end_with_parent() -> None:
    """A killed parent ends nobody, and its processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # only the pool begins one
    parent.join()
    os._exit(1)
