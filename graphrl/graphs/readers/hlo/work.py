"""Ops of a graph from XLA instructions, in running order: FLOPs, memory traffic, run time and workspace.

Loops and calls take theirs from the computations that they call. FLOPs are counted after XLA's own `HloCostAnalysis`
(xla/service/hlo_cost_analysis.cc): a multiply-add is two operations; a convolution counts the pairs of input and kernel
elements that are multiplied, neither padding nor holes of dilation; a reduction applies its function once less than the
number of elements. Differences: transcendental functions count as one operation too, a loop counts all its trips if
their number is known (XLA: one), a conditional its most expensive branch, a sort `n log2 n` comparisons, and a custom
call one operation per element of its result.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from graphrl.graphs.graph import MAX_WORK, Op, Tensor
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.values import CONTRACTED, FORWARDING, ValueReader, Values, may_share, tensor_name
from graphrl.graphs.readers.work import Work, costliest, in_turn, repeated
from graphrl.graphs.roofline import Chip, runtime

_FREE = frozenset(
    str.split(
        """
        add-dependency after-all all-gather all-gather-done all-gather-start all-reduce-done all-to-all async-done
        async-update bitcast broadcast collective-broadcast collective-permute collective-permute-done
        collective-permute-start concatenate constant copy copy-done copy-start domain dynamic-reshape dynamic-slice
        dynamic-update-slice gather get-dimension-size get-tuple-element infeed iota opt-barrier outfeed pad parameter
        partition-id recv recv-done replica-id reshape reverse send send-done set-dimension-size slice transpose tuple
        """
    )
)
_MAX_PAIRS = 10**7  # that are checked one by one; beyond, padding counts too

# The computations that these call are programs with buffers; values of a fusion's or a reduction's stay in registers.
CALLERS = frozenset({"async-start", "call", "conditional", "while"})
_ENDS = frozenset(str.split("async-done all-gather-done all-reduce-done collective-permute-done copy-done"))


def trip_count(loop: Instruction) -> int:
    """Returns the number of iterations of a `while` that XLA determined; 1 if unknown."""
    trips = known_trips(loop)
    return 1 if trips is None else trips


def known_trips(loop: Instruction) -> int | None:
    """Returns the number of iterations of a `while` that XLA determined; None if unknown."""
    try:
        config = json.loads(loop.attributes.backend_config or b"{}")
        return max(0, int(config["known_trip_count"]["n"]))
    except (ValueError, KeyError, TypeError):
        return None


def runs_of(module: HloModule) -> Mapping[str, float]:
    """Counts how often one run of the module runs each computation in `HloModule.sequential`; keys are their names.

    A loop body counts at least once, and infinitely often if XLA does not know the number of trips. Every branch of a
    conditional counts as run.
    """
    runs = {c.name: 0.0 for c in module.sequential} | {module.entry.name: 1.0}
    for computation in reversed(module.sequential):
        for i in computation.instructions:
            for name in {*i.called}.intersection(runs):
                trips = known_trips(i) if i.opcode == "while" else 1
                runs[name] += runs[computation.name] * (math.inf if trips is None else max(1, trips))
    return runs


class Works:
    """Work (FLOPs, run time, workspace) of a module's instructions on a chip."""

    def __init__(self, module: HloModule, values: ValueReader, chip: Chip) -> None:
        self.module, self.values, self.chip = module, values, chip
        self.flops = Flops(module)
        self._work: dict[str, Work] = {}

    def of(self, computation: Computation, i: Instruction) -> Work:
        """Returns the work of one instruction of `computation`."""
        if i.opcode in CALLERS:
            return self._caller(i)
        if i.opcode in _ENDS:
            return Work(0, runtime(0, 0, self.chip), 0)
        flops = self.flops.of(computation, i)
        moved = min(bytes_moved(self.module, computation, i), MAX_WORK)
        return Work(flops, runtime(flops, moved, self.chip), 0)

    def _caller(self, i: Instruction) -> Work:
        bodies = [self.of_computation(name) for name in i.called]
        if i.opcode == "conditional":
            return costliest(bodies)
        return repeated(in_turn(bodies), trip_count(i) if i.opcode == "while" else 1)

    def of_computation(self, name: str) -> Work:
        """Returns the work of one scheduled run of a computation, whose results are in the caller's buffers."""
        if name not in self._work:
            computation = self.module.computations[name]
            values = self.values.of(computation)
            ops = Lowered(self.module, computation, values, self.of).ops
            workspace = 0 if computation.on_host else peak(ops, values)
            self._work[name] = Work(sum(op.flops for op in ops), sum(op.runtime for op in ops), workspace)
        return self._work[name]


class Lowered:
    """An XLA computation converted to ops.

    Attributes:
      ops: the ops, in the order in which they run.
      outputs: names of the tensors of its result that its own ops write.
    """

    def __init__(
        self,
        module: HloModule,
        computation: Computation,
        values: Values,
        work: Callable[[Computation, Instruction], Work],
        count_results: bool = False,
    ) -> None:
        """Converts a computation to ops.

        Args:
          module: module of the computation.
          computation: computation to convert.
          values: buffers of the computation.
          work: function that returns the work of an instruction.
          count_results: True if results have their true bytes, False for 0.
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
        # buffers of the caller, unless they are to be counted
        self._given = set() if count_results else {values.buffer(name) for name in self.outputs}
        self._bytes = {
            tensor_name(i.name, index): module.device_bytes(leaf)
            for i in self._instructions
            for index, leaf in i.shape.leaves
        }
        # number of instructions that read each buffer
        self._readers = Counter(b for reads in self._inputs.values() for b in {values.buffer(r) for r in reads})
        self._writer = {tensor_name(i.name, index): i.name for i in self._instructions for index, _ in i.shape.leaves}
        self.ops = self._lowered()

    def _lowered(self) -> tuple[Op, ...]:
        counted: set[str] = set()  # parameters and constants that an earlier op counts
        ops = []
        for i in self._instructions:
            inputs = self._inputs[i.name]
            own = {r for r in inputs if r in self._values.external} - counted
            counted |= own
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
        """Returns the ops that must run before an instruction although it reads none of their outputs."""
        waits = self._values.waits
        before: set[str] = set()
        for name in i.operands:
            before |= waits.get(name, frozenset())
        for name in i.control_predecessors:
            before |= waits.get(name, {name})
        return tuple(sorted(before - {self._writer.get(r) for r in self._inputs[i.name]}))

    def _size(self, tensor: str) -> int:
        """Returns the bytes that a tensor takes in the planned memory: 0 if it is in a buffer of the caller."""
        return 0 if self._values.buffer(tensor) in self._given else self._bytes[tensor]

    def _outputs(self, i: Instruction) -> Iterator[Tensor]:
        """Yields the tensors that an instruction writes, with the buffers that they share."""
        leaves = self._values.leaves[i.name]
        taken: set[str] = set()
        for index, _ in i.shape.leaves:
            name = tensor_name(i.name, index)
            if leaves[index] != (name,):
                continue  # forwarded by the start of an asynchronous operation
            alias = self._values.alias.get(name)
            reuses = None
            if alias is None and name not in self._given and self._bytes[name]:
                reuses = self._reused(i, index, taken)
                taken |= {self._values.buffer(reuses)} if reuses else set()
            yield Tensor(name, self._size(name), alias, reuses)

    def _reused(self, i: Instruction, index: tuple[int, ...], taken: set[str]) -> str | None:
        """Returns the tensor that XLA may overwrite with a leaf: preferably one without other readers, or the first."""
        source: str | None = None
        num_bytes = self._bytes[tensor_name(i.name, index)]
        for k, operand in enumerate(i.operands):
            for at, roots in self._values.leaves[operand].items():
                if len(roots) != 1 or self._bytes.get(roots[0]) != num_bytes:
                    continue
                buffer = self._values.buffer(roots[0])
                is_only_reader = self._readers[buffer] == 1
                if (source and not is_only_reader) or buffer in taken or self._size_of_buffer(buffer) < num_bytes:
                    continue
                if may_share(self._module, self._computation, i, k, at, index):
                    if is_only_reader:
                        return roots[0]
                    source = roots[0]
        return source

    def _size_of_buffer(self, buffer: str) -> int:
        """Returns the bytes of a buffer that a result can take over: 0 for a buffer of the caller."""
        return 0 if buffer in self._values.external or buffer in self._given else self._bytes[buffer]


def peak(ops: tuple[Op, ...], values: Values) -> int:
    """Computes the peak bytes of a computation's ops in their order, by the rules of `costs/exact/memory.py`."""
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


def bytes_moved(module: HloModule, computation: Computation, i: Instruction) -> int:
    """Counts bytes moved between memory and chip: operands and result once; of sliced or updated arrays, only the part.

    Those to and from the host's memory are included, as if they had the main memory's bandwidth.
    """
    if i.opcode != "fusion":
        sizes = {name: computation.by_name[name].shape.leaf_bytes for name in i.operands}
        return sum(_part(i, name, size) for name, size in sizes.items()) + _written(computation, i)
    body = module.computations[i.called[0]]
    taken = {name: body.parameters[k] for k, name in enumerate(i.operands)}
    return sum(_read_inside(body, parameter) for parameter in taken.values()) + _written(body, body.root)


class Flops:
    """Counts the operations of a module's instructions and computations."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._flops: dict[str, int] = {}

    def of(self, computation: Computation, i: Instruction) -> int:
        """Counts the FLOPs of one instruction of `computation`, including all computations that it calls."""
        if i.opcode in _FREE:
            return 0
        rule = _RULES.get(i.opcode)
        if rule is not None:
            return min(MAX_WORK, rule(self, computation, i))
        return sum(leaf.size for _, leaf in i.shape.leaves if leaf.dtype != "token")

    def of_computation(self, name: str) -> int:
        """Counts the FLOPs of one run of a computation."""
        if name not in self._flops:
            computation = self.module.computations[name]
            self._flops[name] = min(MAX_WORK, sum(self.of(computation, i) for i in computation.instructions))
        return self._flops[name]

    def called(self, i: Instruction) -> int:
        """Counts the FLOPs of all computations that an instruction calls, each run once."""
        return sum(self.of_computation(name) for name in i.called)


def _read(computation: Computation, i: Instruction, operand: int = 0) -> int:
    """Returns the number of elements of an operand."""
    return computation.by_name[i.operands[operand]].shape.size


def _dot(flops: Flops, computation: Computation, i: Instruction) -> int:
    left = computation.by_name[i.operands[0]].shape.dims
    contracted = i.attributes.dot_dimension_numbers.lhs_contracting_dimensions
    return 2 * i.shape.size * math.prod(left[k] for k in contracted)


def _convolution(flops: Flops, computation: Computation, i: Instruction) -> int:
    """Counts FLOPs from the (output position, kernel element) pairs that meet a real input element, per dimension."""
    source, kernel = (computation.by_name[name].shape.dims for name in i.operands[:2])
    numbers = i.attributes.convolution_dimension_numbers
    pairs = 1
    for k, window in enumerate(i.attributes.window.dimensions):
        size, taps = source[numbers.input_spatial_dimensions[k]], kernel[numbers.kernel_spatial_dimensions[k]]
        outputs = i.shape.dims[numbers.output_spatial_dimensions[k]]
        pairs *= _overlaps(window, size, taps, outputs)
    features = source[numbers.input_feature_dimension] // (i.attributes.feature_group_count or 1)
    batch = source[numbers.input_batch_dimension] // (i.attributes.batch_group_count or 1)
    return 2 * pairs * features * i.shape.dims[numbers.output_feature_dimension] * batch


def _overlaps(window: Any, size: int, taps: int, outputs: int) -> int:
    """Counts (output position, kernel element) pairs that meet one of `size` input elements, along one dimension."""
    if outputs * taps > _MAX_PAIRS:
        return outputs * taps
    place = np.arange(outputs)[:, None] * (window.stride or 1) - window.padding_low
    place = place + np.arange(taps)[None, :] * (window.window_dilation or 1)
    dilation = window.base_dilation or 1
    return int(np.count_nonzero((place >= 0) & (place % dilation == 0) & (place < size * dilation)))


def _reduce(flops: Flops, computation: Computation, i: Instruction) -> int:
    results = i.shape.leaves[0][1].size
    return flops.called(i) * max(0, _read(computation, i) - results)


def _reduce_window(flops: Flops, computation: Computation, i: Instruction) -> int:
    window = math.prod(dimension.size for dimension in i.attributes.window.dimensions)
    return flops.called(i) * i.shape.leaves[0][1].size * max(0, window - 1)


def _select_and_scatter(flops: Flops, computation: Computation, i: Instruction) -> int:
    select, scatter = (flops.of_computation(name) for name in i.called)
    window = math.prod(dimension.size for dimension in i.attributes.window.dimensions)
    return _read(computation, i, 1) * (select * max(0, window - 1) + scatter)


def _sort(flops: Flops, computation: Computation, i: Instruction) -> int:
    shape = computation.by_name[i.operands[0]].shape
    length = shape.dims[i.attributes.dimensions[0]] if i.attributes.dimensions else shape.size
    return shape.size * max(1, math.ceil(math.log2(max(2, length))))


def _fft(flops: Flops, computation: Computation, i: Instruction) -> int:
    points = math.prod(i.attributes.fft_length)
    return 5 * max(_read(computation, i), i.shape.size) * math.ceil(math.log2(max(2, points)))


_RULES: dict[str, Callable[[Flops, Computation, Instruction], int]] = {  # c: the computation of instruction i
    "dot": _dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": lambda flops, c, i: flops.called(i) * _read(c, i, len(i.operands) // 2 + 1),
    "sort": _sort,
    "fft": _fft,
    "cholesky": lambda flops, c, i: i.shape.size * i.shape.dims[-1] // 3,
    "triangular-solve": lambda flops, c, i: _read(c, i, 1) * c.by_name[i.operands[0]].shape.dims[-1],
    "map": lambda flops, c, i: flops.called(i) * i.shape.size,
    "while": lambda flops, c, i: flops.called(i) * trip_count(i),
    "conditional": lambda flops, c, i: max((flops.of_computation(name) for name in i.called), default=0),
    **dict.fromkeys(
        ["all-reduce", "all-reduce-start", "reduce-scatter"],
        lambda flops, c, i: flops.called(i) * sum(c.by_name[name].shape.size for name in i.operands),
    ),
    **dict.fromkeys(["async-start", "call", "fusion"], lambda flops, c, i: flops.called(i)),
}


def _written(computation: Computation, i: Instruction) -> int:
    if i.opcode == "dynamic-update-slice":
        return computation.by_name[i.operands[1]].shape.bytes
    place = FORWARDING.get(i.opcode)
    return sum(leaf.bytes for index, leaf in i.shape.leaves if index[:1] != (place,))


def _part(i: Instruction, operand: str, size: int) -> int:
    """Returns the bytes that an instruction reads of an operand of `size` bytes."""
    if operand == i.operands[0] and operand not in i.operands[1:]:
        if i.opcode in ("dynamic-slice", "gather", "slice"):
            return min(size, i.shape.leaf_bytes)
        if i.opcode == "dynamic-update-slice":
            return 0
    return size


def _read_inside(body: Computation, parameter: Instruction) -> int:
    """Returns the bytes that a fusion reads of an operand: all of it, unless it only uses parts."""
    size = parameter.shape.leaf_bytes
    return min(size, sum(_part(user, parameter.name, size) for user in body.users[parameter.name]))
