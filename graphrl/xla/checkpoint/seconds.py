"""Time model: estimates the run time of a traced gradient by roofline, in seconds, to compare plans for it.

| part of a jaxpr | model of the program that XLA compiles |
|---|---|
| dead code, calls | dead code is removed, calls are inlined (`Inlined`) |
| equal equations | computed once, unless `prevent_cse` or optimization barriers separate them |
| kernels | `graphs.roofline.runtime` of their work: they read operands from memory and write their results |
| loops and branches | their bodies count in turn: a scan's once a trip, of branches the most expensive |
| reductions, except of rows | read the operands of equations fused into them and write their results |
| all others | fused into those that read them (`Fusing`); their operations count once each at the chip's peak |
| fused values | written where a kernel, a loop or the caller reads them, by `is_once`, or for fewer bytes |
| an array of one number | not written for the scatters that update it: each fills its own result |
| stacks of a scan | slices for kernels are copied, and stacked results that the body reads too |
| reshapes, transposes, names | cost nothing |

Copies to the host and back use the link, each way separately and in parallel with the kernels, one after another. A
copy to the host starts once the value is computed. Copies come back in the order in which they are read, each from the
barrier before it on. An op that reads a copy waits until it has arrived, as do a barrier and the end.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from graphrl.graphs.readers.jaxpr.flatten import called
from graphrl.graphs.readers.jaxpr.work import (
    array_bytes,
    bytes_moved,
    equation_flops,
    inner_jaxprs,
    inner_work,
    scan_operands,
)
from graphrl.graphs.readers.work import Work
from graphrl.graphs.roofline import DEFAULT_CHIP, INTERCONNECTS, Chip, Interconnect, find_chip, runtime
from graphrl.xla.checkpoint import primitives
from graphrl.xla.checkpoint.equations import (
    SLICES,
    Chain,
    chained,
    is_body,
    is_fill,
    is_fused,
    is_kernel,
    is_once,
    is_reduction,
    is_scatter,
    is_view,
    key_of,
    part_read,
)
from graphrl.xla.checkpoint.primitives import HOST_LINK

Value = int  # index of a value's bytes among all
Reads = Mapping[Hashable, float]  # value, or slice of a value -> bytes that are read of it


class Op(NamedTuple):
    """An equation that is computed, or a barrier.

    Attributes:
      equation: None for a barrier.
      operands: values and literals, in order.
      results: values, in order.
    """

    equation: Any
    operands: Sequence[Value | core.Literal]
    results: Sequence[Value]

    @property
    def values(self) -> list[Value]:
        """The operands without literals, each once."""
        return list(dict.fromkeys(operand for operand in self.operands if isinstance(operand, Value)))


def gradient_seconds(closed: core.ClosedJaxpr, chip: str | Chip = DEFAULT_CHIP, link: str = HOST_LINK) -> float:
    """Estimates the run time of a function on a chip, in seconds.

    Args:
      closed: the function, such as `jax.make_jaxpr(jax.value_and_grad(loss))(*args)`.
      chip: the chip, with its peak FLOP rate, memory bandwidth and launch time.
      link: name of the link to the host, in `graphs.roofline.INTERCONNECTS`.

    Raises:
      GraphrlError: unknown chip, or an array has a symbolic dimension.
    """
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _Clock(find_chip(chip), INTERCONNECTS[link]).seconds(jaxpr)


class _Clock:
    """Estimates run times of jaxprs for one chip and link; caches those of loop and branch bodies."""

    def __init__(self, chip: Chip, link: Interconnect) -> None:
        self._chip = chip
        self._link = link
        self._bodies: dict[int, tuple[Any, float]] = {}  # with the jaxpr, so that its id is not reused

    def seconds(self, jaxpr: core.Jaxpr, carried: tuple[int, int] | None = None) -> float:
        """Estimates the seconds of one run; `carried`, of a scan's body: numbers of unstacked inputs and results."""
        flat = Inlined(jaxpr)
        fusion = Fusing(flat)
        copies = _Copies(self._link)
        if carried is not None:
            copies.now += sum(runtime(0, 2 * flat.bytes[value], self._chip) for value in fusion.copied(*carried))
        for op in flat.ops:
            if op.equation is None or not is_fused(op.equation) or is_reduction(op.equation):
                copies.wait(op)
            if op.equation is None or copies.begin(op, flat.bytes):
                fusion.write(op)
            elif is_body(op.equation):
                copies.now += self._of_body(op)
                fusion.write(op)
            elif is_kernel(op.equation):
                copies.now += self._of_kernel(op, flat.bytes)
                fusion.write(op)
            elif is_reduction(op.equation):
                copies.now += runtime(equation_flops(op.equation), fusion.write(op), self._chip)
            else:
                copies.now += equation_flops(op.equation) / self._chip.flops_per_second
                copies.fuse(op, bool(written := fusion.fuse(op)))
                copies.now += runtime(0, sum(written), self._chip) if written else 0.0
        return copies.end

    def _of_kernel(self, op: Op, sizes: Sequence[int]) -> float:
        if op.equation.primitive is primitives.COLLECTIVE:
            return self._chip.launch_seconds + float(op.equation.params["seconds"])
        written = sum(sizes[value] for value in op.results)
        moved = bytes_moved(op.equation, [sizes[value] for value in op.values], written)
        return runtime(equation_flops(op.equation), moved, self._chip)

    def _of_body(self, op: Op) -> float:
        """Estimates the seconds of an equation with inner jaxprs, such as a loop."""
        params = op.equation.params
        carried = None
        if op.equation.primitive.name == "scan":
            constants, carries = scan_operands(params)
            carried = (constants + carries, carries)
        bodies = {key: Work(0, self._of_inner(jaxpr, carried), 0) for key, jaxpr in inner_jaxprs(params).items()}
        literals = [operand.val if isinstance(operand, core.Literal) else None for operand in op.operands]
        return inner_work(op.equation, bodies, literals).runtime

    def _of_inner(self, inner: Any, carried: tuple[int, int] | None) -> float:
        if id(inner) not in self._bodies:
            jaxpr = inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner
            self._bodies[id(inner)] = inner, self.seconds(jaxpr, carried)
        return self._bodies[id(inner)][1]


class _Copies:
    """Simulates copies to the host and back, in parallel with kernels.

    Attributes:
      now: time since the start, in seconds.
    """

    def __init__(self, link: Interconnect) -> None:
        self._link = link
        self.now = 0.0
        self._free = {True: 0.0, False: 0.0}  # times at which each way is free: to the host, and back
        self._arrival: dict[Value, float] = {}  # arrival times of copies
        self._released: dict[Value, float] = {}  # times at which barriers release values on the host
        self._requested: dict[Value, tuple[float, int]] = {}  # copies not read yet: request time, and bytes
        self._behind: dict[Value, frozenset[Value]] = {}  # copies that are read to compute a value on the fly

    @property
    def end(self) -> float:
        """Time at which all kernels and copies are done."""
        return max(self.now, *self._free.values())

    def wait(self, op: Op) -> None:
        """Waits until the operands of an op have arrived; an op that only copies them does not wait."""
        if op.equation is not None and _is_copy(op.equation):
            return
        for copy in dict.fromkeys(copy for value in op.values for copy in self._behind.get(value, (value,))):
            if copy in self._requested:
                self._arrival[copy] = self._send(False, *self._requested.pop(copy))
            self.now = max(self.now, self._arrival.get(copy, 0.0))
        if op.equation is None:
            self._released |= dict.fromkeys(op.results, self.now)

    def fuse(self, op: Op, is_written: bool) -> None:
        """Handles an op that is fused into its readers: it waits only if it is written, else its readers wait."""
        if is_written:
            self.wait(op)
        else:
            copies = frozenset(copy for value in op.values for copy in self._behind.get(value, (value,)))
            self._behind |= dict.fromkeys(op.results, copies & self._requested.keys())

    def begin(self, op: Op, sizes: Sequence[int]) -> bool:
        """Starts the copies of an op; False if the op is not a copy."""
        if not _is_copy(op.equation):
            return False
        places = zip(op.equation.invars, op.equation.outvars, op.operands, op.results, strict=True)
        for before, after, operand, value in places:
            if _on_host(after) and not _on_host(before):
                self._arrival[value] = self._send(True, self.now, sizes[value])
            elif _on_host(before) and not _on_host(after) and isinstance(operand, Value):
                start = max(self._released.get(operand, 0.0), self._arrival.get(operand, 0.0))
                self._requested[value] = start, sizes[value]
        return True

    def _send(self, out: bool, start: float, size: int) -> float:
        """Adds a copy of `size` bytes that cannot start before `start`; returns its arrival time."""
        self._free[out] = max(self._free[out], start) + size / self._link.bandwidth
        return self._free[out]


def _is_copy(equation: Any) -> bool:
    return equation.primitive.name == "device_put"


def _on_host(atom: Any) -> bool:
    return getattr(getattr(atom.aval, "memory_space", None), "name", "") == "Host"


class Inlined:
    """A jaxpr with its calls inlined and equal equations merged.

    Attributes:
      bytes: bytes of each value.
      ops: the ops, in order.
      inputs: the values that are arguments.
      results: the values and literals that are results.
    """

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.bytes: list[int] = []
        self.ops: list[Op] = []
        self._merged: dict[Hashable, list[Value]] = {}
        self.inputs = [self._value(var) for var in jaxpr.invars]
        self.results = self._run(jaxpr, self.inputs)

    def _value(self, atom: Any) -> Value:
        self.bytes.append(array_bytes(atom.aval))
        return len(self.bytes) - 1

    def _run(self, jaxpr: core.Jaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Adds the ops of a jaxpr; returns its results, values or literals."""
        values: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))
        values |= {var: self._value(var) for var in jaxpr.constvars}
        for equation in jaxpr.eqns:
            operands = [_read(atom, values) for atom in equation.invars]
            call = called(equation)
            if call is not None:
                results = self._run(call[0], self._behind(equation, operands, _barred(equation)))
            elif equation.primitive.name == primitives.NAME:
                results = operands[: len(equation.outvars)]  # takes no time here
            elif equation.primitive.name == "optimization_barrier" or equation.params.get("waits", False):
                results = self._behind(equation, operands, [True] * len(operands))[: len(equation.outvars)]
            else:
                results = operands[:1] if is_view(equation) else self._add(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))
        return [_read(atom, values) for atom in jaxpr.outvars]

    def _behind(self, equation: Any, operands: Sequence[Any], barred: Sequence[bool]) -> list[Any]:
        """Adds a barrier; returns the operands, of which the barred ones become new values that equal no others."""
        behind = list(operands)
        places = [i for i, bar in enumerate(barred) if bar and isinstance(operands[i], Value)]
        for i in places:
            behind[i] = self._value(equation.invars[i])
        self.ops.append(Op(None, [operands[i] for i in places], [behind[i] for i in places]))
        return behind

    def _add(self, equation: Any, operands: Sequence[Any]) -> list[Value]:
        key = key_of(equation, operands)
        if key not in self._merged:
            self._merged[key] = [self._value(var) for var in equation.outvars]
            self.ops.append(Op(equation, operands, self._merged[key]))
        return self._merged[key]


def _read(atom: Any, values: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else values[atom]


def _barred(equation: Any) -> Sequence[bool]:
    """Returns for each operand of a call whether XLA must not merge it with earlier values: in backward passes."""
    barred = equation.params.get("differentiated", False) and equation.params.get("prevent_cse", False)
    return [barred] * len(equation.invars) if isinstance(barred, bool) else barred


class Fusing:
    """Decides which values are written to memory, and the bytes that readers of the other values read instead."""

    def __init__(self, flat: Inlined) -> None:
        self._bytes = flat.bytes
        self._flat = flat
        self._readers = Counter(value for op in flat.ops for value in op.values)
        alone = [op for op in flat.ops if op.equation is None or not is_fused(op.equation)]
        filled = {value for op in flat.ops if op.equation and is_fill(op.equation) for value in op.results}
        self._alone = {value for op in alone for value in op.values if value not in filled or not _fills(op, value)}
        self._needed = self._alone | {value for value in flat.results if isinstance(value, Value)}
        self._reads: dict[Value, Reads] = {}  # value that is not written -> bytes that its readers read instead
        self._chains: dict[Value, Chain] = {}  # such a value -> the equations that each reader runs for it

    def copied(self, inputs: int, results: int) -> list[Value]:
        """Returns the values of a scan's body that XLA copies from or to a stacked array: slices read by ops that are
        not fused, and stacked results that no fused op writes or that the body reads too.

        Args:
          inputs: number of leading inputs that are not sliced from stacks.
          results: number of leading results that are not stacked.
        """
        fused = {value for op in self._flat.ops if op.equation and is_fused(op.equation) for value in op.results}
        slices = [value for value in self._flat.inputs[inputs:] if value in self._alone]
        stacked = [value for value in self._flat.results[results:] if isinstance(value, Value)]
        return slices + [value for value in stacked if value not in fused or self._readers[value]]

    def write(self, op: Op) -> float:
        """Returns the bytes that an op reads and writes if it writes its results, with the ops fused into it."""
        return sum(self._of(op).values()) + sum(self._bytes[value] for value in op.results)

    def fuse(self, op: Op) -> list[float]:
        """Decides which results of a fused op are written; returns the bytes read and written for each of those."""
        moved = []
        chains = [self._chains[value] for value in op.values if value in self._chains]
        for i, value in enumerate(op.results):
            reads = self._of(op)
            if op.equation.primitive.name in SLICES:
                reads = self._sliced(op, i, reads)
            size, total, readers = self._bytes[value], sum(reads.values()), self._readers[value]
            chain, expensive = chained(value, op.equation, chains), readers * total > total + (1 + readers) * size
            if value in self._needed or expensive or (readers > 1 and is_once(op.equation, chain)):
                moved.append(total + size)
            else:
                self._reads[value], self._chains[value] = reads, chain
        return moved

    def _of(self, op: Op) -> Reads:
        return {key: size for value in op.values for key, size in self._of_value(value).items()}

    def _of_value(self, value: Value) -> Reads:
        return self._reads.get(value, {value: float(self._bytes[value])})

    def _sliced(self, op: Op, result: int, reads: Reads) -> Reads:
        """Returns the share of all `reads` that a slice takes."""
        whole = self._bytes[op.values[0]] if op.values else 0
        share = part_read(op.equation, whole, self._bytes[op.results[result]])
        return {(key, op.results[result]): share * size for key, size in reads.items()}


def _fills(op: Op, value: Value) -> bool:
    """True if an op only fills its result with a value that is one number everywhere."""
    if not op.equation or not is_scatter(op.equation):
        return False
    filled, *others = op.operands
    return filled == value and value not in others
