"""Measures every case with graphrl and the yardsticks, in turns, and makes rows of it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Case, Row, Settings, Work
from graphrl.bench.programs import graphrl_evaluation
from graphrl.bench.searches import graphrl_search, own_work
from graphrl.bench.start import cached_compile_seconds
from graphrl.bench.timing import Program, Samples, Say, interleaved, timed_fields
from graphrl.bench.yardstick.program import program as compiled
from graphrl.errors import GraphrlError

GRAPHRL = "graphrl"


Yardstick = Callable[[Work], Program]


def measure(settings: Settings, yardsticks: Mapping[str, Yardstick], say: Say) -> Iterator[list[Row]]:
    """The rows of each case in turn, graphrl's first.

    Args:
      settings: what to measure.
      yardsticks: other implementations of the same search to measure beside graphrl and numba, by name.
      say: see `Say`.

    Raises:
      GraphrlError: two methods do not compute the same costs.
      ProblemError: jax has not as many devices as threads are wanted.
    """
    with machine.pinned(settings.threads) as pinned:
        machine.configure(settings.threads)
        for case in settings.cases():
            yield _rows(settings, case, {GRAPHRL: _graphrl, "numba": compiled, **yardsticks}, pinned, say)


def _graphrl(work: Work) -> Program:
    return graphrl_search(work) if work.case.search else graphrl_evaluation(work)


def _rows(settings: Settings, case: Case, methods: Mapping[str, Yardstick], pinned: bool, tell: Say) -> list[Row]:
    """Makes the programs of a case ready, compares their results, and times them in turns."""

    def say(text: str) -> None:
        tell(f"n = {case.num_ops}, {case.title}, {case.graphs} graph{'s' * (case.graphs > 1)}: {text}")

    work = Work(settings, case)
    programs: dict[str, Program] = {}
    for method, make in methods.items():
        say(f"preparing {method}")
        programs[method] = make(work)
    check_agreement(programs)
    parts: dict[str, Program] = {}
    cached = None
    if case.search:
        say("preparing graphrl's parts")  # they tell the shares of a run: its own work alone, and Beta proposals
        parts = {"own": own_work(work), "beta": graphrl_search(work, proposals=True)}
        if not case.makespan:
            say("starting processes with a compilation cache")
            cached = cached_compile_seconds(work)
    say(f"timing {', '.join(programs)}")
    runs = {name: program.run for name, program in (programs | parts).items()}
    samples = dict(zip(runs, interleaved(list(runs.values()), settings.repeats, settings.seconds), strict=True))
    rows = [_row(settings, case, method, program, samples, pinned) for method, program in programs.items()]
    if parts:
        ours, own, beta = (samples[name].per_second(machine.clock(pinned)) for name in (GRAPHRL, "own", "beta"))
        rows[0] = dataclasses.replace(
            rows[0], cached_compile_s=cached, own_share=ours / own, beta_share=1 - beta / ours
        )
    return rows


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


def _row(
    settings: Settings, case: Case, method: str, program: Program, samples: Mapping[str, Samples], pinned: bool
) -> Row:
    clock, ours = machine.clock(pinned), samples[method]
    rate = ours.per_second(clock)
    yardsticks = (name for name in samples if name not in (GRAPHRL, "own", "beta"))
    fields = timed_fields(settings, pinned, program.compile_s, ours)
    if program.on_host:
        fields |= {"device_kind": machine.cpu_name(), "compile_s": None}
    return Row(
        **fields,
        what=case.what,
        method=method,
        n=case.num_ops,
        graphs=case.graphs,
        population=PARAMETERS.population,
        devices=DEVICES,
        transfer=case.transfer,
        objective=case.objective if case.search else None,
        evaluations=ours.evaluations,
        wall_s=ours.median("wall"),
        cpu_s=ours.median("cpu"),
        evaluations_per_s=rate,
        ratios={name: rate / samples[name].per_second(clock) for name in yardsticks},
    )
