"""Predicted temporaries (`xla.assignment`, no compilation) against XLA's own figure."""

from collections.abc import Iterator

from graphrl.compare.report import markdown, percent
from graphrl.errors import GraphrlError
from real_programs.measurements import Figures
from real_programs.programs import INFERENCE, TRAINING
from real_programs.settings import Settings, megabytes
from real_programs.temporaries import of_plan, of_xla

WITHIN = 0.02


def prediction(settings: Settings) -> Iterator[str]:
    """One table: each program under both of XLA's schedules and the longest plan's.

    Raises:
      GraphrlError: with --cheap, since there is nothing to compare with.
    """
    if settings.cheap:
        raise GraphrlError("prediction: --cheap compiles nothing that a prediction could be compared with")
    headings = ["program", *(f"{name}{what}" for name in _COLUMNS for what in (", XLA [MB]", ", predicted", ", error"))]
    lines, errors = [], []
    for subject in settings.subjects((*TRAINING, *INFERENCE)):
        found = [of_xla(settings, subject, "default"), of_xla(settings, subject, "memory")]
        found.append(of_plan(settings, subject, settings.times[-1]))
        errors.append([_error(figures) for figures in found])
        cells = [cell for figures, error in zip(found, errors[-1], strict=True) for cell in _cells(figures, error)]
        lines.append([subject.name, *cells])
    shares = [_share(name, [row[k] for row in errors]) for k, name in enumerate(_COLUMNS)]
    shares.append(_share("all", [error for row in errors for error in row]))
    yield f"## Predicted temporaries\n\n{markdown(headings, lines)}\n{''.join(shares)}\n{settings.origin()}"


_COLUMNS = ("default", "memory", "graphrl")


def _error(figures: Figures | None) -> float | None:
    if figures is None or not figures["temp"]:
        return None
    return figures["predicted"] / figures["temp"] - 1


def _cells(figures: Figures | None, error: float | None) -> list[str]:
    if figures is None:
        return ["-"] * 3
    return [megabytes(figures["temp"]), megabytes(figures["predicted"]), percent(error)]


def _share(name: str, errors: list[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if not known:
        return f"- {name}: nothing to compare\n"
    within = sum(abs(error) <= WITHIN for error in known)
    exact = sum(error == 0 for error in known)
    return (
        f"- {name}: {within} of {len(known)} ({100 * within / len(known):.0f}%) within {100 * WITHIN:.0f}%, "
        f"{exact} exact, worst {percent(max(known, key=abs))}\n"
    )
