"""Gradients that a backward pass hands on from segment to segment.

What no kernel reads and no one else needs is computed on the way by whoever reads it. A segment that is computed again
begins its backward pass behind a barrier, for which the gradients that it takes are written first.
"""

from collections import defaultdict
from typing import NamedTuple

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.nodes import Nodes
from graphrl.xla.checkpoint.solid import share_read


class Handed(NamedTuple):
    """A gradient that lies in no memory, but where it is handed on to a segment that is computed again.

    Attributes:
      place: the equation whose derivative computes it.
      seconds: to write it.
      reads: of each reader of another equation its place, and the seconds that it takes longer to read this than what
        it is computed from; mostly below 0.
    """

    place: int
    seconds: float
    reads: list[tuple[int, float]]


def handed(nodes: Nodes) -> list[Handed]:
    """All such gradients of a derivative, in order."""
    own, found = nodes.own, []
    readers = defaultdict(list)
    for i, node in enumerate(own.nodes):
        if node is not None and own.backward[i]:
            for value in own.reads(i):
                readers[value].append(i)
    for value in (value for value in readers if isinstance(value, Result) and own.backward[value.node]):
        place = own.place[value.node]
        others = [i for i in readers[value] if own.place[i] < place]
        if nodes.is_solid(value) or not others:
            continue
        size, moved = own.bytes(value), nodes.fusion.moved[value]
        longer = size - (moved - sum(nodes.node(value.node).output_bytes))
        reads = [(own.place[i], share_read(own, i, value) * nodes.reading(longer)) for i in others]
        found.append(Handed(place, nodes.moving(moved), reads))
    return found
