"""XLA's buffer assignment on the CPU, followed closely enough to predict its temporary memory without compiling.

`TempPredictor` predicts `temp_size_in_bytes`. XLA's figure is not the peak of the live bytes. Results of the program
have separate buffers, which also hold earlier temporaries that fit. Some instructions write over an operand. All other
values are in a heap whose packing leaves holes. The steps, in XLA's order:

- buffers.py: the values of a module, and the buffers that they share;
- heap.py: live ranges of values in a schedule (`live_ranges`), buffers outside the heap (`assign_outputs`), and the
  packing of the heap (`heap_blocks`, `heap_size`);
- here: the sum of their sizes.

On a GPU XLA follows the same steps with other alignments; the prediction is close there too.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla.assignment.buffers import ModuleBuffers
from graphrl.xla.assignment.heap import (
    Allocation,
    Block,
    LiveRanges,
    assign_outputs,
    heap_blocks,
    heap_size,
    live_ranges,
)
from graphrl.xla.callback import check_sequence

ALIGNMENT = 64  # of every buffer, in bytes
Schedule = Mapping[str, Sequence[str]]  # name of a computation -> names of all its instructions in order


class Assignment(NamedTuple):
    """Memory of a module under a schedule.

    Attributes:
      ranges: live ranges of the values.
      allocations: blocks outside the heap.
      blocks: blocks in the heap.
      heap_bytes: size of the heap with the holes between blocks.
      temp_bytes: `memory_analysis().temp_size_in_bytes`.
    """

    ranges: LiveRanges
    allocations: Sequence[Allocation]
    blocks: Sequence[Block]
    heap_bytes: int
    temp_bytes: int


class TempPredictor:
    """Predicts a module's temporary memory for many schedules; facts that hold for all schedules are computed once.

    Args:
      module: as XLA optimised it for the CPU. XLA changes a module that is given another schedule: see `xla.donation`.

    Attributes:
      buffers: buffers of the module.
    """

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.buffers = ModuleBuffers(module)
        self._local = _local_values(module, self.buffers.flow.place)

    def __call__(self, sequence: Sequence[str], others: Mapping[str, Sequence[str]] = MappingProxyType({})) -> int:
        """Predicts `memory_analysis().temp_size_in_bytes`.

        Args:
          sequence: names of all instructions of the entry computation in execution order: operands and control
            predecessors before their users.
          others: name of another computation -> its sequence; the rest run in the module's own order.

        Returns:
          The predicted bytes.

        Raises:
          PlanError: `sequence` does not have every instruction of the entry once, or has one before its operands or
            control predecessors; or the module is not scheduled.
        """
        check_sequence(self.module, sequence)
        return self.assign({**self.module.schedule, **others, self.module.entry.name: sequence}).temp_bytes

    def assign(self, schedule: Schedule = MappingProxyType({}), without: Container[int] = ()) -> Assignment:
        """Assigns all buffers.

        Args:
          schedule: name of a computation -> valid sequence; the rest run in the module's own order.
          without: buffers to leave out, as if the program did not have them: their indices in `buffers.buffers`.
        """
        ranges = live_ranges(self.buffers, {**self.module.schedule, **schedule})
        allocations, in_heap = assign_outputs(self.buffers, ranges, without)
        blocks = heap_blocks(self.buffers, ranges, in_heap)
        heap = heap_size(blocks, ALIGNMENT)
        sizes = [a.bytes if a.is_temporary else None for a in allocations] + [heap] + [None] * self._local
        total = 0
        for size in _temporary(sizes):
            total = -(-total // ALIGNMENT) * ALIGNMENT + size
        return Assignment(ranges, allocations, blocks, heap, total)


def predicted_bytes(module: HloModule) -> int:
    """Predicts the bytes of temporaries of a module under its own schedule."""
    return TempPredictor(module)(module.order(module.entry))


def _temporary(sizes: list[int | None]) -> list[int]:
    """Returns the sizes of temporary blocks in the order in which XLA concatenates them.

    `std::partition` puts them in this order behind the other blocks (None). The order matters because only the last
    block is not rounded up.
    """
    first, last = 0, len(sizes)
    while True:
        while first < last and sizes[first] is None:
            first += 1
        last -= 1
        while first < last and sizes[last] is not None:
            last -= 1
        if first >= last:
            return [size for size in sizes[first:] if size is not None]
        sizes[first], sizes[last] = sizes[last], sizes[first]
        first += 1


def _local_values(module: HloModule, sequential: Collection[str]) -> int:
    """Counts values in computations that work on single elements, without fusions: XLA gives each of them a block."""
    local = [c for c in module.computations.values() if not c.is_fusion and c.name not in sequential]
    return sum(i.opcode != "get-tuple-element" for c in local for i in c.instructions)
