"""A jaxpr with its calls inlined and equal equations merged, as XLA computes it."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from graphrl.graphs.readers.jaxpr.flatten import called
from graphrl.graphs.readers.jaxpr.flops import array_bytes
from graphrl.xla.checkpoint import ties
from graphrl.xla.checkpoint.kinds import is_view

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
            elif equation.primitive.name == ties.NAME:
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
