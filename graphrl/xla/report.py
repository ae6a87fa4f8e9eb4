"""Report on the memory and time that planning a compiled program saved, as a table and as data."""

import dataclasses
from typing import Any

from graphrl.units import align_columns, format_bytes, format_seconds
from graphrl.xla.planning.cache import Decision


@dataclasses.dataclass(frozen=True)
class Report:
    """Memory and time of one compiled program, before and after planning. `str()` of it is a small table.

    Attributes:
      program: the module's name in XLA.
      planned: True if the program runs in graphrl's order; else XLA's schedule is used.
      reason: one line why XLA's schedule is used; "" if it is not.
      method: the requested method.
      found_by: the method that found the best order; "" if XLA's schedule is used.
      xla_bytes: bytes of temporaries under XLA's default schedule, predicted unless a compilation measured another
        figure; None if the program was too small to evaluate.
      memory_bytes: bytes of temporaries under the schedule of XLA's memory scheduler; None if it was not run.
      memory_measured: True if `memory_bytes` is XLA's own figure, not a prediction of it.
      graphrl_bytes: bytes of temporaries under the best order found, whether it is used or not.
      argument_bytes: bytes of the program's arguments.
      result_bytes: bytes of the results that XLA does not write into donated arguments.
      undonated_bytes: bytes of further results: XLA's own schedule writes them into donated arguments, the best order
        found does not.
      bound: lower bound on the bytes of temporaries in any order that computes each value once: the least peak of live
        bytes, less all that the buffers of results could store.
      recomputed: share of the program's estimated run time spent on computing values again.
      search_seconds: time of planning in seconds, now or in the process that stored the plan.
      from_cache: True if the order was read from disk.
      xla_step_seconds, graphrl_step_seconds: seconds of one call, under XLA's default schedule and as the program runs
        now; None if not measured.
    """

    program: str
    planned: bool
    reason: str
    method: str = ""
    found_by: str = ""
    xla_bytes: int | None = None
    memory_bytes: int | None = None
    memory_measured: bool = False
    graphrl_bytes: int | None = None
    argument_bytes: int = 0
    result_bytes: int = 0
    undonated_bytes: int = 0
    bound: float | None = None
    recomputed: float = 0.0
    search_seconds: float = 0.0
    from_cache: bool = False
    xla_step_seconds: float | None = None
    graphrl_step_seconds: float | None = None

    @classmethod
    def of(cls, program: str, decision: Decision, *, from_cache: bool) -> "Report":
        """Creates the report on a decision, without step times."""
        shared = {field.name for field in dataclasses.fields(cls)} & vars(decision).keys()
        figures = {name: getattr(decision, name) for name in shared}
        return cls(program=program, planned=decision.is_planned, from_cache=from_cache, **figures)

    @property
    def temp_bytes(self) -> int | None:
        """Bytes of temporaries of the program as it runs; None if the program was too small to evaluate."""
        return self.graphrl_bytes if self.planned else self.xla_bytes

    @property
    def total_bytes(self) -> int | None:
        """All bytes of the program as it runs: arguments, temporaries, and results outside of donated arguments."""
        return self._total(self.temp_bytes, self.undonated_bytes if self.planned else 0)

    def _total(self, temporaries: int | None, undonated: int = 0) -> int | None:
        return None if temporaries is None else self.argument_bytes + self.result_bytes + undonated + temporaries

    def to_dict(self) -> dict[str, Any]:
        """Converts the report to a dictionary for `json.dump`: attributes, `temp_bytes` and `total_bytes`."""
        return {**dataclasses.asdict(self), "temp_bytes": self.temp_bytes, "total_bytes": self.total_bytes}

    def __str__(self) -> str:
        if self.xla_bytes is None:
            return f"{self.program}: {self.reason}"
        prefix = "" if self.memory_measured else "~"
        xla, ours_in_all = self._total(self.xla_bytes), self._total(self.graphrl_bytes, self.undonated_bytes)
        saved = f" ({100 * (ours_in_all / xla - 1):+.0f}%)" if self.planned and xla and ours_in_all else ""
        ours = f"graphrl ({self.found_by})" if self.found_by else "graphrl"
        rows = [
            (self.program, "total", "temporaries", "step"),
            ("XLA, default scheduler", _bytes(xla), _bytes(self.xla_bytes), _seconds(self.xla_step_seconds)),
            (
                "XLA, memory scheduler",
                _bytes(self._total(self.memory_bytes), prefix),
                _bytes(self.memory_bytes, prefix),
                "-",
            ),
            (ours, _bytes(ours_in_all) + saved, _bytes(self.graphrl_bytes), _seconds(self.graphrl_step_seconds)),
            (
                "lower bound, each value computed once" if self.recomputed else "lower bound",
                "",
                "-" if self.bound is None else format_bytes(self.bound),
                "",
            ),
        ]
        lines = align_columns(rows, left=1)
        where = "read from the plan cache" if self.from_cache else "in a new search"
        if self.undonated_bytes:
            lines.append(f"{format_bytes(self.undonated_bytes)} of results cannot use donated arguments in this order")
        if self.recomputed:
            lines.append(f"recomputed values take an estimated {self.recomputed:.1%} of the run time")
        lines.append(f"planned in {format_seconds(self.search_seconds)} by method {self.method!r}, {where}")
        if not self.planned:
            lines.append(f"XLA's schedule is used: {self.reason}")
        return "\n".join(lines)


def _bytes(value: int | None, prefix: str = "") -> str:
    return "-" if value is None else prefix + format_bytes(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
