"""Agents GO and its predecessor GDP, and the methods that search with GO's trained policy.

- `AGENT`, `GDP`: the agents of the training loop.
- `solve` improves a list schedule with the policy, in rounds that each call the network once. With `finetune` the
  policy is first trained on the graph.
- `solve_portfolio` is `auto`, with a round of `solve` before its searches if the budget suffices.
- `coarse` clusters a large graph, so that the policy sees a few hundred clusters, about the size of its training
  graphs. A change of a cluster moves all its ops.

Only the observation is coarse. To evaluate a plan, each op receives the device of its cluster, in the order of the
whole graph. Clusters may therefore depend on one another in a cycle. They are sorted by the mean position of their ops,
and the policy does not see edges against this order.
"""

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np

from graphrl.agents.go import group_learner
from graphrl.agents.go import learner as changes_learner
from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.decode import DECODERS, NO_CHANGES, Decoder, Rank, Start, hint_instance
from graphrl.agents.go.groups import best_plans, shares
from graphrl.agents.go.groups import make_instance as make_groups
from graphrl.agents.go.learner import fine_tune
from graphrl.agents.go.network import GdpPolicy, Policy, ranked_changes, sample_choices
from graphrl.costs.host.lowering import costs_of_lanes
from graphrl.costs.problem import Problem
from graphrl.envs.compile.compiled_features import features_of_schedules
from graphrl.envs.compile.features import PlanFeatures
from graphrl.envs.compile.generator import Choices, CompileInstance, make_instance
from graphrl.errors import ProblemError
from graphrl.files import quote_path
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes, octave_sizes
from graphrl.plan import Plan
from graphrl.solvers import auto
from graphrl.solvers.anneal.clusters import Clusters, has_parts
from graphrl.solvers.base import Task
from graphrl.solvers.portfolio import Stage
from graphrl.solvers.solver import solver
from graphrl.training.agent import Agent
from graphrl.training.config import Schedule
from graphrl.training.data import DataConfig

TRAINING_KINDS = ("erdos-renyi", "barabasi-albert", "watts-strogatz", "layered")


def learner_of(settings: GoSettings) -> ModuleType:
    """Returns the module with the learner, and the batches, of the settings' decoder."""
    return group_learner if settings.decoder == "groups" else changes_learner


AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner_of(config).learner(config),
    batch=lambda config, *graphs: learner_of(config).batch(config, *graphs),
    methods=lambda _: ("go", "go+"),
    opponents=("list", "etf", "anneal-ops", "equal-stages", "stage-dp", "anneal-load", "auto"),
    data=DataConfig(
        # stochastic blocks are held out: they measure generalisation to unseen kinds of graphs
        train=tuple(f"{kind}:{ops}x30@10000" for ops in (200, 500) for kind in TRAINING_KINDS),
        validation=tuple(f"{kind}:500x4@5000" for kind in TRAINING_KINDS),
        test=("stochastic-block:1000x10", "layered:1000x10"),
        graphs=4,
        buckets=2,
    ),
    schedule=Schedule(steps=400, validate_every=50, checkpoint_every=25),
    calls=(costs_of_lanes, features_of_schedules),
)
GDP = dataclasses.replace(AGENT, policy=GdpPolicy)


class Coarse(NamedTuple):
    """A graph whose k ops are clusters of the n ops of another graph."""

    graph: ComputationGraph  # k ops, in a topological order
    cluster: np.ndarray  # [n] int64, cluster of each op


def coarse(graph: ComputationGraph, group: np.ndarray, place: np.ndarray) -> Coarse:
    """Merges clusters of ops into single ops, without the edges against their order (see the module).

    Args:
      group: `[n]`, ops with equal numbers form a cluster.
      place: `[n]`, the position of each op in an order.
    """
    a, (_, cluster) = graph.arrays, np.unique(group, return_inverse=True)
    mean = np.bincount(cluster, place) / np.bincount(cluster)
    rank = np.empty(len(mean), np.int64)
    rank[np.argsort(mean, kind="stable")] = np.arange(len(mean))
    cluster = rank[cluster]
    source, target = cluster[a.producer[a.use_tensor]], cluster[a.use_op]
    onward = source < target
    uses = np.unique(np.stack([source[onward], target[onward], a.use_tensor[onward]], 1), axis=0)
    pairs, pair = np.unique(uses[:, :2], axis=0, return_inverse=True)
    sizes = np.bincount(pair.ravel(), a.tensor_bytes[uses[:, 2]], len(pairs)).astype(np.int64)
    outputs: list[list[Tensor]] = [[] for _ in mean]
    inputs: list[list[str]] = [[] for _ in mean]
    for number, ((one, other), size) in enumerate(zip(pairs.tolist(), sizes.tolist(), strict=True)):
        outputs[one].append(Tensor(f"t{number}", size))
        inputs[other].append(f"t{number}")
    runtime = np.bincount(cluster, a.runtime).tolist()
    ops = (
        Op(f"c{i}", runtime=seconds, inputs=tuple(inputs[i]), outputs=tuple(outputs[i]))
        for i, seconds in enumerate(runtime)
    )
    return Coarse(ComputationGraph(graph.name, tuple(ops)), cluster)


def coarse_instance(
    coarse: Coarse, problem: Problem, placement: np.ndarray, settings: GoSettings
) -> tuple[CompileInstance, PlanFeatures]:
    """Creates the instance that starts from a placement `[n]` of the ops, for a policy that places clusters, and the
    features of its schedule. All ops of a cluster must be on one device.
    """
    k = len(coarse.graph.ops)
    devices, level = np.zeros(k, np.int64), np.full(k, settings.levels // 2)
    devices[coarse.cluster] = placement
    instance = make_instance(
        coarse.graph,
        problem,
        octave_sizes(coarse.graph),
        devices=max(problem.devices, *settings.devices),
        levels=settings.levels,
        baseline=1.0,
        start=Choices(devices, level),
        order=np.arange(k),
        reach=settings.reach,
    )
    return instance, Decoder(coarse.graph, problem, instance).plan_features(devices, level)


MAX_PLANS = 4096  # maximum number of plans per round, and of rounds
MAX_UPDATES = 1000
MAX_TRIES = 1_000_000
FIRST_CLUSTERS, FACTOR = 300, 4  # clusters in the first round, and the factor from one round to the next
CHUNK, MAX_VISITS = 128, 4_000_000  # maximum number of changes, and of visits to ops and uses, between checks of time
HINT_SHARE = 0.5  # share of the time for quick plans; rules that would take longer are skipped
ROUND_SECONDS = 2e-6  # seconds per op and use that a round takes on one core before its first plan
FAST_COMPILE_SECONDS = 30.0  # searches with less time compile the network with few optimisations
DRAW_SECONDS = 10.0  # searches with less time draw no groups: the decoder may take 6 s to compile
EVALUATION_SHARE = 0.3  # share of the time for evaluating the plans of a round
GO_SHARE, COMPILE_SECONDS = 0.1, 8.0  # "go+" runs GO if this share of the time covers this many seconds

# placement, priority and changes -> placement: see `Decoder.climb`
Climb = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@solver(
    "go",
    "the best of the plans that GO's policy draws and of a quick rule's",
    colocates=True,
    objectives=tuple(DECODERS),
    digest=Policy.digest_of,
)
def solve(
    task: Task,
    *,
    samples: int = 64,
    tries: int = 4096,
    rounds: int = 4,
    finetune: int = 0,
    alone: bool = False,
    checkpoint: str = "",
) -> Plan:
    """Improves a list schedule (under max_load a split) with plans that the policy draws.

    Rounds start while the budget lasts, if it suffices for at least one; each plan counts as an evaluation. A round
    draws plans with the policy, the most likely one first: of groups of ops that are placed one after another, or by a
    policy with the decoder "changes" around the best plan so far. Then single ops move, those that take longest (or the
    most likely change) first, repeatedly, and a move that makes the plan worse is undone. On large graphs the first
    rounds move clusters of ops: about 300 in the first round, then four times the number of the round before.

    Args:
      samples: number of plans per round.
      tries: number of changes of single ops, or clusters, per round.
      rounds: number of rounds; 0 returns the quick rule's plan.
      finetune: number of updates of the policy (by PPO, or with groups by REINFORCE) on the graph before the rounds,
        each on newly sampled plans; limited by the budget's evaluations, but not by its seconds.
      alone: True leaves out the list schedule: the first plan is the best that the policy draws, better or not; only
        for the decoder "groups".
      checkpoint: a checkpoint of `graphrl train go`, or a file of `Policy.save`; by default the shipped policy.

    Raises:
      GraphrlError: the checkpoint cannot be read.
      ProblemError: an option is out of range; the policy is for another objective, or has the other decoder; or the
        budget is too short for `alone`.
    """
    for name, value, least, most in (
        ("samples", samples, 1, MAX_PLANS), ("tries", tries, 0, MAX_TRIES), ("rounds", rounds, 0, MAX_PLANS),
        ("finetune", finetune, 0, MAX_UPDATES),
    ):  # fmt: skip
        if not least <= value <= most:
            raise ProblemError(f"{name} is {value}: must be from {least} to {most:,}")
    policy, decoder = _policy(task.problem, checkpoint), DECODERS[task.problem.objective]
    if alone and policy.config.decoder != "groups":
        raise ProblemError(
            "alone is true: must be false for a policy with the decoder 'changes', which starts from a plan"
        )
    seconds = math.inf if task.budget.seconds is None else task.budget.seconds
    if alone and seconds < DRAW_SECONDS:
        raise ProblemError(f"alone is true: needs {DRAW_SECONDS:g} s or more, since below no groups are drawn")
    with task.paused_clock():
        decoder.prepare()
    start = decoder.start(task.graph, task.problem, HINT_SHARE * seconds)
    if _round_seconds(task.graph) > seconds - task.seconds and not finetune:
        return task.answer(task.plan(*decoder.plan_of(task.graph, task.problem, start), evaluations=1))
    search = _Search(task, policy, start, alone=alone)
    if finetune:
        search.learn(finetune)
    for number in range(rounds):
        if task.is_spent(search.evaluations):
            break
        search.draw(samples, tries, number)
    return task.answer(search.plan())


@solver(
    "go+",
    "auto, with a round of go before its searches: from 80 s on, or with a budget in evaluations",
    colocates=True,
    objectives=tuple(DECODERS),
    digest=Policy.digest_of,
)
def solve_portfolio(task: Task, *, samples: int = 64, rounds: int = 1, checkpoint: str = "") -> Plan:
    """Runs GO for `rounds` rounds, then the stages of `auto` from its plans. GO runs only if a tenth of the time covers
    compiling the network, which may take 8 s: below 80 s this is `auto`. Args and errors: as `solve`.
    """
    _policy(task.problem, checkpoint)  # raises here, since a portfolio skips methods that cannot run
    with task.paused_clock():
        DECODERS[task.problem.objective].prepare()
    portfolio, budget = auto.initial_portfolio(task), task.budget
    go = Stage(solve, options=lambda _: {"samples": samples, "rounds": rounds, "checkpoint": checkpoint})
    plays = budget.seconds is None or GO_SHARE * budget.seconds >= COMPILE_SECONDS
    return portfolio.run([*[go] * plays, *auto.stages(task.graph, task.problem, budget)])


def _round_seconds(graph: ComputationGraph) -> float:
    """Estimates the seconds of a round, without clustering of large graphs and without compiling the network."""
    return ROUND_SECONDS * (len(graph.ops) + len(graph.arrays.use_op))


def _policy(problem: Problem, checkpoint: str) -> Policy:
    policy = Policy.load_or_default(problem, checkpoint)
    trained = policy.config.problem.objective
    if trained != problem.objective:
        raise ProblemError(f"{quote_path(checkpoint)} is a policy for {trained}: the problem's is {problem.objective}")
    return policy


class _Search:
    """State of `solve`: the best choices so far, and the instance that starts from them."""

    def __init__(self, task: Task, policy: Policy, start: Start, *, alone: bool = False) -> None:
        self._task, self._policy, self._n = task, policy, len(task.graph.ops)
        self._fast_compile = task.budget.seconds is not None and task.budget.seconds < FAST_COMPILE_SECONDS
        self._to = task.sizes or octave_sizes(task.graph)
        has_clusters = task.problem.objective == "makespan" and has_parts(task.graph)
        self._clusters = Clusters(task.graph, task.problem) if has_clusters else None
        self._rank: Rank = sys.maxsize, math.inf
        self._adopt(start)
        if alone:
            self._rank = sys.maxsize, math.inf
        self.evaluations = 1
        task.best = self.plan

    def _adopt(self, start: Start) -> None:
        """Makes a plan the best so far, and its order the one from which choices deviate."""
        graph, problem = self._task.graph, self._task.problem
        self._instance = hint_instance(graph, problem, self._to, self._policy.config, start)
        self._decoder = DECODERS[problem.objective](graph, problem, self._instance)
        self._best = self._of(self._instance.start)
        self._rank = self._decoder.rank(*self._best)

    def plan(self) -> Plan:
        """Returns the plan of the best choices so far."""
        return self._task.plan(*self._decoder.plan(*self._best), evaluations=self.evaluations)

    def draw(self, samples: int, tries: int, number: int) -> None:
        """Runs a round; `number` seeds its random numbers. Sampled plans are evaluated for a share of the time even if
        the budget is spent, since compilation in the first round may have taken all seconds.
        """
        count, seconds = FIRST_CLUSTERS * FACTOR**number, self._task.budget.seconds
        if self._policy.config.decoder == "groups":
            if seconds is None or seconds >= DRAW_SECONDS:
                self._draw_groups(samples, number)
            group = self._groups(count)
            changes = self._all_changes(group)
        else:
            group = self._groups(count)
            changes = self._draw_changes(samples, number, group)
        self._climb(changes, tries, group)
        self._begin_at_best()

    def _draw_changes(self, samples: int, number: int, group: np.ndarray | None) -> np.ndarray:
        """Draws plans around the best choices. Returns the changes of placement, `[k, 2]`, the likeliest first."""
        if group is None:
            instance, cluster = self._instance, np.arange(self._n)
            logits = self._logits(instance, self._decoder.plan_features(*self._best))
        else:
            assert isinstance(self._decoder, Decoder)
            view = coarse(self._task.graph, group, self._decoder.run(*self._best)[1])
            instance, features = coarse_instance(view, self._task.problem, self._best[0], self._policy.config)
            logits, cluster = {"placement": self._logits(instance, features)["placement"]}, view.cluster
        rng = np.random.default_rng([self._task.seed, number])
        plans = sample_choices(logits, instance.start, samples, rng)
        seconds = self._task.budget.seconds
        end = math.inf if seconds is None else time.perf_counter() + EVALUATION_SHARE * seconds
        for placement, priority in zip(plans.placement, plans.priority, strict=True):
            if self._most(1) < 1 or time.perf_counter() >= end:
                break
            self._consider(Choices(placement[cluster], priority[cluster] if group is None else self._best[1]))
        if "placement" not in logits:
            return NO_CHANGES
        changes = ranked_changes(logits["placement"], np.asarray(instance.start.placement))
        changes[:, 0] = np.unique(cluster, return_index=True)[1][changes[:, 0]]
        return changes

    def _draw_groups(self, samples: int, number: int) -> None:
        """Draws plans by the sequential decoder, and continues from the best one if it is better than all before. The
        number of groups grows from round to round.
        """
        config, task, best = self._policy.config, self._task, None
        assert isinstance(self._decoder, Decoder)
        for index, (count, share) in enumerate(shares(self._most(samples), config.group_counts).items()):
            if index and task.is_spent(self.evaluations):
                break
            key = jax.random.fold_in(jax.random.key(task.seed), number * len(config.group_counts) + index)
            instance = make_groups(task.graph, task.problem, self._to, count * FACTOR**number)
            plans = best_plans(config.network, self._policy.params, jax.random.split(key, share), instance)
            for placement, place in zip(np.asarray(plans.placement), np.asarray(plans.rank), strict=True):
                self.evaluations += 1
                rank, start = self._decoder.ranked(placement[: self._n].astype(np.int64), place[: self._n], self._rank)
                if rank < self._rank:
                    self._rank, best = rank, start
                    task.report(self.evaluations, rank[1])
        if best is not None:
            self._adopt(best)

    def _all_changes(self, group: np.ndarray | None) -> np.ndarray:
        """Lists all moves of a group (by default: of an op) to another device, `[k, 2]`, longest first."""
        devices, runtime = self._task.problem.devices, self._task.graph.arrays.runtime
        names = np.arange(self._n) if group is None else group
        first = np.unique(names, return_index=True)[1]
        seconds = np.bincount(names, runtime, self._n)[names[first]]
        first = first[np.argsort(-seconds, kind="stable")]
        changes = np.stack([np.repeat(first, devices), np.tile(np.arange(devices), len(first))], 1)
        return changes[changes[:, 1] != self._best[0][changes[:, 0]]]

    def _logits(self, instance: CompileInstance, features: PlanFeatures) -> dict[str, np.ndarray]:
        return self._policy.logits(instance, features, fast_compile=self._fast_compile)

    def _groups(self, count: int) -> np.ndarray | None:
        """Computes about `count` clusters for the best plan; None if that would hardly reduce the number of ops."""
        if self._clusters is None or 2 * count > self._n:
            return None
        return self._clusters.of(self._best[0], count)

    def _climb(self, changes: np.ndarray, tries: int, group: np.ndarray | None) -> None:
        """Applies changes one after the other while there is time, and undoes those that make the plan worse; repeats
        all of them as long as the plan improves. Ops of one group, if any, move together.
        """
        climb = self._decoder.climb
        if group is not None:
            assert isinstance(self._decoder, Decoder)
            climb = functools.partial(self._decoder.climb, group=group)
        while len(changes) and tries > 0:
            before = self._rank
            self._pass(changes[:tries], climb)
            tries -= len(changes)
            if self._rank == before or self._task.is_spent(self.evaluations):
                return

    def _pass(self, changes: np.ndarray, climb: Climb) -> None:
        step = max(1, min(CHUNK, MAX_VISITS // self._decoder.ops_per_change))
        for begin in range(0, len(changes), step):
            chunk = changes[begin : begin + self._most(step)]
            if self._task.is_spent(self.evaluations) or not len(chunk):
                return
            self.evaluations += len(chunk)
            candidate = climb(*self._best, chunk), self._best[1]
            rank = self._decoder.rank(*candidate, self._rank)
            if rank <= self._rank:
                self._rank, self._best = rank, candidate
                self._task.report(self.evaluations, rank[1])

    def _most(self, count: int) -> int:
        """Returns `count`, or the number of evaluations left in the budget if that is smaller."""
        most = self._task.budget.evaluations
        return count if most is None else min(count, most - self.evaluations)

    def learn(self, updates: int) -> None:
        """Trains the policy on the graph, by PPO on plans around the best choices or with groups by REINFORCE; adopts
        the best plan on the way if it is better.
        """
        if self._policy.config.decoder == "groups":
            self._learn_groups(updates)
            return
        settings = dataclasses.replace(self._policy.config, transfers=(self._task.problem.transfer,))
        if settings.learning != "ppo":  # the policy's own rate is for imitation
            rate = GoSettings().ppo.learning_rate
            settings = dataclasses.replace(settings, ppo=dataclasses.replace(settings.ppo, learning_rate=rate))
        if (most := self._task.budget.evaluations) is not None:
            updates = min(updates, (most - self.evaluations) // settings.ppo.environments)
        if updates < 1:
            return
        key = jax.random.fold_in(jax.random.key(self._task.seed), MAX_PLANS)  # differs from those of rounds
        params, best = fine_tune(settings, self._policy.params, self._instance, key, updates)
        self._policy = dataclasses.replace(self._policy, params=params)
        self.evaluations += updates * settings.ppo.environments - 1
        self._consider(best)
        self._begin_at_best()

    def _learn_groups(self, updates: int) -> None:
        """As `learn`, for the sequential decoder: each update draws plans with one of the numbers of groups."""
        config, task, decoder = self._policy.config, self._task, self._decoder
        if (most := task.budget.evaluations) is not None:
            updates = min(updates, (most - self.evaluations) // config.ppo.environments)
        if updates < 1:
            return
        assert isinstance(decoder, Decoder)
        to, seconds = common_sizes([task.graph]), decoder.rank(*self._best)[1]  # the unit of rewards
        instances = [make_groups(task.graph, task.problem, to, count, seconds) for count in config.group_counts]
        key = jax.random.fold_in(jax.random.key(task.seed), MAX_PLANS)  # differs from those of rounds
        params, placement, place = group_learner.fine_tune(config, self._policy.params, instances, key, updates)
        self._policy = dataclasses.replace(self._policy, params=params)
        self.evaluations += updates * config.ppo.environments
        rank, start = decoder.ranked(placement[: self._n].astype(np.int64), place[: self._n], self._rank)
        if rank < self._rank:
            self._adopt(start)
            task.report(self.evaluations, rank[1])

    def _consider(self, choices: Choices) -> None:
        self.evaluations += 1
        candidate = self._of(choices)
        rank = self._decoder.rank(*candidate, self._rank)
        if rank < self._rank:
            self._rank, self._best = rank, candidate
            self._task.report(self.evaluations, rank[1])

    def _begin_at_best(self) -> None:
        to = self._instance.order.shape[0] - self._n
        start = Choices(*(np.pad(choice, (0, to)).astype(np.int32) for choice in self._best))
        self._instance = dataclasses.replace(self._instance, start=start)

    def _of(self, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
        """Returns the devices and priorities of the real ops, `[n]` int64 each, with groups on one device."""
        placement, priority = (np.asarray(choice, np.int64)[: self._n] for choice in choices[:2])
        return self._decoder.colocated(placement), priority
