"""Plans as XLA compiles them.

What a plan needs is foretold by a model. Here XLA compiles the gradient under it and says what it needs itself. A limit
of bytes that is not kept, or not used, is searched for again with as much less, or more, as that was off.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from graphrl.errors import GraphrlError
from graphrl.solvers.budgets.choice import Choice, is_untouched
from graphrl.solvers.budgets.goal import Goal
from graphrl.xla.checkpoint.derivative import gradient_jaxpr
from graphrl.xla.checkpoint.plan import CheckpointPlan
from graphrl.xla.checkpoint.program import Program
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.search import Searched
from graphrl.xla.checkpoint.settings import Compile, UnmetError

TRIES = 4  # searches for one limit of bytes
UNUSED = 0.05  # part of a limit that may be left
SPARE = 0.01  # part of a limit by which the next search stays below it, as the last one was off
LEAST = 1.02  # of the least that a search found, what another one is asked for

Search = Callable[[Goal], Searched]


def compiled_bytes(program: Program, wanted: Sequence[bool], plan: CheckpointPlan, compile: Compile) -> int:
    """What XLA says that the gradient under a plan needs, beside arguments, results and gradients.

    Args:
      program: that is differentiated.
      wanted: of each argument, whether it is differentiated by.
      plan: about it.
      compile: a function and its arguments' shapes -> a `jax.stages.Compiled`.

    Raises:
      GraphrlError: it does not compile by itself, or the backend does not say.
    """
    jaxpr, _ = gradient_jaxpr(program, wanted, functools.partial(evaluate, program, plan))
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals]

    def gradient(*args: Any) -> list[Any]:
        return core.jaxpr_as_fun(jaxpr)(*args)

    try:
        memory = compile(gradient, *shapes).memory_analysis()
    except Exception as error:  # of jax's many: some without a word
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(" :")
        raise GraphrlError(f"verify: XLA does not compile the gradient by itself: {reason}") from None
    if memory is None:
        raise GraphrlError("verify: this backend does not say what a compiled function needs")
    return int(memory.temp_size_in_bytes)


def verified(search: Search, goal: Goal, needed: Callable[[Choice], int], unmet: Callable[[int], str]) -> Searched:
    """What a search finds, with XLA's figure in its report; for a limit of bytes the fastest that keeps it by that.

    Args:
      search: a goal -> what is found within it.
      goal: what is asked.
      needed: what XLA needs under a choice, in bytes as the goal's.
      unmet: what to say where so many bytes are the least of all that were found, and too many.

    Raises:
      UnmetError: nothing that was found keeps the limit.
    """
    tries: list[Searched] = []
    asked: Goal | None = goal
    least = False
    while asked is not None and len(tries) < TRIES:
        try:
            found = search(asked)
        except UnmetError as error:  # as foretold: XLA may need less
            if error.least is None:
                raise
            asked, least = dataclasses.replace(goal, peak=LEAST * error.least), True
            found = search(asked)
        own = needed(found.choice)
        bound = found.report.above_least if asked == goal else None
        report = dataclasses.replace(found.report, compiled_bytes=own, above_least=bound)
        tries.append(found._replace(report=report))
        asked = None if least and own > (goal.peak or 0) else _next(goal, asked, found, own)
    return _fastest(tries, goal, unmet)


def _next(goal: Goal, asked: Goal, found: Searched, own: int) -> Goal | None:
    """What to ask a search for after it was asked for something and XLA needs so many bytes for what it found; None
    where little comes of it.
    """
    if goal.peak is None or asked.peak is None:
        return None
    limit = (1 - SPARE) * goal.peak * found.report.planned.peak_bytes / own
    gains = limit > (1 + UNUSED) * asked.peak and not is_untouched(found.choice)
    return dataclasses.replace(goal, peak=limit) if gains or own > goal.peak else None


def _fastest(tries: Sequence[Searched], goal: Goal, unmet: Callable[[int], str]) -> Searched:
    """Of what XLA has compiled, what is fastest within a goal.

    Raises:
      UnmetError: nothing is.
    """
    figures = [found.report.compiled_bytes or 0 for found in tries]
    kept = [found for found, own in zip(tries, figures, strict=True) if goal.peak is None or own <= goal.peak]
    if not kept:
        raise UnmetError(unmet(min(figures)), min(figures))
    return min(kept, key=lambda found: found.report.planned.seconds)
