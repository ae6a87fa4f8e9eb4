"""Figure 4 from a trained start, which the paper lacks.

EGRL's search, its evolution alone and its learner alone start from the policy that ships. Further rows have evolution
from such a policy before training, and from new networks.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from graphrl.agents.egrl.network import Policy
from graphrl.compare.report import markdown
from graphrl.compare.table import estimate
from reproduce.egrl.methods import sampled
from reproduce.egrl.settings import CHIP, Runs, Settings, at_evaluations, problem_of, runs_of
from reproduce.policies import copy_policy, untrained
from reproduce.results import Table

EVALUATIONS = 1000
AT = 100, 250, 500, EVALUATIONS
VARIANTS = {"EGRL": "", "its evolution": ",variant=ea", "its learner": ",variant=pg"}
NEW = "new networks"
COMPARED = "less evolution's from the same start", f"less evolution's from {NEW}"
HEADINGS = ("search", "start", *(f"after {count:,}" for count in AT), *COMPARED, "seconds")
HOW = (
    "Latency in us, means over runs. Differences are after 1,000 evaluations and paired by seed; ± is half of a 95% "
    "interval (Student's t). The start is the policy's own map and network; the population begins with mutated copies "
    "of it."
)


def start(settings: Settings) -> Iterator[Table]:
    """Yields a table for each workload."""
    trained, initial = Policy.default(problem_of("resnet50")), untrained(Policy, Policy.settings())
    names = {
        (search, "trained"): f"egrl:checkpoint={copy_policy(trained, settings.out)}{variant}"
        for search, variant in VARIANTS.items()
    }
    names["its evolution", "untrained"] = f"egrl:checkpoint={copy_policy(initial, settings.out)},variant=ea"
    names["its evolution", NEW] = "egrl:variant=ea"
    settings = dataclasses.replace(settings, evaluations=20 if settings.quick else EVALUATIONS)
    for workload in settings.workloads:
        entrants = at_evaluations(settings, tuple(names.values()))
        yield _table(settings, runs_of(settings, workload, entrants), names)


def _table(settings: Settings, runs: Runs, names: dict[tuple[str, str], str]) -> Table:
    latency = {
        entrant.method: 1e6 * np.array([sampled(run, np.array(AT)) for run in some])
        for entrant, some in runs.by_entrant.items()
    }
    seconds = {entrant.method: np.median([run["seconds"] for run in some]) for entrant, some in runs.by_entrant.items()}
    lines, summary = [], ""
    for (search, label), method in names.items():
        if method not in latency:
            continue
        others = [names["its evolution", other] for other in (label, NEW)]
        less = [_less(latency[method], latency.get(other) if other != method else None) for other in others]
        means = (f"{one:.1f}" for one in latency[method].mean(0))
        lines.append([search, label, *means, *less, f"{seconds[method]:.3g}"])
        if (search, label) == ("EGRL", "trained"):
            summary = (
                f"From the trained start EGRL's map after 1,000 evaluations is {less[0]} us from its evolution's, and "
                f"{less[1]} us from that of evolution from {NEW}."
            )
    best = f"Best known here {1e6 * runs.best:.1f} us. {HOW}"
    table = settings.measurements.table(f"{runs.workload} on {CHIP}", best, markdown(HEADINGS, lines), summary=summary)
    return table._replace(origin=table.origin._replace(seeds=frozenset(range(settings.seeds))))


def _less(latency: np.ndarray, other: np.ndarray | None) -> str:
    """Formats the mean difference of the last latencies; "-" if the other search has other runs."""
    if other is None or len(other) != len(latency):
        return "-"
    gain = estimate((latency[:, -1] - other[:, -1]).tolist())
    return f"{gain.mean:+.2f}" + ("" if gain.half is None else f" ± {gain.half:.2f}")
