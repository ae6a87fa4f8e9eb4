"""Section `kept`: whether budgets in bytes are kept by XLA's figure, without and with `verify`."""

import functools
from collections.abc import Iterator

from graphrl.compare.report import markdown
from reproduce.checkpoint.budgets import NEAR
from reproduce.checkpoint.figures import memory
from reproduce.checkpoint.fitted import fitted
from reproduce.checkpoint.methods import NONE
from reproduce.checkpoint.programs import build
from reproduce.checkpoint.settings import Settings
from reproduce.gpu_compile import compile_for_gpu
from reproduce.measurements import Figures
from reproduce.real_programs.settings import mebibytes, ratio
from reproduce.results import Table

SHARES = (0.6, 0.4)  # of jax's own temporaries


def kept(settings: Settings) -> Iterator[Table]:
    """A line a program and budget."""
    lines, found = [], {False: list[tuple[Figures, int]](), True: list[tuple[Figures, int]]()}
    for name in settings.chosen:
        for share in SHARES:
            plain = memory(settings, name, NONE)
            if plain is None:
                continue
            room = int(share * plain["temporaries"])
            budget = plain["arguments"] + plain["results"] + room
            line = [name, f"{share:.0%}", mebibytes(budget)]
            for verify in (False, True):
                own = _figures(settings, name, share, budget, verify=verify)
                found[verify] += [] if own is None else [(own, room)]
                line += _cells(own, room)
            lines.append(line)
    headings = [
        "program", "budget for temporaries", "the step, MiB", "XLA / budget for temporaries", "XLA / report",
        "slowdown", "planning, s", "verified: XLA / budget", "XLA / report", "slowdown", "planning, s",
    ]  # fmt: skip
    how = (
        "Plans for budgets in bytes: arguments and results of the gradient and a share of jax's own temporaries. XLA's "
        "temporaries as shares of what the budget leaves for them and of what the report says, as compiled for an H200 "
        "afterwards: without `verify`, and with it, where planning has compilations, four at most, and the report has "
        'XLA\'s figure. "above": the least found was foretold, or with `verify` compiled, to be so much of the budget '
        "for temporaries."
    )
    notes = [_counted(which, found[verify]) for verify, which in ((False, "foretold"), (True, "verified"))]
    yield settings.measurements.table("Budgets in bytes", how, markdown(headings, lines), notes=notes)


def _cells(own: Figures | None, room: int) -> list[str]:
    if own is None:
        return ["-"] * 4
    if own["temporaries"] is None:
        least = "all" if own["least"] is None else ratio(own["least"] / room)
        return [f"above: {least}", "-", "-", f"{own['seconds']:.0f}"]
    quotients = own["temporaries"] / room, own["temporaries"] / _reported(own), own["slowdown"]
    return [*map(ratio, quotients), f"{own['seconds']:.0f}"]


def _reported(own: Figures) -> float:
    """What the report says that XLA needs."""
    return own["foretold"] if own["compiled"] is None else own["compiled"]


def _counted(which: str, figures: list[tuple[Figures, int]]) -> str:
    met = [(own, room) for own, room in figures if own["temporaries"] is not None]
    within = sum(own["temporaries"] <= room for own, room in met)
    near = sum(abs(own["temporaries"] / _reported(own) - 1) <= NEAR for own, _ in met)
    return (
        f"{which}: of {len(figures)} budgets {len(figures) - len(met)} were refused, {within} kept; "
        f"XLA's figure within {NEAR:.0%} of the report's in {near} of {len(met)}"
    )


def _figures(settings: Settings, name: str, share: float, budget: int, *, verify: bool) -> Figures | None:
    key = {"what": "kept", "program": name, "share": share, "verify": verify, "size": settings.size}
    return settings.measurements.get(key, functools.partial(_planned, settings, name, budget, verify))


def _planned(settings: Settings, name: str, budget: int, verify: bool) -> Figures:
    """What planning for a budget comes to, and what XLA needs afterwards; that is None where it was refused."""
    program = build(name, small=settings.quick)
    gradient, figures = fitted(program, budget, verify=verify)
    refused = figures["foretold"] is None
    return {"temporaries": None if refused else compile_for_gpu(gradient, *program.args).temporaries, **figures}
