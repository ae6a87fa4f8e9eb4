"""Every method on EGRL's workloads at the paper's evaluations, and what time buys (figure 4); EGRL's settings."""

from collections.abc import Iterator

from graphrl.compare.report import markdown
from graphrl.plan.plot import write_figure
from reproduce.egrl.curves import curves_figure, curves_lines
from reproduce.egrl.runs import at_evaluations, in_time, runs_of
from reproduce.egrl.settings import Settings
from reproduce.egrl.tables import table_of
from reproduce.results import Table

RULES = ("all-slowest", "compiler", "benefit", "greedy-dp")
SEARCHES = ("random", "local-search", "anneal", "brkga")
EGRL = ("egrl", "egrl:variant=ea", "egrl:variant=pg")
TIMED = ("anneal", "cp-sat")
UNET = "egrl:encoder=unet,width=32"
PORTFOLIO = "egrl:endless=true,discounts=0.9+0.99+0.997+0.9995"  # CERL's; a bandit's values have no discount
ABLATIONS = (
    "egrl:migrate_every=0",
    "egrl:boltzmann=0.2",
    "egrl:boltzmann=1",
    "egrl:endless=true",
    PORTFOLIO,
    "egrl:reward=valid",
    UNET,
)
COUNTED_IN_CHUNKS = "On the way (`anneal` and `local-search` say how far they are after every 1,000 evaluations):"
EVOLUTION = (
    "egrl:variant=ea",
    "egrl:variant=ea,boltzmann=0.2",
    "egrl:variant=ea,boltzmann=0.5",
    "egrl:variant=ea,boltzmann=1",
    "egrl:variant=ea,boltzmann=0.2,temperature=0.3",
    "egrl:variant=ea,boltzmann=0.2,temperature=0.03",
    "egrl:variant=ea,boltzmann=1,temperature=0.03",
    "egrl:variant=ea,strength=0.02",
    "egrl:variant=ea,strength=0.1",
    "egrl:variant=ea,operators=code",
    "egrl:variant=ea,reward=valid",
    f"{UNET},variant=ea",
)
LEARNING = (
    "egrl:entropy=0.05",
    "egrl:gradient_steps=1",
    "egrl:gradient_steps=1,rate=0.003",
    "egrl:width=32",
    f"{UNET},depth=0",
)


def methods(settings: Settings) -> Iterator[Table]:
    """Figure 4: a table and a picture for each workload."""
    for workload in settings.workloads:
        timed, counted = in_time(settings, TIMED), at_evaluations(settings, (*RULES, *SEARCHES, *EGRL))
        runs = runs_of(settings, workload, [*timed, *counted])
        write_figure(curves_figure(runs, settings), settings.out / f"curves-{workload}.png")
        by_evaluations = markdown(*curves_lines(runs, settings))
        yield table_of(settings, runs, COUNTED_IN_CHUNKS, by_evaluations)


def ablations(settings: Settings) -> Iterator[Table]:
    """Parts of EGRL left out: a table for each workload."""
    yield from _egrl_tables(settings, ("egrl", "egrl:variant=ea", *ABLATIONS))


def evolution(settings: Settings) -> Iterator[Table]:
    """Evolution alone with other chromosomes and mutations: a table for each workload."""
    yield from _egrl_tables(settings, EVOLUTION)


def others(settings: Settings) -> Iterator[Table]:
    """EGRL with other learners: a table for each workload."""
    yield from _egrl_tables(settings, ("egrl", *LEARNING))


def _egrl_tables(settings: Settings, names: tuple[str, ...]) -> Iterator[Table]:
    """With CP-SAT's runs for the bound."""
    for workload in settings.workloads:
        entrants = [*in_time(settings, ("cp-sat",))[-1:], *at_evaluations(settings, names)]
        yield table_of(settings, runs_of(settings, workload, entrants))
