"""Ablations of GO's network: policies without one part, trained alike, and tested on unseen graphs.

All imitate the gains of single changes of a plan, on the same graphs in the same order, as `graphrl train go --config
scripts/go-changes.toml` does. A variant that does not decide orders has no targets for them.
Transfers are `rendezvous` alone: under `link` single changes of these hints gain next to nothing.

The untrained policy separates the part of a gain that is learned from the part due to drawing 64 plans and keeping the
best. The perceptron starts with smaller logits than the others, as in its shipped form.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.agents.go.agent import TRAINING_KINDS
from graphrl.agents.go.config import GDP_NETWORK, GoConfig, GoSettings
from graphrl.agents.go.learner import Batch, batch, problem_of
from graphrl.compare.report import markdown
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from reproduce.go import unseen
from reproduce.go.methods import Entry, imitated, search
from reproduce.go.settings import Settings, difference_interval
from reproduce.measurements import Figures, Key
from reproduce.results import Table

OPS, TRAINED, TESTED = 200, 32, 8  # ops of a random graph; graphs of each kind to learn from, to test on
HELD_OUT = "stochastic-block"  # four times as many graphs as of each seen kind
STEPS, GRAPHS = 400, 4  # of training; graphs of each step
RATE = 3e-3  # as in scripts/go-changes.toml
FEW_STEPS = 2
MOVES = 256
DEVICES = 8  # of programs
SECONDS = 120.0  # more than a round takes, with compiling
WHOLE = GoSettings().network
SMALL = dataclasses.replace(  # the perceptron of scripts/go-changes.toml
    WHOLE, tasks=("placement",), rounds=0, layers=0, superposition="none", coupling="none", spread=0.1
)


class Variant(NamedTuple):
    """A variant of GO's network, and whether it is trained."""

    network: GoConfig
    learns: bool = True


def _with(**parts: Any) -> Variant:
    return Variant(dataclasses.replace(WHOLE, **parts))


VARIANTS = {
    "whole": _with(),
    "not trained": Variant(WHOLE, learns=False),
    "no superposition": _with(superposition="none"),
    "superposition of each op": _with(superposition="ops"),
    "no coupling of tasks": _with(coupling="none"),
    "no attention along the ops": _with(layers=0),
    "no memory of the segment before": _with(cached=False),
    "no GraphSAGE": _with(rounds=0),
    "neighbours together": _with(neighbours="together"),
    "two iterations": _with(iterations=2),
    "no votes": _with(votes=False),
    "no schedule": _with(plan_features=False),
    "inputs and pooling as published": _with(votes=False, plan_features=False, neighbours="together"),
    "placement alone": _with(tasks=("placement",)),
    "GDP": Variant(GDP_NETWORK),
    "the shipped perceptron's network": Variant(SMALL),
}
QUICK = ("the shipped perceptron's network",)
REFERENCES = ("not trained", "whole")
PLAYS = {"drawn": "go:rounds=1,tries=0", "moved": f"go:rounds=1,tries={MOVES}"}


class Case(NamedTuple):
    """A test problem, padded to the sizes if there are any."""

    name: str
    graph: ComputationGraph
    problem: Problem
    sizes: Sizes | None = None


class Gains(NamedTuple):
    """Gains of a variant over the hint, percent: means over its trainings, for each graph."""

    by_kind: dict[str, dict[str, np.ndarray]]  # by kind of graphs, then by play: [graphs]
    trainings: list[Figures]

    @property
    def drawn(self) -> np.ndarray:
        """Gains of the best plan drawn from the policy, on all random graphs."""
        return np.concatenate([self.by_kind[kind]["drawn"] for kind in ("seen kinds", "held-out kind")])


def ablations(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each variant."""
    cases = _cases(settings)
    names = QUICK if settings.quick else tuple(VARIANTS)
    gains = {name: _gains(settings, name, cases) for name in names}
    columns = [f"{kind}: {play}" for kind in cases for play in PLAYS]
    headings = ("network", "parameters", "training, s", *columns, *(f"drawn, above {name}" for name in REFERENCES))
    counts = ", ".join(f"{len(some)} graphs of {kind}" for kind, some in cases.items())
    how = (
        f"Percent below the hint, `rendezvous`: the best of 64 plans of one call of the network, and after "
        f"{MOVES} changes of single ops (of clusters for programs), the likeliest first. Means over {counts} and "
        f"{settings.seeds} trainings, each of {_steps(settings, names[0])} steps of {GRAPHS} random graphs of {OPS} "
        f"ops, all at a rate of {RATE:g}; differences on the random graphs with 95% intervals from resampled graphs. "
        "Seconds are those of the shortest training."
    )
    means = (f"{name} {gains[name].drawn.mean():.2f}" for name in (*REFERENCES[::-1], *names[:1]) if name in gains)
    summary = f"Percent below the hint on random graphs by drawing: {', '.join(dict.fromkeys(means))}."
    table = markdown(headings, [_line(name, gains) for name in names])
    programs = ", ".join(case.name for case in cases["programs"])
    notes = [f"programs, {DEVICES} devices: {programs}"]
    yield settings.measurements.table("Parts of GO", how, table, notes=notes, summary=summary)


def _steps(settings: Settings, name: str) -> int:
    """Returns the number of training steps."""
    if not VARIANTS[name].learns:
        return 0
    return FEW_STEPS if settings.quick else STEPS


def _cases(settings: Settings) -> dict[str, list[Case]]:
    """Returns test problems by kind of graphs; none of them is trained on."""
    count = 1 if settings.quick else TESTED
    names = unseen.programs()[:1] if settings.quick else unseen.programs(unseen.LEAST)
    task = unseen.of_programs(DEVICES, "rendezvous")
    return {
        "seen kinds": _random(TRAINING_KINDS, count),
        "held-out kind": _random((HELD_OUT,), len(TRAINING_KINDS) * count),
        "programs": [Case(name, zoo.load(name).graph, task) for name in names],
    }


def _random(kinds: Sequence[str], count: int) -> list[Case]:
    """Returns random test problems, padded to common sizes, so that a network is compiled once."""
    graphs = load_graphs([f"{kind}:{OPS}x{count}@5000" for kind in kinds])
    to = common_sizes(graphs)
    return [Case(graph.name, graph, problem_of(GoSettings(), graph, "rendezvous"), to) for graph in graphs]


def _gains(settings: Settings, name: str, cases: Mapping[str, Sequence[Case]]) -> Gains:
    trained = [_trained(settings, name, seed) for seed in range(settings.seeds)]
    by_kind = {}
    for kind, some in cases.items():
        starts = _makespans(settings, {"network": "the hint"}, some, "go:rounds=0", [None])
        key = {"network": name, "trained": _steps(settings, name)}
        by_kind[kind] = {
            play: 100 * (1 - _makespans(settings, key, some, method, [file for file, _ in trained]) / starts)
            for play, method in PLAYS.items()
        }
    return Gains(by_kind, [figures for _, figures in trained if figures])


def _makespans(
    settings: Settings, network: Key, cases: Sequence[Case], method: str, policies: Sequence[Path | None]
) -> np.ndarray:
    """Returns the mean makespan of each case over the policies, one policy per seed: `[cases]`."""

    def run(case: Case, seed: int) -> Figures:
        full = f"{method},checkpoint={policies[seed]}" if policies[seed] else method
        return search(case.graph, case.problem, Entry(full, SECONDS, method), seed, case.sizes)

    measurements = [
        ({**network, "method": method, "graph": case.name, "seed": seed}, functools.partial(run, case, seed))
        for case in cases
        for seed in range(len(policies))
    ]
    makespans = [one["makespan"] if one else np.nan for one in settings.measurements.get_all(measurements)]
    return np.reshape(makespans, (len(cases), len(policies))).mean(1)


def _trained(settings: Settings, name: str, seed: int) -> tuple[Path, Figures | None]:
    """Trains a policy unless it exists; returns its file, and its parameters and training time, None on failure."""
    steps = _steps(settings, name)
    file = settings.out / "policies" / f"{''.join(filter(str.isalnum, name))}-{steps}-{seed}.msgpack"

    def train() -> Figures:
        default = GoSettings()
        ppo, network = dataclasses.replace(default.ppo, learning_rate=RATE), VARIANTS[name].network
        config = dataclasses.replace(default, learning="imitation", transfers=("rendezvous",), network=network, ppo=ppo)
        batches = list(_batches(config, steps, seed))
        started = time.perf_counter()
        policy = imitated(config, batches, seed, "random graphs")
        file.parent.mkdir(parents=True, exist_ok=True)
        policy.save(file)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(policy.params))
        return {"parameters": parameters, "seconds": time.perf_counter() - started}

    return file, settings.measurements.get({"network": name, "trained": steps, "seed": seed}, train)


def _batches(config: GoSettings, steps: int, seed: int) -> Iterator[Batch]:
    """Yields imitation targets of random graphs, reshuffled every epoch."""
    # targets depend on tasks only, not on the rest of the network: variants with the same tasks share them
    teacher = dataclasses.replace(config, network=GoConfig(tasks=config.network.tasks))
    graphs, rng, rest = _training_graphs(), np.random.default_rng(seed), list[int]()
    for _ in range(steps):
        rest = rest or rng.permutation(len(graphs)).tolist()
        chosen, rest = rest[:GRAPHS], rest[GRAPHS:]
        yield batch(teacher, [graphs[each] for each in chosen], common_sizes(graphs))


@functools.lru_cache(maxsize=1)
def _training_graphs() -> list[ComputationGraph]:
    """Loads the training graphs."""
    return load_graphs([f"{kind}:{OPS}x{TRAINED}@10000" for kind in TRAINING_KINDS])


def _line(name: str, gains: Mapping[str, Gains]) -> list[str]:
    mine = gains[name]
    seconds = [one["seconds"] for one in mine.trainings]
    head = [name, f"{mine.trainings[0]['parameters']:,}", f"{min(seconds):.0f}"] if seconds else [name, "-", "-"]
    means = [f"{values.mean():.2f}" for plays in mine.by_kind.values() for values in plays.values()]
    means += [difference_interval(mine.drawn - gains[other].drawn) if other in gains else "-" for other in REFERENCES]
    return head + ["-" if "nan" in mean else mean for mean in means]
