"""Faults of worker processes of a comparison, in a module that a spawned process can import."""

import os
import signal
import time
from pathlib import Path

import graphrl.compare.runs as execute_module
from graphrl.plan import Plan
from graphrl.solvers.base import Task


def die_of_diamonds() -> None:
    """Kills the worker in list scheduling of a diamond, as running out of memory would."""
    from graphrl.methods import find_solver as find

    def find_solver(name: str):  # type: ignore[no-untyped-def]
        def solve(task: Task) -> Plan:
            if task.graph.name == "diamond":
                os.kill(os.getpid(), signal.SIGKILL)
            return find(name)(task)

        return solve if name == "list" else find(name)

    execute_module.find_solver = find_solver  # type: ignore[attr-defined, assignment]


def sleep_a_minute() -> None:
    """Makes every run in the worker take a minute, and leave a file `sleeping` in the worker's folder as it begins."""

    def sleep(task: Task) -> None:
        Path("sleeping").touch()
        time.sleep(60)

    def find_solver(name: str):  # type: ignore[no-untyped-def]
        return sleep

    execute_module.find_solver = find_solver  # type: ignore[attr-defined, assignment]
