"""Fusion by rules, searches and GO's policies: the gain of `graphrl optimize --fuse`, and helpers of the fusion tables.

Programs are training steps of the model zoo, costed by the roofline of one device. Policies that decide fusion start
from an instance made here; their samples are costed on the host.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.config import FusingSettings, GoSettings
from graphrl.agents.go.network import Policy, sample_choices
from graphrl.compare.report import markdown
from graphrl.costs.exact import evaluate
from graphrl.costs.fusion.device import FusionSizes
from graphrl.costs.fusion.exact import Fusion, fuse, fused_graph
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.env import order_of_keys
from graphrl.envs.compile.features import PlanFeatures, no_features
from graphrl.envs.compile.generator import Choices, CompileInstance, Task, make_instance
from graphrl.envs.compile.observation import observe
from graphrl.envs.compile.reward import op_keys
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.workloads.go import load
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.plan import Plan
from graphrl.solvers.fusion.flips import prepare
from graphrl.solvers.fusion.rules import DEFAULT_RULE, fuse_by
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.transfer_rules.solver import quick_start
from reproduce.go.settings import Settings
from reproduce.measurements import Figures, call_seconds
from reproduce.results import Table

CHIP = "v100-fp32"
FUSION_LEVELS = 2  # inlined or not; where a kernel is full, op numbers decide which ops stay inlined
PROGRAMS = "training/jaxpr"
INLINING = ("single", "xla", "all", "flips")
PARTS = (*INLINING, "two", "two fused")
COUNT = 20
DEVICES = 2
LATENCY, BANDWIDTH = 5e-6, 300e9  # seconds, bytes a second: NVLink 3, as in the chip's data sheet
HEADINGS = ("program", "ops", "none, ms", *INLINING, "rule, s", "two devices", "fused")
HOW = (
    f"Kernels of each rule on an {DEFAULT_CHIP}, in sequence: ms without fusion, and fractions of it under the "
    f"rules; then the seconds that `{DEFAULT_RULE}` takes. Two devices: the best list schedule of single ops "
    f"over NVLink, which is the plan without --fuse, and of the kernels of `{DEFAULT_RULE}`, as fractions of the same."
)


class FusingPolicy(Policy):
    """GO's policy for instances with a fusion problem."""

    settings = staticmethod(FusingSettings)


def settings_of(*tasks: Task, changes: float | None = None) -> FusingSettings:
    """Returns GO's settings with other tasks, and with other `changes` if given.

    A policy that decides fusion alone does not observe the simulated schedule.
    """
    default = FusingSettings()
    network = dataclasses.replace(default.network, tasks=tasks, plan_features=tasks != ("fusion",))
    if changes is not None:
        network = dataclasses.replace(network, changes=changes)
    return dataclasses.replace(default, network=network)


@functools.lru_cache(maxsize=1)
def problem_of(workload: str) -> FusionProblem:
    """Returns the fusion problem of a workload."""
    return fusion_problem(load(workload, CHIP).graph, CHIP)


def initial(
    fusion: Fusion,
    machine: Problem,
    settings: GoSettings,
    to: Sizes | None = None,
    fusion_to: FusionSizes | None = None,
) -> CompileInstance:
    """Builds an instance that starts from a fusion and a quick plan of its kernels, whose makespan is the baseline.

    An inlined op is ordered right before the first kernel that computes it, and has that kernel's device in case it
    becomes a kernel.

    Args:
      to, fusion_to: sizes to pad to; see `make_instance`.
    """
    problem, start = fusion.problem, quick_start(fused_graph(fusion), machine)
    n, roots = problem.num_ops, list(fusion.members)
    first, device = np.zeros((2, n), np.int64)
    for place, kernel in reversed(list(enumerate(start.ops.tolist()))):
        members = list(fusion.members[roots[kernel]])
        first[members], device[members] = place, start.placement[kernel]
    return make_instance(
        problem.graph,
        machine,
        to,
        levels=settings.levels,
        baseline=start.makespan,
        start=Choices(device, np.full(n, settings.levels // 2), fusion.inlined.astype(np.int64)),
        order=np.lexsort((problem.graph.arrays.rank, first)),
        reach=settings.reach,
        fusion=problem,
        fusion_levels=FUSION_LEVELS,
        fusion_to=fusion_to,
    )


def best_drawn(
    policy: FusingPolicy,
    instance: CompileInstance,
    cost: Callable[[Choices], float],
    *,
    rounds: int,
    samples: int,
    seed: int = 0,
) -> Choices:
    """Draws choices from a policy in several rounds; returns the best.

    Each round draws around the best choices so far, at first the instance's start. The first sample of a round is the
    most likely one.

    Args:
      cost: function that returns the cost of choices, `[n]` each.
    """
    rng, best, tasks = np.random.default_rng(seed), cost(instance.start), policy.config.network.tasks
    for _ in range(rounds):
        logits = policy.logits(instance, _plan_features(policy, instance))
        plans = sample_choices(logits, instance.start, samples, rng).of(tasks)
        for number in range(samples):
            choices = instance.start._replace(**{task: options[number] for task, options in plans.items()})
            if (seconds := cost(choices)) < best:
                best, instance = seconds, dataclasses.replace(instance, start=choices)
    return instance.start


def fused(problem: FusionProblem, choices: Choices) -> Fusion:
    """Returns the fusion of an instance's choices."""
    return fuse(problem, np.asarray(choices.fusion, np.int64)[: problem.num_ops])


def planned(problem: FusionProblem, machine: Problem, instance: CompileInstance, choices: Choices) -> Plan:
    """Returns the plan of the kernels of an instance's choices, with its exact costs."""
    kernels = fused_graph(fused(problem, choices))
    roots = list(kernels.fusion.members)
    placement = np.asarray(choices.placement, np.int64)[roots]
    keys = np.asarray(op_keys(instance, jnp.asarray(choices.priority)))[roots]
    order = order_of_keys(kernels, machine, placement, keys, "urgent")
    return Plan.from_order(kernels, machine, placement, order, method="go", seconds=0.0, evaluations=1, seed=0)


def milliseconds(figures: Figures | None) -> str:
    """Formats the makespan of a run in milliseconds; a `*` marks a plan that exceeds memory."""
    return "-" if figures is None else f"{1e3 * figures['value']:.2f}" + "*" * (figures.get("excess", 0) > 0)


def fusion(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program."""
    rows = dict[str, Figures]()
    for name in _programs(min(settings.graphs, COUNT), small=settings.quick):
        figures = settings.measurements.get({"program": name, "fuse": "rules"}, functools.partial(_measure, name))
        if figures is not None:
            rows[name] = figures
    lines = [_line(name, figures) for name, figures in rows.items()]
    parts = np.array([[figures[what] / figures["none"] for what in PARTS] for figures in rows.values()])
    notes, summary = list[str](), ""
    if rows:
        means = dict(zip(PARTS, np.exp(np.log(parts).mean(0)), strict=True))
        notes = [f"geometric mean of {what}: {mean:.3f}" for what, mean in means.items()]
        notes.append(f"kernels on two devices, over single ops there: {means['two fused'] / means['two']:.3f}")
        shares = f"kernels of `flips` {means['flips']:.3f}, those of `xla` {means['xla']:.3f}"
        summary = f"Share of the time without fusion: {shares}."
    table = markdown(HEADINGS, lines)
    yield settings.measurements.table("Fusion on training steps of the zoo", HOW, table, notes=notes, summary=summary)


def _plan_features(policy: FusingPolicy, instance: CompileInstance) -> PlanFeatures:
    """Simulates the schedule of the instance's start; returns an empty one if the policy does not observe it."""
    network = policy.config.network
    return (
        observe(instance, instance.start, network.tasks).plan_features
        if network.plan_features
        else no_features(instance)
    )


def _programs(count: int, *, small: bool) -> list[str]:
    """Returns one program of each architecture, spread evenly from small to large; or the smallest ones."""
    largest = {entry.architecture: entry for entry in zoo.select(PROGRAMS)}
    entries = sorted(largest.values(), key=lambda entry: (entry.ops, entry.name))
    last = count - 1 if small else len(entries) - 1
    return [entries[i].name for i in np.linspace(0, last, count).astype(int)]


def _measure(name: str) -> Figures:
    prepare()
    graph = zoo.load(name).graph
    problem = fusion_problem(graph)
    fusions = {rule: fuse_by(rule, problem) for rule in ("none", *INLINING)}
    seconds = call_seconds(lambda: fuse_by(DEFAULT_RULE, problem))
    two = Problem("makespan", DEVICES, "link", LATENCY, BANDWIDTH)
    plans = {"two": fused_graph(fusions["none"]), "two fused": fused_graph(fusions[DEFAULT_RULE])}
    makespans = {what: _makespan(kernels, two) for what, kernels in plans.items()}
    return {
        "ops": len(graph.ops),
        "search": seconds,
        **{rule: fusion.seconds for rule, fusion in fusions.items()},
        **makespans,
    }


def _line(name: str, figures: Figures) -> list[str]:
    """Formats a row under `HEADINGS`: times are fractions of the time of single ops on one device."""
    *rules, two, both = (f"{figures[what] / figures['none']:.3f}" for what in PARTS)
    return [name, f"{figures['ops']:,}", f"{1e3 * figures['none']:.2f}", *rules, f"{figures['search']:.2f}", two, both]


def _makespan(graph: ComputationGraph, problem: Problem) -> float:
    return evaluate(graph, problem, *schedule(graph, problem)).makespan
