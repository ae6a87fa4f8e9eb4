"""The methods of the section `external`, those of GO with their policies, and a run of one of them."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import graphrl
from graphrl.agents.go.network import Policy
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.readers import read_graph
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from reproduce.go.settings import Settings
from reproduce.measurements import Figures
from reproduce.policies import kept

DP_SECONDS = 300.0
UPDATES, PLAYED, TUNED = 50, 4353, 1600  # of PPO; evaluations of `go`, and those that the updates take beside


class Entry(NamedTuple):
    """A method with its budget, and how many seeds it has."""

    method: str
    seeds: int = 1
    seconds: float | None = None
    evaluations: int | None = None


def load_policy(settings: Settings) -> Policy:
    """The policy that GO plays.

    Raises:
      GraphrlError: it cannot be read, or is for another objective.
    """
    problem = Problem("max_load")
    policy = Policy.load(settings.policy) if settings.policy else Policy.default(problem)
    if policy.config.problem.objective != "max_load":
        raise graphrl.GraphrlError(f"{settings.policy} is a policy for {policy.config.problem.objective}: not max_load")
    return policy


def solvers(settings: Settings, path: Path) -> dict[str, Entry]:
    """The methods without a policy, by label."""
    seconds, seeds, folder = settings.times[-1], settings.seeds, path.parents[2]
    entries = {
        "equal stages": Entry("equal-stages", seconds=seconds),
        "greedy": Entry("greedy-load", seconds=seconds),
        "stage-dp": Entry("stage-dp", seconds=DP_SECONDS),
        "anneal-load": Entry("anneal-load", seeds, seconds),
        "auto": Entry("auto", seeds, seconds),
        "as many moves": Entry("anneal-load", seeds, evaluations=PLAYED),
    }
    if path.parent.name == "LayerGraphs":
        names = path.stem, path.stem.replace("training", "inference")
        files = [folder / "human-experts" / f"{name}_expert.json" for name in names]
        if file := next((file for file in files if file.exists()), None):
            entries["expert"] = Entry(f"split:file={file}", seconds=seconds)
    return entries


def players(settings: Settings, policy: Policy) -> dict[str, Entry]:
    """What plays a policy, by label."""
    config, updates = policy.config, 2 if settings.quick else UPDATES
    before = Policy(config, jax.tree.map(np.asarray, Policy.initial(config, jax.random.key(0))), "not trained")
    entries = {"start": Entry(f"go:rounds=0,checkpoint={kept(policy, settings.out)}", evaluations=1)}
    for prefix, one in (("", policy), ("untrained ", before)):
        file = f"checkpoint={kept(one, settings.out)}"
        entries[f"{prefix}plans"] = Entry(f"go:tries=0,{file}", settings.seeds, evaluations=PLAYED)
        entries[f"{prefix}go"] = Entry(f"go:{file}", settings.seeds, evaluations=PLAYED)
        tuned = f"go:finetune={updates},{file}"
        entries[f"{prefix}finetuned"] = Entry(tuned, settings.seeds, evaluations=PLAYED + TUNED)
    return entries


def measure(path: Path, entry: Entry, seed: int) -> Figures:
    """A run on the graph of a file, on the machine that it names."""
    graph = read_graph(path)
    problem = Problem.on(graph.machine, objective="max_load")
    plan = find_solver(entry.method)(Task(graph, problem, Budget(entry.evaluations, entry.seconds), seed))
    plan.check(graph)
    bound = lower_bound(graph, problem) if plan.bound is None else plan.bound
    figures = {"value": plan.value, "bound": bound, "seconds": plan.seconds, "excess": plan.excess}
    return figures | {"evaluations": plan.evaluations}
