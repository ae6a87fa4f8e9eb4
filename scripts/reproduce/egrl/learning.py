"""EGRL, its parts and settings beside searches without learning, at the paper's evaluations (figure 4)."""

from collections.abc import Iterator

from reproduce.egrl.opponents import Entrant, table_of
from reproduce.egrl.settings import Settings
from reproduce.results import Table

PAPER = ("egrl", "egrl:variant=ea", "egrl:variant=pg", "greedy-dp")
OTHERS = ("random", "local-search", "anneal", "brkga")
ABLATIONS = (
    "egrl:boltzmann=0",
    "egrl:boltzmann=0.5",
    "egrl:entropy=0.05",
    "egrl:gradient_steps=1",
    "egrl:reward=valid",
    "egrl:strength=0.02",
    "egrl:operators=code",
    "egrl:width=128,depth=4",
)


def learning(settings: Settings) -> Iterator[Table]:
    """Figure 4: a table for each workload."""
    yield from _tables(settings, (*PAPER, *OTHERS))


def ablations(settings: Settings) -> Iterator[Table]:
    """A setting at a time is another: a table for each workload."""
    yield from _tables(settings, ("egrl", *ABLATIONS))


def _tables(settings: Settings, methods: tuple[str, ...]) -> Iterator[Table]:
    entrants = [Entrant(method, settings.evaluations, 0.0) for method in settings.among(methods)]
    for workload in settings.workloads:
        yield table_of(settings, workload, entrants)
