"""What single nodes of a derivative take: seconds, bytes beside their operands and results, whether they write any."""

from collections import defaultdict
from collections.abc import Mapping

from graphrl.graphs.readers.jaxpr.flatten import Result
from graphrl.graphs.roofline import Chip, runtime
from graphrl.xla.checkpoint.copies import Order, Value
from graphrl.xla.checkpoint.derivative import Derivative
from graphrl.xla.checkpoint.held import held
from graphrl.xla.checkpoint.kinds import is_fused, is_of_rows
from graphrl.xla.checkpoint.solid import fusion_of

CONVOLUTION = "conv_general_dilated"


class Nodes:
    """The nodes of a derivative, by their numbers, and what they compute.

    Attributes:
      own: the derivative.
      fusion: which values lie in memory, and what it takes to compute them.
      orders: of what products read and no kernel computes, the orders of dimensions in which its own pass needs it.
      rewritten: values of the forward pass that no kernel computes, and that all products of the backward pass need in
        one other order: what is computed again for these is written in it. No softmax is, nor what else follows from
        reductions of rows: XLA's kernel for these goes by rows.
    """

    def __init__(self, derivative: Derivative, chip: Chip) -> None:
        self.own, self._chip = derivative, chip
        self.fusion = fusion_of(derivative)
        self._held = held(derivative, self.fusion)
        self.orders = self._orders(in_own_pass=True)
        wanted = self._orders(in_own_pass=False)
        self.rewritten = {v for v, orders in wanted.items() if len(orders) == 1 and () not in orders} - self._of_rows()

    def is_fused(self, value: Result) -> bool:
        """Whether a value is computed on the way, by who reads it or in one kernel with others."""
        return is_fused(self.own.node(value.node).equation)

    def is_solid(self, value: Value) -> bool:
        """Whether it takes seconds to write a value into memory; what is computed elsewhere is there."""
        return not isinstance(value, Result) or self.fusion.solid[value]

    def is_held(self, value: Value) -> bool:
        """Whether it takes bytes in memory: see `held`."""
        return not isinstance(value, Result) or self._held[value]

    def writes(self, i: int) -> bool:
        """Whether a node writes into memory."""
        return any(self.is_solid(value) for value in self.results(i))

    def results(self, i: int) -> list[Result]:
        """What a node computes."""
        return [Result(i, k) for k in range(len(self.own.node(i).output_bytes))]

    def seconds(self, i: int) -> float:
        """Of a node, from operands that lie in memory and into memory."""
        value = Result(i, 0)
        return self.moving(self.fusion.moved[value]) if self.is_fused(value) else self.own.node(i).runtime

    def moving(self, moved: float) -> float:
        """Seconds to read and write so many bytes."""
        return runtime(0, moved, self._chip)

    def workspace(self, value: Value) -> int:
        """Bytes that the node of a value holds beside operands and results; see also `copies`."""
        if not isinstance(value, Result) or self.is_fused(value):
            return 0
        node = self.own.node(value.node)
        padded = self.own.padded.get(self.own.place[value.node], 0) if node.type == CONVOLUTION else 0
        library = self._chip.product_workspace if node.type == "dot_general" else 0
        copies = self._copied(value.node) - self.rewritten
        return node.workspace_bytes + library + padded + sum(map(self.own.bytes, copies))

    def copies(self, i: int) -> Mapping[Value, int]:
        """Of what a node reads that may be rewritten, bytes of the copy that it needs where it is not."""
        return {value: self.own.bytes(value) for value in self._copied(i) & self.rewritten}

    def _copied(self, i: int) -> set[Value]:
        """What a product needs in another order than it is written in."""
        return {read for read, order in self.own.orders.get(i, ()) if order and not self._writes_in(i, read)}

    def _orders(self, in_own_pass: bool) -> Mapping[Value, set[Order]]:
        """In which products of their own pass, or of the other one, need what no kernel computes."""
        orders = defaultdict[Value, set[Order]](set)
        for i, reads in self.own.orders.items():
            for value, order in reads:
                if isinstance(value, Result) and self.is_fused(value) and self._is_of_one_pass(i, value) == in_own_pass:
                    orders[value].add(order)
        return orders

    def _of_rows(self) -> set[Value]:
        """What reductions of rows compute, and all that follows from it without a kernel."""
        found: set[Value] = set()
        for i, node in enumerate(self.own.nodes):
            fused = node is not None and is_fused(node.equation)
            if fused and (is_of_rows(self.own.node(i).equation) or not found.isdisjoint(self.own.reads(i))):
                found.update(self.results(i))
        return found

    def _writes_in(self, i: int, value: Value) -> bool:
        """Whether a value is written just as a node of the same pass needs it."""
        return isinstance(value, Result) and self.is_fused(value) and self._is_of_one_pass(i, value)

    def _is_of_one_pass(self, i: int, value: Result) -> bool:
        return self.own.backward[value.node] == self.own.backward[i]
