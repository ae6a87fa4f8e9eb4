"""Measures every case with every method and makes rows of it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Case, Row, Settings
from graphrl.bench.compiled import Unavailable
from graphrl.bench.external import Reference
from graphrl.bench.prepare import Prepared
from graphrl.bench.programs import Program
from graphrl.bench.start import cached_compile_seconds
from graphrl.bench.timing import Samples, interleaved
from graphrl.errors import GraphrlError

Say = Callable[[str], None]


def measure(settings: Settings, say: Say = lambda text: None) -> Iterator[list[Row]]:
    """The rows of each case in turn, one a method.

    Args:
      settings: what to measure.
      say: told what is going on, for a progress line.

    Raises:
      GraphrlError: two methods do not compute the same costs, or a reference cannot be run.
      ProblemError: jax has not as many devices as threads are asked for.
    """
    with contextlib.ExitStack() as stack:
        pinned = stack.enter_context(machine.pinned(settings.threads))
        machine.configure(settings.threads)
        reference = None
        if settings.reference is not None:
            reference = stack.enter_context(Reference(settings.reference, settings.threads))
        for case in settings.cases():
            yield _rows(settings, case, reference, pinned, say)


def _rows(settings: Settings, case: Case, reference: Reference | None, pinned: bool, tell: Say) -> list[Row]:
    """Makes the programs of a case ready, compares their results, and times them in turns."""

    def say(text: str) -> None:
        tell(f"n = {case.num_ops}, {case.title}: {text}")

    prepared = Prepared(settings, case, reference)
    programs: dict[str, Program] = {}
    notes: dict[str, str] = {}
    for method in settings.methods:
        say(f"preparing {method}")
        try:
            programs[method] = prepared.program(method)
        except Unavailable as error:
            notes[method] = str(error)
    check_agreement(programs.values())
    timed = dict(programs)
    cached = None
    if case.search and "graphrl" in programs:
        say("preparing graphrl's parts")
        timed |= prepared.parts()
        if not case.makespan:
            say("starting processes with a compilation cache")
            threads, evaluations = settings.threads, settings.evaluations
            cached = cached_compile_seconds(case.num_ops, settings.num_graphs, threads, evaluations, settings.seed)
    say(f"timing {', '.join(programs)}")
    samples = interleaved([program.run for program in timed.values()], settings.repeats, settings.seconds)
    figures = _Figures(dict(zip(timed, samples, strict=True)), machine.clock(pinned))
    return [
        _row(settings, case, method, programs.get(method), figures, pinned, cached, notes.get(method))
        for method in settings.methods
    ]


def check_agreement(programs: Iterable[Program]) -> None:
    """Refuses to time methods that do not compute the same.

    Raises:
      GraphrlError: two differ on a chromosome, by more than float32 sums on large graphs can.
    """
    known = [program for program in programs if program.costs is not None]
    for program in known[1:]:
        for name, ours, theirs in zip(("makespan", "peak memory"), known[0].costs, program.costs, strict=True):  # type: ignore[arg-type]
            same = np.isclose(ours[: program.graphs].astype(float), theirs.astype(float), rtol=1e-5, atol=0)
            if not same.all():
                where = tuple(np.argwhere(~same)[0].tolist())
                raise GraphrlError(
                    f"{name} of graph {where[0]}, chromosome {where[1]}: {known[0].method} says {ours[where]} and "
                    f"{program.method} {theirs[where]}: one of them is wrong"
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


def _row(
    settings: Settings,
    case: Case,
    method: str,
    program: Program | None,
    figures: _Figures,
    pinned: bool,
    cached: float | None,
    note: str | None,
) -> Row:
    found, clock, graphrl = figures.samples.get(method), figures.clock, method == "graphrl"
    on_device = method in ("graphrl", "plain")
    slowdown = figures.ratio("beta", "graphrl") if graphrl else None
    return Row(
        what=case.what,
        method=method,
        n=case.num_ops,
        graphs=program.graphs if program else settings.num_graphs,
        population=program.population if program else PARAMETERS.population,
        devices=DEVICES,
        transfer=case.transfer,
        objective=case.objective if case.search else None,
        evaluations=found.evaluations if found else None,
        threads=settings.threads,
        pinned=pinned,
        device_kind=machine.device_name() if on_device else machine.cpu_name(),
        jax=jax.__version__,
        compile_s=program.compile_s if program else None,
        cached_compile_s=cached if graphrl else None,
        repeats=settings.repeats,
        clock=clock,
        median_s=found.median(clock) if found else None,
        min_s=min(found.seconds(clock)) if found else None,
        wall_s=found.known_median("wall") if found else None,
        cpu_s=found.known_median("cpu") if found else None,
        evaluations_per_s=figures.rate(method),
        ratio_to_plain=figures.ratio(method, "plain"),
        ratio_to_compiled=figures.ratio(method, "compiled"),
        ratio_to_reference=figures.ratio(method, "reference"),
        own_share=figures.ratio("graphrl", "own") if graphrl else None,
        beta_share=1 - slowdown if slowdown is not None else None,
        note=note,
    )
