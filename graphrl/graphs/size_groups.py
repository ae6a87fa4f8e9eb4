"""Sizes that graphs share, so that many graphs of many sizes need few compiled programs."""

import dataclasses
from collections.abc import Sequence

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, bucketed, sizes

# How many times a graph's own size its padded one may be. BRKGA at these limits takes 4% longer on a CPU, annealing 10
# to 16%; a program takes two seconds to compile, as long as 30 runs of 5,000 evaluations on 125 ops.
_MOST = {"ops": 1.25, "tensors": 1.25, "slots": 1.25}
_MOST_OF_OTHERS = 2.0
_LEAST = 8  # smaller sizes count as this


def shared_sizes(graphs: Sequence[ComputationGraph]) -> list[Sizes]:
    """Sizes for each of the graphs, few different ones: graphs of similar sizes have them in common.

    From the largest graph down, each joins the first group that it fits. Alone in its group, a graph has its own
    bucket.
    """
    each = [sizes(graph) for graph in graphs]
    groups: list[list[int]] = []
    for index in sorted(range(len(each)), key=lambda index: dataclasses.astuple(each[index]), reverse=True):
        fitting = (group for group in groups if _similar([each[index], *(each[member] for member in group)]))
        group = next(fitting, None)
        if group is None:
            groups.append(group := [])
        group.append(index)
    shared = list(each)
    for group in groups:
        common = bucketed([each[index] for index in group])
        for index in group:
            shared[index] = common
    return shared


def _similar(group: Sequence[Sizes]) -> bool:
    for field in dataclasses.fields(Sizes):
        values = [max(_LEAST, getattr(one, field.name)) for one in group]
        if max(values) > _MOST.get(field.name, _MOST_OF_OTHERS) * min(values):
            return False
    return True
