"""`graphrl train AGENT`: trains an agent, and resumes interrupted training."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphrl.agents import AGENTS
from graphrl.commands.common import integer, print_json
from graphrl.errors import ProblemError
from graphrl.units import align_columns, format_seconds

if TYPE_CHECKING:
    from graphrl.training.run import Result

DESCRIPTION = """Train an agent, or resume its training.

The folder of the run (--out) gets run.json (all settings), metrics.jsonl and tensorboard/ (metrics of every update and
validation), and step-*/ (checkpoints: the latest ones, and the best on the held-out graphs, to which `best` links).
`graphrl evaluate FOLDER` compares the trained agent with other methods."""

EXAMPLES = """agents:
  regal       proposals for BRKGA, a genetic search of placements and orders; regal-hint also sees a list schedule
  topoformer  orders of one device for the least peak memory
  go          a device and a priority for each op; gdp, its predecessor, chooses devices alone
  egrl        a memory of a chip for the weights and the outputs of each layer

settings: `graphrl train AGENT --settings` lists all of them with their values: training.* (the loop), data.* (graphs
and batches), agent.* (problem, network, learning) and seed. A file for --config has the same names in TOML or JSON;
--set overrides it:
  seed = 1
  [training]
  steps = 500
  [data]
  train = ["regal-like:x400@10000"]
  [agent]
  evaluations = 5000

stop and resume: Ctrl-C or SIGTERM finishes the current update and saves a checkpoint; a second one stops immediately.
--resume continues from the last checkpoint, also after a crash or kill -9, and ends with the same parameters as a run
without interruption. It keeps all settings but training.*, which may change. Without a run in the folder it starts one.

--set agent.init_checkpoint=FOLDER starts from the policy of another run (or a policy file) with the same network, for
example for a second stage with more evaluations. --resume does not need that folder.

--distributed trains in several processes: start the same command in each, with a folder that all can write to.
Addresses come from Slurm, Open MPI, Kubernetes or Cloud TPU, or from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID. The data.graphs graphs of each batch are distributed over all devices of all processes.

examples:
  graphrl train regal --out out/regal
      train REGAL on random graphs, for the makespan on two devices
  graphrl train regal --out out/regal --resume --set training.steps=1000
      continue to 1,000 updates
  graphrl train regal --set agent.init_checkpoint=out/regal --set agent.evaluations=5000 --out out/regal-5000
      second stage: more evaluations a graph
  graphrl train regal --config regal.toml --set agent.problem.objective=peak_memory --out out/memory
      settings from a file, but for peak memory
  graphrl train topoformer --set training.steps=2000 --set data.train=layered:100x128@10000
      train Topoformer on 128 layered graphs of 100 ops, seeds from 10000
  graphrl train go --set agent.learning=imitation --out out/imitated
  graphrl train go --set agent.init_checkpoint=out/imitated --out out/go
      train GO by imitation, then by reinforcement learning
  graphrl train egrl --set data.train=workloads:resnet50 --set training.steps=200 --out out/egrl
      train EGRL to assign the tensors of ResNet-50 to the memories of a chip
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("agent", metavar="AGENT", help=f"agent to train: {', '.join(AGENTS)}")
    parser.add_argument("--config", metavar="FILE", help="file of settings: TOML, or JSON if it ends in .json")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change one setting, for example training.steps=500; may be repeated",
    )
    parser.add_argument("--settings", action="store_true", dest="list", help="print all settings and exit")
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: out/AGENT)")
    parser.add_argument("--resume", action="store_true", help="continue the run of the folder; without one, start it")
    parser.add_argument("--distributed", action="store_true", help="train together with other processes")
    parser.add_argument("--seed", type=integer, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Trains the agent or resumes training, and prints the result; returns the exit code."""
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
    if args.resume and not resumes and devices.is_main():
        print(f"graphrl: no run in {folder} yet: starting one", file=sys.stderr)
    try:
        result = train(args.agent, agent, config, folder, resume=args.resume)
    except KeyboardInterrupt:
        devices.disconnect()
        _print_interrupted(args.agent, folder)
        return 1
    if devices.is_main():
        _report(result, args, folder)
    return int(result.outcome.interrupted)


def _print_interrupted(agent: str, folder: Path) -> None:
    """Prints the checkpoint to resume from after a signal before the first update, if there is one."""
    from graphrl.training.checkpoints import Checkpoints

    latest = Checkpoints(folder, 1).latest()
    if latest is None:
        text = "interrupted before the first checkpoint: nothing to resume"
    else:
        text = f"interrupted before the first update: the last checkpoint is {latest}; {_resume_with(agent, folder)}"
    print(f"graphrl: {text}", file=sys.stderr)


def _resume_with(agent: str, folder: Path) -> str:
    return f"resume with: graphrl train {agent} --out {folder} --resume"


def _report(result: "Result", args: argparse.Namespace, folder: Path) -> None:
    from graphrl.training.checkpoints import read_info

    step, interrupted, validations = result.outcome
    best, last = read_info(result.best), read_info(result.latest)
    if args.json:
        outcome = {"step": step, "interrupted": interrupted, "seconds": last.seconds, "validation": validations}
        print_json({**outcome, "best": str(result.best), "best_score": best.score, "last": str(result.latest)})
    elif not interrupted:
        print(f"trained: {step} steps in {format_seconds(last.seconds)}")
        before, after = validations[0], next(values for values in validations if values["step"] == best.step)
        rows = [("held-out graphs", "step 0", f"step {best.step} (best)")]
        rows += [(name, f"{before[name]:.4g}", f"{after[name]:.4g}") for name in after if name != "step"]
        print("\n".join(align_columns(rows, left=1)))
        print(f"best checkpoint: {result.best}\ncompare it with other methods: graphrl evaluate {folder}")
    if interrupted:
        text = f"stopped at step {step}, checkpoint saved; {_resume_with(args.agent, folder)}"
        print(f"graphrl: {text}", file=sys.stderr)


def _print_settings(values: dict[str, Any], prefix: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _print_settings(value, f"{prefix}{name}.")
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            print(f"{prefix}{name}={str(text).lower() if value is None or isinstance(value, bool) else text}")
