"""The three tasks of REGAL's table: what is planned for, the unseen graphs, and how a policy for them is trained."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph

# Two A100s, the chip that the zoo's times are of, and NVLink between them: 300 GB/s each way. Over PCIe (50 GB/s) list
# scheduling leaves half of the programs on one device, and there would be nothing to decide.
LATENCY, BANDWIDTH = 5e-6, 3e11  # seconds; bytes a second
# Most ops of a zoo program of each split: what training and tables in an hour on one core allow.
MOST_OPS = {"train": 1_300, "valid": 1_600, "test": 1_000}
_QUICK_PROGRAMS = 2  # the smallest


class Task(NamedTuple):
    """A column of the paper's table.

    Attributes:
      title: in words.
      problem: what is planned for.
      graphs: (how many, whether small ones do) -> unseen graphs.
      data: (whether small ones do) -> settings of `graphrl train` that name the training graphs.
    """

    title: str
    problem: Problem
    graphs: Callable[[int, bool], list[ComputationGraph]]
    data: Callable[[bool], list[str]]


def _synthetic(count: int, quick: bool) -> list[ComputationGraph]:
    """Seeds from 0, as `DataConfig.test`: training has 10,000 on, validation 5,000 on, tuned BRKGA 10^6 on."""
    return load_graphs([f"regal-like:{12 if quick else ''}x{count}"])


def _synthetic_data(quick: bool) -> list[str]:
    return ["data.train=regal-like:12x8@10000", "data.validation=regal-like:12x4@5000"] if quick else []


def _zoo(count: int, quick: bool) -> list[ComputationGraph]:
    """Programs of families that no policy has seen; then variants of them with other sizes and times, as in REGAL."""
    names = _programs("test", quick)[:count]
    programs = [zoo.load(name).graph for name in names]
    rounds = range(-(-count // len(programs)))
    varied = (graph if not i else zoo.augmented(graph, i) for i in rounds for graph in programs)
    return [graph for graph, _ in zip(varied, range(count), strict=False)]


def _zoo_data(quick: bool) -> list[str]:
    splits = {"train": "train", "validation": "valid"}
    sets = {name: _programs(split, quick) for name, split in splits.items()}
    named = [f"data.{name}={','.join(zoo.PREFIX + program for program in found)}" for name, found in sets.items()]
    return [*named, "data.augment=true"]


def _programs(split: str, quick: bool) -> list[str]:
    """The compiled training steps (HLO) of a split that are not too large, the smallest first.

    Inference programs are left out: on two devices BRKGA finds the least peak memory of all but few of them, so that
    there is nothing to improve.
    """
    words = f"hlo/{split}-split/training"
    found = sorted((entry.ops, entry.name) for entry in zoo.select(words) if entry.ops <= MOST_OPS[split])
    return [name for _, name in found[: _QUICK_PROGRAMS if quick else None]]


TASKS = {
    "synthetic": Task("Synthetic graphs, makespan", Problem("makespan", 2), _synthetic, _synthetic_data),
    "zoo-makespan": Task(
        "Model zoo, makespan",
        Problem("makespan", 2, "link", latency=LATENCY, bandwidth=BANDWIDTH),
        _zoo,
        _zoo_data,
    ),
    "zoo-memory": Task("Model zoo, peak memory", Problem("peak_memory", 2), _zoo, _zoo_data),
}


@functools.cache
def unseen(task: str, count: int, quick: bool) -> list[ComputationGraph]:
    """The graphs that a task is tested on, made once."""
    return TASKS[task].graphs(count, quick)
