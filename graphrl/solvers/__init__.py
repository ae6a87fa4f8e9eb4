"""Search without learning. `SOLVERS` names every method; a method's module is imported when it is asked for."""

import importlib
from typing import TYPE_CHECKING

from graphrl.errors import ProblemError

if TYPE_CHECKING:
    from graphrl.solvers.base import Solver

# name -> module:function; a `Solver` each (solvers/base.py)
SOLVERS: dict[str, str] = {
    "auto": "graphrl.solvers.auto:solve",  # list scheduling, then BRKGA from there
    "brkga": "graphrl.solvers.brkga_solver:solve",
    "given": "graphrl.solvers.plain:solve_given",  # the graph's own order, on one device
    "list": "graphrl.solvers.plain:solve_list",
    "random": "graphrl.solvers.random_search:solve",
}


def find_solver(name: str) -> "Solver":
    """The solver of that name.

    Raises:
      ProblemError: there is none; the message lists the known ones.
    """
    if name not in SOLVERS:
        raise ProblemError(f"unknown method {name!r}: known are {', '.join(SOLVERS)}")
    module, function = SOLVERS[name].split(":")
    return getattr(importlib.import_module(module), function)
