"""REGAL on graphs of other kinds: the share of BRKGA's gap that the policies close on every kind of graph.

Kinds are the structures of the family `kinds`, on which policies of scripts/regal.toml train, and kinds that none has
seen: series-parallel graphs, pipelines and the zoo's test programs. A gap is the geometric mean over a kind's graphs,
from the best known; the share that a method closes is 1 - its gap / BRKGA's.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from graphrl.agents.regal.network import Policy
from graphrl.compare.report import problem_line
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.kinds import BANDWIDTH, LATENCY, SHARES
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from reproduce.contest import Entrant
from reproduce.policies import train_policies
from reproduce.regal.settings import (
    BASELINE,
    LONGER,
    MAKESPAN,
    MEMORY_TEST,
    ORDER_ALONE,
    QUICK,
    UNTRAINED,
    Settings,
    programs,
)
from reproduce.regal.tables import Score, scores
from reproduce.results import Table, bullets, markdown, of_rows

PROBLEMS = {
    "kinds-makespan": Problem("makespan", 2),
    "kinds-link": Problem("makespan", 2, "link", latency=LATENCY, bandwidth=BANDWIDTH),
    "kinds-memory": Problem("peak_memory", 2),
}
CONFIG = str(Path(__file__).parents[2] / "regal.toml")
REGAL = "regal"
METHODS = (BASELINE, UNTRAINED, ORDER_ALONE, REGAL, "list", "brkga+", "auto", LONGER)
SEEN_GOAL, UNSEEN_GOAL = {"makespan": 0.40, "peak_memory": 0.25}, 0.25
_OPS = 100  # of generated graphs


def table(settings: Settings, task: str) -> Iterator[Table]:
    """Yields the table of a problem: a row for every kind."""
    problem = PROBLEMS[task]
    entrants = [_entrant(settings, task, label) for label in dict.fromkeys([BASELINE, *settings.among(METHODS)])]
    rows, lines, shares = [], [], {}
    for kind, graphs in _graphs(settings, problem).items():
        print(f"{task}: {kind}", file=sys.stderr)
        contest = settings.contest(graphs, problem, entrants)
        by_label = scores(contest, contest.by_label[BASELINE])
        shares[kind] = _closed(by_label, REGAL)
        gaps = [one.gap.percent() for one in by_label.values()]
        lines.append([kind, "yes" if _is_seen(kind) else "no", str(len(graphs)), *gaps, _percent(shares[kind])])
        rows += contest.rows
    headings = ["kind", "trained on", "graphs", *(entrant.label for entrant in entrants), "regal closes"]
    how = (
        f"Unseen graphs, generated ones of {_OPS} ops. {settings.evaluations:,} evaluations a run, {LONGER} "
        f"{settings.longer:g} s. Gap from the best known: geometric mean over graphs. Means over {settings.seeds} "
        f"seed{'s' * (settings.seeds > 1)} of search and of training, with 95% intervals if there are several. "
        f"`{UNTRAINED}` is the network before training, `{ORDER_ALONE}` its order of ops as priorities, with uniform "
        f"affinities. Last column: share of `{BASELINE}`'s gap."
    )
    body = (how, markdown(headings, lines), bullets(_goals(shares, problem)))
    yield Table(f"REGAL on many kinds of graphs: {problem_line(problem)}", of_rows(rows), body, _summary(shares))


def _graphs(settings: Settings, problem: Problem) -> dict[str, list[ComputationGraph]]:
    """Returns the graphs of every kind; seeds of generated ones are below those of training and validation."""
    ops, count = (20, 2) if settings.quick else (_OPS, settings.graphs)
    kinds = [*(f"kinds-{structure}" for structure in SHARES), "series-parallel", "pipeline"]
    graphs = {kind: [_plain(graph) for graph in load_graphs([f"{kind}:{ops}x{count}"])] for kind in kinds}
    which = MAKESPAN["test"] if problem.objective == "makespan" else MEMORY_TEST
    names = programs(which, settings.quick)[:count]
    return graphs | {"zoo, test split": load_graphs([f"zoo:{name}" for name in names])}


def _plain(graph: ComputationGraph) -> ComputationGraph:
    """Removes colocation and machine, which are for pipelined execution."""
    return dataclasses.replace(
        graph, ops=tuple(dataclasses.replace(op, pipelined=None) for op in graph.ops), machine=None
    )


def _entrant(settings: Settings, task: str, label: str) -> Entrant:
    if label == REGAL:
        files = _trained(settings, task)
    elif label == UNTRAINED:
        files = settings.before_training(PROBLEMS[task])
    elif label == ORDER_ALONE:
        files = settings.order_alone(PROBLEMS[task])
    else:
        return settings.entrant("synthetic", label, settings.budget(label), shipped=True)
    return Entrant(label, [f"regal:checkpoint={file}" for file in files], settings.budget(label))


def _trained(settings: Settings, task: str) -> list[Path]:
    problem = PROBLEMS[task]
    fields = ("objective", "transfer", "latency", "bandwidth")
    words = [f"agent.problem.{name}={getattr(problem, name)}" for name in fields]
    run = settings.out / "training" / task
    if settings.quick:
        words += [*QUICK, "data.train=kinds:20x4@10000", "data.validation=kinds:20x2@5000", "data.test=kinds:20x2"]
    files = train_policies(Policy, "regal", run, settings.seeds, words, config=CONFIG)
    return [settings.copy(Policy.load(file)) for file in files]


def _closed(by_label: Mapping[str, Score], label: str) -> float | None:
    """Returns the share of BRKGA's gap that a method closes; None without a gap."""
    if label not in by_label or by_label[BASELINE].gap.mean < 1e-3:
        return None
    return 1 - by_label[label].gap.mean / by_label[BASELINE].gap.mean


def _is_seen(kind: str) -> bool:
    return kind.startswith("kinds-")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _goals(shares: Mapping[str, float | None], problem: Problem) -> Iterator[str]:
    for kind, share in shares.items():
        goal = SEEN_GOAL[problem.objective] if _is_seen(kind) else UNSEEN_GOAL
        if share is None:
            yield f"{kind}: BRKGA is within 0.1% of the best known: nothing to close"
        elif share < goal:
            yield f"{kind}: {_percent(share)} (goal: at least {_percent(goal)}: missed)"


def _summary(shares: Mapping[str, float | None]) -> str:
    parts = []
    for name, is_seen in (("kinds that it trained on", True), ("kinds that it did not", False)):
        some = [share for kind, share in shares.items() if _is_seen(kind) == is_seen and share is not None]
        if some:
            parts.append(f"{_percent(min(some))} to {_percent(max(some))} on {name}")
    return f"`regal` closes of BRKGA's gap: {'; '.join(parts)}."
