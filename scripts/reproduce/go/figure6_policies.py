"""GO's form of figure 6: policies that decide placement and order, with fusion or after it.

All are updated on the given graph alone, and start from a quick plan of their initial kernels.
"""

import functools
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax

from graphrl.agents.go.learner import fine_tune
from graphrl.compare.report import markdown, percent
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import Choices, CompileInstance, Task
from graphrl.solvers.fusion.rules import xla_like
from reproduce.go.figure6 import SMALL, machine_of
from reproduce.go.fusion import FusingPolicy, best_drawn, initial, milliseconds, planned, problem_of, settings_of
from reproduce.go.settings import Settings
from reproduce.go.table3 import UPDATES, in_one_shot
from reproduce.measurements import Figures
from reproduce.policies import untrained
from reproduce.results import Table

ORDERED: tuple[Task, ...] = ("placement", "priority")
ALL: tuple[Task, ...] = (*ORDERED, "fusion")


class Run(NamedTuple):
    """A column of the table.

    Attributes:
      kernels: initial kernels: of the rule like XLA's, or of the policy that decides fusion alone.
      tasks: decisions of the policy from there; empty for the initial plan itself.
      learns: True if the policy is updated.
    """

    kernels: Literal["xla", "go"]
    tasks: tuple[Task, ...] = ()
    learns: bool = True


RUNS = {
    "start with `xla`": Run("xla"),
    "placement and order": Run("xla", ORDERED),
    "all three": Run("xla", ALL),
    "start with `go`": Run("go"),
    "one after the other": Run("go", ORDERED),
    "all three after fusion": Run("go", ALL),
    "the same, untrained": Run("go", ALL, learns=False),
}
HOW = (
    "As in figure 6 without a memory limit, by GO: ms of the best plan. `start` is the best of a few quick list "
    "schedules of the kernels of the rule like XLA's, or of `go` in table 3's form. From there the policy decides "
    f"placement and order, or all three: {UPDATES} updates of PPO on the graph, from initial weights, 32 plans each; "
    "untrained: an equal number of plans of the initial policy. One after the other is placement and order after "
    "`go`'s fusion."
)


def figure6_policies(settings: Settings) -> Iterator[Table]:
    """Yields the table of one workload: a column of another would take many minutes."""
    name, columns = SMALL[0], [*RUNS]
    runs = {column: run for column, run in RUNS.items() if not (settings.quick and run.tasks)}
    by_column = {
        column: settings.measurements.get(
            {"workload": name, "policy": column}, functools.partial(_run, settings, name, run)
        )
        for column, run in runs.items()
    }
    start = by_column[columns[0]]
    notes = [
        f"{column} against {columns[0]}: {percent(one['value'] / start['value'] - 1)} on {name}"
        for column in columns[1:]
        if start and (one := by_column.get(column))
    ]
    table = markdown(("workload", *columns), [[name, *(milliseconds(by_column.get(column)) for column in columns)]])
    summary = f"Run time by GO's policies, {notes[0] if notes else 'not run'}."
    yield settings.measurements.table(
        "Placement, order and fusion by policies", HOW, table, notes=notes, summary=summary
    )


def _run(settings: Settings, name: str, run: Run) -> Figures:
    problem, machine = problem_of(name), machine_of(name)
    kernels = xla_like(problem) if run.kernels == "xla" else in_one_shot(settings, problem)
    instance = initial(kernels, machine, settings_of(*(run.tasks or ALL)))
    choices = _chosen(problem, machine, instance, run)
    return {"value": planned(problem, machine, instance, choices).value}


def _chosen(problem: FusionProblem, machine: Problem, instance: CompileInstance, run: Run) -> Choices:
    if not run.tasks:
        return instance.start
    policy = untrained(FusingPolicy, settings_of(*run.tasks))
    config = policy.config
    if run.learns:
        return fine_tune(config, policy.params, instance, jax.random.key(0), UPDATES)[1]

    def cost(choices: Choices) -> float:
        return planned(problem, machine, instance, choices).value

    return best_drawn(policy, instance, cost, rounds=UPDATES, samples=config.ppo.environments)
