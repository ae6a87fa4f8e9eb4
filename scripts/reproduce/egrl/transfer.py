"""Figure 5: zero-shot transfer of policies from one workload to the others, and to models that none was trained on;
and on these models, chips drawn at random.

A policy plays alone here: its own map, as the compiler makes it valid. "untrained" is the network of the policy that
ships before any training: it moves each tensor to the memory with room where it saves most, from the hint. "or its
hint" is the default of `egrl-policy`, ten evaluations. Policies for one workload are independent, as in the paper.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.agents.egrl.network import Policy
from graphrl.compare.maps import run_maps
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.solvers.base import Budget
from reproduce.egrl.settings import CHIP, DRAWN, Settings, problem_of
from reproduce.measurements import Figures, Key
from reproduce.policies import copy_policy, train_policies, untrained
from reproduce.results import Table

STEPS = 400  # updates of a policy for one workload
# Models of families that the shipped policy has not seen, and three of validation families that did not select it.
UNSEEN = (
    *("cspdarknet53", "deberta_v3_base", "flux_dev", "fnet_base", "inceptionresnetv2", "inceptionv3", "mixer_b16"),
    *("mixer_s16", "nasnetlarge", "nasnetmobile", "rwkv7_0_1b", "sd3_mmdit_2b", "sd3_vae", "swin_tiny", "unet"),
    *("whisper_tiny", "xception", "convnextbase", "efficientnetv2s", "xlnet_base"),
)
SHIPPED = "the policy that ships"
OPPONENTS = ("compiler", "benefit", "local-search")
CHIPS = 4  # drawn for each unseen model
HEADINGS = ("method", "speed-up, mean", "least", "faster than the compiler", "first call", "later calls")


def transfer(settings: Settings) -> Iterator[Table]:
    """Yields the table of speed-ups on each workload, then one on unseen models, and one of these on drawn chips."""
    players = _players(settings)
    yield _on_workloads(settings, players)
    yield _on_unseen(settings, players)
    yield _on_drawn(settings, {name: method for name, method in players.items() if not name.startswith("trained on")})


def _players(settings: Settings) -> dict[str, str]:
    """Returns methods of both tables, by label."""
    policies = {workload: _trained(settings, workload) for workload in settings.workloads}
    players = {f"trained on {workload}": _method(settings, policy) for workload, policy in policies.items()}
    config = next(iter(policies.values())).config
    shipped = Policy.default(problem_of("resnet50"))
    players["untrained, independent: the hint"] = _method(settings, untrained(Policy, config))
    players["untrained"] = _method(settings, untrained(Policy, Policy.settings()))
    players[SHIPPED] = _method(settings, shipped)
    players["the policy that ships, or its hint"] = f"egrl-policy:checkpoint={copy_policy(shipped, settings.out)}"
    for number, path in enumerate(settings.policies, 1):
        players[f"the same training again, {number}"] = _method(settings, Policy.load(path))
    return players | {name: name for name in OPPONENTS}


def _method(settings: Settings, policy: Policy) -> str:
    return f"egrl-policy:checkpoint={copy_policy(policy, settings.out)},alone=true"


def _trained(settings: Settings, workload: str) -> Policy:
    """Returns the policy trained on one workload: the best checkpoint by validation on a second workload."""
    held_out, unseen = (name for name in WORKLOADS if name != workload)
    steps = 2 if settings.quick else STEPS
    words = (
        f"data.train=workloads:{workload}", f"data.validation=workloads:{held_out}", f"data.test=workloads:{unseen}",
        "data.graphs=1", f"training.steps={steps}", f"training.validate_every={steps}", f"agent.chip={CHIP}",
        "agent.placement=independent",
    )  # fmt: skip
    (file,) = train_policies(Policy, "egrl", settings.out / f"policy-{workload}", 1, words)
    return Policy.load(file)


def _on_workloads(settings: Settings, players: dict[str, str]) -> Table:
    lines = []
    for name, method in players.items():
        figures = [_figures(settings, workload, method) for workload in settings.workloads]
        lines.append([name, *("-" if each is None else f"{each['speedup']:.4f}" for each in figures)])
    text = "Speed-up over the compiler's own map. No policy searches; local-search has the evaluations of a search."
    return settings.measurements.table("From one workload to others", text, markdown(("", *settings.workloads), lines))


def _on_unseen(settings: Settings, players: dict[str, str]) -> Table:
    models, lines, summary = _models(settings), [], ""
    for name, method in players.items():
        figures = [each for model in models if (each := _figures(settings, model, method)) is not None]
        if figures:
            lines.append([name, *_cells(figures)])
            if name == SHIPPED:
                summary = f"On unseen models the maps of {name} are {lines[-1][1]} times as fast as the compiler's."
    text = (
        f"{len(models)} model{'s' * (len(models) > 1)} of the zoo, batch 1, float32, "
        "of families that no policy was trained on. Seconds are medians of calls without reading the graph; the first "
        "call in a process compiles, or loads compiled code."
    )
    return settings.measurements.table("Unseen models", text, markdown(HEADINGS, lines), summary=summary)


def _on_drawn(settings: Settings, players: dict[str, str]) -> Table:
    lines = []
    for name, method in players.items():
        each = [
            [one["speedup"] for model in _models(settings) if (one := _figures(settings, model, method, chip))]
            for chip in (f"{DRAWN}{seed}" for seed in range(CHIPS))
        ]
        mean = np.mean([of_chip for of_chip in each if of_chip], axis=1)
        lines.append([name, f"{mean.mean():.4f}", f"{np.min(each):.4f}", *(f"{one:.4f}" for one in mean)])
    text = (
        f"The same models; each row of chips is drawn anew for every model (seeds 0 to {CHIPS - 1}): three memories, "
        "capacities, bandwidths, set-up times and operations per second at random."
    )
    headings = ("method", "speed-up, mean", "least", *(f"seed {seed}" for seed in range(CHIPS)))
    return settings.measurements.table("Unseen models on drawn chips", text, markdown(headings, lines))


def _models(settings: Settings) -> list[str]:
    return [f"zoo:{name}/inference/b1/jaxpr" for name in (UNSEEN[-1:] if settings.quick else UNSEEN)]


def _cells(figures: Sequence[Figures]) -> list[str]:
    speedup, first, later = (np.array([each[key] for each in figures]) for key in ("speedup", "first", "later"))
    faster = f"{(speedup > 1 + 1e-9).sum()} of {len(speedup)}"
    times = [f"{1000 * np.median(each):.3g} ms" for each in (first, later)]
    return [f"{speedup.mean():.4f}", f"{speedup.min():.4f}", faster, *times]


def _figures(settings: Settings, model: str, method: str, chip: str = CHIP) -> Figures | None:
    evaluations = 20 if settings.quick else settings.evaluations
    key = {"section": "transfer", "model": model, "chip": chip, "method": method, "evaluations": evaluations}
    return settings.measurements.get(key, functools.partial(_measure, key))


def _measure(key: Key) -> Figures:
    problem = problem_of(key["model"], key["chip"])
    budget = Budget(None if key["method"] == "benefit" else key["evaluations"], 60.0)
    first, later, _ = run_maps([problem] * 3, [key["method"]], [0], budget)
    if first.error is not None:
        raise GraphrlError(first.error)
    return {"speedup": later.speedup, "latency": later.latency, "first": first.seconds, "later": later.seconds}
