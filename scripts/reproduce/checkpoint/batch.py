"""Section `batch`: the largest batch that fits GPUs of some sizes, by XLA's figure."""

import math
from collections.abc import Callable, Iterator

from graphrl.compare.report import markdown
from reproduce.checkpoint.budgets import fitted
from reproduce.checkpoint.measured import Settings, best, memory, points
from reproduce.checkpoint.methods import FITTED, NONE, OURS, RULES
from reproduce.checkpoint.programs import PROGRAMS, build
from reproduce.results import Table

ROOMS = (16, 40, 80)  # GB: 1e9 bytes
PRECISION = 0.02  # of a batch


def batch(settings: Settings) -> Iterator[Table]:
    """A line a program."""
    lines = []
    for name in settings.chosen:
        methods = [NONE]
        for candidates in (RULES, OURS):
            point = best(points(settings, name, settings.among(tuple(candidates))))
            methods += [] if point is None else [point.method]
        cells = [[_of_method(settings, name, method, room) for method in methods] for room in ROOMS]
        if settings.among((FITTED,)):
            methods.append(FITTED)
            ratio = 1.0  # of graphrl's batch to the largest of others, in the room before
            for sizes, room in zip(cells, ROOMS, strict=True):
                own = _fitted(settings, name, room, max(1, int(ratio * max(sizes))))
                ratio = max(1, own) / max(1, *sizes)
                sizes.append(own)
        lines.append([name, " / ".join(methods), *(" / ".join(map(str, sizes)) for sizes in cells)])
    how = (
        "Arguments, temporaries and results of the gradient by XLA's compiler for an H200; without a rule, with the "
        "rule that needs the least temporaries at the program's own batch, and with that of graphrl's; "
        f'"{FITTED}": planned anew for each batch, for the bytes of the room, which XLA verifies. Each is found '
        f"by compiling, to {PRECISION:.0%}: what is that much larger does not fit."
    )
    headings = ["program", "methods", *(f"{room} GB" for room in ROOMS)]
    yield settings.measurements.table("Largest batches", how, markdown(headings, lines))


def _of_method(settings: Settings, program: str, method: str, room: int) -> int:
    own = PROGRAMS[program].full["batch"]

    def needed(size: int) -> float:
        figures = memory(settings, program, method, size)
        return sum(figures[kind] for kind in ("arguments", "temporaries", "results")) if figures else float("inf")

    # Bytes are nearly linear in the batch.
    start = max(1, int(own * room * 1e9 / max(1.0, needed(own))))
    return largest(lambda size: needed(size) <= room * 1e9, start)


def _fitted(settings: Settings, program: str, room: int, start: int) -> int:
    """The largest batch for which a plan of graphrl's fits; the search begins at a start."""

    def fits(size: int) -> bool:
        key = {"what": "fitted", "program": program, "room": room, "batch": size, "size": settings.size}
        figures = settings.measurements.get(
            key, lambda: fitted(build(program, batch=size), int(room * 1e9), verify=True)[1]
        )
        return figures is not None and figures["foretold"] is not None

    return largest(fits, start)


def largest(fits: Callable[[int], bool], start: int, precision: float = PRECISION) -> int:
    """The largest batch that fits, to a precision, a share of it: what is larger by that or by 1 does not.

    From the start in steps that double, then by halves; 0 if not even one example fits.
    """
    low, high, guess, part = 0, None, start, precision
    while high is None or high > low + _step(low, precision):
        if fits(guess):
            low = guess
        else:
            high = guess
        if high is None:
            guess = low + _step(low, part)
        else:
            guess = (low + high) // 2 if low else max(1, min(high - 1, math.ceil(high / (1 + part))))
        part *= 2
    return low


def _step(size: int, precision: float) -> int:
    return max(1, int(size * precision))
