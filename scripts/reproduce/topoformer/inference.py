"""Seconds of one graph, part by part: what the network is shown, the network, and each way of decoding."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from graphrl.agents.topoformer.network import Policy, priorities
from graphrl.compare.report import markdown
from graphrl.envs.ordering import instances
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.methods import find_solver
from graphrl.solvers.base import Task
from reproduce.results import Table, bullets, here
from reproduce.timing import REPEATS, median_seconds, spent
from reproduce.topoformer.settings import DECODED, ENDS, PROBLEM, Settings, played

HEADINGS = ("ops", "graph to arrays", "network", *DECODED, "paper, greedy", "compiling greedy")
PAPER = {500: 0.60, 1000: 1.19, 2000: 2.44}  # seconds on a V100, table 1
GOAL = 2.44  # seconds, of the greedy order of 2,000 ops


class Measured(NamedTuple):
    """Seconds of one graph, under `HEADINGS`."""

    arrays: float
    network: float
    greedy: float
    sample: float
    beam: float
    compiling: float


def inference(settings: Settings) -> Iterator[Table]:
    """One table, a line a size; decodings are whole methods, from a graph to a checked plan."""
    policy = Policy.load(settings.given) if settings.given else Policy.default(PROBLEM)
    by_size = {
        ops: _measured(sample("layered", ops, 0)[0], policy, settings)
        for ops in settings.sizes[: 1 if settings.quick else None]
    }
    lines = []
    for ops, (*taken, compiling) in by_size.items():
        paper = f"{PAPER[ops]:.2f}" if ops in PAPER else ""
        lines.append([f"{ops:,}", *(f"{seconds:.3g}" for seconds in taken), paper, f"{compiling:.1f}"])
    how = (
        f"Seconds of one graph, medians of {REPEATS}; network of {policy.config.layers} layers and width "
        f"{policy.config.width}. Decodings are from a graph to its plan, everything included."
    )
    notes = []
    if 2000 in by_size:
        greedy = by_size[2000].greedy
        word = "met" if greedy <= GOAL else "missed"
        notes = [f"greedy on 2,000 ops: {greedy:.2f} s (goal: at most {GOAL} s: {word})"]
    yield Table("Inference", here(), (how, markdown(HEADINGS, lines), bullets(notes)))


def _measured(graph: ComputationGraph, policy: Policy, settings: Settings) -> Measured:
    network = jax.jit(lambda batch: priorities(policy.config, policy.params, batch))
    batch = instances([graph])
    first = spent(_playing(graph, DECODED["greedy"], settings))
    greedy, sampled, beam = (median_seconds(_playing(graph, method, settings)) for method in DECODED.values())
    return Measured(
        median_seconds(lambda: instances([graph])),
        median_seconds(lambda: jax.block_until_ready(network(batch))),
        greedy,
        sampled,
        beam,
        first - greedy,
    )


def _playing(graph: ComputationGraph, method: str, settings: Settings) -> Callable[[], object]:
    solver = find_solver(played(method, settings.given))
    return lambda: solver(Task(graph, PROBLEM, ENDS))
