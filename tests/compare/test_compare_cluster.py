"""Comparisons in several processes: a local Dask cluster, and one started by hand."""

import contextlib
import dataclasses
import io
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import distributed
import pytest
from comparison_runs import replace_solver, runs_of
from dying_workers import die_of_diamonds, sleep_a_minute
from processes import environment

from graphrl.cli import main
from graphrl.compare.cluster import _execute, execute_all, share, survey
from graphrl.compare.comparison import Comparison, compare
from graphrl.compare.runs import Row, Run
from graphrl.errors import GraphrlError, ProblemError
from graphrl.plan import Plan
from graphrl.process import count_cores
from graphrl.solvers.base import Task
from graphrl.solvers.rules.simple import solve_given

DASK = [sys.executable, "-m"]


def without_times(row: Row) -> Row:
    """The row without its times. Points of equal value and evaluations are merged: the clock decides if the end is
    separate.
    """
    curve = tuple(dict.fromkeys((0.0, evaluations, value) for _, evaluations, value in row.curve))
    return dataclasses.replace(row, seconds=0.0, compile_seconds=0.0, date="", curve=curve)


def check_that_only_diamonds_died(comparison: Comparison, runs: Sequence[Run], fault: str) -> None:
    """List scheduling of the diamond has failed; all other rows equal those of one process."""
    for row, other in zip(comparison.rows, compare(runs).rows, strict=True):
        if row.graph == "diamond" and row.method == "list":
            assert (row.error or "").startswith(f"the worker process died{fault}")
        else:
            assert without_times(row) == without_times(other)


@pytest.mark.skipif(count_cores() < 2, reason="one core")
def test_processes_give_the_same_rows_and_their_last_messages_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    before, logger, shown = dict(os.environ), logging.getLogger("distributed"), io.StringIO()

    class Late(distributed.LocalCluster):
        def close(self, timeout: float | None = None) -> None:
            super().close(timeout)
            logger.getChild("batched").error("late")

    monkeypatch.setattr(distributed, "LocalCluster", Late)
    runs = runs_of("given", "list", seeds=2)
    runs += [dataclasses.replace(run, method="no-such-method") for run in runs_of("given", seeds=2)]
    handler = logging.StreamHandler(shown)
    logger.addHandler(handler)
    try:
        comparison = compare(runs, processes=2, prepare=die_of_diamonds)
        assert "late" not in shown.getvalue()
        logger.error("heard again")
    finally:
        logger.removeHandler(handler)
    assert shown.getvalue().endswith("heard again\n")
    assert comparison.new == 12
    check_that_only_diamonds_died(comparison, runs, " (signal 9, Killed)")
    assert "unknown method" in (comparison.rows[-1].error or "")
    assert dict(os.environ) == before


def test_processes_are_at_most_the_cores() -> None:
    assert share(1) == count_cores()
    with pytest.raises(ProblemError, match="processes is 0: must be from 1"):
        share(0)
    with pytest.raises(ProblemError, match="cores of this machine"):
        list(execute_all(runs_of("given"), 100_000))


@pytest.mark.skipif(count_cores() < 2, reason="one core")
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError("no")])
def test_a_local_cluster_that_does_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, fault: type[KeyboardInterrupt] | RuntimeError
) -> None:
    before = dict(os.environ)

    class Interrupted(distributed.LocalCluster):
        def __init__(self, **options: object) -> None:
            super().__init__(**options)
            if isinstance(fault, RuntimeError):
                raise fault
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(distributed, "LocalCluster", Interrupted)
    with pytest.raises((KeyboardInterrupt, GraphrlError)):
        list(execute_all(runs_of("given"), 2))
    deadline = time.monotonic() + 10
    while multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert dict(os.environ) == before


@pytest.mark.skipif(count_cores() < 2, reason="one core")
def test_a_program_without_the_guard_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from comparison_runs import runs_of\n"
        "from graphrl.compare.cluster import execute_all\n"
        "from graphrl.errors import GraphrlError\n"
        "try:\n    list(execute_all(runs_of('given'), 2))\n"
        "except GraphrlError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-W", "ignore", str(program)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("\n") == 1
    assert 'under `if __name__ == "__main__":`' in done.stdout
    assert set(done.stderr.splitlines()) == {done.stdout.strip().split("): ")[1]}, done.stderr


def test_a_worker_with_several_threads_makes_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []

    def solve(task: Task) -> Plan:
        running.append(1)
        time.sleep(0.2)
        assert len(running) == 1
        running.pop()
        return solve_given(task)

    replace_solver(monkeypatch, solve)
    with ThreadPoolExecutor(2) as threads:
        rows = list(threads.map(lambda run: _execute(run, None, ()), runs_of("given", seeds=2)))
    assert [row.error for row in rows] == [None] * len(rows)


@contextlib.contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Dask process for the duration of a `with`; its output is in the folder."""
    with (folder / f"{command[0]}.log").open("ab") as log:
        process = subprocess.Popen([*DASK, *command], cwd=folder, env=environment(), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def started_scheduler(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a cluster's scheduler, without any workers yet, and its process."""
    file = tmp_path / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with started(tmp_path, "distributed.cli.dask_scheduler", *options) as process:
        while not file.exists() or not file.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"], process


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster's scheduler, without any workers yet."""
    with started_scheduler(tmp_path) as (address, _):
        yield address


@contextlib.contextmanager
def workers(folder: Path, address: str, *options: str) -> Iterator[None]:
    """Two workers of a cluster, started by hand."""
    command = ["distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard", *options]
    with started(folder, *command), started(folder, *command):
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(GraphrlError):
                if survey(address)[0] == 2:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield


def test_a_cluster_of_two_workers_gives_what_one_process_gives(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "layered:20x4", "--methods", "list,hlfet,random", "--evaluations", "200"]
    command += ["--devices", "2", "--objective", "makespan", "--seeds", "2", "--json"]
    tables = []
    with workers(tmp_path, scheduler, "--no-nanny"):
        for name, options in (("one", []), ("two", ["--cluster", scheduler])):
            assert main([*command, "--output", str(tmp_path / f"{name}.jsonl"), *options]) == 0
            tables.append(json.loads(capsys.readouterr().out))
    assert tables[1]["made"] == 4 * 3 * 2
    for table in tables:
        del table["written"], table["notes"]  # these report the number of compilations
        for method in table["methods"]:
            del method["seconds"], method["compile_share"]
    assert tables[0] == tables[1]


def test_a_worker_that_dies_costs_its_run_and_one_that_joins_takes_over(tmp_path: Path, scheduler: str) -> None:
    runs = runs_of("given", "list", seeds=2)
    with workers(tmp_path, scheduler, "--nanny"):
        assert survey(scheduler) == (2, count_cores())
        comparison = compare(runs, cluster=scheduler, prepare=die_of_diamonds)
    assert comparison.new == 8
    check_that_only_diamonds_died(comparison, runs, "")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_is_lost_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    monkeypatch.setattr("graphrl.compare.cluster._CONNECT_SECONDS", 1.0)
    rows: list[Row] = []
    with started_scheduler(tmp_path) as (address, process), workers(tmp_path, address, "--no-nanny"):

        def end_in_a_run() -> None:
            while not (tmp_path / "sleeping").exists():
                time.sleep(0.05)
            process.send_signal(end)

        killer = threading.Thread(target=end_in_a_run, daemon=True)
        killer.start()
        with pytest.raises(GraphrlError, match=f"^the cluster at {address} is lost: "):
            rows.extend(execute_all(runs_of("list", seeds=2), cluster=address, prepare=sleep_a_minute))
        killer.join()
        assert process.wait(10) is not None
    assert not rows


def test_a_cluster_that_is_not_there_is_one_line(
    model: str, scheduler: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("graphrl.compare.cluster._CONNECT_SECONDS", 1.0)
    for address, fault in (
        ("tcp://127.0.0.1:9", "no Dask scheduler answers at tcp://127.0.0.1:9: "),
        ("nowhere", "no Dask scheduler answers at nowhere: "),
        (scheduler, f"the cluster at {scheduler} has no workers: start some"),
    ):
        assert main(["compare", model, "--methods", "list", "--cluster", address]) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"graphrl: error: {fault}")
    assert main(["compare", model, "--methods", "list", "--cluster", scheduler, "--processes", "2"]) == 2
    assert "--processes does not go with --cluster" in capsys.readouterr().err
