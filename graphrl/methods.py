"""Registry of all methods by name: solvers and trained agents. Importing it does not import the methods.

A method registers itself in its own module, by `@solver(name, help, ...)`. `METHODS` and, for memory maps,
`MAP_METHODS` only name the modules; a module is imported when one of its methods is requested. `KINDS` and `MAP_KINDS`
have the kind of each method for the table of methods: part of `auto`, rule of a compiler, published baseline (agents
are not in `KINDS`).
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, ProblemError, suggest
from graphrl.solvers.solver import SOLVERS, Method, Solver

if TYPE_CHECKING:
    from graphrl.plan.memory_map import MemoryMap

M = TypeVar("M", bound=Method[Any, Any, Any])

METHODS: dict[str, str] = {
    "auto": "graphrl.solvers.auto",
    # one pass, any number of devices
    "given": "graphrl.solvers.rules.simple",
    "list": "graphrl.solvers.rules.list_scheduling",
    "hlfet": "graphrl.solvers.rules.list_scheduling",
    "etf": "graphrl.solvers.rules.list_scheduling",
    "metis": "graphrl.solvers.rules.placements",
    "expert": "graphrl.solvers.rules.placements",
    # one pass, orders of one device
    "xla": "graphrl.solvers.rules.compilers",
    "xla-list": "graphrl.solvers.rules.compilers",
    "xla-dfs": "graphrl.solvers.rules.compilers",
    "xla-postorder": "graphrl.solvers.rules.compilers",
    "inductor": "graphrl.solvers.rules.compilers",
    "inductor-lpmf": "graphrl.solvers.rules.compilers",
    "inductor-bfs": "graphrl.solvers.rules.compilers",
    "inductor-dfs": "graphrl.solvers.rules.compilers",
    "depth-first": "graphrl.solvers.rules.simple",
    "breadth-first": "graphrl.solvers.rules.simple",
    "alap": "graphrl.solvers.rules.simple",
    "random-ready": "graphrl.solvers.orders.random_orders",
    "random-priorities": "graphrl.solvers.orders.random_orders",
    "series-parallel": "graphrl.solvers.orders.series_parallel",
    # search, orders of one device
    "dfs-dp": "graphrl.solvers.orders.dfs_dp",
    "approximate-dp": "graphrl.solvers.orders.approximate_dp.solver",
    "min-cut": "graphrl.solvers.orders.min_cut",
    "anneal": "graphrl.solvers.anneal.orders",
    # search, any number of devices
    "random": "graphrl.solvers.chromosomes.brkga_solver",
    "local-search": "graphrl.solvers.schedules.solver",
    "anneal-schedule": "graphrl.solvers.schedules.solver",
    "multilevel": "graphrl.solvers.schedules.multilevel",
    "anneal-ops": "graphrl.solvers.transfer_rules.solver",
    "anneal-list": "graphrl.solvers.anneal.lists",
    "brkga": "graphrl.solvers.chromosomes.brkga_solver",
    "brkga-tuned": "graphrl.solvers.chromosomes.brkga_solver",
    "brkga+": "graphrl.solvers.chromosomes.brkga_solver",
    # placements for pipelined execution (max_load), which cp-sat also supports
    "split": "graphrl.solvers.loads.rules",
    "equal-stages": "graphrl.solvers.loads.stages",
    "greedy-load": "graphrl.solvers.loads.rules",
    "stage-dp": "graphrl.solvers.loads.stages",
    "anneal-load": "graphrl.solvers.anneal.loads",
    # learned on the graph itself
    "hdp": "graphrl.agents.go.hdp",
    # exact
    "cp-sat": "graphrl.solvers.exact.solver",
    # trained
    "regal": "graphrl.agents.regal.agent",
    "regal-once": "graphrl.agents.regal.once",
    "regal+": "graphrl.agents.regal.agent",
    "idrs": "graphrl.agents.regal.agent",
    "topoformer": "graphrl.agents.topoformer.agent",
    "topoformer+": "graphrl.agents.topoformer.agent",
    "go": "graphrl.agents.go.agent",
    "go+": "graphrl.agents.go.agent",
    "ppo": "graphrl.agents.ppo",
}
OLD_NAMES = {"beam": "approximate-dp"}
KINDS = {
    "part of `auto`": (
        "auto given list hlfet etf expert series-parallel dfs-dp min-cut anneal anneal-schedule multilevel anneal-ops "
        "anneal-list equal-stages stage-dp anneal-load cp-sat"
    ),
    "rule of a compiler": (
        "xla xla-list xla-dfs xla-postorder inductor inductor-lpmf inductor-bfs inductor-dfs depth-first breadth-first "
        "alap"
    ),
    "published baseline": (
        "metis random-ready random-priorities approximate-dp random local-search brkga brkga-tuned brkga+ split "
        "greedy-load hdp"
    ),
}
"""Of methods that play no policy. Trained ones are agents."""
SUCCESSORS = {  # of removed methods
    "anneal-keys": "anneal-schedule",
    "brute-force": "cp-sat",
    "idrs-hint": "idrs",
    "regal-hint": "regal",
}

MAP_KINDS = {
    "part of `auto`": "auto anneal cp-sat",
    "rule of a compiler": "compiler all-slowest",
    "published baseline": "benefit greedy-dp random local-search brkga",
    "agent": "egrl egrl-policy ppo",
}
MAP_METHODS: dict[str, str] = {
    "auto": "graphrl.solvers.auto",
    # one pass
    "all-slowest": "graphrl.solvers.maps.baselines",
    "compiler": "graphrl.solvers.maps.baselines",
    "benefit": "graphrl.solvers.maps.baselines",
    # search
    "greedy-dp": "graphrl.solvers.maps.baselines",
    "random": "graphrl.solvers.maps.baselines",
    "local-search": "graphrl.solvers.maps.anneal",
    "anneal": "graphrl.solvers.maps.anneal",
    "brkga": "graphrl.solvers.maps.baselines",
    "egrl": "graphrl.agents.egrl.agent",
    # trained
    "egrl-policy": "graphrl.agents.egrl.agent",
    "ppo": "graphrl.agents.ppo",
    # exact
    "cp-sat": "graphrl.solvers.maps.cp_sat",
}
"""Methods that search for memory maps, as `METHODS`."""


def find_solver(method: str) -> Solver[Any]:
    """Finds the solver for a method name, perhaps with options as in "approximate-dp:width=1000,tie=live".

    Raises:
      ProblemError: there is no such method or option, or a value is not of its type; the message has the nearest names.
    """
    return _find(method, _registered)


def find_map_solver(method: str) -> "Method[Any, Any, MemoryMap]":
    """Finds a method for memory maps by its name, perhaps with options as in "brkga:population=50".

    Raises:
      ProblemError: as `find_solver`.
    """
    return _find(method, _registered_for_maps)


def digest(method: str, problem: Problem) -> str:
    """Returns 16 hexadecimal digits that identify the content of the policy that a method uses for a problem.

    Empty for a method without a policy, and if the policy cannot be read, which the method itself reports.

    Raises:
      ProblemError: the method is unknown, or has no such option.
    """
    solver = find_solver(method)
    if solver.digest is None:
        return ""
    with contextlib.suppress(GraphrlError):
        return solver.digest(problem, **solver.settings)
    return ""


class Description(NamedTuple):
    """A row of the table of methods."""

    name: str
    help: str
    devices: str  # "one" or "any number"
    objectives: str  # objectives that the method minimises
    options: str  # options with their defaults, as in "width=10000, tie=random"
    trained: bool  # True if it uses a trained policy
    kind: str  # a key of `KINDS`, or "agent"


def describe() -> Iterator[Description]:
    """Yields a description of each method, in the order of this module. Imports every one of them."""
    for name in METHODS:
        solver = _registered(name)
        yield Description(
            name,
            solver.help,
            "one" if solver.one_device else "any number",
            ", ".join(solver.objectives),
            _options_text(solver),
            solver.digest is not None,
            "agent" if solver.digest is not None else _kind(name, KINDS),
        )


class MapDescription(NamedTuple):
    """A row of the table of methods for memory maps."""

    name: str
    help: str
    options: str  # options with their defaults
    kind: str  # a key of `MAP_KINDS`


def describe_map_methods() -> Iterator[MapDescription]:
    """Yields a description of each method for memory maps, in the order of this module. Imports every one of them."""
    for name in MAP_METHODS:
        method = _registered_for_maps(name)
        yield MapDescription(name, method.help, _options_text(method), _kind(name, MAP_KINDS))


def _kind(name: str, kinds: Mapping[str, str]) -> str:
    return next(kind for kind, names in kinds.items() if name in names.split())


def _options_text(method: Method[Any, Any, Any]) -> str:
    """Formats the options of a method with their defaults; without one if it depends on others."""
    defaults = method.defaults.items()
    return ", ".join(option if value is None else f"{option}={value}" for option, value in defaults)


def split_methods(text: str) -> list[str]:
    """Splits a text at the commas between methods; `name:a=1,b=2` is one method with two options."""
    methods: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if methods and "=" in part and ":" not in part and ":" in methods[-1]:
            methods[-1] += f",{part}"
        else:
            methods.append(part)
    return methods


def _find(method: str, registered: Callable[[str], M]) -> M:
    if not isinstance(method, str):
        raise ProblemError(f"method is of type {type(method).__name__}: must be a name, as in 'auto'")
    name, colon, options = method.partition(":")
    solver = registered(name)
    return solver.with_options(_parsed(name, solver.options, options)) if colon else solver


def _registered(name: str) -> Solver[Any]:
    name = OLD_NAMES.get(name, name)
    if name not in SOLVERS:
        _import(name, METHODS, SOLVERS)
    return SOLVERS[name]


def _registered_for_maps(name: str) -> "Method[Any, Any, MemoryMap]":
    solvers = importlib.import_module("graphrl.solvers.maps.task").MAP_SOLVERS
    if name not in solvers:
        _import(name, MAP_METHODS, solvers)
    return solvers[name]


def _import(name: str, methods: Mapping[str, str], registered: Mapping[str, object]) -> None:
    """Imports the module that registers a method: graphrl's, or that of an installed package's agent."""
    if methods is METHODS and name in SUCCESSORS:
        raise ProblemError(f"there is no method {name!r} any more: use {SUCCESSORS[name]!r}")
    if name in methods:
        importlib.import_module(methods[name])
        return
    agents = importlib.import_module("graphrl.agents")
    for agent in agents.installed():
        with contextlib.suppress(GraphrlError):  # of a package that cannot be imported: its methods are unknown
            agents.find_agent(agent)
    if name not in registered:
        raise ProblemError(f"unknown method {name!r}: {suggest(name, methods)}")


def _parsed(name: str, types: dict[str, type], options: str) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for option in options.split(","):
        key, _, value = option.partition("=")
        if key not in types:
            raise ProblemError(
                f"method {name!r} has no option {key!r}: {suggest(key, types) if types else 'it has none'}"
            )
        if key in parsed:
            raise ProblemError(f"method {name!r} has option {key!r} twice")
        parsed[key] = _value(name, key, value, types[key])
    return parsed


def _value(name: str, key: str, text: str, kind: type) -> int | float | str | bool:
    try:
        if not text:  # as with checkpoint=$POLICY and POLICY unset
            raise ValueError
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        what = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}[kind]
        raise ProblemError(f"option {key!r} of method {name!r} is {text!r}: must be {what}") from None
