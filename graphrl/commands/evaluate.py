"""`graphrl evaluate CHECKPOINT`: the table of a trained agent against classical methods, on graphs it has not seen."""

import argparse
import dataclasses

from graphrl.commands import compare
from graphrl.commands.common import add_common, add_model
from graphrl.errors import ProblemError
from graphrl.files import shown

DESCRIPTION = """Compare a trained agent with classical methods on graphs that it has not been trained on: the same
table as of `graphrl compare`, for the problem that it was trained for.

CHECKPOINT is the folder of a run of `graphrl train` (its best checkpoint is taken), or of one checkpoint. Graphs are
files, folders or sets as of `graphrl compare`; without any they are the run's data.test."""

EXAMPLES = """examples:
  graphrl evaluate out/regal
  graphrl evaluate out/regal --dataset regal-like:x200 --evaluations 5000 --histogram improvements.png
  graphrl evaluate out/regal/step-00000300 model.onnx graphs/ --seeds 3 --output rows.jsonl --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder of `graphrl train`")
    parser.add_argument("models", metavar="MODEL", nargs="*", help="files, folders or sets of graphs")
    parser.add_argument("--dataset", action="append", default=[], metavar="NAME", help="a set of graphs, as MODEL")
    evaluations = "as many evaluations as the agent's, by default of REGAL 400 and of Topoformer 100,000"
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
        raise ProblemError(f"{shown(path)}: the path of a checkpoint may not hold commas or equals signs: rename it")
    info = read(path).info  # whole, so that a broken one ends here, not in a table without it
    agent = find_agent(info.agent)
    config = updated(default_config(agent), info.config)
    args.models = [*args.models, *args.dataset] or list(config.data.test)
    own = {f"{method}:checkpoint={path}": method for method in agent.methods(config.agent)}
    others = agent.opponents if args.methods is None else args.methods
    args.methods = (*own, *others)
    args.baseline = args.baseline or others[0]
    if args.evaluations is None and args.seconds is None:
        args.evaluations = config.agent.evaluations
    vars(args).update(dataclasses.asdict(config.agent.problem))
    return compare.run(args, {long: name for long, name in own.items() if name not in others})
