"""Execution of many runs in this process or on the workers of a Dask cluster, which may be local or already running.

Several processes are faster if each run uses one core, as with most host-side methods. Processes of a local cluster are
spawned, not forked: JAX has threads, and a lock that is locked at a fork stays locked in the child. So a program that
calls this at its top level must guard that with `if __name__ == "__main__":`, and its arguments must be picklable.

A worker gets one run at a time, regardless of its threads. If a worker dies, only that run fails, with an error in its
row; a replacement, or a worker that has joined since, continues with the next run. Workers of a remote cluster need the
same version of graphrl and access to the checkpoints that methods name.
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
_POLL_SECONDS = 1.0  # between checks of which workers are alive, while no run has finished
_PATIENCE = 60.0  # seconds that a cluster may be without any worker
_CONNECT_SECONDS = 10.0

_GUARD = 'a program that uses several processes must start them under `if __name__ == "__main__":`'
_one_run = threading.Lock()  # in a worker: a cancelled run may continue on another thread during the next


def share(processes: int) -> int:
    """Divides this machine's cores among processes; returns the number of cores for each.

    Raises:
      ProblemError: there are fewer cores than processes, or processes is below 1.
    """
    if not 1 <= processes <= count_cores():
        raise ProblemError(f"processes is {processes}: must be from 1 to the {count_cores()} cores of this machine")
    return count_cores() // processes


def survey(address: str) -> tuple[int, int]:
    """Returns the number of workers of a cluster, and the number of cores of the smallest worker.

    Raises:
      GraphrlError: no scheduler answers at the address, there are no workers, or they cannot run graphrl.
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
    """Executes runs and yields their rows as they finish; with one process in the given order.

    Args:
      runs: runs to execute.
      processes: number of processes. With 1, runs are in this process, which a method that crashes Python or exhausts
        memory then ends. With more, such a crash costs one row.
      cluster: address of a Dask scheduler, whose workers replace `processes`.
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
    """Yields the rows of runs on the present workers; `slices[i]` lists the cores of the worker named i."""
    from distributed import wait

    grouped = itertools.groupby(runs, key=lambda run: (run.fingerprint, run.problem, run.method))
    groups = deque([deque(group) for _, group in grouped])  # runs of a group share compiled programs
    queues: dict[str, deque[Run]] = {}  # of each worker: remaining runs of its group
    running: dict[str, tuple[Any, Run]] = {}
    scheduler: Any = client.scheduler
    last_alive = time.monotonic()
    while running or groups or any(queues.values()):
        workers = client.sync(scheduler.identity, n_workers=-1)["workers"]  # fails once the scheduler is lost
        for lost in queues.keys() - workers.keys():
            groups.appendleft(queues.pop(lost))
        for worker in workers.keys() - running.keys():
            if not queues.get(worker) and groups:
                queues[worker] = groups.popleft()
            if queues.get(worker):
                run, name = queues[worker].popleft(), workers[worker]["name"]
                cores = tuple(slices[name]) if slices else ()
                future = client.submit(_execute, run, prepare, cores, workers=[worker], pure=False)
                running[worker] = future, run
        last_alive = time.monotonic() if workers else last_alive
        if time.monotonic() - last_alive > _PATIENCE:
            raise GraphrlError(f"the cluster has had no worker for {_PATIENCE:.0f} s")
        if not running:
            time.sleep(_POLL_SECONDS)
            continue
        with contextlib.suppress(TimeoutError):
            wait([future for future, _ in running.values()], timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED")
        for worker, (future, run) in list(running.items()):
            if future.status != "pending" or worker not in workers:
                del running[worker]
                yield _row(future, run, ends.get(worker))


def _row(future: Any, run: Run, end: int | None) -> Row:
    """Builds the row of a run that has finished, or whose worker has died (with exit code `end`, if known)."""
    if future.status == "finished":
        with contextlib.suppress(Exception):  # the worker has died since
            return future.result(timeout=_CONNECT_SECONDS)
    error = future.exception(timeout=_CONNECT_SECONDS) if future.status == "error" else None
    if future.cancelled():  # not by this process: the scheduler is lost
        raise OSError("the connection was lost")
    future.cancel()
    if error is not None and type(error).__name__ != "KilledWorker":
        return row_of(run, error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
    reason = "" if end is None else f" (signal {-end}, {signal.strsignal(-end)})" if end < 0 else f" (exit code {end})"
    hint = ": the machine may be out of memory" if end == -signal.SIGKILL else ""
    return row_of(run, error=f"the worker process died{reason}{hint}")


def _execute(run: Run, prepare: Prepare | None, cores: tuple[int, ...]) -> Row:
    """Executes a run in a worker."""
    with _one_run:
        return _executor_here(prepare, cores).execute(run)


def _prepared(prepare: Prepare | None, cores: tuple[int, ...] = ()) -> Executor:
    """Prepares this process, binds it to cores if any are given, and returns its executor."""
    for thread in os.listdir("/proc/self/task") if cores else ():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(thread), cores)
    if prepare is not None:
        prepare()
    return Executor()


_executor_here = functools.cache(_prepared)  # one per worker


@contextlib.contextmanager
def _connected(address: str) -> Iterator["Client"]:
    """Context manager that connects a client to a cluster.

    Raises:
      GraphrlError: the scheduler does not answer, or stops answering; a `MissingExtraError` if Dask is not installed.
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
            raise GraphrlError(f"the cluster at {clipped(address)} is lost: {reason}") from None


@contextlib.contextmanager
def _local(slices: Sequence[Sequence[int]], ends: dict[str, int]) -> Iterator["Client"]:
    """Context manager that starts a local cluster with one process per slice of cores; gives its client.

    Raises:
      GraphrlError: the processes do not start; a `MissingExtraError` if Dask is not installed.
    """
    require("distributed", "cluster", "running methods in several processes")
    import dask
    from distributed import LocalCluster, Nanny, Status
    from distributed.utils import silence_logging_cmgr

    if getattr(multiprocessing.current_process(), "_inheriting", False):  # spawned: still importing the program
        os.write(2, f"{_GUARD}\n".encode())  # in one write, as all workers do at the same time
        raise SystemExit(1)
    nannies: list[Nanny] = []

    class RecordingNanny(Nanny):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            nannies.append(self)

        def _on_worker_exit_sync(self, exitcode: int) -> None:
            ends[self.worker_address] = exitcode
            super()._on_worker_exit_sync(exitcode)

    def kill() -> None:
        for nanny in nannies:  # without waiting for runs
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
        stack.enter_context(silence_logging_cmgr(logging.CRITICAL))  # the cluster's own silencing ends too early
        stack.callback(_restore, dict(os.environ))  # a nanny does not reset the variables that it sets for its process
        multiprocessing.resource_tracker.ensure_running()  # its start would undo the next line
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by threads and processes
        try:
            with dask.config.set(settings):
                cluster = LocalCluster(
                    n_workers=len(slices), threads_per_worker=1, memory_limit=0, worker_class=RecordingNanny,
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
    """Restores the environment variables, removing all others."""
    os.environ.clear()
    os.environ.update(environment)


def _slices(processes: int) -> list[list[int]]:
    """Assigns cores to each process; empty lists if the system cannot bind processes to cores."""
    if not hasattr(os, "sched_getaffinity"):
        return [[]] * processes
    each, cores = share(processes), sorted(os.sched_getaffinity(0))
    return [cores[each * i : each * (i + 1)] for i in range(processes)]
