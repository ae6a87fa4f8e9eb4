"""Gradients that a backward pass hands on from segment to segment.

What no kernel reads and no one else needs is computed on the way by whoever reads it. A segment that is computed again
begins its backward pass behind a barrier, for which the gradients that it takes are written first.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.nodes import Nodes
from graphrl.xla.checkpoint.solid import share_read


class Handed(NamedTuple):
    """A gradient that lies in no memory, but where it is handed on to a segment that is computed again.

    Attributes:
      place: the equation whose derivative computes it.
      seconds: to write it, less what its readers save that read it instead of what it is computed from.
      to: equations before that one whose derivatives read it.
    """

    place: int
    seconds: float
    to: list[int]


def handed(nodes: Nodes, places: Collection[int]) -> list[Handed]:
    """All such gradients of a derivative, in order, that are handed on to some equations of these `places`: others have
    no segment of their own.
    """
    own, readers = nodes.own, defaultdict(list)
    for i, node in enumerate(own.nodes):
        if node is not None and own.backward[i]:
            for value in own.reads(i):
                readers[value].append(i)
    found = []
    for value in (value for value in readers if isinstance(value, Result) and own.backward[value.node]):
        place = own.place[value.node]
        to = sorted({own.place[i] for i in readers[value] if own.place[i] < place and own.place[i] in places})
        if to and not nodes.is_solid(value):
            read = nodes.fusion.moved[value] - sum(nodes.node(value.node).output_bytes)
            spared = sum(share_read(own, i, value) for i in readers[value]) * (read - own.bytes(value))
            found.append(Handed(place, nodes.moving(max(0.0, nodes.fusion.moved[value] - spared)), to))
    return found
