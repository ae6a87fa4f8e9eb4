"""Section `rules`: memory and estimated time of every rule on every program."""

import statistics
from collections.abc import Iterator

from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from reproduce.checkpoint.figures import compiled_slowdown, memory, slowdown
from reproduce.checkpoint.methods import METHODS, NONE, XLA
from reproduce.checkpoint.points import points
from reproduce.checkpoint.settings import Settings
from reproduce.gpu_compile import missing
from reproduce.real_programs.settings import mebibytes, ratio
from reproduce.results import Table


def rules(settings: Settings) -> Iterator[Table]:
    """A table of means, and one a program.

    Raises:
      GraphrlError: the packages are missing.
    """
    if reason := missing():
        raise GraphrlError(reason)
    yield from tables(settings)


def tables(settings: Settings) -> list[Table]:
    """The same without a look at the packages: what is not measured yet fails."""
    methods = settings.among((*METHODS, *XLA))
    by_program = [_of_program(settings, program, methods) for program in settings.chosen]
    return [_means(settings, methods), *by_program]


def _of_program(settings: Settings, program: str, methods: tuple[str, ...]) -> Table:
    whole = memory(settings, program, NONE)
    lines = []
    for method in methods:
        figures = memory(settings, program, method)
        cells = [mebibytes((figures or {}).get(column)) for column in ("temporaries", "on_host")]
        share = figures["temporaries"] / whole["temporaries"] if figures and whole else None
        times = [slowdown(settings, program, method), compiled_slowdown(settings, program, method)]
        lines.append([method, *cells, ratio(share), *map(ratio, times)])
    headings = ["rule", "temporaries", "on the host", "of none's", "slowdown", "compiled"]
    how = (
        ""
        if whole is None
        else f"Arguments {mebibytes(whole['arguments'])} MiB, results {mebibytes(whole['results'])}."
    )
    return settings.measurements.table(program, how, markdown(headings, lines))


def _means(settings: Settings, methods: tuple[str, ...]) -> Table:
    """Of shares of the undecorated gradient's temporaries the geometric mean, of slowdowns the mean."""
    lines = []
    for method in methods:
        some = [point for name in settings.chosen for point in points(settings, name, [method])]
        compiled = [compiled_slowdown(settings, name, method) for name in settings.chosen]
        times = [[point.slowdown for point in some], [time for time in compiled if time is not None]]
        share = statistics.geometric_mean([point.share for point in some]) if some else None
        means = [statistics.fmean(each) if each else None for each in times]
        lines.append([method, str(len(some)), ratio(share), *map(ratio, means)])
    how = (
        "Temporaries of `value_and_grad` by XLA's compiler for an H200, in MiB, and estimated seconds on "
        f"{settings.chip} over those of the undecorated gradient, less 1: of the traced function "
        "(`graphrl.xla.checkpoint.seconds`), and of the compiled module's instructions, each by roofline. Means are of "
        "shares of the undecorated gradient's temporaries (geometric) and of slowdowns. XLA's own is its "
        "rematerialisation on a GPU with room for that share of the temporaries; it is in no traced function."
    )
    table = markdown(["rule", "programs", "of none's", "slowdown", "compiled"], lines)
    return settings.measurements.table("Rules, on the mean of the programs", how, table)
