"""Topoformer's ablations: encoder and decoder (tables 3 and 4), length of training, and seconds by part.

Variants are trained alike, with several seeds, on graphs of one size, by the defaults of `graphrl train` or --set. The
larger measured size shows how a policy generalises. Settings are the same for all, so an encoder with fewer heads has
fewer parameters, as in the paper. Length of training is measured by the checkpoints of one run. Seconds of one graph
are split into observation, network and each decoder.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from graphrl.agents.topoformer.network import Policy, call_once
from graphrl.envs.ordering import make_instances
from graphrl.errors import GraphrlError
from graphrl.files import quote_path
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import find_solver
from graphrl.solvers.base import Task
from graphrl.training.checkpoints import read_info
from reproduce.contest import Contest, Entrant
from reproduce.measurements import REPEATS, call_seconds, median_seconds
from reproduce.results import Table, bullets, here, markdown, of_rows
from reproduce.topoformer.settings import DECODED, DECODERS, ENCODERS, ENDS, OURS, PROBLEM, RANDOM, Settings, method_of
from reproduce.topoformer.tables import Score, scores, seconds_text, spread, verdict

# tables 3 and 4: gap of greedy, sample and beam from approximate DP with K = 100,000, percent, on 500 ops
PAPER: dict[str, tuple[float, float, float]] = {
    "mlp": (8.31, 4.41, 6.5),
    "transformer": (8.46, 4.72, 6.52),
    "gat": (5.94, 4.19, 4.22),
    "gat-both": (4.84, 3.55, 3.55),
    "topoformer-dag": (4.82, 3.67, 3.68),
    OURS: (4.31, 3.35, 3.08),
    "gat + autoregressive": (6.13, 4.71, 4.87),
    "topoformer + autoregressive": (4.43, 3.33, 3.14),
}


def encoders(settings: Settings) -> Iterator[Table]:
    """Yields Topoformer's table 3: encoders."""
    yield from _ablation(settings, "Encoders", ENCODERS)


def decoders(settings: Settings) -> Iterator[Table]:
    """Yields Topoformer's table 4: decoders."""
    yield from _ablation(settings, "Decoders", DECODERS)


def _ablation(settings: Settings, title: str, variants: Mapping[str, Sequence[str]]) -> Iterator[Table]:
    names = [*variants][: 1 if settings.quick else None]
    trained = {name: settings.trained(name.replace(" + ", "-"), variants[name]) for name in names}
    for ops in settings.ablation_sizes:
        print(f"{title}: layered graphs of {ops:,} ops", file=sys.stderr, flush=True)
        entrants = [settings.reference(), Entrant(RANDOM, ["random-priorities"], ENDS)]
        for name, files in trained.items():
            entrants += settings.decoded(files, f", {name}")
        contest = settings.on_layered(ops, entrants)
        yield _table(settings, f"{title}: layered graphs of {ops:,} ops", names, contest, ops)


def _table(settings: Settings, title: str, names: Sequence[str], contest: Contest, ops: int) -> Table:
    by_label = scores(contest)
    lines = [
        _cells(
            name,
            decode,
            by_label[f"{decode}, {name}"],
            contest,
            PAPER[name][i] if ops == 500 and name in PAPER else None,
        )
        for name in names
        for i, decode in enumerate(DECODED)
    ]
    headings = ("network", "decoding", "gap from approx. DP", "of the seeds", "paper", "against random 100", "seconds")
    how = (
        f"{settings.graphs} unseen graphs; approximate DP keeps K = {settings.width:,} "
        f"sets, on the first {settings.few}. Means over graphs and {settings.seeds} seed(s) of training, "
        "with 95% intervals over graphs; then the least and the largest mean of a seed."
    )
    others = (name for name in names if name != OURS)
    notes = [line for name in others for line in verdict(contest, f"greedy, {name}", f"greedy, {OURS}")]
    parts = how, markdown(headings, lines), bullets([*notes, *contest.faults()])
    best = min(names, key=lambda name: by_label[f"greedy, {name}"].gap.mean)
    gap = by_label[f"greedy, {best}"].gap.percent(True)
    return Table(
        title, of_rows(contest.rows), parts, f"`{best}` is the best: its greedy orders are {gap} from the DP's."
    )


def _cells(name: str, decode: str, one: Score, contest: Contest, paper: float | None) -> list[str]:
    return [
        name,
        decode,
        one.gap.percent(True),
        spread(contest, f"{decode}, {name}"),
        "" if paper is None else f"{paper:.2f}%",
        one.random.percent(True),
        seconds_text(one.seconds),
    ]


_DECODED = ("greedy", "sample")


def budget(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each checkpoint.

    Raises:
      GraphrlError: there is no run.
    """
    ops = max(settings.ablation_sizes)
    checkpoints = _checkpoints(settings.run)
    entrants = [settings.reference(), Entrant(RANDOM, ["random-priorities"], ENDS)]
    for step, path in checkpoints.items():
        file = settings.kept(path)
        entrants += [Entrant(f"{decode} {step}", [method_of(DECODED[decode], file)], ENDS) for decode in _DECODED]
    print(f"budget: layered graphs of {ops:,} ops", file=sys.stderr, flush=True)
    contest = settings.on_layered(ops, entrants)
    by_label = scores(contest)
    minutes = {step: read_info(path).seconds / 60 for step, path in checkpoints.items()}
    lines = [[f"{step:,}", f"{minutes[step]:.1f}", *_budget_cells(step, by_label)] for step in checkpoints]
    columns = [f"{decode}: {what}" for decode in _DECODED for what in ("gap from approx. DP", "against random 100")]
    how = f"{settings.graphs} unseen graphs of {ops:,} ops; approximate DP keeps K = {settings.width:,} sets."
    parts = how, markdown(["steps", "minutes", *columns], lines), bullets(contest.faults())
    (first, _, before, *_), (last, _, after, *_) = lines[0], lines[-1]
    summary = f"Greedy orders are {before} from approximate DP after {first} steps, {after} after {last}."
    yield Table("Length of training", of_rows(contest.rows), parts, summary)


def _checkpoints(run: Path | None) -> dict[int, Path]:
    """Returns checkpoints that a run has kept, by step.

    Raises:
      GraphrlError: there are no checkpoints.
    """
    if run is None:
        raise GraphrlError(
            "section budget: name a run, as in --run PATH; `graphrl train topoformer --set training.keep=100` keeps "
            "its checkpoints"
        )
    checkpoints = {read_info(path).step: path for path in sorted(run.glob("step-*")) if path.is_dir()}
    if not checkpoints:
        raise GraphrlError(f"{quote_path(run)} holds no checkpoints: must be a folder of `graphrl train topoformer`")
    return checkpoints


def _budget_cells(step: int, by_label: Mapping[str, Score]) -> Iterator[str]:
    for decode in _DECODED:
        one = by_label[f"{decode} {step}"]
        yield from (one.gap.percent(True), one.random.percent(True))


SECONDS_HEADINGS = ("ops", "graph to arrays", "network", *DECODED, "paper, greedy", "compiling greedy")
PAPER_SECONDS = {500: 0.60, 1000: 1.19, 2000: 2.44}  # seconds on a V100, table 1
GOAL = 2.44  # seconds, of the greedy order of 2,000 ops


class Measured(NamedTuple):
    """Seconds of one graph, under `SECONDS_HEADINGS`."""

    arrays: float
    network: float
    greedy: float
    sample: float
    beam: float
    compiling: float


def inference(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each size; decodings are whole methods, from a graph to a checked plan."""
    policy = Policy.load(settings.given) if settings.given else Policy.default(PROBLEM)
    by_size = {
        ops: _measured(sample("layered", ops, 0)[0], policy, settings)
        for ops in settings.sizes[: 1 if settings.quick else None]
    }
    lines = []
    for ops, (*seconds, compiling) in by_size.items():
        paper = f"{PAPER_SECONDS[ops]:.2f}" if ops in PAPER_SECONDS else ""
        lines.append([f"{ops:,}", *(f"{each:.3g}" for each in seconds), paper, f"{compiling:.1f}"])
    how = (
        f"Seconds of one graph, medians of {REPEATS}; network of {policy.config.layers} layers and width "
        f"{policy.config.width}. Decodings are from a graph to its plan, everything included."
    )
    notes = []
    if 2000 in by_size:
        greedy = by_size[2000].greedy
        word = "met" if greedy <= GOAL else "missed"
        notes = [f"greedy on 2,000 ops: {greedy:.2f} s (goal: at most {GOAL} s: {word})"]
    ops, one = list(by_size.items())[-1]
    summary = f"A graph of {ops:,} ops is ordered greedily in {one.greedy:.2g} s."
    yield Table("Inference", here(), (how, markdown(SECONDS_HEADINGS, lines), bullets(notes)), summary)


def _measured(graph: ComputationGraph, policy: Policy, settings: Settings) -> Measured:
    network = jax.jit(lambda batch: call_once(policy.config, policy.params, batch))
    batch = make_instances([graph])
    first = call_seconds(_solving(graph, DECODED["greedy"], settings))
    greedy, sampled, beam = (median_seconds(_solving(graph, method, settings)) for method in DECODED.values())
    return Measured(
        median_seconds(lambda: make_instances([graph])),
        median_seconds(lambda: jax.block_until_ready(network(batch))),
        greedy,
        sampled,
        beam,
        first - greedy,
    )


def _solving(graph: ComputationGraph, method: str, settings: Settings) -> Callable[[], object]:
    solver = find_solver(method_of(method, settings.given))
    return lambda: solver(Task(graph, PROBLEM, ENDS))
