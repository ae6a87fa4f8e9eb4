"""`graphrl train AGENT`: trains an agent, and resumes interrupted training."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphrl.agents import AGENTS
from graphrl.commands.common import keep_compiled, option, print_json
from graphrl.errors import ProblemError
from graphrl.units import format_seconds, whole_number

if TYPE_CHECKING:
    from graphrl.training.run import Result

DESCRIPTION = """Train an agent. Everything is written into one folder: run.json (all settings), metrics.jsonl and
tensorboard/ (the record), step-*/ (checkpoints: the last ones, and the one that was best on the held-out graphs, which
`best` links to). `graphrl evaluate FOLDER` compares the outcome with other methods."""

EXAMPLES = f"""agents: {", ".join(AGENTS)}

settings: training.* (the loop), data.* (the graphs), agent.* (the agent's own) and seed; --settings lists them all with
their values. A configuration file holds them by group, as TOML or JSON; --set comes on top of it:
  seed = 1
  [training]
  steps = 500
  [data]
  train = ["regal-like:x400@10000"]
  [agent]
  evaluations = 5000

Ctrl-C or SIGTERM ends a run with a checkpoint, after the update that is under way; a second one ends it at once, with
the checkpoint before. --resume goes on from the last one, also after a crash or kill -9, with the same parameters at
the end as if nothing had happened; only training.* may be set anew. Where there is nothing to resume it starts.

--set agent.init_checkpoint=FOLDER begins with the policy of another run (or of a file), as for a second stage with more
evaluations; the network must be the same. The folder is needed only to begin with: --resume does without.

--distributed joins other processes, each started with the same command and a folder that all see: the environment of
Slurm, Open MPI, Kubernetes or Cloud TPU says where they are, or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID. data.graphs, the graphs of a batch, are spread over all devices of all processes.

examples:
  graphrl train regal --out out/regal
  graphrl train regal --out out/regal --resume --set training.steps=1000
  graphrl train regal --set agent.init_checkpoint=out/regal --set agent.evaluations=5000 --out out/regal-5000
  graphrl train regal --config regal.toml --set agent.problem.objective=peak_memory --out out/memory
  graphrl train topoformer --set training.steps=2000 --set data.train=layered:100x128@10000
  graphrl train go --set agent.learning=imitation --out out/imitated
  graphrl train go --set agent.init_checkpoint=out/imitated --out out/go
  graphrl train egrl --set data.train=workloads:resnet50 --set training.steps=200 --out out/egrl
  graphrl train egrl --set agent.chip=chip.json --set agent.variant=egrl --out out/egrl-chip
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("agent", metavar="AGENT", help="what to train")
    parser.add_argument("--config", metavar="FILE", help="settings, as TOML or (.json) JSON")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="one; may be given again"
    )
    parser.add_argument("--settings", action="store_true", dest="list", help="list all settings and end")
    parser.add_argument("--out", metavar="DIR", help="the folder of the run (default: out/AGENT)")
    parser.add_argument("--resume", action="store_true", help="go on with the run of the folder, if it has one")
    parser.add_argument("--distributed", action="store_true", help="train together with other processes")
    parser.add_argument("--seed", type=option(whole_number), metavar="N", help="of everything random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for machines")


def run(args: argparse.Namespace) -> int:
    """Trains; returns the exit code."""
    from graphrl.agents import find_agent
    from graphrl.training import config as configuration
    from graphrl.training.folder import has_run
    from graphrl.training.run import run_config

    agent = find_agent(args.agent)
    values = {} if args.config is None else configuration.read_values(args.config)
    values = configuration.merged(values, configuration.parsed(args.settings))
    if args.seed is not None:
        values["seed"] = args.seed
    if args.out == "":  # from --out "$DIR" with DIR unset: it would mean the working directory
        raise ProblemError("--out is empty: name a folder")
    folder = Path("out", args.agent) if args.out is None else Path(args.out)
    resumes = args.resume and has_run(folder)
    config = run_config(agent, values, folder if resumes else None, name=args.agent)
    if args.list:
        print_json(configuration.as_dict(config)) if args.json else _print_settings(configuration.as_dict(config))
        return 0
    from graphrl.training import devices
    from graphrl.training.run import train

    devices.configure(*agent.work_items(config), distributed=args.distributed)
    keep_compiled()
    if args.resume and not resumes and devices.is_main():
        print(f"graphrl: no run in {folder}: starting one", file=sys.stderr)
    try:
        result = train(args.agent, agent, config, folder, resume=args.resume)
    except KeyboardInterrupt:
        devices.disconnect()
        _say_left(args.agent, folder)
        return 1
    if devices.is_main():
        _report(result, args, folder)
    return int(result.outcome.interrupted)


def _say_left(agent: str, folder: Path) -> None:
    """Prints the checkpoint to resume from after a signal before the first update, if there is one."""
    from graphrl.training.checkpoints import Checkpoints

    latest = Checkpoints(folder, 1).latest()
    if latest is None:
        said = "interrupted before the first checkpoint, and before any training: there is nothing to go on with"
    else:
        said = f"interrupted before the first update: the last checkpoint is {latest}: {_go_on(agent, folder)}"
    print(f"graphrl: {said}", file=sys.stderr)


def _go_on(agent: str, folder: Path) -> str:
    return f"go on with graphrl train {agent} --out {folder} --resume"


def _report(result: "Result", args: argparse.Namespace, folder: Path) -> None:
    from graphrl.training.checkpoints import read_info

    step, interrupted, validation = result.outcome
    best, last = read_info(result.best), read_info(result.latest)
    if args.json:
        outcome = {"step": step, "interrupted": interrupted, "seconds": last.seconds, "validation": validation}
        print_json({**outcome, "best": str(result.best), "best_score": best.score, "last": str(result.latest)})
    elif not interrupted:
        print(f"trained: {step} steps in {format_seconds(last.seconds)}")
        first, chosen = validation[0], next(means for means in validation if means["step"] == best.step)
        print(f"{'held-out graphs':20} {'untrained':>11} {f'step {best.step}':>11} (best)")
        for name in (key for key in chosen if key != "step"):
            print(f"  {name:18} {first[name]:11.4g} {chosen[name]:11.4g}")
        print(f"best checkpoint: {result.best} (compare it with other methods: graphrl evaluate {folder})")
    if interrupted:
        go_on = _go_on(args.agent, folder)
        print(f"graphrl: stopped at step {step}, with a checkpoint: {go_on}", file=sys.stderr)


def _print_settings(values: dict[str, Any], prefix: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _print_settings(value, f"{prefix}{name}.")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            print(f"{prefix}{name}={str(text).lower() if value is None or isinstance(value, bool) else text}")
