"""Predicted temporaries (`xla.assignment`, no compilation) against XLA's own figure."""

from collections.abc import Iterator

from graphrl.compare.report import markdown, percent
from graphrl.errors import GraphrlError
from reproduce.measurements import Figures
from reproduce.real_programs.names import INFERENCE, TRAINING
from reproduce.real_programs.settings import Settings, mebibytes
from reproduce.real_programs.temporaries import of_plan, of_xla
from reproduce.results import Table

WITHIN = 0.02


def prediction(settings: Settings) -> Iterator[Table]:
    """One table: each program under both of XLA's schedules and the longest plan's.

    Raises:
      GraphrlError: with --cheap, since there is nothing to compare with.
    """
    if settings.cheap:
        raise GraphrlError("prediction: --cheap compiles nothing that a prediction could be compared with")
    headings = [
        "program",
        *(f"{name}{what}" for name in _COLUMNS for what in (", XLA [MiB]", ", predicted", ", error")),
    ]
    lines, errors = [], []
    for subject in settings.subjects((*TRAINING, *INFERENCE)):
        schedules = [of_xla(settings, subject, "default"), of_xla(settings, subject, "memory")]
        schedules.append(of_plan(settings, subject, settings.times[-1]))
        errors.append([_error(figures) for figures in schedules])
        cells = [cell for figures, error in zip(schedules, errors[-1], strict=True) for cell in _cells(figures, error)]
        lines.append([subject.name, *cells])
    shares = [_share(name, [row[k] for row in errors]) for k, name in enumerate(_COLUMNS)]
    shares.append(_share("all", [error for row in errors for error in row]))
    yield settings.measurements.table("Predicted temporaries", markdown(headings, lines), notes=shares)


_COLUMNS = ("default", "memory", "graphrl")


def _error(figures: Figures | None) -> float | None:
    if figures is None or not figures["temp"]:
        return None
    return figures["predicted"] / figures["temp"] - 1


def _cells(figures: Figures | None, error: float | None) -> list[str]:
    if figures is None:
        return ["-"] * 3
    return [mebibytes(figures["temp"]), mebibytes(figures["predicted"]), percent(error)]


def _share(name: str, errors: list[float | None]) -> str:
    some = [error for error in errors if error is not None]
    if not some:
        return f"{name}: nothing to compare"
    within = sum(abs(error) <= WITHIN for error in some)
    exact = sum(error == 0 for error in some)
    return (
        f"{name}: {within} of {len(some)} ({100 * within / len(some):.0f}%) within {100 * WITHIN:.0f}%, "
        f"{exact} exact, worst {percent(max(some, key=abs))}"
    )
