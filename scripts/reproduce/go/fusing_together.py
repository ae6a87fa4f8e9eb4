"""GO's form of figure 6: policies that decide placement and order, and fusion with them or before them.

All are updated on the graph at hand alone, from a quick plan of the kernels that they begin with on.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

from graphrl.agents.go.learner import tuned
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import Choices, CompileParams, Task
from graphrl.solvers.fusion.rules import xla_like
from reproduce.go.fusing import begun, best_drawn, planned, settings_of, untrained
from reproduce.go.fusing_alone import UPDATES, in_one_shot
from reproduce.go.settings import Settings
from reproduce.measurements import Figures

ORDERED: tuple[Task, ...] = ("placement", "priority")
ALL: tuple[Task, ...] = (*ORDERED, "fusion")


class Run(NamedTuple):
    """A column.

    Attributes:
      kernels: that it begins with: of the rule like XLA's, or those of the policy that decides fusion alone.
      tasks: that a policy decides then; nothing is the plan that it would begin with.
      learns: whether it is updated.
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
    "The same without a memory limit, where GO decides: ms of the best plan. `start` is the best of a few quick list "
    "schedules of the kernels of the rule like XLA's, or of `go` in table 3's form. From there on the policy decides "
    f"placement and order, or all three: {UPDATES} updates of PPO on the graph, from nothing, 32 plans each, or as "
    "many plans of the policy before any update. One after the other is placement and order after `go`'s fusion."
)


def measured(
    settings: Settings, name: str, problem: Callable[[], FusionProblem], machine: Problem
) -> list[Figures | None]:
    """The figures of `RUNS`, None where nothing was run."""
    return [
        settings.measurements.get(
            {"workload": name, "policy": column}, functools.partial(_run, settings, problem, machine, run)
        )
        if not run.tasks or not settings.quick
        else None
        for column, run in RUNS.items()
    ]


def _run(settings: Settings, problem_of: Callable[[], FusionProblem], machine: Problem, run: Run) -> Figures:
    problem = problem_of()
    kernels = xla_like(problem) if run.kernels == "xla" else in_one_shot(settings, problem)
    params = begun(kernels, machine, settings_of(*(run.tasks or ALL)))
    choices = _chosen(problem, machine, params, run)
    return {"value": planned(problem, machine, params, choices).value}


def _chosen(problem: FusionProblem, machine: Problem, params: CompileParams, run: Run) -> Choices:
    if not run.tasks:
        return params.start
    config = settings_of(*run.tasks)
    policy = untrained(config)
    if run.learns:
        return tuned(config, policy.params, params, jax.random.key(0), UPDATES)[1]

    def cost(choices: Choices) -> float:
        return planned(problem, machine, params, choices).value

    return best_drawn(policy, params, cost, rounds=UPDATES, samples=config.ppo.environments)
