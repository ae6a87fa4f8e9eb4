"""FLOPs of XLA instructions.

After XLA's own `HloCostAnalysis` (xla/service/hlo_cost_analysis.cc): a multiply-add is two operations; a convolution
counts the pairs of input and kernel elements that meet, neither padding nor holes of dilation; a reduction applies its
function once less than there are elements. Differences: transcendental functions count as one operation too, a loop
counts all its trips where their number is known (XLA: one), a conditional its most expensive branch, a sort
`n log2 n` comparisons, and a custom call one operation per element of its result.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction

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
_MAX = 10**30  # operations: what a graph takes
_MAX_PAIRS = 10**7  # that are looked at one by one; beyond, padding counts too


def trip_count(loop: Instruction) -> int:
    """Iterations of a `while` as XLA found them; 1 if it did not."""
    trips = known_trips(loop)
    return 1 if trips is None else trips


def known_trips(loop: Instruction) -> int | None:
    """Iterations of a `while` as XLA found them, if it did."""
    try:
        config = json.loads(loop.attributes.backend_config or b"{}")
        return max(0, int(config["known_trip_count"]["n"]))
    except (ValueError, KeyError, TypeError):
        return None


class Flops:
    """Counts the operations of a module's instructions and computations."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._flops: dict[str, int] = {}

    def of(self, computation: Computation, i: Instruction) -> int:
        """Operations of one instruction of `computation`, with everything that it calls."""
        if i.opcode in _FREE:
            return 0
        rule = _RULES.get(i.opcode)
        if rule is not None:
            return min(_MAX, rule(self, computation, i))
        return sum(leaf.size for _, leaf in i.shape.leaves if leaf.dtype != "token")

    def of_computation(self, name: str) -> int:
        """Operations of one run of a computation."""
        if name not in self._flops:
            computation = self.module.computations[name]
            self._flops[name] = min(_MAX, sum(self.of(computation, i) for i in computation.instructions))
        return self._flops[name]

    def called(self, i: Instruction) -> int:
        """Operations of one run of each computation that an instruction calls."""
        return sum(self.of_computation(name) for name in i.called)


def _read(computation: Computation, i: Instruction, operand: int = 0) -> int:
    """Elements of an operand."""
    return computation.by_name[i.operands[operand]].shape.size


def _dot(flops: Flops, computation: Computation, i: Instruction) -> int:
    left = computation.by_name[i.operands[0]].shape.dims
    contracted = i.attributes.dot_dimension_numbers.lhs_contracting_dimensions
    return 2 * i.shape.size * math.prod(left[k] for k in contracted)


def _convolution(flops: Flops, computation: Computation, i: Instruction) -> int:
    """For every spatial dimension, the pairs of output place and kernel element that meet a real input element."""
    source, kernel = (computation.by_name[name].shape.dims for name in i.operands[:2])
    numbers = i.attributes.convolution_dimension_numbers
    pairs = 1
    for k, window in enumerate(i.attributes.window.dimensions):
        size, taps = source[numbers.input_spatial_dimensions[k]], kernel[numbers.kernel_spatial_dimensions[k]]
        outputs = i.shape.dims[numbers.output_spatial_dimensions[k]]
        pairs *= _meetings(window, size, taps, outputs)
    features = source[numbers.input_feature_dimension] // (i.attributes.feature_group_count or 1)
    batch = source[numbers.input_batch_dimension] // (i.attributes.batch_group_count or 1)
    return 2 * pairs * features * i.shape.dims[numbers.output_feature_dimension] * batch


def _meetings(window: Any, size: int, taps: int, outputs: int) -> int:
    """Pairs of output place and kernel element that meet one of `size` input elements, along one dimension."""
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
