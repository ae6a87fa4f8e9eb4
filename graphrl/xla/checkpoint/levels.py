"""The arrays of one level: values of the forward pass, kernels of the backward pass, and loops that are in both."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from graphrl.graphs.interconnects import INTERCONNECTS
from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.graphs.roofline import Chip
from graphrl.solvers.budgets.level import Level, Loop
from graphrl.xla.checkpoint.backward import Backward
from graphrl.xla.checkpoint.copies import resident_bytes
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.forward import Forward
from graphrl.xla.checkpoint.handed import handed
from graphrl.xla.checkpoint.host import HOST_LINK
from graphrl.xla.checkpoint.nodes import Nodes
from graphrl.xla.checkpoint.slices import advancing, slices_of

PART = 0.75  # of the link to the host: a copy that is late holds all up, and clocks differ


class LevelBuilder:
    """What a derivative computes, on the way to the arrays of its level.

    Args:
      derivative: of a program.
      chip: for seconds.
      carried: arguments that a loop carries, which it must keep for its backward pass.
      scans: of the program, by place, how many results each has.

    Attributes:
      values: of the forward pass, in order.
      loops: that the gradient goes through, by place.
      begin_bytes: of the carried arguments without which no stretch of the loop can be computed again.
    """

    def __init__(self, derivative: Derivative, chip: Chip, carried: Sequence[int], scans: Mapping[int, int]) -> None:
        self._own, self._nodes = derivative, Nodes(derivative, chip)
        self._forward = Forward(self._nodes, carried)
        self._backward = Backward(self._nodes, self._forward)
        self.values = self._forward.values
        begins, self._followers = advancing(self._forward.reads, self._backward.reads, self._following(carried))
        self.begin_bytes = sum(derivative.bytes(self.values[v]) for v in begins)
        loops = {place: self._loop(place, results) for place, results in scans.items()}
        self.loops = {place: loop for place, loop in loops.items() if loop is not None}

    def level(self, trips: int, apart: np.ndarray) -> Level:
        """The arrays; loops take no time and keep nothing yet. `apart` is that of the level."""
        forward, backward = self._forward, self._backward
        place, free, op, seconds = forward.place(), forward.free(), forward.op(), forward.seconds()
        reads_from, reads = _rows(forward.reads)
        kernel_from, kernel_reads = _rows(backward.reads)
        copied = {*place[free].tolist()} - {*place[~free].tolist()}  # whoever reads what is free has its own copy
        gradients = handed(self._nodes, copied)
        handed_from, handed_to = _rows([[at for at, _ in gradient.to] for gradient in gradients])
        spared = forward.spared(seconds)
        sizes = np.array([self._own.bytes(value) for value in self.values], float)
        workspace = np.array([self._nodes.workspace(value) for value in self.values], float)
        for loop in self.loops.values():
            sizes[list(loop.kept)] = 0.0
            workspace[[*loop.outputs, *loop.kept]] = seconds[[*loop.outputs, *loop.kept]] = 0.0
        inner = {loop.kernel for loop in self.loops.values()}
        kernel_seconds = backward.seconds(inner)
        _, once = np.unique(op, return_index=True)
        return Level(
            bytes=sizes,
            place=place,
            solid=np.array(forward.solid, bool),
            free=free,
            needed=forward.needed,
            named=forward.named(),
            heavy=forward.heavy(),
            seconds=seconds,
            keeping=spared + forward.keeping(in_loop=trips > 0),
            writing=spared + forward.keeping(in_loop=False),
            op=op,
            following=self._followers,
            workspace=workspace,
            last_read=forward.last_read(),
            reads_from=reads_from,
            reads=reads,
            kernel_place=backward.place(),
            kernel_bytes=backward.bytes(inner),
            kernel_seconds=kernel_seconds,
            kernel_from=kernel_from,
            kernel_reads=kernel_reads,
            kernel_copies=np.array([size for row in backward.copies() for size in row], float),
            handed_place=np.array([gradient.place for gradient in gradients], np.int64),
            handed_seconds=np.array([gradient.seconds for gradient in gradients], float),
            handed_from=handed_from,
            handed_to=handed_to,
            handed_home=np.array([home for gradient in gradients for _, home in gradient.to], np.int64),
            first=np.searchsorted(place, np.arange(len(apart) + 1)).astype(np.int64),
            free_values=np.flatnonzero(free).astype(np.int64),
            apart=apart,
            resident=float(resident_bytes(self._own.nodes)),
            link=PART * INTERCONNECTS[HOST_LINK].bandwidth,
            trips=trips,
            forward_seconds=float((seconds * forward.needed)[once].sum() - spared.sum()),
            backward_seconds=float(kernel_seconds.sum()),
        )

    def _loop(self, place: int, results: int) -> Loop | None:
        """A scan of so many results; None where no gradient goes through it."""
        own = [
            v for v in self.values if isinstance(v, Result) and self._own.place[v.node] == place and self._is_scan(v)
        ]
        # jax moves what is the same in all steps out of a scan and before it, other scans too
        own = [v for v in own if v.node == own[-1].node]
        outputs = tuple(self._forward.number[value] for value in own if value.output < results)
        kept = tuple(self._forward.number[value] for value in own if value.output >= results)
        kernels = [q for q, reads in enumerate(self._backward.reads) if set(reads) & set(kept)]
        if not outputs or not kernels:
            return None
        forward, backward = (self._own.node(i) for i in (own[0].node, self._backward.kernels[kernels[0]]))
        return Loop(place, outputs, kept, kernels[0], *slices_of(self._own, forward, backward, results))

    def _following(self, carried: Iterable[int]) -> list[int | None]:
        """Of each carried argument, the value that the next step has in its place."""
        results = (value for value, _ in zip(self._own.returned, carried, strict=False))
        return [None if value is None else self._forward.number.get(value) for value in results]

    def _is_scan(self, value: Result) -> bool:
        return self._own.node(value.node).type == "scan"


def _rows(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins in all of them, and all of them."""
    begins = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return begins.astype(np.int64), np.array([number for row in rows for number in row], np.int64)
