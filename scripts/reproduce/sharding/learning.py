"""Section `learning`: labels of a trained policy, and the same search with and without them.

A policy is trained by `graphrl train sharding` (`--policies`); search seed s uses policy s, in turn. The untrained one
has the same network with new parameters; without --policies there is no other. Budgets are seconds of one thread's
processor time, with the reduction and all of the guide but compilation.
"""

import functools
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from graphrl.agents.sharding.instances import problem_set
from graphrl.agents.sharding.network import Policy, ShardingConfig
from graphrl.compare.report import markdown
from graphrl.sharding.datasets import load_problem
from graphrl.sharding.guide import Guide, settle
from graphrl.sharding.moves import least_labels, model_of
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem, read_problem
from graphrl.sharding.reduce import reduce_problem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.search import compile_moves, search
from reproduce.measurements import Figures
from reproduce.results import Table
from reproduce.sharding.settings import RESULTS, Settings, path

INSTANCES = ("A", "B", "C", "D", "G")
GENERATED, QUICK = ("sharding-layers:800x3@1",), ("sharding-layers:30@1",)
SAMPLES = 32  # labellings of a policy
ROUNDS = 40  # of the dual, as before the policy
LABELS = {
    "least": "least cost of each group",
    "messages": "messages",
    "untrained": "untrained policy",
    "trained": "trained policy",
}
GUIDES = {
    "none": "no guide",
    "untrained": "untrained policy",
    "trained": "trained policy",
}


def learning(settings: Settings) -> Iterator[Table]:
    """Yields a table of labels without search, and one of searches."""
    problems = _problems(settings)
    yield _labels_table(settings, problems)
    yield _search_table(settings, problems)


def _problems(settings: Settings) -> list[str]:
    """Returns names of problems: letters of the contest's instances, and random models, which training does not see."""
    instances = [name for name in settings.instances if name in INSTANCES or settings.quick]
    sets = [problem_set(name) for name in (QUICK if settings.quick else GENERATED)]
    return [*instances, *(f"{one.kind}@{seed}" for one in sets for seed in one.seeds)]


def _read(settings: Settings, name: str) -> ShardingProblem:
    return load_problem(name) if ":" in name else read_problem(path(settings.data, name))


def _policy(settings: Settings, seed: int, *, trained: bool) -> Policy:
    if trained and settings.policies:
        return Policy.load(settings.policies[seed % len(settings.policies)])
    return _untrained(Policy.load(settings.policies[0]).config if settings.policies else ShardingConfig(), seed)


@functools.cache
def _untrained(config: ShardingConfig, seed: int) -> Policy:
    initial = jax.jit(Policy.initial, static_argnums=0)
    return Policy(config, jax.device_get(initial(config, jax.random.key(seed))))


# Labels


def _labels_table(settings: Settings, problems: Sequence[str]) -> Table:
    lines = []
    for name in problems:
        cells = []
        for which in _methods(settings):
            seeds = range(max(1, len(settings.policies)) if "trained" in which else 1)
            runs = [_labelled(settings, name, which, seed) for seed in seeds]
            cells.append(_ratio(runs, _unit(settings, name)))
        lines.append([name, *cells])
    how = (
        "Cost without any search, over the best team's or the best of all searches below, mean over the policies. "
        f"Messages: the best plan of {ROUNDS} rounds of the dual, which a policy sees. Policies: the best of {SAMPLES} "
        "labellings. `no plan`: none fits."
    )
    headings = ["problem", *(LABELS[which] for which in _methods(settings))]
    return settings.measurements.table("Labels", how, markdown(headings, lines))


def _methods(settings: Settings, all_methods: Iterable[str] = LABELS) -> list[str]:
    return [which for which in all_methods if settings.policies or which != "trained"]


def _ratio(runs: Sequence[Figures | None], unit: float | None) -> str:
    costs = [run["cost"] for run in runs if run is not None and run["cost"] is not None]
    if unit is None:
        return "-"
    if len(costs) < len(runs):
        return "no plan" if len(runs) == 1 else f"no plan ({len(runs) - len(costs)} of {len(runs)})"
    return f"{statistics.fmean(costs) / unit:.4f}"


def _labelled(settings: Settings, name: str, which: str, seed: int) -> Figures | None:
    key = {"what": "labels", "problem": name, "labels": which, "seed": seed, "policy": _digest(settings, which, seed)}
    return settings.measurements.get(key, functools.partial(_measure_labels, settings, name, which, seed))


def _digest(settings: Settings, which: str, seed: int) -> str:
    if which in ("least", "messages", "none"):
        return ""
    return _policy(settings, seed, trained=which != "untrained").digest


def _measure_labels(settings: Settings, name: str, which: str, seed: int) -> Figures:
    compile_moves()
    problem = _read(settings, name)
    reduced = reduce_problem(problem)
    if which == "least":
        labels = least_labels(model_of(reduced))[None]
    elif which == "messages":
        labels = settle(reduced, ROUNDS).best[None]
    else:
        policy = _policy(settings, seed, trained=which == "trained")
        labels = policy.guide(problem, reduced, samples=SAMPLES, seed=seed).labels
    costs = [cost for label in labels if (cost := _cost(problem, reduced, label)) is not None]
    return {"cost": min(costs, default=None)}


def _cost(problem: ShardingProblem, reduced: Reduced, label: np.ndarray) -> int | None:
    """Returns the exact cost of labels; None if they do not fit."""
    plan = reduced.expand(label)
    fits = problem.peak(plan) <= problem.limit and max(costs.max(initial=0) for costs in problem.costs(plan)) < (
        PROHIBITIVE
    )
    return problem.total_cost(plan) if fits else None


# Searches


def _search_table(settings: Settings, problems: Sequence[str]) -> Table:
    lines, better, guides = [], [], _methods(settings, GUIDES)
    for name in problems:
        runs = {guide: _searches(settings, name, guide) for guide in guides}
        lines.append([name, f"{_seconds(settings, name):g}", *(_ratio(runs[g], _unit(settings, name)) for g in guides)])
        costs = [[run["cost"] for run in runs[guide] if run is not None] for guide in ("none", guides[-1])]
        if all(costs):
            better.append(statistics.fmean(costs[1]) / statistics.fmean(costs[0]) - 1)
    how = (
        "Cost over the best team's, or over the best of all searches of this table on random models; mean over the "
        "seeds. Guided searches start from the best of the policy's labels, and half of their trees grow from groups "
        "drawn by the probability with which the policy differs from the messages' plan."
    )
    headings = ["problem", "budget, s", *(GUIDES[guide] for guide in guides)]
    notes = ["one thread; seconds of processor time"]
    summary = _summary(GUIDES[guides[-1]], better)
    return settings.measurements.table("Searches", how, markdown(headings, lines), notes=notes, summary=summary)


def _summary(guide: str, differences: Sequence[float]) -> str:
    if not differences:
        return ""
    mean, median = (f"{100 * of(differences):+.2f}%" for of in (statistics.fmean, statistics.median))
    return (
        f"Costs of searches with the {guide} as guide differ by {mean} from those of equal time without, mean of "
        f"{len(differences)} problems; median {median}."
    )


def _searches(settings: Settings, name: str, guide: str) -> list[Figures | None]:
    return [_searched(settings, name, guide, seed) for seed in range(settings.seeds)]


def _unit(settings: Settings, name: str) -> float | None:
    """Returns the cost to which others are relative; None if no search of a random model has a plan."""
    if name in RESULTS:
        return RESULTS[name].best
    runs = [run for guide in _methods(settings, GUIDES) for run in _searches(settings, name, guide)]
    best = min((run["cost"] for run in runs if run is not None), default=None)
    return None if best is None else max(1, best)


def _seconds(settings: Settings, name: str) -> float:
    return settings.budget * (1.0 if name in RESULTS else 0.25)


def _searched(settings: Settings, name: str, guide: str, seed: int) -> Figures | None:
    seconds = _seconds(settings, name)
    key = {
        "what": "search", "problem": name, "guide": guide, "seed": seed, "seconds": seconds,
        "policy": _digest(settings, guide, seed),
    }  # fmt: skip
    return settings.measurements.get(key, functools.partial(_measure_search, settings, name, guide, seed, seconds))


def _measure_search(settings: Settings, name: str, which: str, seed: int, seconds: float) -> Figures:
    compile_moves()
    problem, taken = _read(settings, name), 0.0
    policy = None if which == "none" else _policy(settings, seed, trained=which == "trained")

    def guide(problem: ShardingProblem, reduced: Reduced) -> Guide:
        nonlocal taken
        assert policy is not None
        before = time.process_time()
        guide = policy.guide(problem, reduced, samples=SAMPLES, seed=seed)
        taken = time.process_time() - before
        return guide

    if policy is not None:
        reduced = reduce_problem(problem)
        if len(reduced.sizes):
            guide(problem, reduced)  # compiles
    plan, _ = search(
        problem, seconds, seed=seed, guide=None if policy is None else guide, workers=1, clock=time.process_time
    )
    return {"cost": plan.cost, "bound": plan.bound, "guide_seconds": taken}
