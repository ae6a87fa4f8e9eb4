"""REGAL's methods under several budgets, and its policy trained by evolution.

- limits: quality against the evaluation limit, with the policy of one limit (ICLR paper, figure 3);
- timed: methods at equal time, to test the combination of proposals and known solutions;
- overhead: wall clock of REGAL and of standard BRKGA, and the network's part. Both have run on graphs of the same
  padded size before, and remaining compilation is left out;
- evolved: evolution in place of REINFORCE, from scratch, on a few graphs, at equal evaluations. In every step both play
  the same number of proposals for each training graph, and standard BRKGA once. REINFORCE samples all of them from its
  policy, evolution one from the policy of each individual, with the same random numbers.
"""

import functools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance, make_instances, tiny_instance
from graphrl.agents.regal.learner import learner
from graphrl.agents.regal.network import Policy
from graphrl.agents.regal.proposers import proposer
from graphrl.compare.pictures import quality_figure
from graphrl.compare.report import problem_line
from graphrl.compare.runs import Row
from graphrl.envs.proposal import ProposalEnv
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes
from graphrl.learning.evolution import EvolutionSettings, Population, next_generation
from graphrl.learning.learner import on_mesh
from graphrl.mesh import make_mesh
from graphrl.plan.plot import write_figure
from graphrl.solvers.base import Budget
from reproduce.contest import Entrant
from reproduce.measurements import median_seconds
from reproduce.policies import cached_policy
from reproduce.regal.settings import BASELINE, LEARNED, TASKS, TIMED, Settings
from reproduce.regal.tables import HEADINGS, Score, cells, compare_gaps, scores
from reproduce.results import Table, bullets, markdown, of_rows

LIMITED = ("brkga", "gas", "idrs", "regal")
METHODS = (BASELINE, "regal", "gas")
FIGURES = ("improvement", "gap")  # columns of a budget
GOAL = 0.15  # of BRKGA's time
_LONG = 3600.0  # seconds: never reached; with a time limit `graphrl.compare` compiles before the clock starts
GRAPHS, QUICK_GRAPHS = "regal-like:30x8@10000", "regal-like:12x2@10000"
STEPS = 80
PROPOSALS = 16  # proposals for a graph in a step: REINFORCE's samples, evolution's individuals
EVALUATIONS = 160  # of each run of BRKGA in training
EVOLUTION = EvolutionSettings(strength=0.3)


def limits(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each method."""
    sweep = _sweep(settings, LIMITED, {f"{limit:,} evaluations": Budget(limit) for limit in settings.limits})
    by_limit = dict(zip(settings.limits, sweep.by_budget.values(), strict=True))
    yield _table(settings, "Evaluation limits", sweep, _limit_notes(by_limit, settings.evaluations), "improvement")


def timed(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each method; writes the picture of quality against time."""
    sweep = _sweep(settings, TIMED, {f"{seconds:g} s": Budget(None, seconds) for seconds in settings.times})
    write_figure(quality_figure(sweep.rows, sweep.others), settings.out / f"{settings.task}-time.png")
    notes = (
        f"at {name} {line}" for name, by_label in sweep.by_budget.items() for line in compare_gaps(by_label, "regal+")
    )
    yield _table(settings, f"{TASKS[settings.task].title}, equal time", sweep, notes, "gap")


def overhead(settings: Settings) -> Iterator[Table]:
    """Yields the table of the seconds of each method at equal evaluations, and its time over BRKGA's."""
    task, budget = settings.task, Budget(settings.evaluations, _LONG)
    labels = dict.fromkeys([BASELINE, *settings.among(METHODS)])
    contest = settings.on_task(task, [settings.entrant(task, label, budget) for label in labels])
    seconds = {label: _seconds(rows) for label, rows in contest.by_label.items()}
    lines, notes = [], []
    for label, own in seconds.items():
        both = [(own[key], base) for key, base in seconds[BASELINE].items() if key in own]
        ratio = sum(ours for ours, _ in both) / sum(base for _, base in both) - 1
        parts = ["-", "-"]
        if label in LEARNED:
            file = settings.trained(task, LEARNED[label][1])[0]
            policy = Policy.load(file)
            proposing = statistics.mean(_proposing(policy, graph) for graph in settings.unseen(task))
            parts = [f"{1000 * part:.1f}" for part in (median_seconds(functools.partial(Policy.load, file)), proposing)]
        mean = statistics.mean(own.values())
        lines.append([label, f"{mean:.3f}", f"{100 * ratio:+.1f}%", *parts])
        if label == "regal":
            verdict = "met" if ratio < GOAL else "missed"
            notes.append(f"{label} takes {100 * ratio:.1f}% more time (goal: under {100 * GOAL:.0f}%: {verdict})")
    headings = ["method", "mean seconds", "over BRKGA's", "ms to read the policy", "ms to propose"]
    how = (
        f"{len(settings.unseen(task))} unseen graphs, {settings.evaluations:,} evaluations. The ratio is of sums over "
        "graphs and seeds."
    )
    title = f"Time of the proposals: {problem_line(TASKS[task].problem)}"
    times = " and ".join(f"`{line[0]}` {line[2]}" for line in lines[1:])
    summary = f"Time at equal evaluations over that of BRKGA: {times}."
    yield Table(title, of_rows(contest.rows), (how, markdown(headings, lines), bullets(notes)), summary)


def evolved(settings: Settings) -> Iterator[Table]:
    """Yields the table of BRKGA without proposals, and with those of untrained, evolved and REINFORCE policies."""
    task, budget = settings.task, Budget(settings.evaluations)
    ways = {"untrained": _untrained, "evolution": _by_evolution, "reinforce": _by_reinforce}
    entrants = [settings.entrant(task, BASELINE, budget)]
    for name, way in ways.items():
        files = [_trained(settings, name, way, seed) for seed in range(settings.seeds)]
        entrants.append(Entrant(f"regal, {name}", [f"regal:checkpoint={file}" for file in files], budget))
    contest = settings.on_task(task, entrants)
    by_label = scores(contest, contest.by_label[BASELINE])
    config, graphs, steps = _training(settings)
    how = (
        f"Policies learn from scratch on {graphs} in {steps} steps, each of {config.actions} proposals for every graph "
        f"and {config.evaluations:,} evaluations of BRKGA a proposal. {len(settings.unseen(task))} unseen graphs, "
        f"{settings.evaluations:,} evaluations a run. Improvement: arithmetic mean over graphs; gap: geometric mean, "
        f"from the best of this table. Means over {settings.seeds} seeds of search and training, with 95% intervals."
    )
    lines = markdown(HEADINGS, [cells(label, one) for label, one in by_label.items()])
    notes = bullets(
        [*compare_gaps(by_label, "regal, evolution", ("regal, untrained", "regal, reinforce")), *contest.faults()]
    )
    title = f"REGAL's policy evolved: {problem_line(TASKS[task].problem)}"
    means = ", ".join(f"{label} {100 * one.gap.mean:.1f}%" for label, one in by_label.items())
    yield Table(title, of_rows(contest.rows), (how, lines, notes), f"Mean gap from the best of the table: {means}.")


class _Sweep(NamedTuple):
    """Scores of methods under each budget, and the rows of all runs."""

    by_budget: dict[str, dict[str, Score]]
    rows: list[Row]
    others: list[Row]


def _sweep(settings: Settings, labels: Sequence[str], budgets: Mapping[str, Budget]) -> _Sweep:
    """Returns scores of the selected methods over the baseline, which has the evaluations of the task's own table."""
    task, labels = settings.task, settings.among(labels)
    reference = settings.on_task(task, [settings.entrant(task, BASELINE, Budget(settings.evaluations))])
    sweep = _Sweep({}, [], [])
    for name, budget in budgets.items():
        print(f"{TASKS[task].title}: {name}", file=sys.stderr)
        contest = settings.on_task(task, [settings.entrant(task, label, budget) for label in labels])
        sweep.by_budget[name] = scores(contest, reference.by_label[BASELINE])
        sweep.rows.extend(contest.rows)
        sweep.others[:] = contest.others
    return sweep


def _table(settings: Settings, what: str, sweep: _Sweep, notes: Iterator[str], figure: str) -> Table:
    headings = ["method", *(f"{name}: {each}" for name in sweep.by_budget for each in FIGURES)]
    columns = list(sweep.by_budget.values())
    lines = [
        [label, *(text for one in columns for text in (one[label].improvement.percent(True), one[label].gap.percent()))]
        for label in columns[0]
    ]
    how = (
        f"{len(settings.unseen(settings.task))} unseen graphs. Improvement is over BRKGA with "
        f"{settings.evaluations:,} evaluations, of the same seed."
    )
    title = f"{what}: {problem_line(TASKS[settings.task].problem)}"
    figures = ", ".join(f"`{line[0]}` {line[FIGURES.index(figure) - 2]}" for line in lines)
    summary = f"Mean {figure} after {list(sweep.by_budget)[-1]}: {figures}."
    return Table(title, of_rows(sweep.rows), (how, markdown(headings, lines), bullets(notes)), summary)


def _limit_notes(by_limit: Mapping[int, Mapping[str, Score]], evaluations: int) -> Iterator[str]:
    """Compares BRKGA with the most evaluations and REGAL with those of the table."""
    most, usual = max(by_limit), by_limit.get(evaluations, {})
    if "regal" in usual and BASELINE in by_limit[most]:
        ours, theirs = usual["regal"].improvement, by_limit[most][BASELINE].improvement
        word = "reaches" if theirs.mean >= ours.mean else "does not reach"
        yield (
            f"BRKGA with {most:,} evaluations ({theirs.percent(True)}) {word} regal with {evaluations:,} "
            f"({ours.percent(True)})"
        )


def _seconds(rows: list[Row]) -> dict[tuple[str, int], float]:
    """Returns the seconds of each graph and seed, without compilation."""
    return {(row.fingerprint, row.seed): row.seconds - row.compile_seconds for row in rows if row.feasible}


def _proposing(policy: Policy, graph: ComputationGraph) -> float:
    """Measures the median seconds from a graph to its proposals, for features and network."""
    sizes = common_sizes([graph])
    return median_seconds(lambda: jax.block_until_ready(policy.propose(graph, sizes)))


def _untrained(config: RegalConfig, key: jax.Array, batch: RegalInstance, steps: int) -> Any:
    del batch, steps
    return Policy.initial(config, key)


def _by_evolution(config: RegalConfig, key: jax.Array, batch: RegalInstance, steps: int) -> Any:
    """Trains a policy by evolution; returns the fittest of the last generation."""
    init_all = jax.vmap(proposer(config).init, (0, None))
    population = init_all(jax.random.split(key, config.actions), tiny_instance(config))
    for step in range(steps):
        fittest, population = _generation(config, jax.random.fold_in(key, step), population, batch)
    return fittest


def _by_reinforce(config: RegalConfig, key: jax.Array, batch: RegalInstance, steps: int) -> Any:
    functions = on_mesh(learner(config), make_mesh(1, jax.devices()[:1]))
    state = functions.init(key)
    for step in range(steps):
        state, _ = functions.update(state, jax.random.fold_in(key, step), batch)
    return state.params["policy"]


def _trained(settings: Settings, name: str, way: Any, seed: int) -> Path:
    """Returns the file of a policy, made now if missing."""
    config, graphs, steps = _training(settings)

    def make() -> Policy:
        batch = jax.tree.map(np.asarray, make_instances(config, load_graphs([graphs])))
        params = way(config, jax.random.key(seed), batch, steps)
        return Policy(config, jax.tree.map(np.asarray, params), name)

    file = cached_policy(settings.out / "training" / f"{settings.task}-{name}-{seed}.msgpack", make)
    return settings.copy(Policy.load(file))


def _training(settings: Settings) -> tuple[RegalConfig, str, int]:
    """Returns the configuration of the policies, their training graphs, and the number of steps."""
    problem = TASKS[settings.task].problem
    if settings.quick:
        return RegalConfig(problem, evaluations=80, rounds=1, width=4, actions=4), QUICK_GRAPHS, 2
    return RegalConfig(problem, evaluations=EVALUATIONS, actions=PROPOSALS), GRAPHS, STEPS


@functools.partial(jax.jit, static_argnums=0)
def _generation(config: RegalConfig, key: jax.Array, population: Any, batch: RegalInstance) -> tuple[Any, Any]:
    """Runs one generation: returns the fittest of a population `[m, ...]`, and the next population."""
    play_key, evolve_key = jax.random.split(key)
    graphs = batch.proposal.nodes.shape[0]
    play = jax.vmap(functools.partial(_rewards, config, population))
    fitness = play(jax.random.split(play_key, graphs), batch).mean(0)
    fittest = jax.tree.map(lambda leaf: leaf[fitness.argmax()], population)
    return fittest, next_generation(EVOLUTION, evolve_key, Population(population, None), fitness)[0].networks


def _rewards(config: RegalConfig, population: Any, key: jax.Array, graph: RegalInstance) -> jax.Array:
    """Computes the reward of every individual's proposals for one graph: `[m]` float32."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    env = ProposalEnv(config.problem, config.evaluations, config.parameters, config.coding, config.transfer_keys)
    state, _ = env.reset(reset_key, graph.proposal)

    def one(params: Any) -> jax.Array:
        action = proposer(config).best(params, action_key, graph).action
        return env.step(step_key, state, action, graph.proposal)[1].reward

    return jax.vmap(one)(population)
