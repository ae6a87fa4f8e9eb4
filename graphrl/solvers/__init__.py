"""Search without learning, and the names of every method: `SOLVERS`.

A trained agent is a solver too, so that its methods are named here (`TRAINED`), but only named: a method's module is
imported when it is asked for, and no solver knows an agent.
"""

import functools
import importlib
import inspect
import typing
from typing import TYPE_CHECKING, Any

from graphrl.errors import ProblemError

if TYPE_CHECKING:
    from graphrl.graphs.padding import Sizes
    from graphrl.solvers.base import Solver

# The methods of the trained agents. Each module also has a function `digest(problem, **options)`, which identifies the
# policy that its methods play (`agents.digest`).
TRAINED: dict[str, str] = {
    "regal": "graphrl.agents.regal.solver:solve",  # BRKGA with learned proposals
    "regal+": "graphrl.agents.regal.solver:solve_warm",  # `auto` with proposals
    "idrs": "graphrl.agents.regal.solver:solve_samples",  # samples from the learned proposals, without search
    "topoformer": "graphrl.agents.topoformer.solver:solve",  # orders of one device, from learned priorities
    "topoformer+": "graphrl.agents.topoformer.solver:solve_warm",  # annealing from them
}

# name -> module:function; a `Solver` each (solvers/base.py)
SOLVERS: dict[str, str] = {
    "auto": "graphrl.solvers.auto:solve",  # the portfolio: which methods, and for how long, stands in its module
    # one pass, any number of devices
    "given": "graphrl.solvers.rules.plain:solve_given",  # the graph's own order, on one device
    "list": "graphrl.solvers.rules.plain:solve_list",  # the best of several list schedules
    "hlfet": "graphrl.solvers.rules.list_rules:solve_hlfet",
    "etf": "graphrl.solvers.rules.list_rules:solve_etf",
    "metis": "graphrl.solvers.rules.metis:solve",  # partition, then depth first
    # one pass, orders of one device
    "xla": "graphrl.solvers.rules.xla:solve",  # the best of the next three
    "xla-list": "graphrl.solvers.rules.xla:solve_list",
    "xla-dfs": "graphrl.solvers.rules.xla:solve_dfs",
    "xla-postorder": "graphrl.solvers.rules.xla:solve_postorder",
    "inductor": "graphrl.solvers.rules.inductor:solve",  # the best of the given order and the next three
    "inductor-lpmf": "graphrl.solvers.rules.inductor:solve_lpmf",
    "inductor-bfs": "graphrl.solvers.rules.inductor:solve_bfs",
    "inductor-dfs": "graphrl.solvers.rules.inductor:solve_dfs",
    "depth-first": "graphrl.solvers.rules.simple:solve_depth_first",
    "breadth-first": "graphrl.solvers.rules.simple:solve_breadth_first",
    "alap": "graphrl.solvers.rules.simple:solve_alap",
    "random-ready": "graphrl.solvers.orders.random_orders:solve_ready",
    "random-priorities": "graphrl.solvers.orders.random_orders:solve_priorities",
    "series-parallel": "graphrl.solvers.orders.series_parallel:solve",  # exact, for trees and series-parallel graphs
    # search, orders of one device
    "dfs-dp": "graphrl.solvers.orders.dfs_dp:solve",
    "beam": "graphrl.solvers.orders.approximate_dp.solver:solve",  # approximate dynamic programming
    "min-cut": "graphrl.solvers.orders.min_cut.solver:solve",
    "anneal": "graphrl.solvers.orders.anneal.solver:solve",
    # search, any number of devices
    "random": "graphrl.solvers.chromosomes.random_search:solve",
    "local-search": "graphrl.solvers.chromosomes.local_search:solve",
    "anneal-keys": "graphrl.solvers.chromosomes.anneal_keys:solve",
    "brkga": "graphrl.solvers.chromosomes.brkga_methods:solve_options",
    "brkga-tuned": "graphrl.solvers.chromosomes.brkga_tuned:solve",
    "brkga+": "graphrl.solvers.chromosomes.brkga_methods:solve_warm",  # from the best plain plans
    # exact
    "cp-sat": "graphrl.solvers.exact.cp_sat.solver:solve",
    "brute-force": "graphrl.solvers.exact.brute_force:solve",
    # learned
    **TRAINED,
}


def find_solver(method: str) -> "Solver":
    """The solver of a method: a name, or a name with options as in "beam:width=1000,tie=live".

    Options are the keyword-only parameters of the solver's function that are numbers, strings or booleans.

    Raises:
      ProblemError: there is no such method or option, or a value is not of its type; the message lists the known.
    """
    if not isinstance(method, str):
        raise ProblemError(f"method is of type {type(method).__name__}: must be a name, as in 'auto'")
    name, colon, options = method.partition(":")
    if name not in SOLVERS:
        raise ProblemError(f"unknown method {name!r}: known are {', '.join(SOLVERS)}")
    module, function = SOLVERS[name].split(":")
    solver = getattr(importlib.import_module(module), function)
    return functools.partial(solver, **_parsed(name, solver, options)) if colon else solver


def padded_to(solver: "Solver", sizes: "Sizes | None") -> "Solver":
    """The solver with graphs padded to these sizes, so that graphs of one size after the other need one program.

    Only for solvers that say so by a parameter `sizes`, because their results do not depend on it; any other is given
    back as it is.
    """
    if sizes is None or "sizes" not in inspect.signature(solver).parameters:
        return solver
    return functools.partial(solver, sizes=sizes)  # type: ignore[call-arg]


def _parsed(name: str, solver: "Solver", options: str) -> dict[str, Any]:
    types = typing.get_type_hints(solver)
    known = {
        parameter.name: types[parameter.name]
        for parameter in inspect.signature(solver).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and types.get(parameter.name) in (int, float, str, bool)
    }
    parsed: dict[str, Any] = {}
    for option in options.split(","):
        key, _, value = option.partition("=")
        if key not in known:
            options_of = f"its options are {', '.join(known)}" if known else "it has none"
            raise ProblemError(f"method {name!r} has no option {key!r}: {options_of}")
        if key in parsed:
            raise ProblemError(f"method {name!r} has option {key!r} twice")
        parsed[key] = _value(name, key, value, known[key])
    return parsed


def _value(name: str, key: str, text: str, kind: type) -> int | float | str | bool:
    try:
        if not text:  # as by checkpoint=$POLICY, unset
            raise ValueError
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        what = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}[kind]
        raise ProblemError(f"option {key!r} of method {name!r} is {text!r}: must be {what}") from None
