"""How maps differ from the compiler's (figures 6 and 7): what moved where, and whether neighbours lie together."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphrl.compare.report import markdown
from graphrl.costs.maps.problem import MapProblem
from reproduce.egrl.settings import CHIP, Runs, Settings, at_evaluations, in_time, problem_of, runs_of
from reproduce.results import Table

COUNTED = ("compiler", "egrl", "egrl:variant=ea", "anneal")
TIMED = ("cp-sat",)
KINDS = ("weights", "outputs")
NEAR_HEADINGS = (
    "method", "latency, us", "not as the compiler", "not as another run", *(f"{kind} together" for kind in KINDS)
)  # fmt: skip
NEIGHBOURS = (
    "Places (weights or outputs of an op) in another memory than in the compiler's map, and than in the map of another "
    "run of the method; and of neighbours, tensors of a kind that follow each other in the order of ops, how many "
    "lie in one memory. Means over runs."
)
MOVES = (
    "Where tensors lie that the compiler has in a memory: how many, and the share of their bytes. Of each method the "
    "fastest map."
)


class Maps(NamedTuple):
    """Of one method on a problem of n steps: r maps, the fastest first."""

    method: str
    memories: np.ndarray  # [r, 2, n] int64, of weights and of outputs


def maps(settings: Settings) -> Iterator[Table]:
    """Two tables for each workload."""
    for workload in settings.workloads:
        entrants = [*at_evaluations(settings, COUNTED), *in_time(settings, TIMED)[-1:]]
        runs, of = runs_of(settings, workload, entrants), problem_of(workload)
        by_method = _maps(runs)
        if by_method[0].method != "compiler":
            continue
        near = markdown(
            NEAR_HEADINGS,
            [_line(of, by_method[0], one, latency) for one, latency in zip(by_method, _latencies(runs), strict=True)],
        )
        names = of.chip.names
        moved = markdown(
            ("method", "what", "compiler's", *(f"to {name}" for name in names)),
            [line for one in by_method[1:] for line in _moves(of, by_method[0], one)],
        )
        yield settings.measurements.table(f"{workload} on {CHIP}", NEIGHBOURS, near, MOVES, moved)


def transitions(of: MapProblem, before: np.ndarray, after: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """From memory to memory, tensors and bytes of one kind: `[M, M]` int64 each.

    Args:
      before, after: `[2, n]` memories.
      kind: 0 for weights, 1 for outputs.
    """
    there = (of.has_weights, of.has_outputs)[kind]
    size = (of.weight_bytes, of.output_bytes)[kind]
    count, moved = (np.zeros((of.memories, of.memories), np.int64) for _ in range(2))
    pairs = before[kind][there], after[kind][there]
    np.add.at(count, pairs, 1)
    np.add.at(moved, pairs, size[there])
    return count, moved


def together(of: MapProblem, memories: np.ndarray, kind: int) -> float:
    """The share of neighbours of one kind that lie in one memory; `memories` is `[2, n]`."""
    row = memories[kind][(of.has_weights, of.has_outputs)[kind]]
    return float((row[1:] == row[:-1]).mean())


def _maps(runs: Runs) -> list[Maps]:
    """By method."""
    every = []
    for entrant, some in runs.by_entrant.items():
        ranked = sorted(some, key=lambda run: run["latency"])
        every.append(Maps(entrant.method, np.array([[run["weights"], run["outputs"]] for run in ranked])))
    return every


def _latencies(runs: Runs) -> list[float]:
    return [float(np.mean([run["latency"] for run in some])) for some in runs.by_entrant.values()]


def _line(of: MapProblem, compiler: Maps, one: Maps, latency: float) -> list[str]:
    there = np.stack([of.has_weights, of.has_outputs])
    from_compiler = [(each != compiler.memories[0])[there].mean() for each in one.memories]
    pairs = [(a != b)[there].mean() for i, a in enumerate(one.memories) for b in one.memories[:i]]
    shares = [np.mean([together(of, each, kind) for each in one.memories]) for kind in range(2)]
    between = f"{100 * np.mean(pairs):.0f}%" if pairs else "-"
    return [
        one.method,
        f"{1e6 * latency:.1f}",
        f"{100 * np.mean(from_compiler):.0f}%",
        between,
        *(f"{100 * share:.0f}%" for share in shares),
    ]


def _moves(of: MapProblem, compiler: Maps, one: Maps) -> Iterator[list[str]]:
    """A line for each kind and memory from which something could move."""
    for kind, name in enumerate(KINDS):
        count, size = transitions(of, compiler.memories[0], one.memories[0], kind)
        for memory in np.flatnonzero(count.sum(1)):
            total = max(1, int(size[memory].sum()))
            cells = (f"{n} ({100 * part / total:.0f}%)" for n, part in zip(count[memory], size[memory], strict=True))
            yield [one.method, name, of.chip.names[memory], *cells]
