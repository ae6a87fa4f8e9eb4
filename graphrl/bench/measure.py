"""Measures every case with graphrl and the given yardsticks, in turns, and makes rows of it."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Case, Row, Settings, Work
from graphrl.bench.programs import graphrl_evaluation
from graphrl.bench.searches import graphrl_search, own_work
from graphrl.bench.start import cached_compile_seconds
from graphrl.bench.timing import Program, Samples, Say, interleaved, measured_fields
from graphrl.errors import GraphrlError

GRAPHRL = "graphrl"


class Unavailable(GraphrlError):
    """A yardstick has no program for a case, or none on this machine; the message says why."""


Yardstick = Callable[[Work], Program]  # raises Unavailable


def measure(settings: Settings, yardsticks: Mapping[str, Yardstick] | None, say: Say) -> Iterator[list[Row]]:
    """The rows of each case in turn, graphrl's first.

    Args:
      settings: what to measure.
      yardsticks: other implementations of the same search to measure beside graphrl, by name.
      say: see `Say`.

    Raises:
      GraphrlError: two methods do not compute the same costs, or a yardstick cannot be run.
      ProblemError: jax has not as many devices as threads are wanted.
    """
    with machine.pinned(settings.threads) as pinned:
        machine.configure(settings.threads)
        for case in settings.cases():
            yield _rows(settings, case, {GRAPHRL: _graphrl, **(yardsticks or {})}, pinned, say)


def _graphrl(work: Work) -> Program:
    return graphrl_search(work) if work.case.search else graphrl_evaluation(work)


def _rows(settings: Settings, case: Case, methods: Mapping[str, Yardstick], pinned: bool, tell: Say) -> list[Row]:
    """Makes the programs of a case ready, compares their results, and times them in turns."""

    def say(text: str) -> None:
        tell(f"n = {case.num_ops}, {case.title}: {text}")

    work = Work(settings, case)
    programs: dict[str, Program] = {}
    reasons: dict[str, str] = {}
    for method, make in methods.items():
        say(f"preparing {method}")
        try:
            programs[method] = make(work)
        except Unavailable as error:
            reasons[method] = str(error)
    check_agreement(programs)
    timed = dict(programs)
    cached = None
    if case.search:
        say("preparing graphrl's parts")  # they tell the shares of a run: its own work alone, and Beta proposals
        timed |= {"own": own_work(work), "beta": graphrl_search(work, proposals=True)}
        if not case.makespan:
            say("starting processes with a compilation cache")
            cached = cached_compile_seconds(work)
    say(f"timing {', '.join(programs)}")
    samples = interleaved([program.run for program in timed.values()], settings.repeats, settings.seconds)
    figures = _Figures(dict(zip(timed, samples, strict=True)), machine.clock(pinned))
    return [
        _row(settings, case, method, programs.get(method), figures, pinned, cached, reasons.get(method))
        for method in methods
    ]


def check_agreement(programs: Mapping[str, Program]) -> None:
    """Refuses to time methods that do not compute the same.

    Raises:
      GraphrlError: two differ on a chromosome, by more than float32 sums on large graphs can.
    """
    costs = {method: program.costs for method, program in programs.items() if program.costs is not None}
    first = next(iter(costs), None)
    for method in costs:
        assert first is not None
        for name, ours, theirs in zip(("makespan", "peak memory"), costs[first], costs[method], strict=True):
            same = np.isclose(ours[: len(theirs)].astype(float), theirs.astype(float), rtol=1e-5, atol=0)
            if not same.all():
                where = tuple(np.argwhere(~same)[0].tolist())
                raise GraphrlError(
                    f"{name} of graph {where[0]}, chromosome {where[1]}: {first} says {ours[where]} and "
                    f"{method} {theirs[where]}: one of them is wrong"
                )


class _Figures:
    """Samples by program, on one clock."""

    def __init__(self, samples: dict[str, Samples], clock: str) -> None:
        self.samples, self.clock = samples, clock

    def rate(self, name: str) -> float | None:
        """Evaluations a second."""
        return self.samples[name].per_second(self.clock) if name in self.samples else None

    def ratio(self, name: str, other: str) -> float | None:
        """Of the rates of two programs."""
        rates = self.rate(name), self.rate(other)
        return None if rates[0] is None or rates[1] is None else rates[0] / rates[1]

    def ratios(self, name: str) -> dict[str, float]:
        """Of the rates of a program and of each yardstick."""
        others = (other for other in self.samples if other not in (GRAPHRL, "own", "beta"))
        return {other: ratio for other in others if (ratio := self.ratio(name, other)) is not None}


def _row(
    settings: Settings,
    case: Case,
    method: str,
    program: Program | None,
    figures: _Figures,
    pinned: bool,
    cached: float | None,
    reason: str | None,
) -> Row:
    samples, clock, is_ours = figures.samples.get(method), figures.clock, method == GRAPHRL
    slowdown = figures.ratio("beta", GRAPHRL) if is_ours else None
    fields = measured_fields(settings, pinned)
    if program is None or program.on_host:
        fields["device_kind"] = machine.cpu_name()
    return Row(
        **fields,
        what=case.what,
        method=method,
        n=case.num_ops,
        graphs=program.graphs if program else settings.num_graphs,
        population=program.population if program else PARAMETERS.population,
        devices=DEVICES,
        transfer=case.transfer,
        objective=case.objective if case.search else None,
        evaluations=samples.evaluations if samples else None,
        compile_s=(program.compile_s or None) if program else None,
        cached_compile_s=cached if is_ours else None,
        median_s=samples.median(clock) if samples else None,
        min_s=min(samples.seconds(clock)) if samples else None,
        wall_s=samples.median("wall") if samples else None,
        cpu_s=samples.median("cpu") if samples else None,
        evaluations_per_s=figures.rate(method),
        ratios=figures.ratios(method),
        own_share=figures.ratio(GRAPHRL, "own") if is_ours else None,
        beta_share=1 - slowdown if slowdown is not None else None,
        note=reason,
    )
