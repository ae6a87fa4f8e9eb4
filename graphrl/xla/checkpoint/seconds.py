"""Seconds of a traced gradient, by roofline: one meaning of time for all ways to keep less.

What stands for what XLA makes of a jaxpr on an accelerator:

- dead code goes, calls are inlined, and of equal equations one is computed; `jax.checkpoint` with `prevent_cse` and
  optimization barriers stand between equal ones;
- products, convolutions, gathers, scatters, sorts, windows, factorisations and collectives are kernels, which read
  their operands from memory and write their results; so are loops and branches, whose bodies count in turn, a scan's
  once a trip, of a branch's the dearest;
- all other equations are fused into those that read them. A value is written where a kernel, a loop or the caller
  reads it, and where that moves fewer bytes than computing it in each reader, or takes fewer equations by far.
  Reductions, but for those of rows, read what is fused into them and write their results;
- what a scan takes from stacks for a kernel, and what it stacks of values that its body reads too, is copied;
- reshapes, transposes and names cost nothing.

A kernel takes `graphs.roofline.runtime` of its work; a fused group that of its bytes. Operations of fused equations
count once each at the chip's peak. Copies to the host and back take the link, each way by itself, beside the kernels:
the time is at least theirs.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from graphrl.graphs.interconnects import INTERCONNECTS, Interconnect
from graphrl.graphs.readers.jaxpr.flatten import ELEMENT_BODIES, called
from graphrl.graphs.readers.jaxpr.flops import PARTIAL_READS, array_bytes, bytes_moved, equation_flops
from graphrl.graphs.readers.jaxpr.loops import Work, inner_jaxprs, inner_work
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, find_chip, runtime

HOST_LINK = "pcie-5"
KERNELS = frozenset(
    str.split(
        """
        all_gather all_to_all approx_top_k cholesky conv_general_dilated custom_call cumlogsumexp cummax cummin cumprod
        cumsum dot_general dynamic_update_slice eig eigh fft gather geqrf hessenberg householder_product lu
        ppermute psum psum_invariant qr ragged_all_to_all ragged_dot_general reduce_scatter reduce_window
        reduce_window_max reduce_window_min reduce_window_sum schur select_and_gather_add select_and_scatter
        select_and_scatter_add sort svd top_k triangular_solve tridiagonal tridiagonal_solve
        """
    )
)
_REDUCTIONS = ("argmax", "argmin", "reduce")
_NOT_REDUCTIONS = ("reduce_precision", "reduce_window", "reduce_scatter")
# The same bytes under another name or shape; layouts are the compiler's to choose.
VIEWS = frozenset(
    str.split(
        """
        bitcast_convert_type copy copy_p expand_dims name optimization_barrier pvary reduce_precision reshape
        sharding_constraint squeeze stop_gradient transpose
        """
    )
)
SLICES = PARTIAL_READS | {"split"}
LONGEST = 24  # equations that several readers run again rather than read what one of them wrote

Value = int  # the place of a value's bytes among all
Reads = Mapping[Hashable, float]  # bytes by value, and by slice of it


def gradient_seconds(closed: core.ClosedJaxpr, chip: str | Chip = DEFAULT_CHIP, link: str = HOST_LINK) -> float:
    """Seconds of a function, such as `jax.make_jaxpr(jax.value_and_grad(loss))(*args)`, on a chip.

    Args:
      closed: the function.
      chip: whose peak, bandwidth and launch time count.
      link: to the host, of `graphs.interconnects`.

    Raises:
      GraphrlError: unknown chip, or an array has a symbolic dimension.
    """
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _Clock(find_chip(chip), INTERCONNECTS[link]).seconds(jaxpr)


class _Op(NamedTuple):
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
        """Its operands without literals, each once."""
        return list(dict.fromkeys(operand for operand in self.operands if isinstance(operand, Value)))


class _Flat:
    """A jaxpr with its calls inlined and equal equations merged.

    Attributes:
      bytes: of each value.
      ops: in order.
      inputs: values of the arguments.
      results: values and literals.
    """

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.bytes: list[int] = []
        self.ops: list[_Op] = []
        self._merged: dict[Hashable, list[Value]] = {}
        self.inputs = [self._value(var) for var in jaxpr.invars]
        self.results = self._run(jaxpr, self.inputs)

    def _value(self, atom: Any) -> Value:
        self.bytes.append(array_bytes(atom.aval))
        return len(self.bytes) - 1

    def _run(self, jaxpr: core.Jaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Adds the ops of a jaxpr; gives its results, values or literals."""
        values: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))
        values |= {var: self._value(var) for var in jaxpr.constvars}
        for equation in jaxpr.eqns:
            operands = [_read(atom, values) for atom in equation.invars]
            call = called(equation)
            if call is not None:
                results = self._run(call[0], self._behind(equation, operands, _barred(equation)))
            elif equation.primitive.name == "optimization_barrier":
                results = self._behind(equation, operands, [True] * len(operands))
            else:
                results = operands[:1] if _is_view(equation) else self._add(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))
        return [_read(atom, values) for atom in jaxpr.outvars]

    def _behind(self, equation: Any, operands: Sequence[Any], barred: Sequence[bool]) -> list[Any]:
        """The operands, where they are barred as values that equal no others."""
        behind = list(operands)
        places = [i for i, bar in enumerate(barred) if bar and isinstance(operands[i], Value)]
        for i in places:
            behind[i] = self._value(equation.invars[i])
        self.ops.append(_Op(None, [operands[i] for i in places], [behind[i] for i in places]))
        return behind

    def _add(self, equation: Any, operands: Sequence[Any]) -> list[Value]:
        key = _key(equation, operands)
        if key not in self._merged:
            self._merged[key] = [self._value(var) for var in equation.outvars]
            self.ops.append(_Op(equation, operands, self._merged[key]))
        return self._merged[key]


def _read(atom: Any, values: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else values[atom]


def _barred(equation: Any) -> Sequence[bool]:
    """Of a call's operands those that XLA shall not take for what was computed before: a backward pass's."""
    barred = equation.params.get("differentiated", False) and equation.params.get("prevent_cse", False)
    return [barred] * len(equation.invars) if isinstance(barred, bool) else barred


def _key(equation: Any, operands: Sequence[Any]) -> Hashable:
    """Equal for equations that compute the same."""
    own = (id(equation),)
    read = tuple(atom if isinstance(atom, Value) else _literal(atom) for atom in operands)
    key = (equation.primitive, tuple(sorted(equation.params.items(), key=lambda item: item[0])), read)
    try:
        hash(key)
    except TypeError:  # a parameter that only equals itself
        return own
    return own if equation.effects else key


def _literal(atom: core.Literal) -> Hashable:
    value = np.asarray(atom.val)
    return (value.item(), value.dtype.name) if value.ndim == 0 else id(atom)


class _Clock:
    """A chip and a link, and the seconds of bodies that were there before."""

    def __init__(self, chip: Chip, link: Interconnect) -> None:
        self._chip = chip
        self._link = link
        self._bodies: dict[int, tuple[Any, float]] = {}  # with the jaxpr, so that its id stays its own

    def seconds(self, jaxpr: core.Jaxpr, carried: tuple[int, int] | None = None) -> float:
        """Seconds of one run; of the body of a scan, with how many inputs and results are not of one trip only."""
        flat = _Flat(jaxpr)
        fusion = _Fusion(flat)
        flops, moved, kernels = 0, _Copies(), 0.0
        if carried is not None:
            kernels += sum(runtime(0, 2 * flat.bytes[value], self._chip) for value in fusion.copied(*carried))
        for op in flat.ops:
            if op.equation is None or moved.add(op, flat.bytes):
                fusion.write(op)
            elif is_body(op.equation):
                kernels += self._of_body(op)
                fusion.write(op)
            elif is_kernel(op.equation):
                kernels += self._of_kernel(op, flat.bytes)
                fusion.write(op)
            elif is_reduction(op.equation):
                kernels += runtime(equation_flops(op.equation), fusion.write(op), self._chip)
            else:
                flops += equation_flops(op.equation)
                kernels += sum(runtime(0, each, self._chip) for each in fusion.fuse(op))
        return max(kernels + flops / self._chip.flops_per_second, moved.most / self._link.bandwidth)

    def _of_kernel(self, op: _Op, sizes: Sequence[int]) -> float:
        written = sum(sizes[value] for value in op.results)
        moved = bytes_moved(op.equation, [sizes[value] for value in op.values], written)
        return runtime(equation_flops(op.equation), moved, self._chip)

    def _of_body(self, op: _Op) -> float:
        """Seconds of an equation with inner jaxprs that run."""
        params = op.equation.params
        scan = op.equation.primitive.name == "scan"
        carried = (params["num_consts"] + params["num_carry"], params["num_carry"]) if scan else None
        bodies = {key: Work(0, self._of_inner(jaxpr, carried), 0) for key, jaxpr in inner_jaxprs(params).items()}
        literals = [operand.val if isinstance(operand, core.Literal) else None for operand in op.operands]
        return inner_work(op.equation, bodies, literals).runtime

    def _of_inner(self, inner: Any, carried: tuple[int, int] | None) -> float:
        if id(inner) not in self._bodies:
            jaxpr = inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner
            self._bodies[id(inner)] = inner, self.seconds(jaxpr, carried)
        return self._bodies[id(inner)][1]


class _Copies:
    """Bytes to the host and back."""

    def __init__(self) -> None:
        self._bytes = {True: 0, False: 0}

    def add(self, op: _Op, sizes: Sequence[int]) -> bool:
        """Counts an op if it is such a copy; whether it is."""
        if op.equation.primitive.name != "device_put":
            return False
        for before, after, value in zip(op.equation.invars, op.equation.outvars, op.results, strict=True):
            if _on_host(before) != _on_host(after):
                self._bytes[_on_host(after)] += sizes[value]
        return True

    @property
    def most(self) -> int:
        """Of the two ways."""
        return max(self._bytes.values())


def _on_host(atom: Any) -> bool:
    return getattr(getattr(atom.aval, "memory_space", None), "name", "") == "Host"


class _Fusion:
    """Which values are written, and what it takes to read the others."""

    def __init__(self, flat: _Flat) -> None:
        self._bytes = flat.bytes
        self._flat = flat
        self._readers = Counter(value for op in flat.ops for value in op.values)
        alone = [op for op in flat.ops if op.equation is None or not is_fused(op.equation)]
        self._alone = {value for op in alone for value in op.values}
        self._needed = self._alone | {value for value in flat.results if isinstance(value, Value)}
        self._reads: dict[Value, Reads] = {}  # of what is not written
        self._chains: dict[Value, frozenset[Value]] = {}  # of that, what a reader computes for it

    def copied(self, inputs: int, results: int) -> list[Value]:
        """Of a scan's body what XLA copies from a stack and to one: all that no fused op takes or writes for that only.

        Args:
          inputs: how many come first that are not sliced from stacks.
          results: likewise, not stacked.
        """
        fused = {value for op in self._flat.ops if op.equation and is_fused(op.equation) for value in op.results}
        taken = [value for value in self._flat.inputs[inputs:] if value in self._alone]
        stacked = [value for value in self._flat.results[results:] if isinstance(value, Value)]
        return taken + [value for value in stacked if value not in fused or self._readers[value]]

    def write(self, op: _Op) -> float:
        """Of an op that writes its results: the bytes that it and what is fused into it move."""
        return sum(self._of(op).values()) + sum(self._bytes[value] for value in op.results)

    def fuse(self, op: _Op) -> list[float]:
        """Of a fused op: the bytes that are moved to write those of its results that are written."""
        moved = []
        chains = [self._chains[value] for value in op.values if value in self._chains]
        for i, value in enumerate(op.results):
            reads = self._of(op)
            if op.equation.primitive.name in SLICES:
                reads = self._sliced(op, i, reads)
            size, total, readers = self._bytes[value], sum(reads.values()), self._readers[value]
            chain, dear = chained(value, chains), readers * total > total + (1 + readers) * size
            if value in self._needed or dear or (readers > 1 and len(chain) > LONGEST):
                moved.append(total + size)
            else:
                self._reads[value], self._chains[value] = reads, chain
        return moved

    def _of(self, op: _Op) -> Reads:
        return {key: size for value in op.values for key, size in self._of_value(value).items()}

    def _of_value(self, value: Value) -> Reads:
        return self._reads.get(value, {value: float(self._bytes[value])})

    def _sliced(self, op: _Op, result: int, reads: Reads) -> Reads:
        """Of all that is read the part that a slice takes."""
        whole = self._bytes[op.values[0]] if op.values else 0
        share = min(1.0, self._bytes[op.results[result]] / whole) if whole else 1.0
        return {(key, op.results[result]): share * size for key, size in reads.items()}


def _is_view(equation: Any) -> bool:
    """Whether the result is the operand: of roundings those to the operand's own precision, which jax puts on what a
    checkpoint keeps."""
    if equation.primitive.name != "reduce_precision":
        return equation.primitive.name in VIEWS
    own = jnp.finfo(equation.invars[0].aval.dtype)
    return (equation.params["exponent_bits"], equation.params["mantissa_bits"]) == (own.nexp, own.nmant)


def chained(last: int, chains: Sequence[frozenset[int]]) -> frozenset[int]:
    """What is run for a value on the way: what was run last and what was for that, or as much as makes it too long."""
    longest = max(chains, key=len, default=frozenset[int]())
    return longest if len(longest) > LONGEST else longest.union([last], *chains)


def is_body(equation: Any) -> bool:
    return not equation.primitive.name.startswith(ELEMENT_BODIES) and bool(inner_jaxprs(equation.params))


def is_kernel(equation: Any) -> bool:
    name = equation.primitive.name
    return name in KERNELS or name.startswith("scatter")


def is_reduction(equation: Any) -> bool:
    """Whether it reduces more than rows: those are fused as all else, as in a softmax, which reads its operand once."""
    name = equation.primitive.name
    if not name.startswith(_REDUCTIONS) or name.startswith(_NOT_REDUCTIONS):
        return False
    dimensions = len(equation.invars[0].aval.shape)
    return dimensions == 1 or tuple(equation.params.get("axes", ())) != (dimensions - 1,)


def is_fused(equation: Any) -> bool:
    """Whether what it reads can be fused into it."""
    return not (is_body(equation) or is_kernel(equation) or equation.primitive.name == "device_put")
