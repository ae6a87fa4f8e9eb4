"""Strategies of an equation on a mesh: each mesh axis splits one factor of the equation, or none.

For a product `bi,ij->bj` an axis can split the batch b, the columns j, or the contracted i; or all its devices compute
the same. Partial sums over i are added immediately: by an all-reduce, or a reduce-scatter that leaves the result split
along one of its dimensions. A strategy fixes how operands are read and how results are left; changes between the two
are collectives of the problem's edges. Factors are those of `checkpoint/factors.py`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.graphs.roofline import Chip
from graphrl.xla.checkpoint.collectives import Move, collective_seconds
from graphrl.xla.checkpoint.equations import KERNELS, is_body
from graphrl.xla.checkpoint.factors import RULES, Factors
from graphrl.xla.checkpoint.shards import Layout, Spec, replicated

MOST = 96  # strategies of an equation
# Primitives that factors.py takes for element-wise ones, and whose work is not known.
FOREIGN = frozenset(str.split("custom_call ffi_call custom_partitioning pure_callback io_callback debug_callback"))


class Strategy(NamedTuple):
    """A way to run an equation on the devices of a mesh.

    Attributes:
      operands: how it reads each operand.
      results: how it leaves each result.
      seconds: of its work on one device and of the collectives in `sums`.
      sums: collectives that add its partial results.
    """

    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]
    seconds: float
    sums: tuple[Move, ...] = ()


class Work(NamedTuple):
    """The work of an equation on one device alone.

    Attributes:
      flops: number of operations.
      reads, writes: bytes that it reads of each operand and writes of each result in memory.
    """

    flops: float
    reads: tuple[float, ...]
    writes: tuple[float, ...]


def is_known(equation: Any) -> bool:
    """True if factors describe how an equation can be split."""
    name = equation.primitive.name
    if is_body(equation) or equation.effects or name in FOREIGN:
        return False
    return name not in KERNELS or name in RULES or name == "dot_general" or name == "conv_general_dilated"


def specs(aval: Any, layout: Layout) -> list[Spec]:
    """Returns all ways to split an array evenly: each axis splits one dimension, or none; replicated is the first."""
    rank = len(getattr(aval, "shape", ()))
    if not is_splittable(aval):
        return [replicated(aval)]
    choices = itertools.product((None, *range(rank)), repeat=len(layout.sizes))
    all_specs = (
        tuple(tuple(axis for axis, dim in zip(layout.sizes, dims, strict=True) if dim == d) for d in range(rank))
        for dims in choices
    )
    return [spec for spec in all_specs if is_even(aval, spec, layout)]


def is_splittable(aval: Any) -> bool:
    """True for arrays of numbers with at least one dimension."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(aval.shape) and not jnp.issubdtype(dtype, jax.dtypes.extended)


def is_even(aval: Any, spec: Spec, layout: Layout) -> bool:
    return all(size % layout.count(axes) == 0 for size, axes in zip(aval.shape, spec, strict=True))


def unsplit(avals: Sequence[Any], operands: int, work: Work, chip: Chip) -> Strategy:
    """Returns the strategy by which all devices compute the whole equation."""
    whole = tuple(map(replicated, avals))
    return Strategy(whole[:operands], whole[operands:], _seconds(work, work.reads, work.writes, 1, chip))


def strategies(
    equation: Any, factors: Factors, avals: Sequence[Any], operands: int, work: Work, layout: Layout, chip: Chip
) -> list[Strategy]:
    """Lists the strategies of an equation, the cheapest `MOST` of them; the unsplit one is the first.

    Args:
      equation: the equation; None for operands that are passed on.
      factors: its factors.
      avals: types of its operands and then of its results.
      operands: number of operands.
      work: its work on one device alone.
      layout, chip: the devices.
    """
    best: dict[Any, Strategy] = {}
    allowed = _allowed(equation, factors)
    for assignment in itertools.product((None, *allowed), repeat=len(layout.sizes)):
        split: dict[int, tuple[str, ...]] = {}
        for axis, factor in zip(layout.sizes, assignment, strict=True):
            if factor is not None:
                split[factor] = (*split.get(factor, ()), axis)
        targets = [tuple(split.get(factor, ()) for factor in dims) for dims in factors.dimensions]
        if not all(_is_possible(aval, spec, layout) for aval, spec in zip(avals, targets, strict=True)):
            continue
        seconds = _split_seconds(work, targets, operands, split, layout, chip)
        summed = tuple(axis for factor in split if factor in factors.summed for axis in split[factor])
        for results, sums in _summed(avals[operands:], targets[operands:], summed, layout):
            added = sum(chip.launch_seconds + collective_seconds(layout, move.axes, move.bytes) for move in sums)
            own = Strategy(tuple(targets[:operands]), results, seconds + added, sums)
            if own.seconds < best.setdefault(own[:2], own).seconds:
                best[own[:2]] = own
    first, *others = best.values()
    return [first, *sorted(others, key=lambda each: each.seconds)[: MOST - 1]]


def _allowed(equation: Any, factors: Factors) -> list[int]:
    """Returns the factors that devices can share without moving operands among them."""
    name = None if equation is None else equation.primitive.name
    linked = factors.parallel & factors.shared
    fills = name is not None and (
        name == "broadcast_in_dim" or (name not in RULES and not name.startswith(("scatter", "reduce", "arg")))
    )
    return sorted(linked | (factors.results if fills else frozenset()))


def _is_possible(aval: Any, spec: Spec, layout: Layout) -> bool:
    return not any(spec) or (is_splittable(aval) and is_even(aval, spec, layout))


def _split_seconds(
    work: Work, targets: Sequence[Spec], operands: int, split: Mapping[int, Sequence[str]], layout: Layout, chip: Chip
) -> float:
    parts = [layout.count(itertools.chain(*spec)) for spec in targets]
    reads = [size / part for size, part in zip(work.reads, parts[:operands], strict=True)]
    writes = [size / part for size, part in zip(work.writes, parts[operands:], strict=True)]
    return _seconds(work, reads, writes, layout.count(itertools.chain(*split.values())), chip)


def _seconds(work: Work, reads: Sequence[float], writes: Sequence[float], devices: int, chip: Chip) -> float:
    """Estimates seconds by roofline without the launch, which is the same for all strategies."""
    return max(work.flops / devices / chip.flops_per_second, (sum(reads) + sum(writes)) / chip.bytes_per_second)


def _summed(
    avals: Sequence[Any], have: Sequence[Spec], axes: Sequence[str], layout: Layout
) -> Iterator[tuple[tuple[Spec, ...], tuple[Move, ...]]]:
    """Yields the ways to add partial results over mesh axes: how the results are left, and the collectives."""
    if not axes:
        yield tuple(have), ()
        return
    dims = range(len(avals[0].shape)) if len(avals) == 1 else ()
    for places in itertools.product((None, *dims), repeat=len(axes)):
        scattered = {axis: dim for axis, dim in zip(axes, places, strict=True) if dim is not None}
        rest = tuple(axis for axis in axes if axis not in scattered)
        results, sums = list(have), list[Move]()
        if scattered:
            order = tuple(layout.sizes)
            results[0] = tuple(
                tuple(sorted((*own, *(a for a, d in scattered.items() if d == dim)), key=order.index))
                for dim, own in enumerate(have[0])
            )
            if not _is_possible(avals[0], results[0], layout):
                continue
            sums.append(Move("reduce_scatter", tuple(scattered), results[0], layout.bytes(avals[0], have[0])))
        if rest:
            size = sum(layout.bytes(aval, spec) for aval, spec in zip(avals, results, strict=True))
            sums.append(Move("psum", rest, results[0], 2 * size))
        yield tuple(results), tuple(sums)
