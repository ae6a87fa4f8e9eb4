"""Instances of P|prec|Cmax with a planted optimum (the RGPOS graphs of Kwok and Ahmad 1999, in our form).

The time lines of all devices are filled from 0 to the makespan without idle time and cut into ops; edges are added
that this schedule respects. It meets the bound work / devices, so it is optimal, under transfers "free" and as long as
no transfer takes longer than the slack between its ends; every other plan is as long or longer in all transfer models.
"""

from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.seeds import check_count, generator
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

_MEAN_SECONDS = 50
_MOST_BYTES = 100
_MOST_INPUTS = 1000


class Planted(NamedTuple):
    """A graph of n ops, and a plan of least makespan."""

    graph: ComputationGraph
    makespan: float  # seconds; exact: all times are whole
    placement: np.ndarray  # [n] int64, device of each op
    order: np.ndarray  # [m] int64, node ids of the ops and the needed transfers (costs/exact), for `Plan.from_order`


def planted(num_ops: int, devices: int, seed: int, inputs: float = 2.0, window: int = 3) -> Planted:
    """A random instance; each op writes one tensor.

    Tensors that are read on another device than their producer's have at most as many bytes as there are seconds
    between, so that the optimum also holds for "free" transfers of no latency and at least 1 byte per second.

    Args:
      num_ops: at least `devices`.
      devices: at least 1.
      seed: at least 0; instances of different sizes and seeds are independent.
      inputs: mean number of tensors drawn to be read by an op (Poisson; equal ones are merged).
      window: they are drawn uniformly from the window * devices ops that ended last before the reader starts: the
        smaller, the fewer good plans there are.

    Raises:
      ProblemError: a number is out of range.
    """
    check_count("devices", devices, 1)
    check_count("num_ops", num_ops, devices)
    check_count("window", window, 1)
    if not 0 <= inputs <= _MOST_INPUTS:
        raise ProblemError(f"inputs is {inputs}: must be from 0 to {_MOST_INPUTS}")
    rng = generator("planted", seed, num_ops, devices)
    start, end, placement = _schedule(num_ops, devices, rng)
    sources, targets = _edges(start, end, inputs, window * devices, rng)
    slack = np.where(placement[sources] == placement[targets], _MOST_BYTES, start[targets] - end[sources])
    most = np.full(num_ops, _MOST_BYTES)
    np.minimum.at(most, sources, slack)
    num_bytes = rng.integers(0, most + 1)
    reads: list[list[str]] = [[] for _ in range(num_ops)]
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        reads[target].append(f"t{source}")
    ops = tuple(
        Op(f"op{i}", "", float(end[i] - start[i]), tuple(reads[i]), (Tensor(f"t{i}", int(num_bytes[i])),))
        for i in range(num_ops)
    )
    graph = ComputationGraph(f"planted-{num_ops}-{devices}-{seed}", ops)
    return Planted(graph, float(end.max()), placement, _order(num_ops, devices, placement, sources, targets))


def _schedule(num_ops: int, devices: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start and end (whole seconds) and device of every op, by ascending start: three `[n] int64`."""
    counts = 1 + rng.multinomial(num_ops - devices, np.full(devices, 1 / devices))
    makespan = max(int(counts.max()), round(_MEAN_SECONDS * num_ops / devices))
    by_device = []
    for device, count in enumerate(counts.tolist()):
        cuts = np.sort(rng.choice(np.arange(1, makespan), count - 1, replace=False))
        ends = np.append(cuts, makespan)
        by_device.append(np.stack([np.insert(cuts, 0, 0), ends, np.full(count, device)]))
    pieces = np.concatenate(by_device, axis=1).astype(np.int64)
    start, end, placement = pieces[:, np.argsort(pieces[0], kind="stable")]
    return start, end, placement


def _edges(
    start: np.ndarray, end: np.ndarray, inputs: float, window: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct edges from ops that have ended to ops that start then or later: two `[e] int64`, sorted by target."""
    by_end = np.argsort(end, kind="stable")
    ended = np.searchsorted(end[by_end], start, side="right")  # [n] number of ops that may come before each
    targets = np.repeat(np.arange(len(start)), rng.poisson(inputs, len(start)) * (ended > 0))
    back = rng.integers(np.minimum(window, ended[targets]))
    sources = by_end[ended[targets] - 1 - back]
    pairs = np.unique(targets * len(start) + sources)
    return pairs % len(start), pairs // len(start)


def _order(num_ops: int, devices: int, placement: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Ops as they start, each followed by the transfers of its tensor: `[m] int64` node ids."""
    away = placement[sources] != placement[targets]
    transfers = np.unique(sources[away] * devices + placement[targets[away]])  # tensor i is op i's
    nodes = np.concatenate([np.arange(num_ops), num_ops + transfers])
    return nodes[np.argsort(np.concatenate([np.arange(num_ops), transfers // devices]), kind="stable")]
