"""Fusion of a jaxpr's equations, as XLA does it on an accelerator.

- Kinds of equations (`is_view` to `part_read`): kernels, loops, views, slices, reductions, updates in place, and what
  is fused into its readers.
- `Inlined`: a jaxpr with its calls inlined and equal equations merged, as XLA computes it.
- `Fusing`: which values of it are written to memory, and what it takes to read the others.

`memory` uses this for the bytes and seconds of choices, `seconds` for the time of a traced gradient.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from graphrl.graphs.readers.jaxpr.flatten import ELEMENT_BODIES, called
from graphrl.graphs.readers.jaxpr.work import PARTIAL_READS, array_bytes, inner_jaxprs
from graphrl.xla.checkpoint import primitives

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
PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
_REDUCTIONS = ("argmax", "argmin", "reduce")
_NOT_REDUCTIONS = ("reduce_precision", "reduce_window", "reduce_scatter")
# The same bytes under another name or shape; layouts are the compiler's to choose.
VIEWS = frozenset(
    str.split(
        """
        after bitcast_convert_type copy copy_p expand_dims loaded name optimization_barrier pvary reduce_precision
        reshape sharding_constraint squeeze stop_gradient transpose
        """
    )
)
SLICES = PARTIAL_READS | {"split", "unstack"}
ONCE = frozenset({"tanh"})  # of what is fused, what XLA's model of cost has dearer than to write it and read it again


def is_view(equation: Any) -> bool:
    """Whether the result is the operand: of roundings those to the operand's own precision, which jax puts on what a
    checkpoint keeps."""
    if equation.primitive.name != "reduce_precision":
        return equation.primitive.name in VIEWS
    own = jnp.finfo(equation.invars[0].aval.dtype)
    return (equation.params["exponent_bits"], equation.params["mantissa_bits"]) == (own.nexp, own.nmant)


def is_body(equation: Any) -> bool:
    return not equation.primitive.name.startswith(ELEMENT_BODIES) and bool(inner_jaxprs(equation.params))


def is_kernel(equation: Any) -> bool:
    return equation.primitive.name in KERNELS or is_scatter(equation)


def is_scatter(equation: Any) -> bool:
    """Whether it changes some elements of its first operand."""
    return equation.primitive.name.startswith("scatter")


def is_fill(equation: Any) -> bool:
    """Whether the result is one number everywhere."""
    return equation.primitive.name == "broadcast_in_dim" and equation.invars[0].aval.size == 1


def is_product(equation: Any) -> bool:
    """Whether it is linear in each of two different variables; its gradients are kernels that read the other one."""
    return equation.primitive.name in PRODUCTS and is_of_variables(equation)


def is_of_variables(equation: Any) -> bool:
    """Whether its operands are different variables, and it runs where all else does."""
    own = [atom for atom in equation.invars if not isinstance(atom, core.Literal)]
    return len({*own}) == len(equation.invars) and getattr(equation.ctx, "compute_type", None) is None


def is_reduction(equation: Any) -> bool:
    """Whether it reduces more than rows: those are fused as all else, as in a softmax, which reads its operand once."""
    return _reduces(equation) and not is_of_rows(equation)


def is_of_rows(equation: Any) -> bool:
    """Whether it reduces rows."""
    dimensions = len(equation.invars[0].aval.shape) if _reduces(equation) else 0
    return dimensions > 1 and tuple(equation.params.get("axes", ())) == (dimensions - 1,)


def _reduces(equation: Any) -> bool:
    name = equation.primitive.name
    return bool(name.startswith(_REDUCTIONS)) and not name.startswith(_NOT_REDUCTIONS)


def is_fused(equation: Any) -> bool:
    """Whether what it reads can be fused into it."""
    return not (is_body(equation) or is_kernel(equation) or equation.primitive.name == "device_put")


def is_in_place(equation: Any) -> bool:
    """Whether XLA can write the result over an operand of as many bytes that nothing else reads any more."""
    return is_fused(equation) or is_update(equation)


def is_update(equation: Any) -> bool:
    """Whether XLA writes the result over the first operand, if nothing else reads that any more."""
    return is_scatter(equation) or equation.primitive.name == "dynamic_update_slice"


def part_read(equation: Any, whole: float, result: float) -> float:
    """The part of its first operand's bytes that a slice reads, of so many bytes each: a strided one all the lines that
    its elements lie in.
    """
    strided = any(stride > 1 for stride in equation.params.get("strides") or ())
    return 1.0 if strided or not whole else min(1.0, result / whole)


Value = int  # the place of a value's bytes among all


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
        """Its operands without literals, each once."""
        return list(dict.fromkeys(operand for operand in self.operands if isinstance(operand, Value)))


class Inlined:
    """A jaxpr with its calls inlined and equal equations merged.

    Attributes:
      bytes: of each value.
      ops: in order.
      inputs: values of the arguments.
      results: values and literals.
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
        """Adds the ops of a jaxpr; gives its results, values or literals."""
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
        """The operands, where they are barred as values that equal no others."""
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
    """Of a call's operands those that XLA shall not take for what was computed before: a backward pass's."""
    barred = equation.params.get("differentiated", False) and equation.params.get("prevent_cse", False)
    return [barred] * len(equation.invars) if isinstance(barred, bool) else barred


def key_of(equation: Any, operands: Sequence[Any]) -> Hashable:
    """Equal for equations that compute the same; operands are literals, or what stands for values."""
    own = (id(equation),)
    read = tuple(_literal(atom) if isinstance(atom, core.Literal) else atom for atom in operands)
    key = (equation.primitive, tuple(sorted(equation.params.items(), key=lambda item: item[0])), read)
    try:
        hash(key)
    except TypeError:  # a parameter that only equals itself
        return own
    return own if equation.effects else key


def _literal(atom: core.Literal) -> Hashable:
    value = np.asarray(atom.val)
    return (value.item(), value.dtype.name) if value.ndim == 0 else id(atom)


LONGEST = 52  # equations that are run for a value on the way by each of its readers: found on associative scans

Reads = Mapping[Hashable, float]  # bytes by value, and by slice of it
Chain = frozenset[tuple[int, ...]]  # equations, each behind the slices that are taken of what it computes


class Fusing:
    """Which values are written, and what it takes to read the others."""

    def __init__(self, flat: Inlined) -> None:
        self._bytes = flat.bytes
        self._flat = flat
        self._readers = Counter(value for op in flat.ops for value in op.values)
        alone = [op for op in flat.ops if op.equation is None or not is_fused(op.equation)]
        filled = {value for op in flat.ops if op.equation and is_fill(op.equation) for value in op.results}
        self._alone = {value for op in alone for value in op.values if value not in filled or not _fills(op, value)}
        self._needed = self._alone | {value for value in flat.results if isinstance(value, Value)}
        self._reads: dict[Value, Reads] = {}  # of what is not written
        self._chains: dict[Value, Chain] = {}  # of that, what a reader computes for it

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

    def write(self, op: Op) -> float:
        """Of an op that writes its results: the bytes that it and what is fused into it move."""
        return sum(self._of(op).values()) + sum(self._bytes[value] for value in op.results)

    def fuse(self, op: Op) -> list[float]:
        """Of a fused op: the bytes that are moved to write those of its results that are written."""
        moved = []
        chains = [self._chains[value] for value in op.values if value in self._chains]
        for i, value in enumerate(op.results):
            reads = self._of(op)
            if op.equation.primitive.name in SLICES:
                reads = self._sliced(op, i, reads)
            size, total, readers = self._bytes[value], sum(reads.values()), self._readers[value]
            chain, dear = chained(value, op.equation, chains), readers * total > total + (1 + readers) * size
            if value in self._needed or dear or (readers > 1 and is_once(op.equation, chain)):
                moved.append(total + size)
            else:
                self._reads[value], self._chains[value] = reads, chain
        return moved

    def _of(self, op: Op) -> Reads:
        return {key: size for value in op.values for key, size in self._of_value(value).items()}

    def _of_value(self, value: Value) -> Reads:
        return self._reads.get(value, {value: float(self._bytes[value])})

    def _sliced(self, op: Op, result: int, reads: Reads) -> Reads:
        """Of all that is read the part that a slice takes."""
        whole = self._bytes[op.values[0]] if op.values else 0
        share = part_read(op.equation, whole, self._bytes[op.results[result]])
        return {(key, op.results[result]): share * size for key, size in reads.items()}


def _fills(op: Op, value: Value) -> bool:
    """Whether an op only fills its result with such a value, which is one number everywhere."""
    if not op.equation or not is_scatter(op.equation):
        return False
    filled, *others = op.operands
    return filled == value and value not in others


def is_once(equation: Any, chain: Chain) -> bool:
    """Whether XLA computes a value once for several readers, though they would move fewer bytes."""
    return len(chain) > LONGEST or equation.primitive.name in ONCE


def chained(last: int, equation: Any, chains: Sequence[Chain], most: int = LONGEST) -> Chain:
    """What is run for a value on the way: what was run last and what was for that, or as much as is more than `most`.

    Two slices of one value are of different elements, so that what is run for both is run for each.
    """
    longest = max(chains, key=len, default=Chain())
    if len(longest) > most:
        return longest
    run = longest.union(*chains)
    if equation.primitive.name in SLICES:
        run = Chain((last, *key) for key in run)
    return run.union([(last,)])
