"""Making many runs: in this process, or in several that each have their share of the cores.

Several pay where runs use one core each, as most host-side methods do. Processes are spawned, not forked: JAX has
threads, and a forked copy of a locked lock never opens. So a program that calls this at its top level must guard that
with `if __name__ == "__main__":`, and what it passes must be picklable.
"""

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from graphrl.bench.machine import cores as count_cores
from graphrl.compare.execute import Executor, row_of
from graphrl.compare.runs import Row, Run
from graphrl.errors import ProblemError

_THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # NPROC is XLA's


def share(processes: int) -> int:
    """Cores that each of so many processes gets.

    Raises:
      ProblemError: there are not so many cores, or processes is below 1.
    """
    if not 1 <= processes <= count_cores():
        raise ProblemError(f"processes is {processes}: must be from 1 to the {count_cores()} cores of this machine")
    return count_cores() // processes


def execute_all(
    runs: Sequence[Run], processes: int = 1, *, prepare: Callable[[], object] | None = None
) -> Generator[Row]:
    """The rows of the runs, as they come; with one process in the given order.

    Args:
      runs: what to do.
      processes: with 1 everything happens in this one; a method that crashes Python or fills the memory then takes it
        along, while with more it costs one row.
      prepare: called once in every process before its first run.

    Raises:
      ProblemError: there are fewer cores than processes.
    """
    share(processes)
    if processes > 1 and len(runs) > 1:
        yield from _in_processes(runs, processes, prepare)
        return
    if prepare is not None:
        prepare()
    executor = Executor()
    for run in runs:
        yield executor.execute(run)


class _Worker:
    """A process with its cores, what it works on now, and what it will: runs that share compiled programs."""

    def __init__(self, cores: Sequence[int], prepare: Callable[[], object] | None) -> None:
        self._cores, self._prepare = cores, prepare
        self.run: Run | None = None
        self.group: Iterator[Run] = iter(())
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._prepare), daemon=True)
        with _limited(self._cores):
            self._process.start()
        theirs.close()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()

    def give(self, groups: Iterator[list[Run]]) -> bool:
        """Sends the next run of the worker's group, or of the next group; says whether there was one."""
        self.run = next(self.group, None)
        if self.run is None and (group := next(groups, None)) is not None:
            self.group = iter(group)
            self.run = next(self.group)
        if self.run is not None:
            with contextlib.suppress(OSError):  # it has died: `receive` will tell
                self.connection.send(self.run)
        return self.run is not None

    def receive(self, run: Run) -> Row:
        """The row of the run that it was given; if it died meanwhile, an error, and a new process starts."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
            hint = ": the machine may be out of memory" if code == -signal.SIGKILL else ""
            self.stop()
            self.start()
            return row_of(run, error=f"the process that ran it died ({how}){hint}")


def _in_processes(runs: Sequence[Run], processes: int, prepare: Callable[[], object] | None) -> Iterator[Row]:
    grouped = itertools.groupby(runs, key=lambda run: (run.fingerprint, run.problem, run.method))
    groups = iter([list(group) for _, group in grouped])
    slices = _slices(processes)
    workers: list[_Worker] = []
    try:
        for cores in slices:
            workers.append(_Worker(cores, prepare))
            if not workers[-1].give(groups):
                break
        while busy := {worker.connection: worker for worker in workers if worker.run is not None}:
            for ready in multiprocessing.connection.wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                run = worker.run
                assert run is not None
                row = worker.receive(run)
                worker.give(groups)
                yield row
    finally:
        for worker in workers:
            worker.stop()


def _slices(processes: int) -> list[list[int]]:
    """The cores of each process; none where the system cannot bind processes to cores."""
    if not hasattr(os, "sched_getaffinity"):
        return [[]] * processes
    each, cores = share(processes), sorted(os.sched_getaffinity(0))
    return [cores[each * i : each * (i + 1)] for i in range(processes)]


@contextlib.contextmanager
def _limited(cores: Sequence[int]) -> Iterator[None]:
    """While it lasts, a process that starts inherits these cores, as many threads, and no Ctrl-C: that is ours."""
    names = {name: str(max(1, len(cores))) for name in _THREADS}
    before: dict[str, Any] = {name: os.environ.get(name) for name in names}
    affinity = os.sched_getaffinity(0) if cores else None
    multiprocessing.resource_tracker.ensure_running()  # when it starts, it undoes the next line
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ.update(names)
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        if affinity is not None:
            os.sched_setaffinity(0, affinity)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(connection: multiprocessing.connection.Connection, prepare: Callable[[], object] | None) -> None:
    """The life of a process: runs come in, rows go out, until the other end is gone."""
    if prepare is not None:
        prepare()
    executor = Executor()
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(executor.execute(connection.recv()))
