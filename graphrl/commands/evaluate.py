"""`graphrl evaluate CHECKPOINT`: a table of a trained agent and classical methods on held-out graphs."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphrl.commands import compare
from graphrl.commands.common import add_common, add_model, print_json
from graphrl.commands.progress import case_bar
from graphrl.costs.maps.chip import MemoryChip
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import enable_compilation_cache, quote_path
from graphrl.methods import MAP_METHODS, METHODS, find_map_solver, find_solver
from graphrl.optimize import make_budget
from graphrl.units import format_seconds

if TYPE_CHECKING:
    from graphrl.training.agent import Agent

_PLAN_OPTIONS = ("processes", "cluster", "output", "retry", "plot", "histogram", "baseline")  # not for memory maps

DESCRIPTION = """Compare a trained agent with classical methods on held-out graphs.

It prints the table of `graphrl compare`, for the problem that the agent was trained for. CHECKPOINT is the folder of a
run of `graphrl train`, whose best checkpoint is used, or the folder of one checkpoint. MODEL is a file, a folder or a
set of graphs as in `graphrl compare`; the default is data.test of the run. For EGRL, and PPO in MemoryMap-v0, graphs
are coarsened to layers, and the table compares memory maps. A file that cannot be read is reported and left out."""

EXAMPLES = """examples:
  graphrl evaluate out/regal
      the best checkpoint on the test graphs of the run
  graphrl evaluate out/regal regal-like:x200 --evaluations 5000 --histogram improvements.png
      on 200 random graphs with a larger budget; a picture of the improvements over the first classical method
  graphrl evaluate out/regal/step-00000300 model.onnx graphs/ --seeds 3 --output rows.jsonl --json
      one checkpoint on your own graphs, three seeds each, with a file of all runs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder of a run, or of one checkpoint")
    parser.add_argument(
        "models", metavar="MODEL", nargs="*", default=[], help="file, folder or set of graphs (default: data.test)"
    )
    parser.add_argument("--dataset", action="append", default=[], metavar="MODEL", help="one more MODEL (repeatable)")
    evaluations = "those of the run: 400 for REGAL, 1,000 for GO and PPO, 4,000 for EGRL, 100,000 for Topoformer"
    methods = "methods to compare with, for example list,brkga (default: classical methods for the agent's problem)"
    compare.add_runs(parser, methods, default=evaluations)
    add_model(parser)
    add_common(parser, seed="first seed of --seeds (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Compares the agent with classical methods and prints the table; returns the exit code."""
    from graphrl.agents import find_agent
    from graphrl.training.checkpoints import find, read
    from graphrl.training.config import updated
    from graphrl.training.run import default_config

    path = find(args.checkpoint)
    if any(sign in str(path) for sign in ",="):
        raise ProblemError(
            f"{quote_path(path)}: the path of a checkpoint must not contain commas or equals signs: rename it"
        )
    info = read(path).info  # all of it, so that a broken checkpoint fails here instead of missing in the table
    agent = find_agent(info.agent)
    config = updated(default_config(agent), agent.current_settings(info.config))
    problem: Any = agent.problem(config.agent)
    args.models = [*args.models, *args.dataset] or list(config.data.test)
    agent_methods = {f"{method}:checkpoint={path}": method for method in agent.methods(config.agent)}
    is_map = isinstance(problem, MemoryChip)
    opponents = _opponents(agent, problem) if args.methods is None else args.methods
    if not agent_methods:
        _note(f"agent {info.agent!r} has no methods: its policy is not in the table (see `methods` of Agent)")
    for method, name in agent_methods.items():
        if method in opponents:
            _note(f"{method} is the checkpoint to evaluate: it has the row {name!r} alone")
    opponents = tuple(method for method in opponents if method not in agent_methods)
    args.methods = (*agent_methods, *opponents)
    if args.evaluations is None and args.seconds is None:
        args.evaluations = config.agent.evaluations
    names = {long: name for long, name in agent_methods.items() if name not in opponents}
    if is_map:
        return _compare_maps(args, problem, names)
    args.baseline = args.baseline or next(iter(opponents), args.methods[0])
    vars(args).update(dataclasses.asdict(problem))
    return compare.run(args, names)


def _note(text: str) -> None:
    print(f"graphrl: {text}", file=sys.stderr)


def _opponents(agent: "Agent", problem: Problem | MemoryChip) -> tuple[str, ...]:
    """Returns the agent's opponents that support a problem."""
    if isinstance(problem, MemoryChip):
        return tuple(name for name in agent.opponents if name in MAP_METHODS)
    plans = (name for name in agent.opponents if name in METHODS or name not in MAP_METHODS)
    return tuple(name for name in plans if problem.objective in find_solver(name).objectives)


def _compare_maps(args: argparse.Namespace, chip: MemoryChip, names: Mapping[str, str]) -> int:
    """Prints the table of memory maps on a chip; returns the exit code.

    Args:
      args: parsed options, as for `compare.run`.
      chip: chip of the maps.
      names: short names for the table, by full method name.
    """
    for option in _PLAN_OPTIONS:
        if getattr(args, option) not in (None, False, 1):
            raise ProblemError(f"--{option} is for plans, but this agent makes memory maps: leave it out")
    budget = make_budget(args.evaluations, args.seconds)
    seeds = compare.seeds_of(args)
    for method in args.methods:
        find_map_solver(method)
    enable_compilation_cache()
    from graphrl.compare.maps import as_dict, print_tables, run_maps
    from graphrl.compare.report import budget_line
    from graphrl.costs.maps.problem import map_problem
    from graphrl.graphs.datasets.sets import load_layers

    dims, limits = dict(args.dim), args.read_limits
    graphs, unreadable = compare.readable(lambda left_out: load_layers(args.models, dims, limits, left_out))
    problems = [map_problem(graph, chip) for graph in graphs]
    rows = []
    with case_bar(len(problems) * len(args.methods) * len(seeds)) as report:
        for row in run_maps(problems, args.methods, seeds, budget):
            rows.append(dataclasses.replace(row, method=names.get(row.method, row.method)))
            outcome = row.error or f"{format_seconds(row.latency)} in {format_seconds(row.seconds)}"
            report(f"{row.graph}, {rows[-1].method}, seed {row.seed}: {outcome}")
    if all(row.error is not None for row in rows):
        raise GraphrlError(f"no run gave a map: {rows[0].error}")
    if args.json:
        print_json({"chip": chip.name, "budget": dataclasses.asdict(budget), **as_dict(rows), "unreadable": unreadable})
    else:
        print_tables(rows, chip.name, budget_line(budget))
    return int(bool(unreadable))
