"""Making many runs: in this process, or on the workers of a Dask cluster, a local one or one that is there already.

Several processes pay where runs use one core each, as most host-side methods do. Those of a local cluster are spawned,
not forked: JAX has threads, and a forked copy of a locked lock never opens. So a program that calls this at its top
level must guard that with `if __name__ == "__main__":`, and what it passes must be picklable.

A worker gets one run at a time, whatever threads it has. One that dies costs that run and no other: its row says so,
and whoever takes its place, or has joined meanwhile, goes on with the next. Workers of a cluster elsewhere must have
the same graphrl, and must see the checkpoints that methods name.
"""

import contextlib
import functools
import itertools
import logging
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from graphrl.compare.runs import Executor, Row, Run, row_of
from graphrl.errors import GraphrlError, ProblemError, clipped, require
from graphrl.process import count_cores

if TYPE_CHECKING:
    from distributed import Client

Prepare = Callable[[], object]

_THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # NPROC is XLA's
_LOOK_SECONDS = 1.0  # between two looks at who is alive, while nobody is done
_PATIENCE = 60.0  # seconds that a cluster may be without any worker
_CONNECT_SECONDS = 10.0

_GUARD = 'a program that makes runs in several processes must do so under `if __name__ == "__main__":`'
_one_run = threading.Lock()  # in a worker: one that was stopped goes on beside the next, if there is a thread for it


def share(processes: int) -> int:
    """Cores that each of so many processes gets.

    Raises:
      ProblemError: there are not so many cores, or processes is below 1.
    """
    if not 1 <= processes <= count_cores():
        raise ProblemError(f"processes is {processes}: must be from 1 to the {count_cores()} cores of this machine")
    return count_cores() // processes


def survey(address: str) -> tuple[int, int]:
    """How many workers a cluster has, and the cores of the one with the fewest.

    Raises:
      GraphrlError: nobody answers there, there are no workers, or they cannot run graphrl.
    """
    with _connected(address) as client:
        try:
            cores = client.run(count_cores)
        except Exception as error:
            raise GraphrlError(f"the cluster at {clipped(address)} cannot run graphrl: {error}") from None
    if not cores:
        raise GraphrlError(f"the cluster at {address} has no workers: start some, as in `dask worker {address}`")
    return len(cores), min(cores.values())


def execute_all(
    runs: Sequence[Run], processes: int = 1, *, cluster: str | None = None, prepare: Prepare | None = None
) -> Generator[Row]:
    """The rows of the runs, as they come; with one process in the given order.

    Args:
      runs: what to do.
      processes: with 1 everything happens in this one; a method that crashes Python or fills the memory then takes it
        along, while with more it costs one row.
      cluster: address of the scheduler of a Dask cluster, whose workers take the place of `processes`.
      prepare: called once in every process before its first run.

    Raises:
      ProblemError: there are fewer cores than processes.
      GraphrlError: the cluster does not answer, or loses all its workers.
    """
    share(processes)
    if cluster is not None:
        with _connected(cluster) as client:
            yield from _on_workers(client, runs, prepare, [], {})
    elif processes > 1 and len(runs) > 1:
        slices = _slices(processes)
        ends: dict[str, int] = {}
        with _local(slices, ends) as client:
            yield from _on_workers(client, runs, prepare, slices, ends)
    else:
        executor = _prepared(prepare)
        for run in runs:
            yield executor.execute(run)


def _on_workers(
    client: "Client",
    runs: Sequence[Run],
    prepare: Prepare | None,
    slices: Sequence[Sequence[int]],
    ends: dict[str, int],
) -> Iterator[Row]:
    """The rows, by the workers that are there; `slices` are the cores of those with a number for a name."""
    from distributed import wait

    grouped = itertools.groupby(runs, key=lambda run: (run.fingerprint, run.problem, run.method))
    groups = deque([deque(group) for _, group in grouped])  # runs of a group share compiled programs
    queues: dict[str, deque[Run]] = {}  # of each worker: what is left of its group
    busy: dict[str, tuple[Any, Run]] = {}
    scheduler: Any = client.scheduler
    seen = time.monotonic()
    while busy or groups or any(queues.values()):
        workers = client.sync(scheduler.identity, n_workers=-1)["workers"]  # fails once the scheduler is lost
        for gone in queues.keys() - workers.keys():
            groups.appendleft(queues.pop(gone))
        for worker in workers.keys() - busy.keys():
            if not queues.get(worker) and groups:
                queues[worker] = groups.popleft()
            if queues.get(worker):
                run, name = queues[worker].popleft(), workers[worker]["name"]
                cores = tuple(slices[name]) if slices else ()
                future = client.submit(_execute, run, prepare, cores, workers=[worker], pure=False)
                busy[worker] = future, run
        seen = time.monotonic() if workers else seen
        if time.monotonic() - seen > _PATIENCE:
            raise GraphrlError(f"the cluster has had no worker for {_PATIENCE:.0f} s")
        if not busy:
            time.sleep(_LOOK_SECONDS)
            continue
        with contextlib.suppress(TimeoutError):
            wait([future for future, _ in busy.values()], timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
        for worker, (future, run) in list(busy.items()):
            if future.status != "pending" or worker not in workers:
                del busy[worker]
                yield _row(future, run, ends.get(worker))


def _row(future: Any, run: Run, end: int | None) -> Row:
    """The row of a run that is done, or whose worker is gone (with this exit code, if that is known)."""
    if future.status == "finished":
        with contextlib.suppress(Exception):  # it has died since
            return future.result(timeout=_CONNECT_SECONDS)
    error = future.exception(timeout=_CONNECT_SECONDS) if future.status == "error" else None
    if future.cancelled():  # not by us: the scheduler is lost
        raise OSError("the connection was lost")
    future.cancel()
    if error is not None and type(error).__name__ != "KilledWorker":
        return row_of(run, error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
    how = "" if end is None else f" (signal {-end}, {signal.strsignal(-end)})" if end < 0 else f" (exit code {end})"
    hint = ": the machine may be out of memory" if end == -signal.SIGKILL else ""
    return row_of(run, error=f"the process that ran it died{how}{hint}")


def _execute(run: Run, prepare: Prepare | None, cores: tuple[int, ...]) -> Row:
    """In a worker: the row of a run."""
    with _one_run:
        return _executor_here(prepare, cores).execute(run)


def _prepared(prepare: Prepare | None, cores: tuple[int, ...] = ()) -> Executor:
    """What makes runs in this process, now prepared, and bound to cores if any are given."""
    for thread in os.listdir("/proc/self/task") if cores else ():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)
    if prepare is not None:
        prepare()
    return Executor()


_executor_here = functools.cache(_prepared)  # a worker's only one


@contextlib.contextmanager
def _connected(address: str) -> Iterator["Client"]:
    """A client of a cluster.

    Raises:
      GraphrlError: nobody answers there, or no longer; a `MissingExtraError` without Dask.
    """
    distributed = require("distributed", "cluster", "a Dask cluster")
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise GraphrlError(f"no Dask scheduler answers at {clipped(address)}: {error}") from None
    with client:
        try:
            yield client
        except (OSError, CancelledError) as error:
            reason = " ".join(str(error).split())[:300]
            raise GraphrlError(f"the cluster at {clipped(address)} has gone: {reason}") from None


@contextlib.contextmanager
def _local(slices: Sequence[Sequence[int]], ends: dict[str, int]) -> Iterator["Client"]:
    """A client of a cluster of processes of this machine, as many as slices; `ends` gets the exit codes of workers.

    Raises:
      GraphrlError: they do not start; a `MissingExtraError` without Dask.
    """
    require("distributed", "cluster", "making runs in several processes")
    import dask
    from distributed import LocalCluster, Nanny, Status
    from distributed.utils import silence_logging_cmgr

    if getattr(multiprocessing.current_process(), "_inheriting", False):  # spawned: still importing the program
        raise SystemExit(_GUARD)
    nannies: list[Nanny] = []

    class Watchful(Nanny):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            nannies.append(self)

        def _on_worker_exit_sync(self, exitcode: int) -> None:
            ends[self.worker_address] = exitcode
            super()._on_worker_exit_sync(exitcode)

    def kill() -> None:
        for nanny in nannies:  # what runs is not waited for
            if nanny.status not in (Status.closed, Status.failed):
                nanny.close_gracefully()
            if nanny.pid is not None:
                os.kill(nanny.pid, signal.SIGKILL)

    threads = dict.fromkeys(_THREADS, str(max(1, len(slices[0]))))
    settings = {
        "distributed.nanny.pre-spawn-environ": threads,
        "distributed.scheduler.worker-ttl": None,  # a method may keep Python's lock for minutes
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(silence_logging_cmgr(logging.CRITICAL))  # a cluster's own ends before its last messages
        stack.callback(_restore, dict(os.environ))  # a nanny leaves what it sets for its process
        multiprocessing.resource_tracker.ensure_running()  # when it starts, it undoes the next line
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # threads and processes inherit: it is ours
        try:
            with dask.config.set(settings):
                cluster = LocalCluster(
                    n_workers=len(slices), threads_per_worker=1, memory_limit=0, worker_class=Watchful,
                    dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL,  # a free port
                )  # fmt: skip
            stack.callback(cluster.close)
        except RuntimeError as error:
            raise GraphrlError(f"the processes did not start ({error}): {_GUARD}") from None
        finally:
            stack.callback(kill)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield stack.enter_context(cluster.get_client())


def _restore(environment: dict[str, str]) -> None:
    """Makes the environment variables these."""
    os.environ.clear()
    os.environ.update(environment)


def _slices(processes: int) -> list[list[int]]:
    """The cores of each process; none where the system cannot bind processes to cores."""
    if not hasattr(os, "sched_getaffinity"):
        return [[]] * processes
    each, cores = share(processes), sorted(os.sched_getaffinity(0))
    return [cores[each * i : each * (i + 1)] for i in range(processes)]
