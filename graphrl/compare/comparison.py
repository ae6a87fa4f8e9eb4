"""A comparison: the runs that a file does not have yet are made and added to it."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from graphrl.compare.pool import execute_all
from graphrl.compare.runs import Row, Run
from graphrl.compare.store import Store, open_store


class Comparison(NamedTuple):
    """What came of a comparison.

    Attributes:
      rows: of the runs that were asked for, in their order.
      known: all other rows of the file: they may hold better values of the same graphs.
      made: how many of `rows` were made now.
      interrupted: whether Ctrl-C ended it; then some of `rows` are missing.
    """

    rows: list[Row]
    known: list[Row]
    made: int
    interrupted: bool


Watch = Callable[[Sequence[Run]], contextlib.AbstractContextManager[Callable[[Row], None]]]


def _nobody(runs: Sequence[Run]) -> contextlib.AbstractContextManager[Callable[[Row], None]]:
    return contextlib.nullcontext(lambda row: None)


def compare(
    runs: Sequence[Run],
    path: str | os.PathLike[str] | None = None,
    *,
    processes: int = 1,
    retry: bool = False,
    watch: Watch = _nobody,
    prepare: Callable[[], object] | None = None,
) -> Comparison:
    """Makes the runs that are not in the file yet.

    Args:
      runs: from `make_runs`; with several processes their `cores` should be `pool.share(processes)`.
      path: of the file with the rows (`store.py`), or None to keep none.
      processes, prepare: see `execute_all`.
      retry: whether runs that failed before are made again.
      watch: called with the runs that are to be made; what the `with` gives is called with every row.

    Raises:
      GraphrlError: the file cannot be used.
      ProblemError: there are fewer cores than processes.
    """
    with contextlib.ExitStack() as stack:
        store = None if path is None else stack.enter_context(open_store(path))
        found = {} if store is None else store.rows
        missing = [run for run in runs if run.key not in found or (retry and found[run.key].error is not None)]
        made, interrupted = 0, False
        new = execute_all(missing, processes, prepare=prepare)
        try:
            with contextlib.closing(new), watch(missing) as tell:
                for row in _kept(new, store, found):
                    made += 1
                    tell(row)
        except KeyboardInterrupt:
            interrupted = True
    asked = dict.fromkeys(run.key for run in runs)
    rows = [found[key] for key in asked if key in found]
    return Comparison(rows, [row for key, row in found.items() if key not in asked], made, interrupted)


def _kept(new: Iterator[Row], store: Store | None, found: dict[str, Row]) -> Iterator[Row]:
    for row in new:
        if store is None:
            found[row.key] = row
        else:
            store.append(row)
        yield row
