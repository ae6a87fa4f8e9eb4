"""Methods of tables with their seconds and policies, single runs, and policies trained by imitation for tables."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.learner import Batch, learner
from graphrl.agents.go.network import GdpPolicy, Policy
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning.learner import Learner, on_mesh
from graphrl.mesh import make_mesh
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from reproduce.measurements import Figures
from reproduce.policies import copy_policy, untrained

# One plan, whatever the seconds. METIS's plan is that of seed 0.
RULES = frozenset({"given", "list", "hlfet", "etf", "expert", "metis"})
NEAR = 1e-3  # relative distance at which a search has reached a value
FIGURES = ("makespan", "excess", "seconds", "evaluations")
# All are played by `go`; "untrained" is the initial network of the policy that ships.
KINDS: dict[str, type[Policy]] = {"go": Policy, "go+": Policy, "gdp": GdpPolicy, "untrained": Policy}


class Entry(NamedTuple):
    """A method and its time limit.

    Attributes:
      method: method with its options; a method that plays a policy names its file.
      seconds: time limit of a search.
      name: name in tables.
    """

    method: str
    seconds: float
    name: str

    @property
    def key(self) -> dict[str, Any]:
        """Part of a measurement's key."""
        return {"method": self.method, "seconds": self.seconds}

    @property
    def kind(self) -> type[Policy] | None:
        """Class of the policy that it plays, if any."""
        return KINDS.get(self.name.partition(":")[0])

    @property
    def is_rule(self) -> bool:
        """True if the result does not depend on seconds and seed."""
        return self.method.partition(":")[0] in RULES

    @property
    def label(self) -> str:
        """Label in tables."""
        return f"`{self.name}`" + ("" if self.is_rule else f" {self.seconds:g} s")


def entry_of(text: str, seconds: float) -> Entry:
    """Parses "auto@10", or "auto" with the given seconds.

    Raises:
      GraphrlError: the text after the @ is no number.
    """
    name, at, own = text.partition("@")
    kind, colon, options = name.partition(":")
    method = f"go{colon}{options}" if kind in ("gdp", "untrained") else name
    try:
        return Entry(method, float(own) if at else seconds, name)
    except ValueError:
        raise GraphrlError(f"{text!r}: must be a method, and after @ its seconds") from None


def with_policy(entry: Entry, gdp: Path | None, folder: Path) -> Entry:
    """Adds the policy to an entry that plays one and names none. Keeps a copy of the policy in the folder.

    Raises:
      GraphrlError: the policy cannot be read.
    """
    if entry.kind is None or "checkpoint=" in entry.method:
        return entry
    joint = "," if ":" in entry.method else ":"
    return entry._replace(method=f"{entry.method}{joint}checkpoint={copy_policy(_policy(entry.name, gdp), folder)}")


def policy_notes(entries: Sequence[Entry], gdp: Path | None) -> Iterator[str]:
    """Yields notes on the policies of some entries."""
    names = dict.fromkeys(entry.name.partition(":")[0] for entry in entries if entry.kind)
    notes = {name: _policy(name, gdp).note for name in names}
    for note in dict.fromkeys(notes.values()):
        yield f"policy of {' and '.join(name for name in names if notes[name] == note)}: {note}"


@functools.cache
def _policy(name: str, gdp: Path | None) -> Policy:
    """Returns the shipped policy, or its initial network. For GDP: the policy of a file or of a run's folder, else an
    untrained one.
    """
    kind = KINDS[name.partition(":")[0]]
    if kind is GdpPolicy:
        return untrained(kind, kind.settings()) if gdp is None else kind.load(gdp)
    shipped = kind.default(Problem("makespan"))
    return untrained(kind, shipped.config) if name.startswith("untrained") else shipped


def search(graph: ComputationGraph, problem: Problem, entry: Entry, seed: int, sizes: Sizes | None = None) -> Figures:
    """Runs one search. Networks see the graph padded to the sizes.

    Returns:
      The makespan of the best plan, the bytes by which it exceeds the memory limit, seconds, evaluations, and
      `reached`: pairs of seconds and improved makespan, as far as the method reports progress.
    """
    reached: list[tuple[float, float]] = []

    def watch(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        if not reached or value < reached[-1][1]:
            reached.append((round(seconds, 3), value))

    plan = find_solver(entry.method)(Task(graph, problem, Budget(seconds=entry.seconds), seed, watch, sizes=sizes))
    plan.check(graph)
    return {name: getattr(plan, name) for name in FIGURES} | {"reached": reached}


def time_to(figures: Figures, value: float) -> float | None:
    """Returns the seconds until a search had a plan within `NEAR` of a makespan; None if it never had one."""
    return next((spent for spent, other in figures["reached"] if other <= value * (1 + NEAR)), None)


def imitated(config: GoSettings, batches: Iterable[Batch], seed: int, what: str) -> Policy:
    """Trains a policy by imitation from initial weights, one step on each batch.

    Args:
      config: settings of the learner.
      batches: batches of lessons, one for each step.
      seed: seed of the initial weights.
      what: name of the training data, for the policy's note.
    """
    functions, started, steps = _functions(config), time.perf_counter(), 0
    state = functions.init(jax.random.key(seed))
    for batch in batches:
        state, _ = functions.update(state, jax.random.key(steps), batch)
        steps += 1
    params = jax.tree.map(np.asarray, state.params["policy"])
    return Policy(config, params, f"{steps} steps on {what}, seed {seed}: {time.perf_counter() - started:.0f} s")


@functools.lru_cache(maxsize=1)
def _functions(config: GoSettings) -> Learner:
    return on_mesh(learner(config), make_mesh(1, jax.devices()[:1]))
