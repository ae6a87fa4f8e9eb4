"""Ops of a graph from the instructions of an XLA computation, in the order in which they run."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from graphrl.graphs.graph import Op, Tensor
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.sharing import may_share
from graphrl.graphs.readers.hlo.values import CONTRACTED, Values, tensor_name


class Work(NamedTuple):
    """What running something once takes.

    Attributes:
      flops: operations.
      runtime: seconds.
      workspace_bytes: most bytes of the device that it holds at once beside what it reads and gives.
    """

    flops: int
    runtime: float
    workspace_bytes: int


class Lowered:
    """The ops of a computation.

    Attributes:
      ops: in the order in which they run.
      outputs: the tensors of its result that it writes itself.
    """

    def __init__(
        self,
        module: HloModule,
        computation: Computation,
        values: Values,
        work: Callable[[Computation, Instruction], Work],
        count_results: bool = False,
    ) -> None:
        """Lowers a computation.

        Args:
          values: of the computation.
          work: what an instruction takes.
          count_results: whether its results have their bytes, not 0.
        """
        self._module, self._computation, self._values, self._work = module, computation, values, work
        names = module.order(computation)
        self._instructions = [i for i in map(computation.by_name.__getitem__, names) if i.opcode not in CONTRACTED]
        self._inputs = {
            i.name: tuple(dict.fromkeys(r for o in i.operands for roots in values.leaves[o].values() for r in roots))
            for i in self._instructions
        }
        result = values.leaves[computation.root.name].values()
        self.outputs = tuple(dict.fromkeys(r for roots in result for r in roots if r not in values.external))
        # buffers that the caller gives, unless they are to be counted
        self._given = set() if count_results else {values.buffer(name) for name in self.outputs}
        self._bytes = {
            tensor_name(i.name, index): module.device_bytes(leaf)
            for i in self._instructions
            for index, leaf in i.shape.leaves
        }
        # how many instructions read each buffer
        self._readers = Counter(b for reads in self._inputs.values() for b in {values.buffer(r) for r in reads})
        self._writer = {tensor_name(i.name, index): i.name for i in self._instructions for index, _ in i.shape.leaves}
        self.ops = self._lowered()

    def _lowered(self) -> tuple[Op, ...]:
        charged: set[str] = set()  # parameters and constants that an earlier op holds
        ops = []
        for i in self._instructions:
            inputs = self._inputs[i.name]
            own = {r for r in inputs if r in self._values.external} - charged
            charged |= own
            work = self._work(self._computation, i)
            ops.append(
                Op(
                    name=i.name,
                    type=i.opcode,
                    runtime=work.runtime,
                    inputs=inputs,
                    outputs=tuple(self._outputs(i)),
                    after=self._after(i),
                    workspace_bytes=work.workspace_bytes,
                    weight_bytes=sum(self._values.external[r].bytes for r in own),
                    flops=work.flops,
                )
            )
        return tuple(ops)

    def _after(self, i: Instruction) -> tuple[str, ...]:
        """Ops that have to run before an instruction although it reads nothing of theirs."""
        waits = self._values.waits
        before: set[str] = set()
        for name in i.operands:
            before |= waits.get(name, frozenset())
        for name in i.control_predecessors:
            before |= waits.get(name, {name})
        return tuple(sorted(before - {self._writer.get(r) for r in self._inputs[i.name]}))

    def _size(self, tensor: str) -> int:
        """Bytes that a tensor holds of the memory that is planned: none in a buffer that the caller gives."""
        return 0 if self._values.buffer(tensor) in self._given else self._bytes[tensor]

    def _outputs(self, i: Instruction) -> Iterator[Tensor]:
        """The tensors that an instruction writes, and whose buffers they share."""
        leaves = self._values.leaves[i.name]
        taken: set[str] = set()
        for index, _ in i.shape.leaves:
            name = tensor_name(i.name, index)
            if leaves[index] != (name,):
                continue  # what the start of an asynchronous operation merely shows
            alias = self._values.alias.get(name)
            reuses = None
            if alias is None and name not in self._given and self._bytes[name]:
                reuses = self._reused(i, index, taken)
                taken |= {self._values.buffer(reuses)} if reuses else set()
            yield Tensor(name, self._size(name), alias, reuses)

    def _reused(self, i: Instruction, index: tuple[int, ...], taken: set[str]) -> str | None:
        """The tensor over which XLA may write a leaf: one that nobody else reads if there is one, else the first."""
        source: str | None = None
        wanted = self._bytes[tensor_name(i.name, index)]
        for k, operand in enumerate(i.operands):
            for at, roots in self._values.leaves[operand].items():
                if len(roots) != 1 or self._bytes.get(roots[0]) != wanted:
                    continue
                buffer = self._values.buffer(roots[0])
                alone = self._readers[buffer] == 1
                if (source and not alone) or buffer in taken or self._size_of_buffer(buffer) < wanted:
                    continue
                if may_share(self._module, self._computation, i, k, at, index):
                    if alone:
                        return roots[0]
                    source = roots[0]
        return source

    def _size_of_buffer(self, buffer: str) -> int:
        """Bytes that can be taken over: none of what is the caller's."""
        return 0 if buffer in self._values.external or buffer in self._given else self._bytes[buffer]


def peak(ops: tuple[Op, ...], values: Values) -> int:
    """Most bytes that ops of a computation hold at once in their order, by the rules of `costs/exact/memory.py`."""
    size = {t.name: t.bytes for op in ops for t in op.outputs}
    left = Counter(b for op in ops for b in {values.buffer(r) for r in op.inputs})
    live = highest = 0
    for op in ops:
        reads = {values.buffer(r) for r in op.inputs}
        for tensor in op.outputs:
            source = None if tensor.reuses is None else values.buffer(tensor.reuses)
            if source is not None and left[source] == 1:
                size[tensor.name], size[source] = size[source], 0
            elif tensor.alias is None:
                live += tensor.bytes
        highest = max(highest, live + op.workspace_bytes)
        unread = {t.name for t in op.outputs if t.alias is None and not left[t.name]}
        left.subtract(reads)
        live -= sum(size.get(b, 0) for b in {b for b in reads if left[b] == 0} | unread)
    return highest
