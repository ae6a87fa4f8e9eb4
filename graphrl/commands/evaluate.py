"""`graphrl evaluate CHECKPOINT`: a table of a trained agent and classical methods on held-out graphs."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from graphrl.commands import compare
from graphrl.commands.common import add_common, add_model, enable_compilation_cache, print_json
from graphrl.commands.progress import case_bar
from graphrl.costs.maps.chip import MemoryChip
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import quote_path
from graphrl.methods import find_map_solver, find_solver
from graphrl.optimize import make_budget
from graphrl.units import format_seconds

if TYPE_CHECKING:
    from graphrl.training.agent import Agent

_OF_PLANS = ("processes", "cluster", "output", "retry", "plot", "histogram", "baseline")  # options for plans alone

DESCRIPTION = """Compare a trained agent with classical methods on graphs that it has not been trained on: the same
table as of `graphrl compare`, for the problem that it was trained for.

CHECKPOINT is the folder of a run of `graphrl train` (its best checkpoint is taken), or of one checkpoint. Graphs are
files, folders or sets as of `graphrl compare`; without any they are the run's data.test. For EGRL they are coarsened to
layers and the table is of memory maps. A file that cannot be read is named and left out, as there."""

EXAMPLES = """examples:
  graphrl evaluate out/regal
  graphrl evaluate out/regal --dataset regal-like:x200 --evaluations 5000 --histogram improvements.png
  graphrl evaluate out/regal/step-00000300 model.onnx graphs/ --seeds 3 --output rows.jsonl --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder of `graphrl train`")
    parser.add_argument("models", metavar="MODEL", nargs="*", help="files, folders or sets of graphs")
    parser.add_argument("--dataset", action="append", default=[], metavar="NAME", help="a set of graphs, as MODEL")
    evaluations = "as many evaluations as the agent's, by default of REGAL 400, of Topoformer 100,000, of EGRL 4,000"
    compare.add_runs(parser, "beside the agent's own (default: the agent's opponents)", default=evaluations)
    add_model(parser)
    add_common(parser, seed="the first of --seeds (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Compares; returns the exit code."""
    from graphrl.agents import find_agent
    from graphrl.training.checkpoints import find, read
    from graphrl.training.config import updated
    from graphrl.training.run import default_config

    path = find(args.checkpoint)
    if any(sign in str(path) for sign in ",="):
        raise ProblemError(
            f"{quote_path(path)}: the path of a checkpoint may not hold commas or equals signs: rename it"
        )
    info = read(path).info  # all of it, so that a broken checkpoint fails here instead of missing in the table
    agent = find_agent(info.agent)
    config = updated(default_config(agent), info.config)
    problem = config.agent.problem
    args.models = [*args.models, *args.dataset] or list(config.data.test)
    own = {f"{method}:checkpoint={path}": method for method in agent.methods(config.agent)}
    others = _opponents(agent, problem) if args.methods is None else args.methods
    args.methods = (*own, *others)
    if args.evaluations is None and args.seconds is None:
        args.evaluations = config.agent.evaluations
    names = {long: name for long, name in own.items() if name not in others}
    if isinstance(problem, MemoryChip):
        return _compare_maps(args, problem, names)
    args.baseline = args.baseline or others[0]
    vars(args).update(dataclasses.asdict(problem))
    return compare.run(args, names)


def _opponents(agent: "Agent", problem: Problem | MemoryChip) -> tuple[str, ...]:
    """The agent's opponents that solve such problems."""
    if isinstance(problem, MemoryChip):
        return agent.opponents
    return tuple(name for name in agent.opponents if problem.objective in find_solver(name).objectives)


def _compare_maps(args: argparse.Namespace, chip: MemoryChip, names: Mapping[str, str]) -> int:
    """The table of memory maps on a chip; returns the exit code.

    Args:
      args: as `compare.run` takes them.
      chip: of the maps.
      names: of some methods in the table, by full name.
    """
    for option in _OF_PLANS:
        if getattr(args, option) not in (None, False, 1):
            raise ProblemError(f"--{option} is for plans, and this agent makes memory maps: leave it out")
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
    with case_bar(len(problems) * len(args.methods) * len(seeds)) as show:
        for row in run_maps(problems, args.methods, seeds, budget):
            rows.append(dataclasses.replace(row, method=names.get(row.method, row.method)))
            outcome = row.error or f"{format_seconds(row.latency)} in {format_seconds(row.seconds)}"
            show(f"{row.graph}, {rows[-1].method}, seed {row.seed}: {outcome}")
    if all(row.error is not None for row in rows):
        raise GraphrlError(f"no run gave a map: {rows[0].error}")
    if args.json:
        print_json({"chip": chip.name, "budget": dataclasses.asdict(budget), **as_dict(rows), "unreadable": unreadable})
    else:
        print_tables(rows, chip.name, budget_line(budget))
    return int(bool(unreadable))
