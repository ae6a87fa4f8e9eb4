"""Remedies for a program's memory, each with the bytes that it is predicted to save.

A prediction compares two assignments of XLA's buffers: of the program as it is, and as if the remedy were applied.
Arrays are left out, results get the buffers of arguments, or instructions run in another order. Holes between buffers
and peaks at other times therefore count. Savings do not add up: two remedies may save the same bytes.
"""

import collections
import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import HloModule, Instruction, OutputAlias
from graphrl.graphs.readers.hlo.proto import Source
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.readers.hlo.work import known_trips
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.xla.assignment import Schedule
from graphrl.xla.donation import preserve_donation
from graphrl.xla.explain.memory import (
    BROADCAST,
    COLLECTIVE,
    COPY,
    KEPT,
    LAYOUT,
    LOOP,
    ONE_HOT,
    WAITING,
    Array,
    Memory,
    inside,
    is_backward,
)
from graphrl.xla.planning.temp_search import search_orders, targets_of, temp_bound
from graphrl.xla.recompute.loops import unchanged
from graphrl.xla.settings import Settings

Saving = Callable[..., int]  # bytes saved without some arrays: `saving` of `remedies`
LEAST_SHARE = 0.005  # of the program's bytes: smaller savings are left out
_COUNTER_BYTES = 64  # values that a loop carries and that are smaller count nothing
_DONATIONS = 3  # most arguments whose donation alone is evaluated
_REPEATED = 4  # arrays of one kind that show unrolled layers
_OF_EQUINOX = "dynamic_nodonate"  # the argument of filter_jit's own function
_NUMBER = re.compile(r"\d+")
_EXPENSIVE = frozenset(("convolution", "custom-call", "dot", "fft", "sort", "while"))
_ADVICE = {
    ONE_HOT: "index instead of multiplying by a one-hot array: table[ids] for jax.nn.one_hot(ids, n) @ table",
    LAYOUT: "keep one layout: store the array as its reader wants it, or let einsum take the axes as they are",
    COPY: "spare the copy: donate the array, or read it before it is overwritten",
    BROADCAST: "let the reader compute it: broadcast or convert next to its use, or a smaller dtype",
}


class Remedy(NamedTuple):
    """A change of the program.

    Attributes:
      kind: "donate", "recompute", "offload", "order", "layout", "copy", "one-hot", "fusion", "collective", "scan",
        "unroll" or "padding".
      action: what to do, in one line.
      saves: predicted saving in bytes of the program's total.
      source: place in the user's code; empty if it is of the whole program.
      budget: of "recompute", the `budget` of `graphrl.checkpoint`; else None.
    """

    kind: str
    action: str
    saves: int
    source: Source = Source()
    budget: float | None = None


@dataclasses.dataclass(frozen=True)
class BestOrder:
    """Result of a search for the order that needs the least memory.

    Attributes:
      bound: lower bound on the bytes of temporaries in any order that computes each value once.
      temp_bytes: temporaries in the best order found; those of the program's own if none is better.
      live_bytes: most bytes of arrays at one time in this order.
      schedule: the order, by computation; empty if none is better.
    """

    bound: int
    temp_bytes: int
    live_bytes: int
    schedule: Schedule = dataclasses.field(default_factory=dict)


def remedies(memory: Memory, donating: Sequence[Remedy], best: BestOrder, total: int) -> list[Remedy]:
    """Lists the remedies that save something, the largest saving first.

    Args:
      memory: memory of the program.
      donating: `donations` of it.
      best: the best order.
      total: bytes of the program's arguments, results and temporaries.
    """
    present = memory.at(memory.peak)
    before = memory.assignment.temp_bytes

    def saving(without: Iterable[Array], again: int = 0) -> int:
        """Returns the bytes saved without these arrays, if `again` bytes are needed at the peak after all."""
        removed = frozenset(array.buffer for array in without)
        return before - memory.assign(without=removed).temp_bytes - again

    candidates = [
        *donating,
        *_recomputation(memory, present, saving),
        *_unfused(memory, present, saving),
        *_collectives(present, saving),
        *_repetitions(memory, present, saving),
        *_loops(memory, present),
    ]
    if best.temp_bytes < before:
        text = "run it in another order: graphrl.jit (on CPUs), or jax.lax.optimization_barrier"
        candidates.append(Remedy("order", text, before - best.temp_bytes))
    if padding := sum(array.padding for array in present):
        text = "avoid padding: sizes that are multiples of the tile, the padded dimension not the last"
        candidates.append(Remedy("padding", text, padding, max(present, key=lambda array: array.padding).source))
    least = max(1, int(LEAST_SHARE * total))
    return sorted((r for r in candidates if r.saves >= least), key=lambda remedy: -remedy.saves)


def best_order(memory: Memory, seconds: float, seed: int = 0) -> BestOrder:
    """Searches for the order of a program's instructions with the least memory.

    Args:
      memory: memory of the program.
      seconds: search time in seconds; 0 for the bound alone.
      seed: seed of the search.
    """
    best = _searched(memory, seconds, seed)
    try:
        base = preserve_donation(memory.module).module
        sequence = best.schedule.get(base.entry.name) or base.order(base.entry)
        bound = temp_bound(read_hlo(base, chip=DEFAULT_CHIP), sequence)
    except GraphrlError:  # a program that graphrl cannot read as a graph
        return best
    return dataclasses.replace(best, bound=int(min(bound, best.temp_bytes)))


def _searched(memory: Memory, seconds: float, seed: int) -> BestOrder:
    """Returns the best order found, without a bound; the program's own if no other is better."""
    module, before = memory.module, memory.assignment.temp_bytes
    present = BestOrder(0, before, int(memory.live[memory.peak]))
    if not seconds or any(i.opcode == "conditional" for c in module.sequential for i in c.instructions):
        return present
    try:
        donation = preserve_donation(module)
        base, settings = donation.module, Settings(seconds=seconds, seed=seed, cache=False)
        own = {c.name: base.order(c) for c in base.sequential}
        end = time.perf_counter() + seconds
        schedule = search_orders(base, targets_of(base), [own], settings, end, LEAST_SHARE * before).schedule
    except GraphrlError:
        return present
    reordered = Memory(base)
    ordered = reordered.assign(schedule)
    needed = ordered.temp_bytes + donation.lost_bytes
    return present if needed >= before else BestOrder(0, needed, reordered.live_peak(ordered), schedule)


def lost_donations(module: HloModule) -> list[OutputAlias]:
    """Pairs results with arguments of the same shape whose buffers they could have."""
    taken = {(alias.parameter, alias.parameter_index) for alias in module.input_output_aliases}
    written = {alias.output_index for alias in module.input_output_aliases}
    free: dict[object, list[int]] = collections.defaultdict(list)
    for number, parameter in reversed(list(enumerate(module.entry.parameters))):
        if (number, ()) not in taken and not parameter.shape.is_tuple:
            free[parameter.shape].append(number)
    pairs = []
    for index, leaf in module.entry.root.shape.leaves:
        if index not in written and leaf.bytes and free[leaf]:
            pairs.append(OutputAlias(index, free[leaf].pop(), (), False))
    return pairs


def donations(memory: Memory, seconds: float, seed: int = 0) -> list[Remedy]:
    """Lists remedies for lost donations: of all arguments together, and of each argument of the user's function.

    XLA schedules a program with donated arguments so that results do not wait, so the saving is that of a good order.

    Args:
      memory: memory of the program.
      seconds: time to search for that order, for each remedy.
      seed: seed of the search.
    """
    module = memory.module
    groups: dict[str, list[OutputAlias]] = collections.defaultdict(list)
    for alias in lost_donations(module):
        groups[_argument(module.entry.parameters[alias.parameter], module)].append(alias)
    largest = sorted(groups, key=lambda name: -_result_bytes(module, groups[name]))[:_DONATIONS]
    pairs = [(largest[k : k + 1], groups[largest[k]]) for k in range(len(largest))]
    if len(groups) > 1:
        pairs.append((list(groups), [alias for aliases in groups.values() for alias in aliases]))
    remedies = []
    for names, aliases in pairs:
        donated = dataclasses.replace(module, input_output_aliases=(*module.input_output_aliases, *aliases))
        needed = _searched(Memory(donated), seconds, seed).temp_bytes
        saves = _result_bytes(module, aliases) + memory.assignment.temp_bytes - needed
        remedies.append(Remedy("donate", _donating(names), saves))
    return remedies


def _donating(names: Sequence[str]) -> str:
    """Returns how to donate arguments."""
    if any(name.startswith(_OF_EQUINOX) for name in names):  # which hands all arguments on together
        return 'donate what is unused afterwards: donate="all" or "all-except-first" in eqx.filter_jit'
    quoted = ", ".join(map(repr, names))
    return f"donate {', '.join(names)}, if unused afterwards: donate_argnames=({quoted},) in jax.jit or nnx.jit"


def _result_bytes(module: HloModule, aliases: Iterable[OutputAlias]) -> int:
    root = module.entry.root.shape
    return sum(module.device_bytes(root.at(alias.output_index)) for alias in aliases)


def _argument(parameter: Instruction, module: HloModule) -> str:
    """Returns the name of the user's argument that a parameter is a part of: `state` of jax's state['w']."""
    name = module.sources[parameter.attributes.metadata].op_name or parameter.name
    match = re.match(r"\w+", name)
    return match[0] if match else name


def _recomputation(memory: Memory, present: Sequence[Array], saving: Saving) -> Iterator[Remedy]:
    """Yields remedies for arrays that are kept for the backward pass.

    Recomputation in a loop keeps what the loop carries and computes the slices of one trip again, one after another.
    Elsewhere it computes again what is cheap, one layer's at a time. Offloaded arrays need room for two at a time.
    """
    kept = [array for array in present if array.cause == KEPT]
    if not kept:
        return
    size = sum(array.bytes for array in kept)
    loops = list(_stacks(memory, kept))
    stacked = [array for loop in loops for array in loop.stacks]
    flat = [array for array in kept if array not in stacked]
    cheap = [array for array in flat if not _is_expensive(memory.module, array.writer)]
    again = sum(loop.carried_bytes + loop.slice_bytes for loop in loops) + _one_of_each(cheap)
    carried = sum(loop.carried_bytes for loop in loops)
    left = carried + sum(array.bytes for array in flat) - sum(array.bytes for array in cheap) + _one_of_each(cheap)
    share = min(1.0, -(-100 * left // size) / 100)
    text = f"recompute instead of keeping: graphrl.checkpoint(loss, budget={share:g})"
    text += ", or jax.checkpoint around the loop's body" if stacked else " (not on CPUs: XLA undoes it there)"
    yield Remedy("recompute", text, saving([*stacked, *cheap], again), _main_source([*stacked, *cheap] or kept), share)
    moving = sum(loop.slice_bytes for loop in loops) + max((array.bytes for array in flat), default=0)
    text = "offload to a GPU's or TPU's host, as fast as its link: jax.checkpoint, save_and_offload_only_these_names"
    yield Remedy("offload", text, saving(kept, 2 * moving), _main_source(kept))


class _Stacks(NamedTuple):
    """Arrays that a loop stacks slices in.

    Attributes:
      stacks: the arrays.
      trips: number of slices.
      carried_bytes: bytes of what the loop carries from trip to trip, of all trips.
      slice_bytes: bytes of the largest slice.
    """

    stacks: tuple[Array, ...]
    trips: int
    carried_bytes: int
    slice_bytes: int


def _stacks(memory: Memory, arrays: Sequence[Array]) -> Iterator[_Stacks]:
    module = memory.module
    bodies: dict[str, list[Array]] = collections.defaultdict(list)
    for array in arrays:
        node = memory.writers[array.buffer][-1]
        computation = memory.predictor.buffers.flow.computations[node.computation]
        if computation is not module.entry and len(memory.writers[array.buffer]) > 1:
            bodies[computation.name].append(array)
    loops = [i for c in module.sequential for i in c.instructions if i.opcode == "while"]
    for loop in loops:
        if stacks := bodies.get(loop.called[0]):
            trips = known_trips(loop) or stacks[0].shape.dims[0]
            carried = _carried(memory, loop, {array.writer.name for array in stacks})
            largest = max(array.bytes for array in stacks) // max(1, trips)
            yield _Stacks(tuple(stacks), trips, carried * trips, largest)


def _carried(memory: Memory, loop: Instruction, stacking: set[str]) -> int:
    """Returns the bytes that a loop's trip passes to the next one, without stacks, counters and what never changes."""
    body = memory.module.computations[loop.called[0]]
    same = unchanged(body)
    parts = [body.by_name[name] for k, name in enumerate(body.root.operands) if k not in same]
    return sum(
        i.shape.leaf_bytes
        for i in parts
        if i.shape.leaf_bytes > _COUNTER_BYTES and i.name not in stacking and not _updates(memory.module, i)
    )


def _updates(module: HloModule, i: Instruction) -> bool:
    """True if an instruction writes a slice into an array."""
    scope = inside(module, i)
    return any(each.opcode == "dynamic-update-slice" and each.shape.bytes == i.shape.bytes for each in scope)


def _is_expensive(module: HloModule, i: Instruction) -> bool:
    if i.opcode in _EXPENSIVE:
        return True
    return any(each.opcode in _EXPENSIVE for name in i.called for each in module.computations[name].instructions)


def _kind(array: Array) -> tuple[object, ...]:
    """Returns a key that is equal for the same array of several layers."""
    return (_NUMBER.sub("#", array.source.op_name), array.source.file, array.source.line, array.shape)


def _main_source(arrays: Sequence[Array]) -> Source:
    """Returns the line with the most bytes."""
    sizes: dict[Source, int] = collections.defaultdict(int)
    for array in arrays:
        sizes[array.source._replace(op_name="")] += array.bytes
    return max(sizes, key=sizes.__getitem__)


def _one_of_each(arrays: Sequence[Array]) -> int:
    return sum({_kind(array): array.bytes for array in arrays}.values())


def _unfused(memory: Memory, present: Sequence[Array], saving: Saving) -> Iterator[Remedy]:
    """Yields a remedy for each line whose arrays need not exist."""
    groups: dict[tuple[str, str, int], list[Array]] = collections.defaultdict(list)
    for array in present:
        if array.cause in _ADVICE:
            groups[array.cause, array.source.file, array.source.line].append(array)
    for (cause, _, _), arrays in groups.items():
        buffers = {array.writer.name for array in arrays}
        everywhere = [array for array in memory.arrays if array.writer.name in buffers]
        yield Remedy(cause, _ADVICE[cause], saving(everywhere), arrays[0].source)


def _collectives(present: Sequence[Array], saving: Saving) -> Iterator[Remedy]:
    """Yields a remedy for results of several collectives together."""
    results = [array for array in present if array.cause == COLLECTIVE]
    if len(results) > 1:
        text = "gather one array at a time: jax.lax.scan over layers, or jax.lax.optimization_barrier before each use"
        yield Remedy("collective", text, saving(results[1:]), _main_source(results))


def _repetitions(memory: Memory, present: Sequence[Array], saving: Saving) -> Iterator[Remedy]:
    """Yields a remedy for arrays of the backward pass that wait, one for each unrolled layer."""
    groups: dict[tuple[object, ...], list[Array]] = collections.defaultdict(list)
    for array in present:
        if memory.cause_at(array, memory.peak) == WAITING and is_backward(array.source.op_name):
            groups[_kind(array)].append(array)
    repeated = [group for group in groups.values() if len(group) >= _REPEATED]
    if repeated:
        waiting = [array for group in repeated for array in group[1:]]
        text = f"jax.lax.scan in place of {max(map(len, repeated))} unrolled layers: one layer's arrays at a time"
        yield Remedy("scan", text, saving(waiting), repeated[0][0].source)


def _loops(memory: Memory, present: Sequence[Array]) -> Iterator[Remedy]:
    """Yields a remedy for a loop that reads stacks and writes others: layers in a row free one while they fill the
    other.
    """
    kept = list(_stacks(memory, [array for array in present if array.cause == KEPT]))
    filled = [
        a for a in present if a.cause == LOOP and is_backward(a.source.op_name) and _updates(memory.module, a.writer)
    ]
    for loop in kept:
        read = sum(array.bytes for array in loop.stacks)
        written = sum(array.bytes for array in filled if array.shape.dims[:1] == (loop.trips,))
        saves = min(read, written) * (loop.trips - 1) // loop.trips
        text = f"unroll the loop: {loop.trips} layers in a row free what they keep while gradients grow"
        yield Remedy("unroll", text, saves, loop.stacks[0].source)
