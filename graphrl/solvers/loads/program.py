"""The compiled part of the dynamic program over ideals (Tarnawski et al. 2020, section 5.1).

best[c, a, I] is the least largest load of the blocks of ideal I on c CPUs and a accelerators. The last device has I
without some smaller ideal J, so it is the least over J of max(best[c, a - 1, J], load of I without J), and the like
with a CPU. All J are walked from I by taking away block after block; what a device then has only grows, and the walk
turns back where it is above what is known to be possible on every kind of device.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer
from graphrl.costs.pipeline import ACCELERATOR, CPU
from graphrl.solvers.loads.groups import Groups
from graphrl.solvers.loads.ideals import Ideals

BARS, MOVED, BYTES, SUMS = 2, 4, 5, 6  # places of sums: seconds and bars of both kinds, seconds of transfers, bytes


class Program(NamedTuple):
    """What is walked, the table, and work space."""

    start: np.ndarray  # [i + 1], see `Ideals`
    smaller: np.ndarray  # [x]
    block: np.ndarray  # [x]
    runtime: np.ndarray  # [b, 2] float64; 0 where it cannot run
    bars: np.ndarray  # [b, 2] int64, 1 where it cannot run
    weight: np.ndarray  # [b] float64, bytes
    nets_start: np.ndarray  # [b + 1] int64, into the next
    nets: np.ndarray  # [y] int64, nets of each block
    seconds: np.ndarray  # [m] float64
    size: np.ndarray  # [m] int64, blocks that a net joins
    best: np.ndarray  # [cpus + 1, accelerators + 1, i] float64
    link: np.ndarray  # [cpus + 1, accelerators + 1, i] int64, 2 * J + the kind of the last device; -1 without
    inside: np.ndarray  # [m] int64, blocks of a net that the last device has
    seen: np.ndarray  # [i] int64, the ideal whose walk was here last
    stack: np.ndarray  # [b + 1, 2] int64: an ideal, and the next of those below it
    sums: np.ndarray  # [b + 1, SUMS] float64, of the blocks that the last device has, at each depth of the walk
    limits: np.ndarray  # [2] float64: bytes of an accelerator, and what the largest load must be below
    counts: np.ndarray  # [1] int64, pairs of ideals that were walked


def program(groups: Groups, ideals: Ideals, limit: float, upper: float) -> Program:
    """The arrays for groups and their ideals, the table empty but for ideal 0."""
    count, accelerators = len(ideals.start) - 1, groups.accelerators
    blocks, cpus = len(groups.weight), len(groups.kinds) - accelerators
    incidence = groups.incidence()
    bars = np.isinf(groups.runtime)
    best = np.full((cpus + 1, accelerators + 1, count), np.inf)
    best[:, :, 0] = 0.0
    return Program(
        *ideals,
        runtime=np.where(bars, 0.0, groups.runtime),
        bars=bars.astype(np.int64),
        weight=groups.weight.astype(np.float64),
        nets_start=np.cumsum([0, *map(len, incidence)]),
        nets=np.array([net for nets in incidence for net in nets], np.int64),
        seconds=groups.seconds,
        size=np.array([len(ends) for ends in groups.ends], np.int64),
        best=best,
        link=np.full(best.shape, -1),
        inside=np.zeros(len(groups.seconds), np.int64),
        seen=np.full(count, -1),
        stack=np.zeros((blocks + 1, 2), np.int64),
        sums=np.zeros((blocks + 1, SUMS)),
        limits=np.array([limit, upper]),
        counts=np.zeros(1, np.int64),
    )


@entry
def fill(p: Program, first: int, last: int) -> None:
    """Fills the table for the ideals from `first` to `last` - 1, after all smaller ones."""
    cpus, accelerators = p.best.shape[0] - 1, p.best.shape[1] - 1
    limit, upper = p.limits[0], p.limits[1]
    for ideal in range(first, last):
        depth = integer(0)
        p.stack[0, 0], p.stack[0, 1] = ideal, p.start[ideal]
        for part in range(SUMS):
            p.sums[0, part] = 0.0
        while depth >= 0:
            here, edge = p.stack[depth, 0], p.stack[depth, 1]
            if edge == p.start[here + 1]:
                if depth > 0:  # takes the block out again, by which the walk came
                    gone = p.block[p.stack[depth - 1, 1] - 1]
                    for i in range(p.nets_start[gone], p.nets_start[gone + 1]):
                        p.inside[p.nets[i]] -= 1
                depth -= 1
                continue
            p.stack[depth, 1] = edge + 1
            below, block = p.smaller[edge], p.block[edge]
            if p.seen[below] == ideal:
                continue
            p.seen[below] = ideal
            p.counts[0] += 1
            moved = p.sums[depth, MOVED]
            for i in range(p.nets_start[block], p.nets_start[block + 1]):
                net = p.nets[i]
                p.inside[net] += 1
                if p.inside[net] == 1:
                    moved += p.seconds[net]
                if p.inside[net] == p.size[net]:
                    moved -= p.seconds[net]
            depth += 1
            for kind in (ACCELERATOR, CPU):
                p.sums[depth, kind] = p.sums[depth - 1, kind] + p.runtime[block, kind]
                p.sums[depth, BARS + kind] = p.sums[depth - 1, BARS + kind] + p.bars[block, kind]
            p.sums[depth, MOVED], p.sums[depth, BYTES] = moved, p.sums[depth - 1, BYTES] + p.weight[block]
            p.stack[depth, 0], p.stack[depth, 1] = below, p.start[below]
            on_accelerator, on_cpu = p.sums[depth, ACCELERATOR], p.sums[depth, CPU]
            fits = p.sums[depth, BARS + ACCELERATOR] == 0 and p.sums[depth, BYTES] <= limit
            fits = fits and accelerators > 0 and on_accelerator < upper
            runs = p.sums[depth, BARS + CPU] == 0 and cpus > 0 and on_cpu < upper
            if not fits and not runs:
                p.stack[depth, 1] = p.start[below + 1]  # nothing below can do either
                continue
            load = on_accelerator + moved
            if fits and load < upper:
                for c in range(cpus + 1):
                    for a in range(1, accelerators + 1):
                        value = max(p.best[c, a - 1, below], load)
                        if value < p.best[c, a, ideal]:
                            p.best[c, a, ideal], p.link[c, a, ideal] = value, 2 * below + ACCELERATOR
            if runs:
                for c in range(1, cpus + 1):
                    for a in range(accelerators + 1):
                        value = max(p.best[c - 1, a, below], on_cpu)
                        if value < p.best[c, a, ideal]:
                            p.best[c, a, ideal], p.link[c, a, ideal] = value, 2 * below + CPU
        for c in range(cpus + 1):
            for a in range(accelerators + 1):
                if a > 0 and p.best[c, a - 1, ideal] < p.best[c, a, ideal]:
                    p.best[c, a, ideal], p.link[c, a, ideal] = p.best[c, a - 1, ideal], 2 * ideal + ACCELERATOR
                if c > 0 and p.best[c - 1, a, ideal] < p.best[c, a, ideal]:
                    p.best[c, a, ideal], p.link[c, a, ideal] = p.best[c - 1, a, ideal], 2 * ideal + CPU


def devices_of(p: Program, ideals: Ideals, accelerators: int) -> np.ndarray | None:
    """The device of each block in the best split, `[b] int64`; None if there is none below the limit."""
    c, a, ideal = p.best.shape[0] - 1, p.best.shape[1] - 1, p.best.shape[2] - 1
    if not np.isfinite(p.best[c, a, ideal]):
        return None
    device = np.zeros(len(p.weight), np.int64)
    while ideal:
        below, kind = divmod(int(p.link[c, a, ideal]), 2)
        a, c = (a - 1, c) if kind == ACCELERATOR else (a, c - 1)
        for block in _members(ideals, ideal) - _members(ideals, below):
            device[block] = a if kind == ACCELERATOR else accelerators + c
        ideal = below
    return device


def _members(ideals: Ideals, ideal: int) -> set[int]:
    """The blocks of an ideal."""
    blocks = set()
    while ideal:
        edge = ideals.start[ideal]
        blocks.add(int(ideals.block[edge]))
        ideal = int(ideals.smaller[edge])
    return blocks
