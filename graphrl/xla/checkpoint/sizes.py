"""Sizes assumed for symbolic dimensions (`jax.export`) when a plan is made.

A plan depends on bytes and seconds, which symbolic dimensions do not have. So each variable gets a size that the
constraints of its scope allow: the largest if they bound it from above, else the first from `LEAST` up. The program
itself remains symbolic. Sizes replace its dimensions only where it, or its gradient, is analysed.
"""

import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jax import export
from jax.extend import core
from jax.extend.core.primitives import copy_p

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.jaxpr.work import inner_jaxprs

LEAST = 128  # least size of a dimension without an upper bound
LARGEST = 2**40  # largest size that counts as a bound
NEAR = 1024  # number of sizes that are tried one by one, before powers of two
TRIES = 20_000  # most sizes to try for all variables of a program together
# Functions in the text of dimensions. jax allows none of their names for variables, but does allow Python's keywords.
FUNCTIONS = {"floordiv": operator.floordiv, "max": max, "min": min, "mod": operator.mod}
WORD = re.compile(r"[^\W\d]\w*")
COMPARED = re.compile(r"(.+)(==|>=|<=)(.+)")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the symbolic dimensions of a program.

    Attributes:
      by_name: variable -> its size; empty if all dimensions are numbers.
      dimensions: the symbolic dimensions of the program's arrays.
    """

    by_name: Mapping[str, int]
    dimensions: frozenset[Any]
    _values: dict[str, int] = dataclasses.field(default_factory=dict, init=False, repr=False)  # cache, by dimension

    def value(self, dimension: Any) -> int:
        """Returns the size of a dimension, symbolic or not."""
        if not export.is_symbolic_dim(dimension):
            return int(dimension)
        text = str(dimension)
        if text not in self._values:
            self._values[text] = _value(text, self.by_name)
        return self._values[text]

    def concrete(self, closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
        """Returns the jaxpr with numbers in place of symbolic dimensions."""
        return _Concrete(self.value).closed(closed) if self.by_name else closed

    def missing_bounds(self) -> list[str]:
        """Returns constraints that would keep all dimensions within their sizes; empty if their scope implies that."""
        is_bounded = all(holds(operator.le, dim, self.value(dim)) for dim in self.dimensions)
        return [] if is_bounded else [f"{name} <= {size}" for name, size in self.by_name.items()]


def sizes_of(jaxpr: core.Jaxpr) -> Sizes:
    """Chooses sizes for the symbolic dimensions of a traced function.

    Raises:
      GraphrlError: no sizes were found that the constraints of the dimensions allow, or there are several scopes.
    """
    dimensions = frozenset(_dimensions(jaxpr))
    names = sorted({word for dim in dimensions for word in WORD.findall(str(dim))} - {*FUNCTIONS})
    if not names:
        return Sizes({}, dimensions)
    scope, *others = {dim.scope for dim in dimensions}
    if others:
        raise GraphrlError(f"symbolic dimensions {', '.join(names)} have several scopes: must have one")
    constraints = str(scope).splitlines()[1:]  # after the line with its origin
    leasts = {str(dim): 0 for dim in dimensions} | {str(dim): 1 for var in jaxpr.invars for dim in _symbolic(var)}
    tries = itertools.count()

    def search(sizes: dict[str, int], left: list[Any]) -> dict[str, int] | None:
        if not left:
            return sizes if all(_value(text, sizes) >= least for text, least in leasts.items()) else None
        for size in _candidates(left[0]):
            if next(tries) >= TRIES:
                return None
            more = {**sizes, str(left[0]): size}
            if all(_allows(constraint, more) for constraint in constraints) and (complete := search(more, left[1:])):
                return complete
        return None

    sizes = search({}, list(export.symbolic_shape(",".join(names), scope=scope)))
    if sizes is None:
        raise GraphrlError(
            f"no sizes were found for the symbolic dimensions {', '.join(names)} within their constraints "
            f"({'; '.join(line.strip() for line in constraints)}): a plan needs sizes"
        )
    return Sizes(sizes, dimensions)


def _dimensions(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Yields the symbolic dimensions of arrays and parameters in a jaxpr, and in the jaxprs within it."""
    atoms = (*jaxpr.invars, *jaxpr.constvars, *(var for eqn in jaxpr.eqns for var in eqn.outvars))
    for atom in atoms:
        yield from _symbolic(atom)
    for eqn in jaxpr.eqns:
        yield from filter(export.is_symbolic_dim, eqn.params.values())
        for inner in inner_jaxprs(eqn.params).values():
            yield from _dimensions(inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner)


def _symbolic(atom: Any) -> Iterator[Any]:
    """Returns the symbolic dimensions of an array."""
    return filter(export.is_symbolic_dim, getattr(atom.aval, "shape", ()))


def _candidates(variable: Any) -> Iterable[int]:
    """Sizes for a variable, the best first."""
    largest = _first(lambda size: holds(operator.le, variable, size))
    if largest is not None:
        powers = (2**power for power in range(largest.bit_length() - 1, -1, -1))
        return dict.fromkeys([*range(largest, max(0, largest - NEAR), -1), *powers])
    least = max(LEAST, _first(lambda size: not holds(operator.ge, variable, size + 1)) or 1)
    powers = (2**power for power in range(least.bit_length(), LARGEST.bit_length()))
    return dict.fromkeys([*range(least, least + NEAR), *powers, *range(LEAST, 0, -1)])


def _first(is_enough: Callable[[int], bool]) -> int | None:
    """Finds the least size from 1 up with `is_enough(size)`, which must be monotonic; None if there is no such size."""
    powers = (2**power for power in range(LARGEST.bit_length()))
    high = next((power for power in powers if is_enough(power)), None)
    if high is None:
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def holds(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool:
    """True if jax can prove a comparison of dimensions, some of them symbolic, for all sizes."""
    try:
        return bool(compare(left, right))
    except core.InconclusiveDimensionOperation:
        return False


def _allows(constraint: str, sizes: Mapping[str, int]) -> bool:
    """True if a constraint holds for the given sizes, or if it has variables without a size."""
    compared = COMPARED.match(constraint)
    if compared is None or {*WORD.findall(constraint)} - {*FUNCTIONS, *sizes}:
        return True
    left, right = _value(compared[1], sizes), _value(compared[3], sizes)
    return left == right if compared[2] == "==" else left >= right if compared[2] == ">=" else left <= right


def _value(text: str, sizes: Mapping[str, int]) -> int:
    """Evaluates an expression of dimensions in jax's syntax, which is Python's except for powers."""

    def written(word: re.Match[str]) -> str:
        return word[0] if word[0] in FUNCTIONS else str(sizes[word[0]])

    return int(eval(WORD.sub(written, text).strip().replace("^", "**"), {"__builtins__": {}, **FUNCTIONS}))


class _Concrete:
    """Replaces symbolic dimensions by numbers in jaxprs; jaxprs that are shared remain shared."""

    def __init__(self, value: Callable[[Any], int]) -> None:
        self._value = value
        self._done: dict[int, tuple[Any, Any]] = {}  # by identity, with the jaxpr, so that its id is not reused

    def closed(self, closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
        if id(closed) not in self._done:
            self._done[id(closed)] = closed, core.ClosedJaxpr(self._jaxpr(closed.jaxpr), closed.consts)
        return self._done[id(closed)][1]

    def _jaxpr(self, jaxpr: core.Jaxpr) -> core.Jaxpr:
        if id(jaxpr) not in self._done:
            self._done[id(jaxpr)] = jaxpr, self._new(jaxpr)
        return self._done[id(jaxpr)][1]

    def _new(self, jaxpr: core.Jaxpr) -> core.Jaxpr:
        atoms: dict[Any, Any] = {}

        def bound(variables: Iterable[Any]) -> list[Any]:
            new = {var: type(var)(self._aval(var.aval)) for var in variables}
            atoms.update(new)
            return list(new.values())

        def read(atoms_read: Iterable[Any]) -> list[Any]:
            return [atom if isinstance(atom, core.Literal) else atoms[atom] for atom in atoms_read]

        outside, equations = (bound(jaxpr.constvars), bound(jaxpr.invars)), []
        for eqn in jaxpr.eqns:
            operands, params, primitive = read(eqn.invars), self._params(eqn.params), eqn.primitive
            results = bound(eqn.outvars)
            if primitive.name == "dim_as_value":
                (aval,) = (var.aval for var in results)
                atoms[eqn.outvars[0]] = number = core.Literal(np.asarray(params["dim"], aval.dtype)[()], aval)
                operands, params, primitive = [number], {}, copy_p
            equations.append(eqn.replace(primitive=primitive, invars=operands, outvars=results, params=params))
        return jaxpr.replace(constvars=outside[0], invars=outside[1], outvars=read(jaxpr.outvars), eqns=equations)

    def _params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._param(value) for name, value in params.items()}

    def _param(self, value: Any) -> Any:
        if export.is_symbolic_dim(value):
            return self._value(value)
        if isinstance(value, core.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, core.Jaxpr):
            return self._jaxpr(value)
        if hasattr(value, "shape") and hasattr(value, "update"):
            return self._aval(value)
        if isinstance(value, tuple | list):
            items = [self._param(item) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                return value._make(items) if hasattr(value, "_make") else type(value)(items)
        return value

    def _aval(self, aval: Any) -> Any:
        shape = getattr(aval, "shape", ())
        symbolic = any(map(export.is_symbolic_dim, shape))
        return aval.update(shape=tuple(map(self._param, shape))) if symbolic else aval
