"""What donated steps need in all, by XLA's figures: arguments, temporaries, and results in no donated argument."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from reproduce.measurements import Figures
from reproduce.real_programs.settings import mebibytes, ratio

TARGETS = {"graphrl": 0.88, "recomputed": 0.65}  # of the better scheduler, geometric means
HEADINGS = ("given [MiB]", "XLA default", "XLA memory", "graphrl", "recomputed", "/ better", "recomputed /")


def totals_of(*, default: Any, memory: Any, graphrl: Any, recomputed: Any) -> Figures:
    """Bytes in all of the executables of one step by XLA's schedulers and by graphrl; `given` are its arguments."""
    executables = {"default": default, "memory": memory, "graphrl": graphrl, "recomputed": recomputed}
    given = default.memory_analysis().argument_size_in_bytes
    return {"given": given, **{name: _total(compiled) for name, compiled in executables.items()}}


def _total(compiled: Any) -> int:
    figures = compiled.memory_analysis()
    return int(
        figures.argument_size_in_bytes
        + figures.temp_size_in_bytes
        + figures.output_size_in_bytes
        - figures.alias_size_in_bytes
    )


def cells(figures: Figures | None) -> list[str]:
    """Under `HEADINGS`."""
    if figures is None:
        return ["-"] * len(HEADINGS)
    sizes = [mebibytes(figures[name]) for name in ("given", "default", "memory", "graphrl", "recomputed")]
    return [*sizes, *(ratio(figures[name] / _better(figures)) for name in TARGETS)]


def summary(measured: Sequence[Figures]) -> Iterator[str]:
    """Whether the targets are met."""
    for name, target in TARGETS.items():
        mean = statistics.geometric_mean(figures[name] / _better(figures) for figures in measured)
        met = "met" if mean <= target else "**not met**"
        yield f"{name}: {ratio(mean)} of the better scheduler's total, target {ratio(target)}: {met}"
    above = sum(max(figures[name] for name in TARGETS) > _better(figures) for figures in measured)
    yield f"above the better scheduler: {above} of {len(measured)}"


def _better(figures: Figures) -> int:
    return int(min(figures["default"], figures["memory"]))
