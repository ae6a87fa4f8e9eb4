"""Plans for traced functions, in memory and on disk.

`find_plan` returns the plan for a program: one that an earlier search with these settings found, or the result of a new
search. Files are named by a fingerprint of the equations, the settings and the versions. `plan_of` converts a solver's
choice, which is about arrays, to regions of the program, names of values and stretches of loops.
"""

import dataclasses
import functools
import hashlib
import math
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.extend import core

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import cache_folder, read_document, write_document
from graphrl.graphs.roofline import Chip
from graphrl.process import installed_version
from graphrl.xla.checkpoint.derivative import gradient_jaxpr, on_one_device
from graphrl.xla.checkpoint.gradient import NamedGradient, gradient_of, line_at
from graphrl.xla.checkpoint.program import CheckpointPlan, Program, Region, variables
from graphrl.xla.checkpoint.report import CheckpointReport
from graphrl.xla.checkpoint.rewrite import evaluate, fits
from graphrl.xla.checkpoint.search import Result, above_budget, cached, compiled_bytes, search, unplanned, verified
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.solvers.anneal import prepare
from graphrl.xla.checkpoint.solvers.choice import Choice, Pricing, default_choice, is_default
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.solvers.level import KEPT, MOVED, Level
from graphrl.xla.checkpoint.solvers.starts import starts, with_stretches

FORMAT = "graphrl-checkpoint-plan"
VERSION = 23  # increases when searches or their model change, so that older plans are not kept


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan and its report, as stored on disk.

    Attributes:
      fingerprint: see `fingerprint_of`.
      plan: the plan for the function.
      report: memory and time of the plan.
    """

    fingerprint: str
    plan: CheckpointPlan
    report: CheckpointReport


def find_plan(name: str, fingerprint: str, program: Program, wanted: Sequence[bool], settings: Settings) -> Planned:
    """Returns the plan for a program: the result of an earlier search with these settings, or else of a new one.

    Args:
      name: name of the function.
      fingerprint: see `fingerprint_of`.
      program: the program to differentiate.
      wanted: for each argument, whether to differentiate by it.
      settings: the user's settings.

    Raises:
      ProblemError: the budget cannot be met (the message states the least that can); or it is in bytes, and a symbolic
        dimension may be larger than the size that the plan is made for.
    """
    if isinstance(settings.budget, str) and (bounds := program.sizes.missing_bounds()):
        raise ProblemError(
            f"budget is {settings.budget}: no plan keeps it at all sizes of {', '.join(program.sizes.by_name)}; bound "
            f"symbolic dimensions by constraints, such as {', '.join(bounds)}, or give a part of what jax keeps, "
            "from 0 to 1"
        )
    path = cache_folder("checkpoints") / f"{fingerprint}.json"
    planned = _load(path, fingerprint, program) if settings.is_stored else None
    if planned is not None:
        report = dataclasses.replace(planned.report, function=name, from_cache=True)
        return dataclasses.replace(planned, report=report)
    planned = _search_plan(name, fingerprint, program, wanted, settings)
    if settings.is_stored:
        _store(path, planned)
    return planned


def _load(path: Path, fingerprint: str, program: Program) -> Planned | None:
    """Reads a plan from disk, with current line numbers; None if there is no plan or it does not fit the program."""
    try:
        planned = read_document(path, Planned, FORMAT, VERSION)
        if planned.fingerprint != fingerprint or not fits(program, planned.plan):
            return None
        values = tuple(dataclasses.replace(v, line=line_at(program, v.place)) for v in planned.report.values)
        loops = tuple(dataclasses.replace(s, line=line_at(program, s.place)) for s in planned.report.stretches)
    except (GraphrlError, LookupError, ValueError):
        return None
    return dataclasses.replace(planned, report=dataclasses.replace(planned.report, values=values, stretches=loops))


def _search_plan(name: str, fingerprint: str, program: Program, wanted: Sequence[bool], settings: Settings) -> Planned:
    begin, compiler = time.monotonic(), settings.compiler
    planner = Planner(name, program, wanted, settings)
    goal = settings.goal(planner.pricing)
    if compiler is None:
        choice, report = planner.search(goal)
    else:
        choice, report = verified(
            planner.search,
            functools.partial(planner.search, method="regular"),
            planner.unplanned,
            goal,
            cached(lambda choice: compiled_bytes(program, planner.wanted, planner.plan(choice), settings)),
            lambda least: above_budget(settings, planner.pricing, least),
        )
        report = dataclasses.replace(report, search_seconds=time.monotonic() - begin - planner.excluded)
    devices = 1 if program.shards is None else math.prod(program.shards.layout.sizes.values())
    report = dataclasses.replace(report, sizes=program.sizes.by_name, as_written=planner.as_written, devices=devices)
    return Planned(fingerprint, planner.plan(choice), report)


class Planner:
    """Searches for plans for one gradient, within several limits.

    Args:
      name: name of the differentiated function.
      program: the program to differentiate.
      wanted: for each argument, whether to differentiate by it.
      settings: the user's settings.

    Attributes:
      pricing: prices of choices for the gradient.
      wanted: the arguments to differentiate by: none if jax cannot.
      as_written: whether jax cannot because a custom rule closes over a traced value.
      excluded: seconds of compiling on a new machine, which do not count as search time.
    """

    def __init__(self, name: str, program: Program, wanted: Sequence[bool], settings: Settings) -> None:
        begin = time.monotonic()
        self._name, self._program, self._settings = name, program, settings
        self._named, self.wanted, self.as_written = _gradient(program, wanted, settings.resolved_chip)
        before = time.monotonic()
        self.pricing = Pricing(self._named.gradient)
        prepare(self.pricing)
        now = time.monotonic()
        self.excluded, self._before = now - before, before - begin  # the latter counts in each search

    def search(self, goal: Goal, method: str | None = None) -> Result:
        """Searches for the best choice within a goal; raises as `search.search`.

        Args:
          goal: the limit.
          method: search method in place of that of the settings.
        """
        settings = self._settings if method is None else dataclasses.replace(self._settings, method=method)
        begin = time.monotonic() - self._before
        return search(self._name, self._named, self.pricing, settings, begin, self._seconds, goal)

    def simplest(self, peak: float) -> Choice:
        """Returns the choice with alike layers of fewest segments, and of these of least memory, within `peak` bytes by
        the model; otherwise jax's default.
        """
        best, rank = default_choice(self.pricing.gradient), (math.inf, math.inf)
        for state in with_stretches(self.pricing, starts(self.pricing.gradient)):
            choice = state.choice()
            own = sum(int(cut.recomputed.sum()) for cut in choice), self.pricing(choice).peak
            if own[1] <= peak and own < rank:
                best, rank = state.copy().choice(), own
        return best

    def unplanned(self) -> Result:
        """Returns the gradient without a plan; called after a search."""
        return unplanned(self._name, self._named, self.pricing, self._settings, time.monotonic())

    def plan(self, choice: Choice) -> CheckpointPlan:
        """Converts a choice to a plan for the function."""
        return plan_of(self._named, choice, self.pricing)

    def _seconds(self, choice: Choice) -> float:
        """Estimates the run time in seconds of the gradient traced under the plan, so that all ops of jax count."""
        program, wanted, chip = self._program, self.wanted, self._settings.resolved_chip
        if is_default(choice) and self._named.traced is not None:
            return gradient_seconds(self._named.traced, chip)
        run = functools.partial(evaluate, program, self.plan(choice))
        return gradient_seconds(on_one_device(program, wanted, gradient_jaxpr(program, wanted, run)[0]), chip)


def _gradient(program: Program, wanted: Sequence[bool], chip: Chip) -> tuple[NamedGradient, Sequence[bool], bool]:
    """Builds the gradient to plan; returns it, the arguments to differentiate by (none if jax cannot), and whether jax
    cannot because a custom rule closes over a traced value.

    Some forward passes have no gradient, such as those with loops of unknown length. If a gradient is taken of such a
    function nevertheless, jax raises its own error.
    """
    try:
        return gradient_of(program, wanted, chip), wanted, False
    except Exception as error:
        if _has_gradient(program, wanted):
            raise
        none = [False] * len(wanted)
        return gradient_of(program, none, chip), none, isinstance(error, jax.errors.UnexpectedTracerError)


def _has_gradient(program: Program, wanted: Sequence[bool]) -> bool:
    """True if jax can differentiate a program without a plan."""
    try:
        gradient_jaxpr(program, wanted, lambda args: core.jaxpr_as_fun(program.closed)(*args))
    except Exception:  # custom rules may raise any error
        return False
    return True


def fingerprint_of(program: Program, wanted: Sequence[bool], settings: Settings) -> str:
    """Hashes a program's equations, the options, and the versions of graphrl and jax to 32 hexadecimal digits."""
    text = program_text(program.closed)
    options = [
        settings.budget,
        settings.slowdown,
        settings.offload,
        settings.method,
        float(settings.seconds),
        settings.seed,
        *settings.verified_for(None if program.shards is None else program.shards.layout),
        *program.sizes.by_name.items(),
        program.shards and (program.shards.arguments, program.shards.layout.sizes, program.shards.layout.links),
    ]
    versions = installed_version(), VERSION, jax.__version__
    fields = repr((versions, text, list(wanted), options, dataclasses.astuple(settings.resolved_chip)))
    return hashlib.sha256(fields.encode()).hexdigest()[:32]


def program_text(closed: core.ClosedJaxpr) -> str:
    """Returns the equations of a program as text that is the same in each process."""
    return re.sub(r"0x[0-9a-f]+|Var\(id=\d+\)", "", str(closed.jaxpr))


def _store(path: Path, planned: Planned) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, planned, FORMAT, VERSION)
    except (OSError, GraphrlError) as error:
        warnings.warn(f"graphrl: the plan cannot be stored for the next process: {error}", stacklevel=2)


def plan_of(named: NamedGradient, choice: Choice, pricing: Pricing) -> CheckpointPlan:
    """Converts a solver's choice to a plan for the function."""
    pricing(choice)  # decides which values are kept because others are not
    return _plan(named, choice, pricing, 0)


def _plan(named: NamedGradient, choice: Choice, pricing: Pricing, number: int) -> CheckpointPlan:
    level, names, cut = named.gradient.levels[number], named.names[number], choice[number]
    stored, sent = pricing.stored(number), pricing.sent(number)
    unrolled = named.gradient.is_unrolled(number, cut.stretch)
    regions = []
    for segment in np.flatnonzero(cut.recomputed & (not unrolled)).tolist():
        places = np.flatnonzero(cut.segment == segment)
        values = range(level.first[places[0]], level.first[places[-1] + 1])
        kept, moved = (
            tuple(name for v in values if stored[v] == what and (name := names[v]) is not None)
            for what in (KEPT, MOVED)
        )
        moves = [v for v in values if stored[v] == MOVED and names[v] is not None] if number == 0 else []
        ends = tuple(int(level.place[sent[v]]) for v in moves)
        regions.append(Region(int(places[0]), int(places[-1]) + 1, kept, moved, ends))
    bodies = {loop.place: _plan(named, choice, pricing, inner) for inner, loop in named.gradient.loops[number].items()}
    copied = _copied(named.programs[number], level, named.carried[number])
    planned = {place: plan for place, plan in bodies.items() if not plan.is_plain}
    return CheckpointPlan(tuple(regions), copied, planned, cut.stretch, unrolled)


def _copied(program: Program, level: Level, carried: range) -> tuple[int, ...]:
    """Returns the equations that have only free values, and read only uncarried arguments, constants or each other."""
    jaxpr = program.closed.jaxpr
    outside = {*jaxpr.constvars, *(var for number, var in enumerate(jaxpr.invars) if number not in carried)}
    copied: list[int] = []
    for place, eqn in enumerate(program.equations):
        values = slice(level.first[place], level.first[place + 1])
        follows = all(var in outside for var in variables(eqn.invars))
        if follows and not eqn.effects and bool(level.free[values].all()):
            copied.append(place)
            outside |= set(eqn.outvars)
    return tuple(copied)
