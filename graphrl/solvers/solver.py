"""Interface of a solver, `solve(task, *, width=...) -> Plan`. `@solver` registers a function as a `Solver`, which
`graphrl/methods.py` finds by its name. `@batch_solver` registers one that plans a batch of graphs:
`solve(tasks, *, width=...) -> list[Plan]`.

Early stop: a solver sets `task.best` as soon as it can make a plan. On Ctrl-C the `Solver` raises an `Interrupted` with
that plan; before the first plan, KeyboardInterrupt passes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from graphrl.costs import exact
from graphrl.costs.problem import SCHEDULED, Objective, Problem
from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Interrupted, Search, Task

P = ParamSpec("P")
T = TypeVar("T", bound=Search[Any])
A = TypeVar("A")
# Types of the options that a user can set, by annotation; None is for defaults that depend on other options.
SETTABLE: dict[Any, type] = {key: kind for kind in (int, float, str, bool) for key in (kind, kind | None)}


@dataclasses.dataclass(frozen=True)
class Method(Generic[T, P, A]):
    """A search that is called by its name.

    Attributes:
      name: method name.
      help: one-line description.
      search: the decorated function.
      settings: options that override the defaults, see `with_options`; options of a call override them.
      prepare: compiles the code that the search needs, once per machine; its time does not count.
    """

    name: str
    help: str
    search: Callable[Concatenate[T, P], A]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prepare: Callable[[], None] | None = None

    def __call__(self, task: T, *args: P.args, **options: P.kwargs) -> A:
        """Runs the search and returns its best answer.

        Raises:
          Interrupted: on Ctrl-C after its first answer.
          GraphrlError: it cannot take this graph or problem; the message states why.
        """
        task.method = self.name
        if self.prepare is not None:
            with task.paused_clock():
                self.prepare()
        try:
            return self.search(task, *args, **{**self.settings, **options})
        except Interrupted:
            raise
        except KeyboardInterrupt:
            if task.best is None:
                raise
            raise Interrupted(task.best()) from None

    @property
    def options(self) -> dict[str, type]:
        """Types of the options that a user can set: the keyword-only parameters that are numbers, texts or booleans, or
        None by default.
        """
        types: dict[str, Any] = self.search.__annotations__
        return {name: SETTABLE[types[name]] for name in self._keywords if types[name] in SETTABLE}

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of the options that a call does not give."""
        return {name: {**self._keywords, **self.settings}[name] for name in self.options}

    def with_options(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy of the method with these options."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    @property
    def _keywords(self) -> dict[str, Any]:
        return getattr(self.search, "__kwdefaults__", None) or {}


@dataclasses.dataclass(frozen=True)
class Solver(Method[Task, P, Plan]):
    """A search for a good plan, called by its name.

    Attributes:
      one_device: True if it orders the ops of one device.
      colocates: True if its schedules for several devices keep colocated ops together.
      objectives: objectives that it minimises.
      digest: (problem, **options) -> text that identifies the trained policies that it uses; None if it uses no
        policies.
      batch: (tasks, **options) -> the plan of each task, in order; None if it plans one graph at a time.
    """

    one_device: bool = False
    colocates: bool = False
    objectives: tuple[Objective, ...] = SCHEDULED
    digest: Callable[..., str] | None = None
    batch: Callable[..., list[Plan]] | None = None

    def __call__(self, task: Task, *args: P.args, **options: P.kwargs) -> Plan:
        """Checks the problem, runs the search and returns its best plan; raises the errors of every `Method`."""
        self._check(task.problem)
        self._check_colocation(task)
        with task.paused_clock():
            exact.prepare()
        return super().__call__(task, *args, **options)

    def plan_batch(self, tasks: Sequence[Task]) -> list[Plan]:
        """Plans several graphs in one call of `batch`, and returns their plans in order. The seconds of each plan are
        its share of the call's.

        Args:
          tasks: at least one, with the same problem, budget, seed and padded sizes.

        Raises:
          GraphrlError: it cannot take the problem or a graph.
        """
        assert self.batch is not None
        self._check(tasks[0].problem)
        for task in tasks:
            task.method = self.name
            self._check_colocation(task)
        exact.prepare()
        if self.prepare is not None:
            self.prepare()
        tasks[0].restart()
        plans = self.batch(tasks, **self.settings)
        seconds = tasks[0].seconds / len(tasks)
        return [dataclasses.replace(plan, seconds=seconds) for plan in plans]

    def _check(self, problem: Problem) -> None:
        orders_one_device = self.one_device and problem.objective in SCHEDULED
        if orders_one_device and problem.devices != 1:
            raise ProblemError(
                f"method {self.name!r} orders the ops of one device: devices must be 1, and is {problem.devices}"
            )
        if problem.objective not in self.objectives:
            same = "on one device every order has the same makespan"
            fault = same if orders_one_device else f"objective must not be {problem.objective}"
            raise ProblemError(f"method {self.name!r} minimises {' or '.join(self.objectives)}: {fault}")

    def _check_colocation(self, task: Task) -> None:
        splits_groups = task.problem.devices > 1 and task.problem.objective in SCHEDULED and not self.colocates
        if splits_groups and task.graph.colocation is not None:
            raise ProblemError(
                f"method {self.name!r} cannot keep ops together: graph {task.graph.name!r} has colocated ops"
            )


SOLVERS: dict[str, Solver[Any]] = {}  # solvers of all imported modules, by name


def solver(
    name: str,
    help: str,
    *,
    one_device: bool = False,
    colocates: bool = False,
    objectives: tuple[Objective, ...] = SCHEDULED,
    digest: Callable[..., str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Callable[[Callable[Concatenate[Task, P], Plan]], Solver[P]]:
    """Returns a decorator that registers a function of a task and options as a `Solver` with these attributes."""

    def register(search: Callable[Concatenate[Task, P], Plan]) -> Solver[P]:
        registered = Solver(
            name,
            help,
            search,
            one_device=one_device,
            colocates=colocates,
            objectives=objectives,
            digest=digest,
            prepare=prepare,
        )
        SOLVERS[name] = registered
        return registered

    return register


def batch_solver(
    name: str, help: str, **attributes: Any
) -> Callable[[Callable[Concatenate[Sequence[Task], P], list[Plan]]], Solver[P]]:
    """Returns a decorator as `solver` does, with the same attributes, for a function of several tasks. They have the
    same problem, budget, seed and padded sizes; a search of one graph calls it with one task.
    """

    def register(batch: Callable[Concatenate[Sequence[Task], P], list[Plan]]) -> Solver[P]:
        def search(task: Task, /, *args: P.args, **options: P.kwargs) -> Plan:
            return task.answer(batch([task], *args, **options)[0])

        functools.update_wrapper(search, batch)  # with the types of the options
        search.__kwdefaults__ = getattr(batch, "__kwdefaults__", None)
        registered = dataclasses.replace(solver(name, help, **attributes)(search), batch=batch)
        SOLVERS[name] = registered
        return registered

    return register
