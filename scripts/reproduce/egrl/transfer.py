"""Figure 5: policies trained on one workload play the others without search, and then models that nobody trained on.

A policy plays alone here: its own map, as the compiler makes it valid. "untrained" is the same network before any
training, which asks for its hint. "or its hint" is what `egrl-policy` does by default, ten evaluations.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from graphrl.agents.egrl.network import Policy
from graphrl.compare.maps import run_maps
from graphrl.compare.report import markdown
from graphrl.costs.maps.chip import find_chip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import GraphrlError
from graphrl.graphs.coarsen import layers_of
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.solvers.base import Budget
from reproduce.egrl.settings import Settings
from reproduce.measurements import Figures, Key
from reproduce.policies import kept, train
from reproduce.results import Table

STEPS = 400  # updates of a policy for one workload
# Of families that the policy that ships has not seen, and three that it was not chosen by.
UNSEEN = (
    *("cspdarknet53", "deberta_v3_base", "flux_dev", "fnet_base", "inceptionresnetv2", "inceptionv3", "mixer_b16"),
    *("mixer_s16", "nasnetlarge", "nasnetmobile", "rwkv7_0_1b", "sd3_mmdit_2b", "sd3_vae", "swin_tiny", "unet"),
    *("whisper_tiny", "xception", "convnextbase", "efficientnetv2s", "xlnet_base"),
)
OPPONENTS = ("compiler", "benefit", "local-search")
HEADINGS = ("method", "speed-up, mean", "least", "faster than the compiler", "first call", "later calls")


def transfer(settings: Settings) -> Iterator[Table]:
    """Speed-ups on each workload, then on unseen models."""
    players = _players(settings)
    yield _on_workloads(settings, players)
    yield _on_unseen(settings, players)


def _players(settings: Settings) -> dict[str, str]:
    """The methods of both tables, by what they are called."""
    players = {
        f"trained on {workload}": _method(settings, Policy.load(_trained(settings, workload)))
        for workload in settings.workloads
    }
    some = Policy.load(_trained(settings, settings.workloads[0]))
    untrained = Policy(some.config, Policy.initial(some.config, jax.random.key(0)))
    players["untrained"] = _method(settings, untrained)
    with contextlib.suppress(GraphrlError):  # for another number of memories there is none
        players["the policy that ships"] = _method(settings, Policy.default(_problem("resnet50", settings.chip)))
        players["the policy that ships, or its hint"] = "egrl-policy"
    return players | {name: name for name in OPPONENTS}


def _method(settings: Settings, policy: Policy) -> str:
    return f"egrl-policy:checkpoint={kept(policy, settings.out)},alone=true"


def _trained(settings: Settings, workload: str) -> str:
    """The folder of a run on one workload, which is also what it is chosen by: nothing else is known of others."""
    folder = settings.out / f"policy-{workload}"
    held_out, unseen = (name for name in WORKLOADS if name != workload)
    steps = 2 if settings.quick else STEPS
    data = (
        f"data.train=workloads:{workload}",
        f"data.validation=workloads:{held_out}",
        f"data.test=workloads:{unseen}",
    )
    loop = (f"training.steps={steps}", f"training.validate_every={steps}", f"agent.chip={settings.chip}")
    train("egrl", folder, 0, [*data, "data.graphs=1", *loop])
    return str(sorted(folder.glob("step-*"))[-1])


def _on_workloads(settings: Settings, players: dict[str, str]) -> Table:
    lines = []
    for name, method in players.items():
        figures = [_figures(settings, workload, method) for workload in settings.workloads]
        lines.append([name, *("-" if each is None else f"{each['speedup']:.4f}" for each in figures)])
    text = "Speed-up over the compiler's own map. No policy searches; local-search has the evaluations of a search."
    return settings.measurements.table("From one workload to others", text, markdown(("", *settings.workloads), lines))


def _on_unseen(settings: Settings, players: dict[str, str]) -> Table:
    models = [f"zoo:{name}/inference/b1/jaxpr" for name in (UNSEEN[-1:] if settings.quick else UNSEEN)]
    lines = []
    for name, method in players.items():
        figures = [each for model in models if (each := _figures(settings, model, method)) is not None]
        if figures:
            lines.append([name, *_cells(figures)])
    text = (
        f"{len(models)} model{'s' * (len(models) > 1)} of the zoo, batch 1, as they were trained (4 bytes a number), "
        "of families that no policy was trained on. Seconds are medians, with all that a call does but reading the "
        "graph; the first call in a process compiles, or reads what is compiled already."
    )
    return settings.measurements.table("Models that nobody trained on", text, markdown(HEADINGS, lines))


def _cells(figures: Sequence[Figures]) -> list[str]:
    speedup, first, later = (np.array([each[key] for each in figures]) for key in ("speedup", "first", "later"))
    faster = f"{(speedup > 1 + 1e-9).sum()} of {len(speedup)}"
    times = [f"{1000 * np.median(each):.3g} ms" for each in (first, later)]
    return [f"{speedup.mean():.4f}", f"{speedup.min():.4f}", faster, *times]


def _figures(settings: Settings, model: str, method: str) -> Figures | None:
    evaluations = 20 if settings.quick else settings.evaluations
    key = {"section": "transfer", "model": model, "chip": settings.chip, "method": method, "evaluations": evaluations}
    return settings.measurements.get(key, functools.partial(_measure, key))


def _measure(key: Key) -> Figures:
    problem = _problem(key["model"], key["chip"])
    budget = Budget(None if key["method"] == "benefit" else key["evaluations"], 60.0)
    first, later, _ = run_maps([problem] * 3, [key["method"]], [0], budget)
    if first.error is not None:
        raise GraphrlError(first.error)
    return {"speedup": later.speedup, "latency": later.latency, "first": first.seconds, "later": later.seconds}


@functools.lru_cache(maxsize=32)
def _problem(model: str, chip: str) -> MapProblem:
    graph = WORKLOADS[model]() if model in WORKLOADS else layers_of(model)
    return map_problem(graph, find_chip(chip))
