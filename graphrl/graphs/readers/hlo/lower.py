"""Ops of a graph from the instructions of an XLA computation, in the order in which they run."""

import dataclasses
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
      workspace_bytes: most bytes that it holds at once beside what it reads and gives.
    """

    flops: int
    runtime: float
    workspace_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A computation as ops; `outputs` are the tensors of its result that it writes itself."""

    ops: tuple[Op, ...]
    outputs: tuple[str, ...]


def lower(
    module: HloModule,
    computation: Computation,
    values: Values,
    work: Callable[[Computation, Instruction], Work],
    count_results: bool = False,
) -> Lowered:
    """The ops of a computation.

    Args:
      values: of the computation.
      work: what an instruction takes.
      count_results: whether its results have their bytes, not 0.
    """
    return _Lowering(module, computation, values, work, count_results).run()


class _Lowering:
    def __init__(
        self,
        module: HloModule,
        computation: Computation,
        values: Values,
        work: Callable[[Computation, Instruction], Work],
        count_results: bool,
    ) -> None:
        self.module, self.computation, self.values, self.work = module, computation, values, work
        names = module.order(computation)
        self.instructions = [i for i in map(computation.by_name.__getitem__, names) if i.opcode not in CONTRACTED]
        self.inputs = {
            i.name: tuple(dict.fromkeys(r for o in i.operands for roots in values.leaves[o].values() for r in roots))
            for i in self.instructions
        }
        result = values.leaves[computation.root.name].values()
        self.outputs = tuple(dict.fromkeys(r for roots in result for r in roots if r not in values.external))
        # buffers that the caller gives, unless they are to be counted
        self.given = set() if count_results else {values.buffer(name) for name in self.outputs}
        self.bytes = {
            tensor_name(i.name, index): leaf.bytes for i in self.instructions for index, leaf in i.shape.leaves
        }
        # how many instructions read each buffer
        self.readers = Counter(b for reads in self.inputs.values() for b in {values.buffer(r) for r in reads})
        self.writer = {tensor_name(i.name, index): i.name for i in self.instructions for index, _ in i.shape.leaves}

    def run(self) -> Lowered:
        charged: set[str] = set()  # parameters and constants that an earlier op holds
        ops = []
        for i in self.instructions:
            inputs = self.inputs[i.name]
            own = {r for r in inputs if r in self.values.external} - charged
            charged |= own
            work = self.work(self.computation, i)
            ops.append(
                Op(
                    name=i.name,
                    type=i.opcode,
                    runtime=work.runtime,
                    inputs=inputs,
                    outputs=tuple(self._outputs(i)),
                    after=self._after(i),
                    workspace_bytes=work.workspace_bytes,
                    weight_bytes=sum(self.values.external[r].bytes for r in own),
                    flops=work.flops,
                )
            )
        return Lowered(tuple(ops), self.outputs)

    def _after(self, i: Instruction) -> tuple[str, ...]:
        """Ops that have to run before an instruction although it reads nothing of theirs."""
        waits = self.values.waits
        before: set[str] = set()
        for name in i.operands:
            before |= waits.get(name, frozenset())
        for name in i.control_predecessors:
            before |= waits.get(name, {name})
        return tuple(sorted(before - {self.writer.get(r) for r in self.inputs[i.name]}))

    def _size(self, tensor: str) -> int:
        """Bytes that a tensor holds of the memory that is planned: none in a buffer that the caller gives."""
        return 0 if self.values.buffer(tensor) in self.given else self.bytes[tensor]

    def _outputs(self, i: Instruction) -> Iterator[Tensor]:
        """The tensors that an instruction writes, and whose buffers they share."""
        leaves = self.values.leaves[i.name]
        taken: set[str] = set()
        for index, leaf in i.shape.leaves:
            name = tensor_name(i.name, index)
            if leaves[index] != (name,):
                continue  # what the start of an asynchronous operation merely shows
            alias = self.values.alias.get(name)
            reuses = None
            if alias is None and name not in self.given and leaf.bytes:
                reuses = self._reused(i, index, taken)
                taken |= {self.values.buffer(reuses)} if reuses else set()
            yield Tensor(name, self._size(name), alias, reuses)

    def _reused(self, i: Instruction, index: tuple[int, ...], taken: set[str]) -> str | None:
        """The tensor over which XLA may write a leaf: one that nobody else reads if there is one, else the first."""
        source: str | None = None
        wanted = i.shape.at(index).bytes
        for k, operand in enumerate(i.operands):
            for at, roots in self.values.leaves[operand].items():
                if len(roots) != 1 or self.bytes.get(roots[0]) != wanted:
                    continue
                buffer = self.values.buffer(roots[0])
                alone = self.readers[buffer] == 1
                if (source and not alone) or buffer in taken or self._size_of_buffer(buffer) < wanted:
                    continue
                if may_share(self.module, self.computation, i, k, at, index):
                    if alone:
                        return roots[0]
                    source = roots[0]
        return source

    def _size_of_buffer(self, buffer: str) -> int:
        """Bytes that can be taken over: none of what is the caller's."""
        return 0 if buffer in self.values.external or buffer in self.given else self.bytes[buffer]


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
