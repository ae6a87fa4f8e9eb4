"""The tasks of REGAL's tables: what is planned for, the unseen graphs, and how a policy for them is trained."""

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
# Programs of the zoo, and the most ops of one: what training and a table in an hour on one core allow. Peak memory is
# tested on training steps alone: of nearly all inference programs BRKGA finds the least on two devices.
MAKESPAN = {"train": ("hlo/train-split", 320), "validation": ("hlo/valid-split", 400), "test": ("hlo/test-split", 600)}
MEMORY_TEST = ("hlo/test-split/training", 1_000)
LEAST_OPS = 50  # below there is nothing to decide
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
    """Graphs smaller than those that are tested on, of 50 to 200 ops: they train a policy in a minute."""
    if quick:
        return ["data.train=regal-like:12x8@10000", "data.validation=regal-like:12x4@5000"]
    train = ",".join(f"regal-like:{ops}x100@{first}" for ops, first in ((50, 10_000), (60, 20_000), (70, 30_000)))
    return [f"data.train={train}", "data.validation=regal-like:60x32@5000", "data.buckets=1", "training.steps=150"]


def _zoo(which: tuple[str, int], count: int, quick: bool) -> list[ComputationGraph]:
    """Programs of families that no policy has seen; then variants of them with other sizes and times, as in REGAL."""
    names = _programs(which, quick)[:count]
    programs = [zoo.load(name).graph for name in names]
    rounds = range(-(-count // len(programs)))
    varied = (graph if not i else zoo.augmented(graph, i) for i in rounds for graph in programs)
    return [graph for graph, _ in zip(varied, range(count), strict=False)]


def _zoo_data(quick: bool) -> list[str]:
    sets = {name: _programs(MAKESPAN[name], quick) for name in ("train", "validation")}
    named = [f"data.{name}={','.join(zoo.PREFIX + program for program in some)}" for name, some in sets.items()]
    return [*named, "data.augment=true", "data.buckets=2", "agent.genes=all", "training.steps=100"]


def _programs(which: tuple[str, int], quick: bool) -> list[str]:
    """The compiled programs (HLO) of a split that are not too large, the smallest first."""
    words, most = which
    entries = sorted((entry.ops, entry.name) for entry in zoo.select(words) if LEAST_OPS <= entry.ops <= most)
    return [name for _, name in entries[: _QUICK_PROGRAMS if quick else None]]


TASKS = {
    "synthetic": Task("Synthetic graphs, makespan", Problem("makespan", 2), _synthetic, _synthetic_data),
    "synthetic-memory": Task("Synthetic graphs, peak memory", Problem("peak_memory", 2), _synthetic, _synthetic_data),
    # affinities are learned too: much of these programs is best left on one device
    "zoo-makespan": Task(
        "Model zoo, makespan",
        Problem("makespan", 2, "link", latency=LATENCY, bandwidth=BANDWIDTH),
        functools.partial(_zoo, MAKESPAN["test"]),
        _zoo_data,
    ),
    # the policies of synthetic graphs: in some eighty updates on the zoo's own programs nothing was learned
    "zoo-memory": Task(
        "Model zoo, peak memory", Problem("peak_memory", 2), functools.partial(_zoo, MEMORY_TEST), _synthetic_data
    ),
}


@functools.cache
def unseen(task: str, count: int, quick: bool) -> list[ComputationGraph]:
    """The graphs that a task is tested on, made once."""
    return TASKS[task].graphs(count, quick)
