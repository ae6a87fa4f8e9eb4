"""What the graph structure is worth: rounds of messages T, T = 0 among them; and how varied the actions are.

ICLR paper, section 4.4 and figure 4: the best validation reward of each T, and the histogram over graphs of the
entropy of the placement actions that the agent takes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from graphrl.agents.regal.network import Policy
from graphrl.colours import COLOURS, WORSE, colour
from graphrl.compare.report import markdown, problem_line
from graphrl.compare.table import estimate
from graphrl.envs.proposal import coding
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.plan.plot import DPI, write_figure
from graphrl.solvers.base import Budget
from graphrl.training.folder import read_metrics
from reproduce.regal.policies import Trained
from reproduce.regal.settings import BASELINE, REGAL, Settings
from reproduce.regal.tables import scores
from reproduce.regal.tasks import TASKS
from reproduce.results import Origin, Table, of_rows

_HEADINGS = ("T", "best on held-out graphs", "improvement over BRKGA", "gap from best known", "matches or beats")
_KINDS = ("placement", "priority")


def ablation(settings: Settings) -> Iterator[Table]:
    """Two tables and three pictures: T, training curves, entropies of actions."""
    task, budget = settings.task, Budget(settings.evaluations)
    trained = {rounds: settings.trained(task, REGAL, rounds) for rounds in settings.rounds}
    ours = [settings.entrant(task, "regal", budget, rounds)._replace(label=f"T = {rounds}") for rounds in trained]
    contest = settings.on_task(task, [settings.entrant(task, BASELINE, budget), *ours])
    by_label = scores(contest, contest.by_label[BASELINE])
    lines = []
    for rounds, some in trained.items():
        one, held_out = by_label[f"T = {rounds}"], [max(curve[1]) for curve in _curves(some, "validation")]
        best = estimate([value / 100 for value in held_out]).percent(True)
        lines.append(
            [f"{rounds}", best, one.improvement.percent(True), one.gap.percent(), one.matched.percent()],
        )
    write_figure(_curves_figure(trained, settings), settings.out / f"{task}-training.png")
    how = (
        f"The best look at the held-out graphs of each training, and {len(settings.unseen(task))} unseen graphs with "
        f"{settings.evaluations:,} evaluations."
    )
    title = f"Rounds of messages of REGAL as published: {problem_line(TASKS[task].problem)}"
    yield Table(title, of_rows(contest.rows), (how, markdown(_HEADINGS, lines)))
    yield _entropies(settings, task, max(trained), trained[max(trained)], of_rows(contest.rows))


def _entropies(settings: Settings, task: str, rounds: int, trained: Sequence[Trained], origin: Origin) -> Table:
    by_kind: dict[str, list[np.ndarray]] = {kind: [] for kind in _KINDS}
    graphs = settings.unseen(task)
    sizes = common_sizes(graphs)  # of all, so that the network is compiled once
    for one in trained:
        each = np.array([action_entropies(one.policy, graph, sizes) for graph in graphs])
        for kind, values in zip(_KINDS, each.T, strict=True):
            by_kind[kind].append(values)
    options = len(coding(trained[0].policy.config.coding).alpha)
    write_figure(_entropy_figure(by_kind, options, settings), settings.out / f"{task}-entropy.png")
    lines = [
        [kind, f"{one.mean:.2f}" + ("" if one.half is None else f" ± {one.half:.2f}"), f"{math.log(options):.2f}"]
        for kind, some in by_kind.items()
        for one in [estimate([float(values.mean()) for values in some])]
    ]
    how = "Nats, of the distributions that the ops of a graph are given; mean over graphs, 95% over seeds."
    parts = how, markdown(["genes", "entropy", "all options alike"], lines)
    return Table(f"Entropy of the actions, T = {rounds}", origin, parts)


def action_entropies(policy: Policy, graph: ComputationGraph, sizes: Sizes) -> tuple[float, float]:
    """How varied the actions that are taken for the ops of one graph are, in nats: those of affinities (the mean over
    devices), and those of priorities. 0 if all ops get the same distribution.
    """
    devices, n = policy.config.problem.devices, len(graph.ops)
    choice = np.asarray(policy.propose(graph, sizes).choice)[: (devices + 1) * sizes.ops, 0]
    each = [_entropy(row[:n]) for row in choice.reshape(devices + 1, sizes.ops)]
    return float(np.mean(each[:-1])), each[-1]


def _entropy(values: np.ndarray) -> float:
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log(shares)).sum()) + 0.0  # no -0.0


def _curves(trained: Sequence[Trained], group: str, name: str = "improvement") -> list[tuple[list[int], list[float]]]:
    """Steps and values of a metric, of each training whose record is at hand.

    Args:
      trained: the policies.
      group: "validation" for the held-out graphs, "train" for the batches.
      name: of the metric.
    """
    curves = []
    for one in trained:
        lines: Sequence[dict[str, Any]] = [] if one.run is None else read_metrics(one.run)
        values = {line["step"]: line["validation"] if group == "validation" else line for line in lines
                  if ("validation" in line) == (group == "validation")}  # fmt: skip
        if values:
            curves.append((list(values), [float(some[name]) for some in values.values()]))
    return curves


def _curves_figure(trained: dict[int, list[Trained]], settings: Settings) -> Figure:
    """A line a training, a colour a T: held-out improvement, improvement of the batches, entropy of the choices."""
    figure = Figure(figsize=(13, 4), dpi=DPI, layout="constrained")
    panels = (
        ("validation", "improvement", "held-out improvement [%]"),
        ("train", "improvement", "improvement of sampled actions [%]"),
        ("train", "entropy", "entropy of the policy [nats a choice]"),
    )
    for axes, (group, name, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for number, (rounds, some) in enumerate(trained.items()):
            for i, (steps, values) in enumerate(_curves(some, group, name)):
                label = None if i else f"T = {rounds}"
                axes.plot(steps, values, label=label, color=colour(number), linewidth=1)
        axes.set_xlabel("step")
        axes.set_ylabel(title)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(problem_line(TASKS[settings.task].problem), fontsize=10)
    return figure


def _entropy_figure(by_kind: dict[str, list[np.ndarray]], options: int, settings: Settings) -> Figure:
    """A histogram over graphs for each kind of genes."""
    figure = Figure(figsize=(9, 3.6), dpi=DPI, layout="constrained")
    edges = np.linspace(0, math.log(options) + 1e-9, 30)
    for axes, (kind, some) in zip(figure.subplots(1, len(by_kind)), by_kind.items(), strict=True):
        values = np.concatenate(some)
        axes.hist(values, bins=edges, color=COLOURS[0], edgecolor="white", linewidth=0.4)
        axes.axvline(values.mean(), color=WORSE, linewidth=1, label=f"mean {values.mean():.2f}")
        axes.set_xlabel(f"entropy of {kind} actions [nats]")
        axes.set_ylabel("graphs")
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(problem_line(TASKS[settings.task].problem), fontsize=10)
    return figure
