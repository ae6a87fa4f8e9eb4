"""Gains of single changes of a plan, and the features that predict them: one op of the hint moves to another device.

Gains are by exact costs. A least-squares fit on random rectified features learns them in seconds. Its inputs are the
ops and the placement of their neighbours (`placement`), the simulated schedule (`schedule`), or both. Its targets are
gains, clipped to 0 below and `LARGEST` above.

Each fit then draws plans with a few changes, with more probability for larger predicted gains, and the best plan
counts. The same number of plans is drawn by GO's shipped policy, by chance, and by the gains themselves. The last
bounds any policy of single changes. The sharpness of each is chosen on a separate set of graphs.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import jax
import numpy as np

from graphrl.agents.go.agent import TRAINING_KINDS
from graphrl.agents.go.config import SENDS, GoSettings
from graphrl.agents.go.decode import hint_instance
from graphrl.agents.go.learner import NATS_PER_PERCENT, problem_of
from graphrl.agents.go.network import Policy, networks
from graphrl.compare.report import markdown
from graphrl.costs.problem import Problem
from graphrl.envs.compile.features import schedule_features_on_host
from graphrl.envs.compile.generator import CompileInstance
from graphrl.envs.compile.observation import observe
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.features import node_features, type_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.solvers.transfer_rules.plans import op_plan, set_plan
from graphrl.solvers.transfer_rules.search import makespan, prepare
from graphrl.solvers.transfer_rules.solver import quick_plan
from reproduce.go.settings import Settings, difference_interval
from reproduce.results import Table, here

OPS, TRAINED, VALIDATED, TESTED = 200, 16, 4, 8  # ops of a graph; graphs of each kind to train, validate, test on
HELD_OUT = "stochastic-block"  # four times as many graphs as of each seen kind
LARGEST = 2.0  # percent of the makespan: larger gains count as this
WIDTH, RIDGE = 400, 30.0  # of the fit
PLANS, CHANGES = 64, (1, 4)
SHARPNESS = (0.02, 0.05, 0.1, 0.2, 0.4)  # percent of gain that makes a move e times as likely
WINDOWS = (4, 16, 64)  # divisors of the order's length: widths of the windows of near ops
HEADINGS = ("drawn by", "changes", "seen kinds", "held-out kind", "above chance: seen", "held out")


class Case:
    """The hint of a graph with n ops on d devices, and its exact costs. All times are in seconds."""

    def __init__(self, graph: ComputationGraph, problem: Problem) -> None:
        placement, nodes = quick_plan(graph, problem)
        self.graph, self.problem, self.devices, self.ops = graph, problem, problem.devices, len(graph.ops)
        self.placement = np.asarray(placement, np.int64)  # [n]
        self.order = nodes[nodes < self.ops].astype(np.int64)  # [n]
        self._plan = op_plan(graph, problem)
        self.makespan = self.seconds(self.placement)
        self.end = self._plan.ops["end"][:-1].copy()  # [n]

    def seconds(self, placement: np.ndarray) -> float:
        """Returns the makespan of another placement `[n]` in the same order."""
        set_plan(self._plan, placement, self.order)
        return makespan(self._plan)

    @property
    def moves(self) -> np.ndarray:
        """Mask of the devices other than an op's own: `[n, d]` bool."""
        return np.arange(self.devices) != self.placement[:, None]


View = Callable[[Case], np.ndarray]  # features of an op and a device that it could move to: [n, d, k]
Scores = Callable[[Case], np.ndarray]  # predicted gain of each move of a case, percent: [n, d]


def changes(settings: Settings) -> Iterator[Table]:
    """Yields the table of the best drawn plans, with a row for each source of scores and number of changes."""
    prepare()
    training = _cases(TRAINING_KINDS, 10_000, 1 if settings.quick else TRAINED)
    validation = _cases(TRAINING_KINDS, 7_000, 1 if settings.quick else VALIDATED)
    count = 1 if settings.quick else TESTED
    sets = {
        "seen": _cases(TRAINING_KINDS, 5_000, count),
        "held out": _cases((HELD_OUT,), 5_000, len(TRAINING_KINDS) * count),
    }
    scores: dict[str, Scores] = {"chance": lambda case: np.zeros((case.ops, case.devices))}
    views: dict[str, View] = {"placement": placement_features, "schedule": schedule_features}
    views["both"] = lambda case: np.concatenate([placement_features(case), schedule_features(case)], -1)
    scores |= {name: fit(view, training) for name, view in views.items()}
    policy = Policy.load_shipped(["makespan-changes"], "single changes")
    scores["policy"] = expected(policy, common_sizes([case.graph for case in chain(validation, *sets.values())]))
    scores = {name: functools.cache(score) for name, score in {**scores, "the gains": gains}.items()}
    lines = []
    for count in CHANGES:
        by_chance = dict[str, np.ndarray]()
        for name, score in scores.items():
            sharpness = max(SHARPNESS, key=lambda each: _best(validation, score, each, count, 1).mean())
            best = {which: _best(some, score, sharpness, count, settings.seeds) for which, some in sets.items()}
            by_chance = by_chance or best
            differences = [difference_interval(best[which] - by_chance[which]) for which in sets]
            lines.append([name, str(count), *(f"{best[which].mean():.2f}" for which in sets), *differences])
    how = (
        f"Percent below the hint, `rendezvous`, {OPS} ops, 2 to 8 devices: the best of {PLANS} plans, means over "
        f"{len(sets['seen'])} and {len(sets['held out'])} graphs and the seeds; differences with 95% intervals from "
        "resampled graphs."
    )
    ours, exact = (next(line[2] for line in lines if line[0] == name) for name in ("policy", "the gains"))
    summary = f"One change by GO's policy gains {ours}% on kinds of its training, by the exact gains {exact}%."
    yield Table("Single changes of a plan", here(), (how, markdown(HEADINGS, lines)), summary)


def gains(case: Case) -> np.ndarray:
    """Returns the gain of each op on each device, percent of the makespan: `[n, d]`, from 0 to `LARGEST`."""
    gain, placement = np.zeros((case.ops, case.devices)), case.placement.copy()
    for op, device in np.argwhere(case.moves).tolist():
        placement[op] = device
        gain[op, device] = 100 * (1 - case.seconds(placement) / case.makespan)
        placement[op] = case.placement[op]
    return np.clip(gain, 0.0, LARGEST)


def expected(policy: Policy, to: Sizes) -> Scores:
    """Returns the gains that a policy implies, as percent: log-odds of moving over staying. Pads graphs to `to`."""
    config = policy.config
    network = networks(dataclasses.replace(config.network, changes=0.0)).policy

    @jax.jit
    def logits(instance: CompileInstance) -> jax.Array:
        observation = observe(instance, instance.start, config.network.tasks, sends=SENDS)
        return network.apply(policy.params, observation)["placement"]

    def scores(case: Case) -> np.ndarray:
        instance = hint_instance(case.graph, case.problem, to, config)
        rows = np.asarray(logits(instance), np.float64)[: case.ops, : case.devices]
        return (rows - rows[np.arange(case.ops), case.placement][:, None]) / NATS_PER_PERCENT

    return scores


def fit(view: View, cases: Sequence[Case]) -> Scores:
    """Fits gains by ridge regression on a view of some cases; returns a function that predicts gains of any case."""
    rows = np.concatenate([view(case)[case.moves] for case in cases])
    mean, deviation = rows.mean(0), rows.std(0) + 1e-6
    rng = np.random.default_rng(0)
    weights, shift = rng.normal(size=(rows.shape[1], WIDTH)) / rows.shape[1] ** 0.5, rng.normal(size=WIDTH)

    def rectified(rows: np.ndarray) -> np.ndarray:
        plain = np.clip((rows - mean) / deviation, -5, 5)
        return np.column_stack([plain, np.maximum(plain @ weights + shift, 0), np.ones(len(plain))])

    inputs = rectified(rows)
    targets = np.concatenate([gains(case)[case.moves] for case in cases])
    solution = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ targets)

    def scores(case: Case) -> np.ndarray:
        expected = np.zeros((case.ops, case.devices))
        expected[case.moves] = rectified(view(case)[case.moves]) @ solution
        return expected

    return scores


def _best(cases: Sequence[Case], score: Scores, sharpness: float, count: int, seeds: int) -> np.ndarray:
    """Returns the gain of the best drawn plan of each case over the hint, percent, mean over the seeds: `[cases]`."""
    best = []
    for case in cases:
        logits = np.where(case.moves, score(case) / sharpness, -np.inf).ravel()
        best.append(np.mean([_drawn(case, logits, count, seed) for seed in range(seeds)]))
    return np.array(best)


def _drawn(case: Case, logits: np.ndarray, count: int, seed: int) -> float:
    rng, best = np.random.default_rng([seed, case.ops, count]), 0.0
    for _ in range(PLANS):
        moves = np.argpartition(-(logits + rng.gumbel(size=logits.shape)), count)[:count]
        placement = case.placement.copy()
        placement[moves // case.devices] = moves % case.devices
        best = max(best, 100 * (1 - case.seconds(placement) / case.makespan))
    return best


def _cases(kinds: Sequence[str], first: int, count: int) -> list[Case]:
    graphs = load_graphs([f"{kind}:{OPS}x{count}@{first}" for kind in kinds])
    return [Case(graph, problem_of(GoSettings(), graph, "rendezvous")) for graph in graphs]


def placement_features(case: Case) -> np.ndarray:
    """Returns features of the ops and of the placement around them."""
    graph, n, d = case.graph, case.ops, case.devices
    own = np.eye(d)[case.placement]
    source, target = graph.arrays.dependencies()
    before, after = np.zeros((2, n, d))
    np.add.at(before, target, own[source])
    np.add.at(after, source, own[target])
    load = own.T @ graph.arrays.runtime
    pairs = [_shares(before), _shares(after), np.log1p(before), np.log1p(after)]
    pairs += [_near(case, max(1, n // parts // 2)) for parts in WINDOWS]
    pairs.append(np.tile(load / load.mean(), (n, 1)))
    place = np.empty(n)
    place[case.order] = np.arange(n) / n
    ops = np.concatenate([node_features(graph), type_features(graph), place[:, None]], 1)
    ops = (ops - ops.mean(0)) / (ops.std(0) + 1e-6)
    return _joined(case, np.column_stack([ops, np.full(n, d / 8)]), np.stack(pairs, -1))


def schedule_features(case: Case) -> np.ndarray:
    """Returns features of the simulated schedule, as `Compile-v0` observes it."""
    place = np.empty(case.ops, np.int64)
    place[case.order] = np.arange(case.ops)
    features = schedule_features_on_host(case.graph, case.placement, place, case.end, case.devices, case.ops)
    return _joined(case, np.asarray(features.ops, float), np.asarray(features.devices, float))


def _joined(case: Case, ops: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Joins features of ops `[n, k]`, of pairs `[n, d, l]`, and each pair's difference from the op's own device."""
    own = pairs[np.arange(case.ops), case.placement][:, None]
    return np.concatenate([np.repeat(ops[:, None], case.devices, 1), pairs, pairs - own], -1)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def _near(case: Case, half: int) -> np.ndarray:
    """Returns shares of devices among the ops within `half` positions of each op in the order."""
    n, place = case.ops, np.empty(case.ops, np.int64)
    place[case.order] = np.arange(n)
    until = np.pad(np.cumsum(np.eye(case.devices)[case.placement[case.order]], 0), ((1, 0), (0, 0)))
    return _shares(until[np.minimum(place + half + 1, n)] - until[np.maximum(place - half, 0)])
