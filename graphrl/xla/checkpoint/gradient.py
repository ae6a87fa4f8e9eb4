"""The decision problem of a program's gradient, as arrays for `graphrl.xla.checkpoint.solvers`.

`gradient_of` takes the derivative of a program and of its loop bodies, and builds one `Level` of arrays for each
(`LevelBuilder`): values of the forward pass, kernels of the backward pass, and loops that are in both. For loops that
may run in stretches (blocks of steps) it adds the bytes that these need (`slices_of`, `recompute_inputs`).

`NamedGradient` links the arrays to the program. `Origin` and `ReportableGradient` describe a value for the report: its
equation in the traced function, its type and its line of code.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax.export import is_symbolic_dim

from graphrl.graphs.readers.jaxpr.flatten import Node, Result, Scalar
from graphrl.graphs.readers.jaxpr.work import array_bytes, scan_operands
from graphrl.graphs.roofline import INTERCONNECTS, Chip
from graphrl.xla.checkpoint.backward import Backward, passed_cotangents
from graphrl.xla.checkpoint.derivative import Derivative, Value, derivative, differentiable, resident_bytes
from graphrl.xla.checkpoint.memory import Forward, Nodes
from graphrl.xla.checkpoint.primitives import HOST_LINK
from graphrl.xla.checkpoint.program import Name, Program
from graphrl.xla.checkpoint.solvers.choice import stretches_of
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, Gradient, Level, Loop

PART = 0.75  # share of the host link's bandwidth to plan with: a late copy delays everything, and clocks differ
UNROLLED, EQUATIONS = 8, 1_000  # most steps of a stretch that is unrolled, and most equations of all of them
Slices = tuple[float, float, float, float]  # a loop's `taken_bytes`, `given_bytes`, `pulled_bytes`, `sum_bytes`


class Origin(NamedTuple):
    """Position in the user's function at which a value is computed.

    Attributes:
      place: indices of the loops around the value's equation, from the outermost, and then of the equation itself.
      value: its type and shape, as jax writes them.
      line: line of the user's code that computes it; "" if unknown.
    """

    place: tuple[int, ...]
    value: str
    line: str


class ReportableGradient(Protocol):
    """A gradient whose values can be reported to the user."""

    @property
    def gradient(self) -> Gradient:
        """The decision problem for a solver."""

    def origin(self, number: int, value: int) -> Origin | None:
        """Returns the origin of a value of level `number`; None if the value has no name."""


class NamedGradient(NamedTuple):
    """A program's gradient, with links from its arrays to the program.

    Attributes:
      gradient: the decision problem for a solver.
      programs: the program of each level.
      names: for each level, the name of each value; None for values that cannot be kept by name.
      carried: for each level, indices of the arguments that its loop carries from step to step.
      traced: the jaxpr of the gradient without a plan; None if there are loops.
    """

    gradient: Gradient
    programs: tuple[Program, ...]
    names: tuple[tuple[Name | None, ...], ...]
    carried: tuple[range, ...]
    traced: Any

    def origin(self, number: int, value: int) -> Origin | None:
        """Returns the origin of a value of level `number`; None if the value has no name."""
        name = self.names[number][value]
        if name is None:
            return None
        eqn = self.programs[number].equations[name[0]]
        return Origin((*self._around(number), name[0]), eqn.outvars[name[1]].aval.str_short(), line_of(eqn))

    def _around(self, number: int) -> tuple[int, ...]:
        """Returns the places of the loops around a level, from the outermost inwards."""
        for outer, loops in enumerate(self.gradient.loops):
            if number in loops:
                return (*self._around(outer), loops[number].place)
        return ()


class _Built(NamedTuple):
    program: Program
    level: Level
    loops: dict[int, Loop]
    names: tuple[Name | None, ...]
    carried: range
    begin_bytes: float


def gradient_of(program: Program, wanted: Sequence[bool], chip: Chip) -> NamedGradient:
    """Builds the decision problem of a function's gradient by its `wanted` arguments (of loop bodies, by all)."""
    built: list[_Built] = []
    derived = _build(built, program, wanted, chip, range(0), 0)
    levels, loops = tuple(each.level for each in built), tuple(each.loops for each in built)
    return NamedGradient(
        Gradient(levels, loops, sum(derived.outside[: len(program.closed.in_avals)]), derived.result_bytes),
        tuple(each.program for each in built),
        tuple(each.names for each in built),
        tuple(each.carried for each in built),
        None if program.bodies else derived.traced,
    )


def _build(
    built: list[_Built], program: Program, wanted: Sequence[bool], chip: Chip, carried: range, trips: int
) -> Derivative:
    """Appends a program's level, then those of the loops in it; returns its derivative."""
    derived = derivative(program, wanted, chip)
    scans = {place: len(program.equations[place].outvars) for place in program.bodies}
    builder = LevelBuilder(derived, chip, carried, scans)
    loop_places = () if trips else builder.loops
    separate = [bool(eqn.effects) or place in loop_places for place, eqn in enumerate(program.equations)]
    level, loops, number = builder.level(trips, np.array(separate, bool)), dict[int, Loop](), len(built)
    names = tuple(derived.names.get(value) for value in builder.values)
    built.append(_Built(program, level, loops, names, carried, builder.begin_bytes))
    forward, backward = level.forward_seconds, level.backward_seconds
    for place, loop in sorted(builder.loops.items()):
        body, params = program.bodies[place], program.equations[place].params
        steps, is_known = program.trips(place), not is_symbolic_dim(params["length"])
        constants, carries = scan_operands(params)
        carry = range(constants, constants + carries)
        smooth = [differentiable(aval) for aval in body.closed.in_avals]
        inner = len(built)
        _build(built, body, smooth, chip, carry, steps)
        loops[inner] = loop._replace(
            begin_bytes=built[inner].begin_bytes,
            stretches=stretches_of(steps) if is_known and not program.equations[place].effects else (1,),
            unrolled=min(UNROLLED, EQUATIONS // max(1, len(body.equations))),
        )
        seconds = steps * built[inner].level.forward_seconds
        level.seconds[[*loop.outputs, *loop.kept]] = seconds
        forward += seconds
        level.kernel_seconds[loop.kernel] = steps * built[inner].level.backward_seconds
        backward += steps * built[inner].level.backward_seconds
    built[number] = built[number]._replace(level=level._replace(forward_seconds=forward, backward_seconds=backward))
    return derived


class LevelBuilder:
    """Builds the arrays of a `Level` from a derivative.

    Args:
      derivative: the derivative of a program.
      chip: the chip for which run times are estimated.
      carried: indices of arguments that a loop carries, which it must keep for its backward pass.
      scans: place of each scan of the program -> its number of results.

    Attributes:
      values: the values of the forward pass, in order.
      loops: place -> loop, for the loops that the gradient goes through.
      begin_bytes: bytes of the carried arguments that must be kept to recompute one stretch of the loop.
    """

    def __init__(self, derivative: Derivative, chip: Chip, carried: Sequence[int], scans: Mapping[int, int]) -> None:
        self._derivative, self._nodes = derivative, Nodes(derivative, chip)
        self._forward = Forward(self._nodes, carried)
        self._backward = Backward(self._nodes, self._forward)
        self.values = self._forward.values
        begins, self._followers = recompute_inputs(self._forward.reads, self._backward.reads, self._following(carried))
        self.begin_bytes = sum(derivative.bytes(self.values[v]) for v in begins)
        loops = {place: self._loop(place, results) for place, results in scans.items()}
        self.loops = {place: loop for place, loop in loops.items() if loop is not None}

    def level(self, trips: int, separate: np.ndarray) -> Level:
        """Builds the level; its loops take no time and keep nothing yet. `trips`, `separate`: as in `Level`."""
        forward, backward = self._forward, self._backward
        place, free, op, seconds = forward.place(), forward.free(), forward.op(), forward.seconds()
        reads_from, reads = _rows(forward.reads)
        kernel_from, kernel_reads = _rows(backward.reads)
        copied = {*place[free].tolist()} - {*place[~free].tolist()}  # each reader of a free value has its own copy
        gradients = passed_cotangents(self._nodes, copied)
        cotangent_from, cotangent_to = _rows([[at for at, _ in gradient.to] for gradient in gradients])
        saved_seconds = forward.saved_seconds(seconds)
        sizes = np.array([self._derivative.bytes(value) for value in self.values], float)
        workspace = np.array([self._nodes.workspace(value) for value in self.values], float)
        for loop in self.loops.values():
            sizes[list(loop.kept)] = 0.0
            workspace[[*loop.outputs, *loop.kept]] = seconds[[*loop.outputs, *loop.kept]] = 0.0
        inner = {loop.kernel for loop in self.loops.values()}
        kernel_seconds = backward.seconds(inner)
        _, once = np.unique(op, return_index=True)
        results = backward.results() if trips == 0 else []
        fits = (sizes > 0) & (place != ARGUMENT) & (sizes <= max((size for size, _ in results), default=0))
        return Level(
            bytes=sizes,
            place=place,
            materialized=np.array(forward.materialized, bool),
            free=free,
            needed=forward.needed,
            named=forward.named(),
            heavy=forward.heavy(),
            seconds=seconds,
            keep_seconds=saved_seconds + forward.keep_seconds(in_loop=trips > 0),
            write_seconds=saved_seconds + forward.keep_seconds(in_loop=False),
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
            result_bytes=np.array([size for size, _ in results], float),
            result_kernel=np.array([q for _, q in results], np.int64),
            fitting=np.array(sorted(np.flatnonzero(fits), key=lambda v: -sizes[v]), np.int64),
            cotangent_place=np.array([gradient.place for gradient in gradients], np.int64),
            cotangent_seconds=np.array([gradient.seconds for gradient in gradients], float),
            cotangent_from=cotangent_from,
            cotangent_to=cotangent_to,
            cotangent_home=np.array([home for gradient in gradients for _, home in gradient.to], np.int64),
            first=np.searchsorted(place, np.arange(len(separate) + 1)).astype(np.int64),
            free_values=np.flatnonzero(free).astype(np.int64),
            separate=separate,
            resident=float(resident_bytes(self._derivative.nodes)),
            link=PART * INTERCONNECTS[HOST_LINK].bandwidth,
            trips=trips,
            forward_seconds=float((seconds * forward.needed)[once].sum() - saved_seconds.sum()),
            backward_seconds=float(kernel_seconds.sum()),
        )

    def _loop(self, place: int, results: int) -> Loop | None:
        """Builds the loop of the scan at `place`, which has `results` results; None if no gradient goes through it."""
        values = (v for v in self.values if isinstance(v, Result) and self._derivative.place[v.node] == place)
        scan_values = [v for v in values if self._derivative.node(v.node).type == "scan"]
        # jax moves computations that are the same in all steps out of a scan and before it, other scans included
        scan_values = [v for v in scan_values if v.node == scan_values[-1].node]
        outputs = tuple(self._forward.number[value] for value in scan_values if value.output < results)
        kept = tuple(self._forward.number[value] for value in scan_values if value.output >= results)
        kernels = [q for q, reads in enumerate(self._backward.reads) if set(reads) & set(kept)]
        if not outputs or not kernels:
            return None
        nodes = scan_values[0].node, self._backward.kernels[kernels[0]]
        forward, backward = map(self._derivative.node, nodes)
        return Loop(place, outputs, kept, kernels[0], *slices_of(self._derivative, forward, backward, results))

    def _following(self, carried: Iterable[int]) -> list[int | None]:
        """Returns for each carried argument the forward value that replaces it in the next step, if there is one."""
        results = (value for value, _ in zip(self._derivative.returned, carried, strict=False))
        return [None if value is None else self._forward.number.get(value) for value in results]


def _rows(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Compresses rows: returns the start of each row in the concatenation (and its end), and the concatenation."""
    begins = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return begins.astype(np.int64), np.array([number for row in rows for number in row], np.int64)


def slices_of(derivative: Derivative, forward: Node, backward: Node, results: int) -> Slices:
    """Computes `taken_bytes`, `given_bytes`, `pulled_bytes` and `sum_bytes` of a `Loop`.

    Args:
      derivative: the derivative that has the loop.
      forward, backward: the loop's scans in the two passes.
      results: number of the loop's results; the forward scan returns them first, then the values that it keeps.
    """
    length = forward.equation.params["length"]
    _, carried = scan_operands(forward.equation.params)
    taken, pulled = _stacked(derivative, forward), _stacked(derivative, backward)
    kept = sum(forward.output_bytes[results:])
    summed = backward.output_bytes[: scan_operands(backward.equation.params)[1]]
    carries = [array_bytes(v.aval) for v in forward.equation.outvars[:carried] if differentiable(v.aval)]
    between = sum(size for value, size in pulled.items() if value not in taken)
    return (
        sum(taken.values()) / length,
        sum(forward.output_bytes[carried:results]) / length,
        (between - kept + sum(backward.output_bytes[len(summed) :])) / length,
        max(0, sum(summed) - sum(carries)),
    )


def _stacked(derivative: Derivative, scan: Node) -> Mapping[Value, int]:
    """Returns the arrays of which each step of a scan reads a slice, with their sizes in bytes."""
    first = sum(scan_operands(scan.equation.params))
    operands = zip(scan.operands[first:], scan.equation.invars[first:], strict=True)
    stacks = ((value, array_bytes(operand.aval)) for value, operand in operands if not isinstance(value, Scalar))
    return {derivative.same.get(value, value): size for value, size in stacks}


def recompute_inputs(
    reads: Sequence[Sequence[int]], kernel_reads: Sequence[Sequence[int]], following: Sequence[int | None]
) -> tuple[list[int], np.ndarray]:
    """Finds the carried values that a loop needs to compute its steps again for its backward pass.

    Args:
      reads: for each value of its body (carried ones first), the earlier values that it is computed from.
      kernel_reads: for each kernel of the backward pass, the values that it reads.
      following: for each carried value, the value that replaces it in the next step; None if not a value of the body.

    Returns:
      the carried values that are needed; and `[n]` int64: for these, the values that replace them in the next step
      (`following`, -1 for None); for all others -1.
    """
    needed = np.zeros(len(reads), bool)
    needed[[value for read in kernel_reads for value in read]] = True
    while True:
        for value in range(len(reads) - 1, -1, -1):
            if needed[value]:
                needed[reads[value]] = True
        nexts = {after for carry, after in enumerate(following) if needed[carry] and after is not None}
        if all(needed[after] for after in nexts):
            break
        needed[list(nexts)] = True
    begins = np.flatnonzero(needed[: len(following)]).tolist()
    after = np.full(len(reads), -1, np.int64)
    for carry in begins:
        become = following[carry]
        after[carry] = -1 if become is None else become
    return begins, after


def line_at(program: Program, place: Sequence[int]) -> str:
    """Returns the line of the user's code for the equation at `Origin.place`; "" if jax does not know.

    Raises:
      LookupError: the program has no equation there.
    """
    *loops, last = place
    for loop in loops:
        program = program.bodies[loop]
    if not 0 <= last < len(program.equations):
        raise IndexError(last)
    return line_of(program.equations[last])


def line_of(eqn: Any) -> str:
    """Returns the line of the user's code that an equation comes from; "" if jax does not know."""
    try:
        from jax._src.source_info_util import summarize
    except ImportError:
        return ""
    return str(summarize(eqn.source_info)).replace("<unknown>", "")
