"""Plans as XLA compiles them.

What a plan needs is foretold by a model. Here XLA compiles the gradient under it and says what it needs itself. A limit
of bytes that is not kept, or not used, is searched for again with as much less, or more, as that was off.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.xla.checkpoint.derivative import gradient_jaxpr
from graphrl.xla.checkpoint.program import CheckpointPlan, Program
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.search import CLEARLY, Searched
from graphrl.xla.checkpoint.settings import Compiler, UnmetError
from graphrl.xla.checkpoint.solvers.choice import Choice, is_untouched
from graphrl.xla.checkpoint.solvers.goal import Goal

TRIES = 4  # plans that are compiled for one limit of bytes, beside a regular one
UNUSED = 0.05  # part of a limit that may be left
BINDING = 0.75  # part of a limit: a plan of less than that is faster than all that need more
SPARE = 0.01  # part of a limit by which the next search stays below it, as the last one was off
MAYBE = 1.25  # of what XLA needs for a plan: another plan that is predicted to need more is not compiled
LEAST = 1.02  # of the least that a search found, what another one is asked for

Search = Callable[[Goal], Searched]


def compiled_bytes(program: Program, wanted: Sequence[bool], plan: CheckpointPlan, compiler: Compiler) -> int:
    """What XLA says that the gradient under a plan needs, beside arguments, results and gradients; with the cotangents
    of results that are arrays, as all that is foretold.

    Args:
      program: that is differentiated.
      wanted: of each argument, whether it is differentiated by.
      plan: about it.
      compiler: of gradients.

    Raises:
      GraphrlError: it does not compile by itself or takes several devices, or the backend does not say.
      ProblemError: what compiles does not give a `jax.stages.Compiled`.
    """
    jaxpr, _ = gradient_jaxpr(program, wanted, functools.partial(evaluate, program, plan))
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals]

    def gradient(*args: Any) -> list[Any]:
        return core.jaxpr_as_fun(jaxpr)(*args)

    try:
        compiled = compiler(gradient, *shapes)
    except Exception as error:  # of jax's many: some without a word
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(" :")
        fault = f"verify: XLA does not compile the gradient by itself (plan without verify): {reason}"
        raise GraphrlError(fault) from error
    if not hasattr(compiled, "memory_analysis"):
        raise ProblemError(f"verify gave a {type(compiled).__name__}: must be a jax.stages.Compiled")
    shardings = jax.tree.leaves(getattr(compiled, "input_shardings", ()))
    devices = max((sharding.num_devices for sharding in shardings), default=1)
    if devices > 1:
        raise GraphrlError(f"verify: the gradient takes {devices} devices, and budgets are of one: plan without verify")
    memory = compiled.memory_analysis()
    if memory is None:
        raise GraphrlError("verify: this backend does not say what a compiled function needs")
    cotangents = jaxpr.in_avals[len(program.closed.in_avals) :]
    return int(memory.temp_size_in_bytes) + sum(array_bytes(aval) for aval in cotangents if aval.ndim)


def verified(
    search: Search,
    regular: Search,
    alone: Callable[[], Searched],
    goal: Goal,
    needed: Callable[[Choice], int],
    unmet: Callable[[int], str],
) -> Searched:
    """What a search finds, with XLA's figure in its report; for a limit of bytes the fastest that keeps it by that. If
    none does, and for limits of time, the lowest of the regular plans is tried too: of plans that are alike by what is
    foretold, XLA may run one in clearly less, and such a one is what a rule for each layer gives. The gradient without
    a plan is taken if XLA needs no more for it: some compilers undo the recomputation of a plan.

    Args:
      search: a goal -> what is found within it.
      regular: likewise, by trying plans that treat all layers alike.
      alone: gives the gradient without a plan; called after a search.
      goal: what is asked.
      needed: what XLA needs under a choice, in bytes as the goal's.
      unmet: what to say where so many bytes are the least of all that were found, and too many.

    Raises:
      UnmetError: nothing that was found keeps the limit.
    """
    if goal.peak is None:
        return _or_alone(_lower(search, regular, goal, needed), alone, goal, needed)
    tries: list[tuple[int, Searched]] = []
    asked: float | None = goal.peak
    fault: UnmetError | None = None
    while asked is not None and len(tries) < TRIES:
        try:
            found, is_lowest = _or_lowest(search, dataclasses.replace(goal, peak=asked), LEAST)
        except UnmetError as error:
            fault = error
            break
        own = needed(found.choice)
        tries.append((own, found))
        asked = None if is_lowest and own > goal.peak else _next(goal.peak, asked, found, own)
    for other in (alone, lambda: _or_lowest(regular, dataclasses.replace(goal, peak=0.0), 1.0)[0]):
        if all(own > goal.peak for own, _ in tries):
            with contextlib.suppress(GraphrlError):  # it does not compile, as others did
                found = other()
                tries.append((needed(found.choice), found))
    kept = [(own, found) for own, found in tries if own <= goal.peak]
    if not kept:
        if fault is not None and not tries:
            raise fault
        least = min(own for own, _ in tries)
        raise UnmetError(unmet(least), least)
    own, found = min(kept, key=lambda each: each[1].report.planned.seconds)
    return _compiled(found, own, None)  # a bound holds within the bytes as foretold, not as compiled


def _lower(search: Search, regular: Search, goal: Goal, needed: Callable[[Choice], int]) -> Searched:
    """What is found, or for a limit of time a regular plan if XLA needs clearly less for that."""
    found = search(goal)
    own, bound = needed(found.choice), found.report.above_least
    if goal.slowdown is not None:
        with contextlib.suppress(GraphrlError):  # none saves so much time, or it does not compile, as the other did
            other = regular(goal)
            if not is_untouched(other.choice) and other.report.planned.peak_bytes < MAYBE * own:
                others = needed(other.choice)
                if others < CLEARLY * own:
                    return _compiled(other, others, None)
    return _compiled(found, own, bound)


def _or_alone(found: Searched, alone: Callable[[], Searched], goal: Goal, needed: Callable[[Choice], int]) -> Searched:
    """A search's plan, or the gradient without a plan if XLA needs no more for it and it is no slower. Within a
    slowdown it may be slower, if XLA needs less for it.
    """
    own = found.report.compiled_bytes or 0
    foretold, plain = found.report.planned, found.report.plain
    is_as_foretold = own < MAYBE * foretold.peak_bytes and foretold.peak_bytes < MAYBE * own
    is_too_slow = goal.slowdown is not None and goal.slowdown < 0
    if is_untouched(found.choice) or is_too_slow or (is_as_foretold and plain.peak_bytes > MAYBE * own):
        return found
    with contextlib.suppress(GraphrlError):  # it does not compile, as the other did
        other = alone()
        others, is_faster = needed(other.choice), plain.seconds <= foretold.seconds
        if others <= own and (is_faster or (goal.slowdown is not None and others < own)):
            return _compiled(other, others, None)
    return found


def _compiled(found: Searched, own: int, above_least: float | None) -> Searched:
    """The same, with what XLA needs in its report."""
    return found._replace(report=dataclasses.replace(found.report, compiled_bytes=own, above_least=above_least))


def _or_lowest(search: Search, goal: Goal, part: float) -> tuple[Searched, bool]:
    """What is found; where nothing is within the goal by what is foretold, within that part of the least that is, and
    whether that was so.
    """
    try:
        return search(goal), False
    except UnmetError as error:
        if error.least is None:
            raise
        return search(dataclasses.replace(goal, peak=part * error.least)), True


def _next(limit: float, asked: float, found: Searched, own: int) -> float | None:
    """What to ask a search for where XLA needs so many bytes for what it found when asked for some; None where little
    comes of it.
    """
    foretold = found.report.planned.peak_bytes
    following = (1 - SPARE) * limit * foretold / max(own, 1)
    binds = foretold > BINDING * asked and not is_untouched(found.choice)
    gains = binds and following > (1 + UNUSED) * max(asked, foretold)
    return following if gains or own > limit else None
