"""Gradients that a backward pass hands on from segment to segment.

What no kernel reads and no one else needs is computed on the way by whoever reads it. A segment that is computed again
begins its backward pass behind a barrier, for which the gradients of what it computes are written first. What is added
to a gradient before that, or outside of all segments, waits for nothing.
"""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.xla.checkpoint.copies import Value
from graphrl.xla.checkpoint.nodes import Nodes
from graphrl.xla.checkpoint.solid import share_read

SUM = "add_any"  # of the gradients of one value
Readers = Mapping[Value, Sequence[int]]  # nodes of the backward pass that read a value


class Handed(NamedTuple):
    """A gradient that lies in no memory, but where it is handed on to a segment that is computed again.

    Attributes:
      place: the equation whose derivative computes it.
      seconds: to write it, less what its readers save that read it instead of what it is computed from.
      to: of each reader before that equation, the equation that it belongs to, and the one that computed what this is a
        gradient of. It is handed on if both are in one segment, else a sum outside of segments reads it.
    """

    place: int
    seconds: float
    to: list[tuple[int, int]]


def handed(nodes: Nodes, copied: Set[int]) -> list[Handed]:
    """All such gradients of a derivative, in order; none is handed on to `copied` equations, which have no segment of
    their own.
    """
    own, found = nodes.own, []
    readers = own.readers(own.backward_nodes())
    for value, reading in readers.items():
        if not isinstance(value, Result) or not own.backward[value.node] or nodes.is_solid(value):
            continue
        place, pairs = own.place[value.node], {(own.place[i], _home(nodes, readers, i)) for i in reading}
        to = [(at, home) for at, home in pairs if home is not None and at < place and not copied & {at, home}]
        if to:
            moved = nodes.fusion.moved[value]
            read = moved - sum(nodes.own.node(value.node).output_bytes)
            spared = sum(share_read(own, i, value) for i in reading) * (read - own.bytes(value))
            found.append(Handed(place, nodes.moving(max(0.0, moved - spared)), sorted(to)))  # below 0 by rounding only
    return found


def _home(nodes: Nodes, readers: Readers, i: int) -> int | None:
    """The equation that computed what a reader's operand is the gradient of; None of an argument's."""
    while nodes.own.node(i).type == SUM:
        others = readers.get(Result(i, 0), ())
        if not others:
            return None
        i = next((j for j in others if nodes.own.node(j).type != SUM), others[0])
    return nodes.own.place[i]
