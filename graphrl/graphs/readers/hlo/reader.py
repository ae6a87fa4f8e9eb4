"""Conversion of compiled XLA modules to computation graphs, and of orders of such a graph to XLA schedules.

An op is an instruction with its own buffer or work; ops are in the order of the module's schedule. Parameters,
constants, tuples, bitcasts and other views (`values.py`) are not ops: their readers read the tensors behind the views
and depend on the predecessors of the views. The graph's memory is the part that XLA calls temporaries:

- Parameters and constants are external inputs.
- All bytes are those of the device's main memory. A value in the host's memory, S(5) in its layout, or in a TPU's other
  memories, VMEM, S(1), and the like, takes 0 (`HloModule.device_bytes`). A copy between two memories is an ordinary op:
  it takes as long as a copy in the main memory, because a chip has one bandwidth here.
- A TPU's layouts have tiles, T(8,128), which are padded: bytes are those of whole tiles.
- Tensors that reach the program's result are in buffers of the caller. These tensors are the graph's outputs, of 0
  bytes; so are tensors whose buffer they take in place.
- A loop works in the buffers of its operands, so its results are aliases; likewise for other updates in place
  (`values.in_place_pairs`) and the ends of asynchronous operations. Until such an end, the operands of the start are in
  use.
- The additional memory of a loop's body, a branch or a called computation is the workspace of the instruction: the peak
  of its own schedule.
- `reuses` names the operand that XLA may overwrite with a result: preferably one without other readers, else the first.

Not in the graph: the table of pointers of each tuple (8 bytes an element), XLA's alignment to 64 bytes, holes between
buffers, and temporaries that XLA puts into the buffer of a later result. `graphrl/xla/assignment` models all these.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.values import CONTRACTED, ValueReader
from graphrl.graphs.readers.hlo.work import Lowered, Works
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, find_chip

# Errors from instructions without the operands, dimensions or computations that their opcode requires. XLA writes none.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True, eq=False)
class HloProgram:
    """A parsed HLO module and the computation graph of its entry.

    Attributes:
      module: the parsed module.
      graph: computation graph of its entry computation.
    """

    module: HloModule
    graph: ComputationGraph

    @property
    def schedule(self) -> np.ndarray:
        """XLA's own order of the ops, which is their order in the graph: `[n] int64`, 0 to n - 1."""
        return np.arange(len(self.graph.ops))

    def sequence(self, order: ArrayLike) -> tuple[str, ...]:
        """Returns the schedule of all instructions of the entry computation for an order of the graph's ops.

        Parameters and constants come first. Every view follows as soon as its operands have run, a root that is a view
        last.

        Args:
          order: `[n]` indices of ops, dependencies first.

        Returns:
          Names of the instructions.

        Raises:
          GraphError: it is not an order of the ops, or has one before one of its dependencies.
        """
        places, n = np.asarray(order), len(self.graph.ops)
        if places.shape != (n,) or places.dtype.kind not in "iu" or not np.array_equal(np.sort(places), np.arange(n)):
            raise GraphError(f"graph {self.graph.name!r}: a schedule must have each of its {n} ops once, by index")
        waiting, followers = self._dependencies
        left, views = dict(waiting), self._views
        sequence: list[str] = []

        def run(names: list[str]) -> None:
            """Appends instructions to the sequence, and then the views that become ready, in XLA's order."""
            while names:
                sequence.extend(names)
                for follower in (follower for name in names for follower in followers[name]):
                    left[follower] -= 1
                freed = {follower for name in names for follower in followers[name] if not left[follower]}
                names = sorted(freed & views.keys(), key=views.__getitem__)

        run([name for name in views if not left[name]])
        for op in places.tolist():
            name = self.graph.ops[op].name
            if left[name]:
                raise GraphError(f"graph {self.graph.name!r}: the order has {name!r} before what it waits for")
            run([name])
        return tuple(sequence)

    @functools.cached_property
    def _views(self) -> dict[str, int]:
        """Index in XLA's schedule of every contracted instruction (one that is not an op, such as a view)."""
        by_name = self.module.entry.by_name
        names = self.module.order(self.module.entry)
        return {name: k for k, name in enumerate(names) if by_name[name].opcode in CONTRACTED}

    @functools.cached_property
    def _dependencies(self) -> tuple[dict[str, int], dict[str, list[str]]]:
        """Each instruction's number of predecessors, and its successors, by name."""
        waiting: dict[str, int] = {}
        followers: dict[str, list[str]] = {name: [] for name in self.module.entry.by_name}
        for i in self.module.entry.instructions:
            before = {*i.operands, *i.control_predecessors}
            waiting[i.name] = len(before)
            for name in before:
                followers[name].append(i.name)
        return waiting, followers


def read_hlo(
    module: Any,
    *,
    chip: str | Chip = DEFAULT_CHIP,
    source: str = "HLO",
    count_results: bool = False,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> HloProgram:
    """Reads the entry computation of a module as a graph.

    Args:
      module: any argument of `parse_module`, or its result.
      chip: determines run times (`roofline.runtime`): a name in `roofline.CHIPS` or a `Chip`.
      source: name for error messages.
      count_results: if True, the graph's outputs have their true bytes from when they are written, as if all memory
        were one heap. XLA's reuse of the buffers of later results for temporaries comes close to this.
      limits: limits on time and memory for reading.

    Returns:
      The program; its graph has the module's name. `weight_bytes` are those of the parameters and constants, each with
        the first op that reads it.

    Raises:
      GraphrlError: unknown chip.
      GraphError: one line, if the module is broken or computes nothing.
    """
    figures = find_chip(chip)
    if not isinstance(module, HloModule):
        module = parse_module(module, source, limits=limits)
    try:
        reader = ValueReader(module)
        values = reader.of(module.entry)
        lowered = Lowered(module, module.entry, values, Works(module, reader, figures).of, count_results)
        external = tuple(values.external.values())
        return HloProgram(module, ComputationGraph(module.name, lowered.ops, external, lowered.outputs))
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None
    except _MALFORMED as error:
        what = f"{type(error).__name__} {error}".strip()
        raise GraphError(f"{source}: broken HLO: an instruction that cannot be of its kind: {what}") from None
