"""`graphrl train AGENT`: trains an agent, in one run or a sweep of seeds and settings, and resumes training."""

import argparse
import contextlib
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphrl.agents import agents
from graphrl.commands.common import integer, print_json
from graphrl.commands.parser import Parser
from graphrl.errors import GraphrlError, ProblemError
from graphrl.units import align_columns, format_seconds

if TYPE_CHECKING:
    from graphrl.training.agent import Agent
    from graphrl.training.config import RunConfig
    from graphrl.training.run import Result
    from graphrl.training.sweep import Run

_SETTING_WIDTH, _MAX_WIDTH = 38, 120  # columns of --settings

DESCRIPTION = """Train an agent, or resume its training.

The folder of the run (--out) gets run.json (all settings), metrics.jsonl and tensorboard/ (metrics of every update and
validation), and step-*/ (checkpoints: the latest ones, and the best on the held-out graphs, to which `best` links).
`graphrl evaluate FOLDER` compares the trained agent with other methods; `graphrl plot FOLDER` draws learning curves."""

EXAMPLES = """agents:
  regal       proposals for BRKGA, a genetic search of placements and orders
  topoformer  orders of one device for the least peak memory
  go          a device and a priority for each op; gdp, its predecessor, chooses devices alone
  egrl        a memory of a chip for the weights and the outputs of each layer
  sharding    scores of the strategies of a sharding problem, which guide graphrl shard
  ppo         PPO in any environment (--env) with any networks (--network)
  your own: an entry point of your package in the group "graphrl.agents", such as mine = "my_package.agent:AGENT"; or,
  for the process of a script, graphrl.agents.register("mine", "my_agent:AGENT") and graphrl.cli.main(["train", "mine"])

settings: `graphrl train AGENT --settings` lists all of them with their values and meanings: training.* (the loop),
data.* (graphs and batches), agent.* (problem, network, learning) and seed. KEY=VALUE after the agent, or --set
KEY=VALUE, changes one. A file for --config has the same names in TOML or JSON; KEY=VALUE overrides it:
  seed = 1
  [training]
  steps = 500
  [data]
  train = ["regal-like:x400@10000"]
  [agent]
  evaluations = 5000

seeds and sweeps: --seeds 0-4 trains five seeds one after another, in DIR/seed-0 to DIR/seed-4. --sweep trains each of
the values of a setting, in DIR/agent.learning_rate=0.01 ...; several --sweep train all combinations, and --seeds each
with several seeds. Every folder is a run as any other. Seeds share the graphs and the compiled programs. The table at
the end has the mean of the best held-out scores over the seeds, with its 95% bootstrap interval, and cautions where
numbers of updates differ or intervals overlap. A run whose numbers become infinite or NaN ends alone. A list is one
value in brackets: --sweep data.train=[a,b],[c].

stop and resume: Ctrl-C or SIGTERM finishes the current update and saves a checkpoint; a second one stops immediately.
--resume continues from the last checkpoint, also after a crash or kill -9, and ends with the same parameters as a run
without interruption. It keeps all settings but training.*, which may change. Without a run in the folder it starts one.
With the folder of a sweep it continues the sweep, without its finished runs; further seeds and values are added.

agent.init_checkpoint=FOLDER starts from the policy of another run (or a policy file) with the same network, for
example for a second stage with more evaluations. --resume does not need that folder.

--distributed trains in several processes: start the same command in each, with a folder that all can write to.
Addresses come from Slurm, Open MPI, Kubernetes or Cloud TPU, or from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID. The data.graphs graphs of each batch are distributed over all devices of all processes.

examples:
  graphrl train regal --out out/regal
      train REGAL on random graphs, for the makespan on two devices
  graphrl train regal --out out/regal --resume training.steps=1000
      continue to 1,000 updates
  graphrl train regal agent.init_checkpoint=out/regal agent.evaluations=5000 --out out/regal-5000
      second stage: more evaluations a graph
  graphrl train regal --config regal.toml agent.problem.objective=peak_memory --out out/memory
      settings from a file, but for peak memory
  graphrl train regal training.steps=100 --seeds 0-4 --out out/seeds
      five seeds; then `graphrl plot out/seeds` draws their mean with its interval
  graphrl train regal --sweep agent.learning_rate=1e-2,3e-3 --sweep agent.width=16,32 --seeds 0-2 --out out/sweep
      twelve runs and a table of the four settings
  graphrl train topoformer training.steps=2000 data.train=layered:100x128@10000
      train Topoformer on 128 layered graphs of 100 ops, seeds from 10000
  graphrl train go agent.learning=imitation --out out/imitated
  graphrl train go agent.init_checkpoint=out/imitated --out out/go
      train GO by imitation, then by reinforcement learning
  graphrl train ppo --env my_module:Env --network my_module:network --out out/mine
      train PPO in your own environment with your own networks (graphrl.agents.ppo says what both have to be)
  graphrl train egrl data.train=workloads:resnet50 training.steps=200 --out out/egrl
      train EGRL to assign the tensors of ResNet-50 to the memories of a chip
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("agent", metavar="AGENT", help=f"agent to train: {', '.join(agents())}")
    parser.add_argument(
        "values", nargs="*", metavar="KEY=VALUE", help="change a setting, for example training.steps=500"
    )
    parser.rest = "values"
    parser.add_argument(
        "--env", metavar="ENV", help="of the agent ppo: an id, or module:NAME of your own; short for agent.env=ENV"
    )
    parser.add_argument(
        "--network", metavar="NET", help="of the agent ppo: module:NAME of a function; short for agent.network=NET"
    )
    parser.add_argument("--config", metavar="FILE", help="file of settings: TOML, or JSON if it ends in .json")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change one setting, as KEY=VALUE alone does; may be repeated",
    )
    parser.add_argument(
        "--settings", action="store_true", dest="list", help="print all settings with their meanings and exit"
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the run, or of all runs (default: out/AGENT)")
    parser.add_argument("--resume", action="store_true", help="continue the run of the folder; without one, start it")
    parser.add_argument("--distributed", action="store_true", help="train together with other processes")
    parser.add_argument("--seed", type=integer, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--seeds", metavar="SEEDS", help="train several seeds, such as 0-4 or 0,3,7, in DIR/seed-N")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=VALUE,VALUE",
        help="train each of several values of a setting, in DIR/KEY=VALUE; may be repeated, for all combinations",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Trains the agent or resumes training, and prints the result; returns the exit code."""
    from graphrl.agents import find_agent
    from graphrl.training import config as configuration
    from graphrl.training.sweep import has_sweep

    agent = find_agent(args.agent)
    values = {} if args.config is None else configuration.read_values(args.config)
    values = configuration.merged(values, configuration.parsed([*args.settings, *args.values]))
    named = {name: getattr(args, name) for name in ("env", "network") if getattr(args, name) is not None}
    values = configuration.merged(values, {"agent": named} if named else {})
    if args.seed is not None:
        values["seed"] = args.seed
    if args.out == "":  # from --out "$DIR" with DIR unset: it would mean the working directory
        raise ProblemError("--out is empty: name a folder")
    folder = Path("out", args.agent) if args.out is None else Path(args.out)
    sweeps = bool(args.seeds is not None or args.sweep or has_sweep(folder))
    return (_train_sweep if sweeps else _train_one)(args, agent, values, folder)


def _train_one(args: argparse.Namespace, agent: "Agent", values: Mapping[str, Any], folder: Path) -> int:
    from graphrl.training import devices
    from graphrl.training.folder import has_run
    from graphrl.training.run import run_config, train

    resumes = args.resume and has_run(folder)
    config = run_config(agent, values, folder if resumes else None, name=args.agent)
    if args.list:
        return _print_settings(config, args.json)
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
        _report(result, args, folder, comparable=_is_comparable(agent, config.agent))
    return int(result.outcome.interrupted)


def _train_sweep(args: argparse.Namespace, agent: "Agent", values: Mapping[str, Any], folder: Path) -> int:
    from graphrl.training import devices
    from graphrl.training.config import updated
    from graphrl.training.run import default_config
    from graphrl.training.sweep import check_folder, parse_seeds, parse_values, plan_sweep, train_sweep

    if args.seeds is not None and "seed" in values:
        raise ProblemError("seed and --seeds both choose seeds: leave one of them out")
    seeds = [] if args.seeds is None else parse_seeds(args.seeds)
    swept = parse_values(args.sweep)
    sweep, runs = plan_sweep(args.agent, agent, folder, values, swept=swept, seeds=seeds, resume=args.resume)
    if args.list:
        return _print_settings(updated(default_config(agent), sweep.config), args.json)
    check_folder(folder, args.resume)
    counts, (what, *_) = zip(*(agent.work_items(run.config) for run in runs), strict=True)
    devices.configure(math.gcd(*counts), what, distributed=args.distributed)  # devices that share every run's items
    interrupted, failed = train_sweep(agent, sweep, runs, folder)
    if interrupted:
        devices.disconnect()
    if devices.is_main():
        _report_sweep(_summary(runs, interrupted, failed), args, folder)
    return int(interrupted or bool(failed))


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


def _is_comparable(agent: "Agent", settings: Any) -> bool:
    """True if `graphrl evaluate` has plans of the trained policy to compare."""
    with contextlib.suppress(GraphrlError):  # the environment of `ppo` makes no plans
        return bool(agent.methods(settings)) and agent.problem(settings) is not None
    return False


def _report(result: "Result", args: argparse.Namespace, folder: Path, *, comparable: bool) -> None:
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
        print(f"best checkpoint: {result.best}")
        if comparable:
            print(f"compare it with other methods: graphrl evaluate {folder}")
        else:
            print(f"learning curve: graphrl plot {folder}")
    if interrupted:
        text = f"stopped at step {step}, checkpoint saved; {_resume_with(args.agent, folder)}"
        print(f"graphrl: {text}", file=sys.stderr)


def _report_sweep(summary: dict[str, Any], args: argparse.Namespace, folder: Path) -> None:
    """Prints the table of a sweep: each setting, or each seed if there is only one setting, then the best setting."""
    settings = summary["settings"]
    scored = [setting for setting in settings if setting["mean"] is not None]
    if args.json:
        print_json(summary)
    elif scored:
        rows = [(f"best held-out {summary['title'] or 'score'}", "runs", "updates", "mean", "95% interval")]
        if len(settings) == 1:
            rows += [
                (Path(run["folder"]).name, "1", f"{run['step']}", f"{run['best_score']:.4g}", "-")
                for run in settings[0]["runs"]
            ]
        if len(settings) > 1 or len(settings[0]["runs"]) > 1:
            rows += [_row(setting) for setting in settings]
        print("\n".join(align_columns(rows, left=1)))
        if all(run["best_step"] == 0 < run["step"] for setting in scored for run in setting["runs"]):
            print("no run improved on step 0")
        elif len(scored) > 1:
            _print_best(scored)
        print(f"learning curves: graphrl plot {folder}")
    if summary["interrupted"]:
        print(f"graphrl: stopped; {_resume_with(args.agent, folder)}", file=sys.stderr)


def _print_best(settings: Sequence[Mapping[str, Any]]) -> None:
    """Prints which setting has the highest mean, and why that may not make it the best."""
    best = max(settings, key=lambda setting: setting["mean"])
    if all(setting["mean"] == best["mean"] for setting in settings):
        print("no setting is better: their means are equal")
    else:
        print(f"best setting: {best['setting']}")
    runs = [run for setting in settings for run in setting["runs"]]
    if " to " in (updates := _updates(runs)):
        most = max(run["step"] for run in runs)
        print(f"caution: the runs have {updates} updates: --resume training.steps={most} makes them equal")
    if any(len(setting["runs"]) == 1 for setting in settings):
        print("caution: one run of a setting has no interval: train several seeds (--seeds)")
    elif any(
        best["mean"] > setting["mean"] and setting["high"] >= best["low"] for setting in settings if setting is not best
    ):
        print("caution: its interval overlaps another: the difference may be chance, and more seeds would tell")


def _row(setting: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Builds a setting's row of the table."""
    name, count = setting["setting"] or "all", len(setting["runs"])
    if setting["mean"] is None:
        return name, "0", "-", "-", "-"
    ends = f"{setting['low']:.4g} to {setting['high']:.4g}" if count > 1 else "-"
    return name, str(count), _updates(setting["runs"]), f"{setting['mean']:.4g}", ends


def _updates(runs: Sequence[Mapping[str, Any]]) -> str:
    """Formats the numbers of updates of some runs: "60", or "20 to 60"."""
    steps = [run["step"] for run in runs]
    return f"{min(steps)} to {max(steps)}" if min(steps) < max(steps) else str(steps[0])


def _summary(runs: "Sequence[Run]", interrupted: bool, failed: Sequence[Path]) -> dict[str, Any]:
    """Summarises the best held-out scores of a sweep's runs, as JSON values; runs without a checkpoint are left out."""
    import numpy as np

    from graphrl.compare.curves import interval
    from graphrl.training.checkpoints import Checkpoints, find, read_info
    from graphrl.training.folder import has_run, read_settings

    settings: dict[str, list[dict[str, Any]]] = {run.setting: [] for run in runs}
    metric = title = ""
    for run in runs:
        latest = Checkpoints(run.folder, 1).latest()
        if latest is None or not has_run(run.folder):
            continue
        metric, title = (stored := read_settings(run.folder)).score, stored.score_title
        best = find(run.folder)
        info, step = read_info(best), read_info(latest).step
        outcome = {"seed": run.config.seed, "folder": str(run.folder), "step": step, "failed": run.folder in failed}
        outcome |= {"best": str(best), "best_step": info.step, "best_score": info.score}
        settings[run.setting].append(outcome)
    summary = []
    for setting, outcomes in settings.items():
        scores = np.array([outcome["best_score"] for outcome in outcomes], np.float64)
        ends = [float(end) for end in interval(scores)] if outcomes else [None] * 3
        summary.append({"setting": setting, **dict(zip(("mean", "low", "high"), ends, strict=True)), "runs": outcomes})
    return {"metric": metric, "title": title, "interrupted": interrupted, "settings": summary}


def _print_settings(config: "RunConfig[Any]", as_json: bool) -> int:
    """Prints every setting, with the first sentence of its description; returns the exit code."""
    from graphrl.training.config import as_dict, as_text, descriptions, value_of

    values = as_dict(config)
    if as_json:
        print_json(values)
        return 0
    width = min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns)
    indent = " " * _SETTING_WIDTH
    for name, description in descriptions(config).items():
        setting = f"{name}={as_text(value_of(values, name))}"
        sentence = re.split(r"(?<=\.)\s", description, maxsplit=1)[0].removesuffix(".")
        lines = textwrap.wrap(sentence, max(20, width - _SETTING_WIDTH)) or [""]
        if len(setting) < _SETTING_WIDTH:
            print(f"{setting:{_SETTING_WIDTH}}{lines.pop(0)}".rstrip())
        else:
            print(setting)
        for line in lines:
            print(f"{indent}{line}".rstrip())
    return 0
