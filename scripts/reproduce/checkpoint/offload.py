"""Section `offload`: what the memory of the host saves on the device, as foretold and by XLA's figures."""

import statistics
from collections.abc import Iterator

from graphrl.compare.report import markdown
from reproduce.checkpoint.barriers import barriers
from reproduce.checkpoint.budgets import planning_of
from reproduce.checkpoint.figures import memory
from reproduce.checkpoint.methods import HOSTED
from reproduce.checkpoint.settings import Settings
from reproduce.real_programs.settings import mebibytes, ratio
from reproduce.results import Table

PROGRAMS = ("transformer", "transformer in a scan", "Llama", "vision transformer")


def offload(settings: Settings) -> Iterator[Table]:
    """What barriers do, and a line a program and limit."""
    yield barriers(settings)
    lines, quotients = [], []
    for name in settings.programs or (settings.chosen if settings.quick else PROGRAMS):
        for method, (plain, _) in HOSTED.items():
            if method not in settings.among(tuple(HOSTED)):
                continue
            without, own = memory(settings, name, plain), memory(settings, name, method)
            without_plan, plan = planning_of(settings, name, plain), planning_of(settings, name, method)
            if not (without and own and without_plan and plan):
                continue
            quotients.append(own["temporaries"] / without["temporaries"])
            sizes = without_plan["peak"], without["temporaries"], plan["peak"], own["temporaries"]
            cells = [*map(mebibytes, sizes), ratio(quotients[-1]), *map(mebibytes, (plan["moved"], own["on_host"]))]
            lines.append([name, method, *cells, ratio(plan["slowdown"])])
    headings = [
        "program", "method", "without: foretold, MiB", "XLA", "with: foretold", "XLA", "with / without", "moved",
        "on the host", "slowdown foretold",
    ]  # fmt: skip
    how = (
        "Temporaries on the device that graphrl foretells, and those of XLA's compiler for an H200, in MiB: without "
        "the memory of the host and with it, within the same slowdown; bytes that are foretold to be moved, and XLA's "
        "in the memory of the host."
    )
    if lines:
        mean = f"with / without, geometric mean: {ratio(statistics.geometric_mean(quotients))}"
        yield settings.measurements.table("The memory of the host", how, markdown(headings, lines), notes=[mean])
