"""What one device of several runs: a jaxpr with the shapes of shards, and collectives as equations.

Plans need one device's bytes and seconds. `one_device` gives them to gradients, fusion, memory and time without a
second model:

1. *Cost of an equation*: its share of the work. A mesh axis splits the factor that most operands and results are split
   by (`Shards.execution`); operands that are split otherwise are gathered first.
2. *Collectives* become equations (`COLLECTIVE`) with their own seconds, by the bandwidth of the link: gathers of
   operands, sums of partial results, moves between dimensions. Explicit ones get seconds too, around the function or in
   a `shard_map` within it.
3. A recomputation repeats the collectives among its equations. A product's operand that must be gathered, such as a
   fully sharded weight, gets an equation of its own in the program (`program.with_gathers`): it can be kept by name as
   any other value. XLA decides how to gather it, unless a plan keeps it (`primitives.pinned`).
4. Overlap of collectives with computation is not modelled: seconds are an upper bound.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from graphrl.graphs.readers.jaxpr.work import array_bytes, inner_jaxprs, scan_operands
from graphrl.xla.checkpoint.primitives import COLLECTIVE
from graphrl.xla.checkpoint.shards import (
    CONSTRAINTS,
    PAIRED,
    Layout,
    Scope,
    Shards,
    Spec,
    replicated,
    spec_of,
    typed_spec,
)

EXPLICIT = {  # jax's collectives: share of the operand's or result's bytes on the link, and whether it is the result's
    "all_gather": (1.0, True), "all_gather_invariant": (1.0, True), "all_to_all": (1.0, False), "pmax": (2.0, False),
    "pmin": (2.0, False), "ppermute": (1.0, False), "psum": (2.0, False), "psum_invariant": (2.0, False),
    "reduce_scatter": (1.0, False),
}  # fmt: skip
TAKE = "take"  # each device takes its part of what it has


class Move(NamedTuple):
    """A step between two ways to split an array.

    Attributes:
      kind: a collective, or `TAKE`.
      axes: the mesh axes over which it goes.
      spec: how the array is split afterwards.
      bytes: of a device, with its own part.
    """

    kind: str
    axes: tuple[str, ...]
    spec: Spec
    bytes: float


def one_device(shards: Shards, closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Returns a jaxpr with the shapes of one device's shards, and collectives as equations. It cannot be run.

    Args:
      shards: how its values are split.
      closed: the jaxpr.
    """
    jaxpr = _Emitter(shards, shards.scope).jaxpr([shards.spec(atom) for atom in closed.jaxpr.outvars])
    return core.ClosedJaxpr(jaxpr, closed.consts)


def moves(layout: Layout, aval: Any, have: Spec, want: Spec) -> list[Move]:
    """Returns the steps by which an array that is split as in `have` becomes split as in `want`."""
    if have == want:
        return []
    steps = []
    before, after = {*itertools.chain(*have)}, {*itertools.chain(*want)}
    spec = tuple((*h, *(axis for axis in w if axis not in before)) for h, w in zip(have, want, strict=True))
    if spec != have:
        steps.append(Move(TAKE, (), spec, 0.0))
    exchanged = tuple(axis for s, w in zip(spec, want, strict=True) for axis in s if axis in after and axis not in w)
    if exchanged:
        there = tuple(
            (*(axis for axis in s if axis not in exchanged), *(axis for axis in w if axis in exchanged))
            for s, w in zip(spec, want, strict=True)
        )
        steps.append(Move("all_to_all", exchanged, there, layout.bytes(aval, spec)))
    lost = tuple(axis for s in have for axis in s if axis not in after)
    if lost:
        steps.append(Move("all_gather", lost, want, layout.bytes(aval, want)))
    return steps


def collective_seconds(layout: Layout, axes: Sequence[str], size: float) -> float:
    """Returns the seconds of a collective over mesh axes that moves `size` bytes of a device, less its own part."""
    devices = layout.count(axes)
    return layout.seconds(axes, size * (devices - 1) / devices) if devices > 1 else 0.0


def link_seconds(eqn: Any) -> float:
    """Returns the seconds of the collectives in an equation from `one_device`; of branches, all count."""
    if eqn.primitive is COLLECTIVE:
        return float(eqn.params["seconds"])
    bodies = [getattr(inner, "jaxpr", inner) for inner in inner_jaxprs(eqn.params).values()]
    trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return trips * sum(link_seconds(each) for body in bodies for each in body.eqns)


class _Emitter:
    """Writes the equations that one device runs for a scope."""

    def __init__(self, shards: Shards, scope: Scope) -> None:
        self._shards, self._layout, self._scope = shards, shards.layout, scope
        self._new: dict[Any, Any] = {}  # variable -> variable of the new jaxpr
        self._moved: dict[tuple[Any, Spec], Any] = {}  # new variable, and how it is split then -> new variable
        self._equations: list[Any] = []

    def jaxpr(self, results: Sequence[Spec]) -> core.Jaxpr:
        """Writes the whole jaxpr, whose results are split as given."""
        old = self._scope.jaxpr
        outside = [[self._defined(var, self._spec(var)) for var in some] for some in (old.constvars, old.invars)]
        for place, eqn in enumerate(old.eqns):
            self._equation(place, eqn)
        pairs = zip(old.outvars, results, strict=True)
        outputs = [self._split_as(atom, spec, old.eqns[-1]) if old.eqns else self._read(atom) for atom, spec in pairs]
        return old.replace(constvars=outside[0], invars=outside[1], outvars=outputs, eqns=self._equations)

    def _equation(self, place: int, eqn: Any) -> None:
        if place in self._scope.ops:
            op = self._scope.ops[place]
            split = self._shards.execution(op)
            targets = self._shards.targets(op, split)
            sums = tuple(axis for factor, axes in split.items() if factor in op.factors.summed for axis in axes)
            count = len(eqn.invars)
            if eqn.primitive.name in CONSTRAINTS:
                targets, sums = [self._spec(eqn.outvars[0])] * 2, ()
            self._write(eqn, targets[:count], targets[count:], sums)
        elif eqn.primitive.name == "shard_map":
            ranks = [len(getattr(atom.aval, "shape", ())) for atom in (*eqn.invars, *eqn.outvars)]
            specs = [*map(spec_of, (*eqn.params["in_specs"], *eqn.params["out_specs"]), ranks)]
            body = core.ClosedJaxpr(eqn.params["jaxpr"], ())  # it has the shapes of shards
            inputs = [typed_spec(var.aval) or replicated(var.aval) for var in body.jaxpr.invars]
            params = {"jaxpr": one_device(Shards(body, self._layout, inputs), body).jaxpr}
            self._write(eqn, specs[: len(eqn.invars)], specs[len(eqn.invars) :], params=params)
        elif eqn.primitive.name in PAIRED:
            results = [*map(self._spec, eqn.outvars)]
            self._write(eqn, [*results, *map(self._spec, eqn.invars[len(results) :])], results)
        elif eqn.primitive.name == "scan":
            self._scan(eqn, self._scope.inner[place]["jaxpr"])
        else:
            self._inner(eqn, self._scope.inner[place])

    def _scan(self, eqn: Any, inner: Scope) -> None:
        consts, carried = scan_operands(eqn.params)
        given = [self._shards.spec(var, inner) for var in inner.jaxpr.invars]
        carry = given[consts : consts + carried]
        returned = [*carry, *(self._shards.spec(out, inner) for out in inner.jaxpr.outvars[carried:])]
        body = core.ClosedJaxpr(_Emitter(self._shards, inner).jaxpr(returned), eqn.params["jaxpr"].consts)
        stacked = [((), *spec) for spec in given[consts + carried :]]
        results = [*carry, *(((), *spec) for spec in returned[carried:])]
        self._write(eqn, [*given[: consts + carried], *stacked], results, params={"jaxpr": body})

    def _inner(self, eqn: Any, inner: Mapping[str, Scope]) -> None:
        """Writes a call, a branch or a `while`."""
        name = eqn.primitive.name
        first = inner["body_jaxpr"] if name == "while" else next(iter(inner.values()))
        given = [self._shards.spec(var, first) for var in first.jaxpr.invars]
        results = [self._spec(var) for var in eqn.outvars]
        if name == "while":
            carry = given[eqn.params["body_nconsts"] :]
            given, results = [*map(self._spec, eqn.invars[: -len(carry) or None]), *carry], carry
        elif name == "cond":
            given = [replicated(eqn.invars[0].aval), *given]
        params: dict[str, Any] = {}
        for key, scope in inner.items():
            old = inner_jaxprs(eqn.params)[key]
            out = [self._shards.spec(var, scope) for var in scope.jaxpr.outvars] if key == "cond_jaxpr" else results
            new: Any = _Emitter(self._shards, scope).jaxpr(out)
            new = core.ClosedJaxpr(new, old.consts) if isinstance(old, core.ClosedJaxpr) else new
            param, _, number = key.partition(".")
            if number:
                items = [*params.get(param, eqn.params[param])]
                items[int(number)] = new
                params[param] = tuple(items)
            elif isinstance(eqn.params[param], type(old)):  # else a high-level primitive, which stays as it is
                params[param] = new
        self._write(eqn, given, results, params=params)

    def _write(
        self,
        eqn: Any,
        operands: Sequence[Spec],
        results: Sequence[Spec],
        sums: Sequence[str] = (),
        params: Mapping[str, Any] = {},
    ) -> None:
        """Writes an equation.

        Args:
          eqn: the equation with global shapes.
          operands, results: how it needs its operands to be split, and how its results are then.
          sums: mesh axes over which its results are still to be summed.
          params: parameters that differ.
        """
        read = [self._split_as(atom, spec, eqn) for atom, spec in zip(eqn.invars, operands, strict=True)]
        written = [self._variable(var, spec) for var, spec in zip(eqn.outvars, results, strict=True)]
        moved = _explicit_bytes(eqn, self._layout)
        if moved:
            axes, size = moved
            self._collective(eqn.primitive.name, read, written, axes, size, eqn)
        else:
            self._equations.append(eqn.replace(invars=read, outvars=written, params={**eqn.params, **params}))
        for var, new, spec in zip(eqn.outvars, written, results, strict=True):
            final = self._spec(var)
            if sums:
                new, spec = self._summed(new, var.aval, spec, final, sums, eqn)
            self._new[var] = self._resharded(new, var.aval, spec, final, eqn)

    def _summed(
        self, value: Any, aval: Any, spec: Spec, final: Spec, sums: Sequence[str], eqn: Any
    ) -> tuple[Any, Spec]:
        """Sums partial results over devices, scattered where the final value is split over these."""
        scattered = tuple(axis for axis in sums if axis in itertools.chain(*final))
        rest = tuple(axis for axis in sums if axis not in scattered)
        if scattered:
            after = tuple(
                (*have, *(axis for axis in want if axis in scattered)) for have, want in zip(spec, final, strict=True)
            )
            moved = self._layout.bytes(aval, spec)
            value, spec = self._sent("reduce_scatter", value, aval, after, scattered, moved, eqn), after
        if rest:
            value = self._sent("psum", value, aval, spec, rest, 2 * self._layout.bytes(aval, spec), eqn)
        return value, spec

    def _split_as(self, atom: Any, spec: Spec, eqn: Any) -> Any:
        """Returns an atom of the old jaxpr in the new one, split as given."""
        if isinstance(atom, core.Literal):
            return atom
        return self._resharded(self._new[atom], atom.aval, self._spec(atom), spec, eqn)

    def _resharded(self, value: Any, aval: Any, have: Spec, want: Spec, eqn: Any) -> Any:
        """Returns a value, split as in `want` instead of `have`; moves between devices become equations."""
        if have == want:
            return value
        if (value, want) not in self._moved:
            self._moved[value, want] = self._resharded_now(value, aval, have, want, eqn)
        return self._moved[value, want]

    def _resharded_now(self, value: Any, aval: Any, have: Spec, want: Spec, eqn: Any) -> Any:
        for move in moves(self._layout, aval, have, want):
            if move.kind == TAKE:
                part = self._variable_of(aval, move.spec)
                take = eqn.replace(
                    primitive=jax.lax.dynamic_slice_p, invars=[value], outvars=[part], params={}, effects=frozenset()
                )
                self._equations.append(take)
                value = part
            else:
                value = self._sent(move.kind, value, aval, move.spec, move.axes, move.bytes, eqn)
        return value

    def _sent(self, kind: str, value: Any, aval: Any, spec: Spec, axes: Sequence[str], size: float, eqn: Any) -> Any:
        """Writes a collective that moves `size` bytes of a device, less its own part; returns its result."""
        result = self._variable_of(aval, spec)
        self._collective(kind, [value], [result], axes, size, eqn)
        return result

    def _collective(
        self, kind: str, operands: list[Any], results: list[Any], axes: Sequence[str], size: float, eqn: Any
    ) -> None:
        params = {"kind": kind, "axes": tuple(axes), "seconds": collective_seconds(self._layout, axes, size)}
        self._equations.append(
            eqn.replace(primitive=COLLECTIVE, invars=operands, outvars=results, params=params, effects=frozenset())
        )

    def _spec(self, atom: Any) -> Spec:
        return self._shards.spec(atom, self._scope)

    def _read(self, atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else self._new[atom]

    def _defined(self, var: Any, spec: Spec) -> Any:
        self._new[var] = self._variable(var, spec)
        return self._new[var]

    def _variable(self, var: Any, spec: Spec) -> Any:
        return type(var)(self._local(var.aval, spec))

    def _variable_of(self, aval: Any, spec: Spec) -> Any:
        return core.Var(self._local(aval, spec))

    def _local(self, aval: Any, spec: Spec) -> Any:
        """Returns the type of one device's part of an array."""
        if not isinstance(aval, jax.core.ShapedArray) or not any(spec):
            return aval
        shape = tuple(-(-size // self._layout.count(axes)) for size, axes in zip(aval.shape, spec, strict=True))
        return jax.core.ShapedArray(shape, aval.dtype, aval.weak_type)


def _explicit_bytes(eqn: Any, layout: Layout) -> tuple[tuple[str, ...], float] | None:
    """Returns the mesh axes of one of jax's collectives, and the bytes that it moves; None for other equations."""
    if eqn.primitive.name not in EXPLICIT:
        return None
    factor, of_result = EXPLICIT[eqn.primitive.name]
    names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    axes = tuple(axis for axis in ((names,) if isinstance(names, str) else names) if axis in layout.sizes)
    return axes, factor * sum(array_bytes(atom.aval) for atom in (eqn.outvars if of_result else eqn.invars))
