"""Making what comes next while the device works on what came before."""

import collections
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def made_ahead(make: Callable[[int], T], numbers: range, ahead: int) -> Iterator[Iterator[T]]:
    """What `make` gives for each of the numbers, in their order.

    A thread makes them: while it waits for the device, Python lets other threads run.

    Args:
      make: a function of the number alone.
      numbers: of what is wanted; the caller may stop before the last one.
      ahead: how many are made before they are asked for, which bounds the memory; 0 makes each when it is asked for.

    The iterator raises what `make` raises.
    """
    if ahead == 0:
        yield map(make, numbers)
        return
    pool = ThreadPoolExecutor(1, "graphrl-batches")
    try:
        yield _results(make, numbers, ahead, pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _results(make: Callable[[int], T], numbers: range, ahead: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    waiting: collections.deque[Future[T]] = collections.deque(pool.submit(make, number) for number in numbers[:ahead])
    for number in numbers[ahead:]:
        item = waiting.popleft().result()
        waiting.append(pool.submit(make, number))
        yield item
    while waiting:
        yield waiting.popleft().result()
