"""A comparison: the runs that a file does not have yet are made and added to it."""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from graphrl.compare.cluster import execute_all
from graphrl.compare.runs import Row, Run
from graphrl.compare.store import RUNS, open_store


class Comparison(NamedTuple):
    """What came of a comparison.

    Attributes:
      rows: of the runs that were asked for, in their order.
      others: all other rows of the file: they may hold better values of the same graphs.
      new: how many of `rows` were made now.
      interrupted: whether Ctrl-C ended it; then some of `rows` are missing.
    """

    rows: list[Row]
    others: list[Row]
    new: int
    interrupted: bool


Watch = Callable[[Sequence[Run]], contextlib.AbstractContextManager[Callable[[Row], None]]]


def _nobody(runs: Sequence[Run]) -> contextlib.AbstractContextManager[Callable[[Row], None]]:
    return contextlib.nullcontext(lambda row: None)


def compare(
    runs: Sequence[Run],
    path: str | os.PathLike[str] | None = None,
    *,
    processes: int = 1,
    cluster: str | None = None,
    retry: bool = False,
    watch: Watch = _nobody,
    prepare: Callable[[], object] | None = None,
) -> Comparison:
    """Makes the runs that are not in the file yet.

    Args:
      runs: from `make_runs`; with several processes their `cores` should be `cluster.share(processes)`.
      path: of the file with the rows (`store.py`), or None to keep none.
      processes, cluster, prepare: see `execute_all`.
      retry: whether runs that failed before are made again.
      watch: called with the runs that are to be made; what the `with` gives is called with every row.

    Raises:
      GraphrlError: the file cannot be used, or the cluster.
      ProblemError: there are fewer cores than processes.
    """
    with contextlib.ExitStack() as stack:
        store = None if path is None else stack.enter_context(open_store(path, RUNS))
        stored = {} if store is None else store.rows
        missing = [run for run in runs if run.key not in stored or (retry and stored[run.key].error is not None)]
        count, interrupted = 0, False
        new = execute_all(missing, processes, cluster=cluster, prepare=prepare)
        try:
            with contextlib.closing(new), watch(missing) as show:
                for row in new:
                    if store is None:
                        stored[row.key] = row
                    else:
                        store.append(row)
                    count += 1
                    show(row)
        except KeyboardInterrupt:
            interrupted = True
    keys = dict.fromkeys(run.key for run in runs)
    rows = [stored[key] for key in keys if key in stored]
    return Comparison(rows, [row for key, row in stored.items() if key not in keys], count, interrupted)
