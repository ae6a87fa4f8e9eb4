"""Graphs, a chip and settings of `graphrl train egrl` for seconds, equal in all tests so that they share compiled
programs.

Half of the ops compute for so long that the memory of their weights does not matter. First come, first served, their
weights take the fast memory all the same: a policy that puts them into the slow one is 1.5 times as fast.
"""

import json
from pathlib import Path

import numpy as np

from graphrl.costs.maps.chip import ChipMemory, MemoryChip
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.json import write_json

OPS, WEIGHT = 10, 8
CHIP = MemoryChip(
    "tiny", 1.0, (ChipMemory("big", None, 1, 1), ChipMemory("small", WEIGHT * OPS // 2 + 2, 100, 100)), page=1
)


def graph(seed: int) -> ComputationGraph:
    """A chain; a random half of its ops compute for long."""
    long = np.random.default_rng(seed).permutation(OPS) < OPS // 2
    ops = [
        Op(
            f"op{i}",
            flops=12 if long[i] else 0,
            weight_bytes=WEIGHT,
            inputs=(f"t{i - 1}",) if i else (),
            outputs=(Tensor(f"t{i}", 1),),
        )
        for i in range(OPS)
    ]
    return ComputationGraph(f"chain{seed}", tuple(ops))


def settings(folder: Path, train: int = 3, held_out: int = 2) -> list[str]:
    """Settings of a run; writes its chip and its graphs into a folder, with seeds from 0 for training, from 100 for
    validation and from 200 for testing.
    """
    names: dict[str, list[str]] = {}
    for name, first, count in (("train", 0, train), ("validation", 100, held_out), ("test", 200, held_out)):
        for seed in range(first, first + count):
            path = folder / f"{seed}.json"
            write_json(graph(seed), path)
            names.setdefault(name, []).append(str(path))
    (folder / "chip.json").write_text(json.dumps(CHIP.to_dict()))
    return [
        *(f"data.{name}={','.join(paths)}" for name, paths in names.items()),
        f"data.graphs={held_out}",
        f"agent.chip={folder / 'chip.json'}",
        "agent.learning=search",
        "agent.variant=egrl",
        "agent.operators=paper",
        "agent.population=6",
        "agent.boltzmann=0.34",
        "agent.replay=1000",
        "training.steps=6",
        "training.validate_every=3",
        "training.checkpoint_every=1",
    ]
