"""Sharded programs: a traced function as one of several devices runs it.

Under `jax.jit` with shardings a function is traced with global shapes, and XLA decides how intermediates are split.
Plans need one device's bytes and seconds:

1. *Shardings of intermediates* (`Shards`): those of explicit mesh axes are in the types. Else they spread, as in XLA's
   partitioner, from the arguments and `with_sharding_constraint`s along the factors of equations (`factors.py`),
   forward and backward, largest arrays first. Nothing is compiled. Tests compare them with XLA's own.
2. *Cost of an equation*: its share of the work. A mesh axis splits the factor that most operands and results are split
   by (of several, the one with most bytes); operands that are split otherwise are gathered first.
3. *Collectives* become equations (`COLLECTIVE`) with their own seconds, by the bandwidth of the link: gathers of
   operands, sums of partial results, moves between dimensions. Explicit ones, as in `shard_map`, get seconds too.
4. So gradients, fusion, memory and time are those of `one_device(...)`, with the shapes of shards and no second model.
5. A recomputation repeats the collectives among its equations. A product's operand that must be gathered, such as a
   fully sharded weight, gets an equation of its own in the program (`program.with_gathers`): it can be kept by name as
   any other value. XLA decides how to gather it, unless a plan keeps it (`primitives.pinned`).
6. Overlap of collectives with computation is not modelled: seconds are an upper bound.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from graphrl.graphs.readers.jaxpr.flatten import called
from graphrl.graphs.readers.jaxpr.work import array_bytes, inner_jaxprs, scan_operands
from graphrl.graphs.roofline import Interconnect
from graphrl.xla.checkpoint.equations import PRODUCTS
from graphrl.xla.checkpoint.factors import Factors, factors_of, identity
from graphrl.xla.checkpoint.primitives import COLLECTIVE, GATHERED, NAME

Spec = tuple[tuple[str, ...], ...]  # for each dimension, the mesh axes that split it
Key = int  # number of a value among all values of a jaxpr and of the jaxprs in it
SWEEPS = 8  # most sweeps over the equations until shardings have spread
CONSTRAINTS = frozenset({"reshard", "sharding_constraint", GATHERED})
PAIRED = frozenset({NAME, "optimization_barrier"})  # each result is the operand of the same number
EXPLICIT = {  # jax's collectives: share of the operand's or result's bytes on the link, and whether it is the result's
    "all_gather": (1.0, True), "all_gather_invariant": (1.0, True), "all_to_all": (1.0, False), "pmax": (2.0, False),
    "pmin": (2.0, False), "ppermute": (1.0, False), "psum": (2.0, False), "psum_invariant": (2.0, False),
    "reduce_scatter": (1.0, False),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layout:
    """The devices that share a program.

    Attributes:
      sizes: mesh axis -> number of devices along it.
      links: mesh axis -> the link between these devices.
      mesh: the mesh, of devices or abstract, to which shardings in the program refer.
    """

    sizes: Mapping[str, int]
    links: Mapping[str, Interconnect]
    mesh: Any

    def count(self, axes: Iterable[str]) -> int:
        """Returns the number of devices along mesh axes together."""
        return math.prod(self.sizes[axis] for axis in axes)

    def sharding(self, spec: Spec | None) -> NamedSharding | None:
        """Returns the sharding of an array on the mesh; None if it is not known how the array is split."""
        return None if spec is None else NamedSharding(self.mesh, PartitionSpec(*(axes or None for axes in spec)))

    @property
    def is_automatic(self) -> bool:
        """True if XLA decides on shardings: if no axis of the mesh is in types or in a `shard_map`."""
        return {*self.mesh.axis_types} == {AxisType.Auto}

    def seconds(self, axes: Iterable[str], moved: float) -> float:
        """Returns the seconds in which each device sends `moved` bytes over the slowest link of the axes."""
        links = [self.links[axis] for axis in axes]
        latency, bandwidth = max(link.latency for link in links), min(link.bandwidth for link in links)
        return latency + moved / bandwidth

    def bytes(self, aval: Any, spec: Spec) -> float:
        return array_bytes(aval) / self.count(itertools.chain(*spec))


def replicated(aval: Any) -> Spec:
    return ((),) * len(getattr(aval, "shape", ()))


def spec_of(partition: PartitionSpec | None, rank: int) -> Spec:
    """Converts a `PartitionSpec` for an array with `rank` dimensions."""
    parts = [*(partition or ())][:rank]
    axes = [() if part is None or part is PartitionSpec.UNCONSTRAINED else part for part in parts]
    split = [(each,) if isinstance(each, str) else tuple(each) for each in axes]
    return (*split, *((),) * (rank - len(split)))


def typed_spec(aval: Any) -> Spec | None:
    """Returns how an array with explicit mesh axes in its type is split; None for others."""
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if sharding is None or mesh is None or mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return None
    return spec_of(sharding.spec, len(aval.shape))


class _Op(NamedTuple):
    """An equation, or values of a loop that are split alike: tensors (operands first), their number, and factors."""

    tensors: list[Key]
    operands: int
    factors: Factors


class _Scope(NamedTuple):
    """A jaxpr at one place: the keys of its variables, its ops by equation, and the scopes of its inner jaxprs."""

    jaxpr: core.Jaxpr
    keys: dict[Any, Key]
    ops: dict[int, _Op]
    inner: dict[int, dict[str, "_Scope"]]


class Shards:
    """How the values of a jaxpr are split over devices.

    Args:
      closed: the jaxpr.
      layout: sizes of the mesh axes.
      arguments: how the arguments are split.
      results: how results are split; None where that is not known.
    """

    def __init__(
        self, closed: core.ClosedJaxpr, layout: Layout, arguments: Sequence[Spec], results: Sequence[Spec | None] = ()
    ) -> None:
        self.layout, self.arguments = layout, tuple(arguments)
        self._avals: list[Any] = []
        self._specs: list[list[tuple[str, ...]]] = []
        self._pinned: list[bool] = []
        self._ops: list[_Op] = []
        constants = [self._value(var.aval, replicated(var.aval)) for var in closed.jaxpr.constvars]
        inputs = [self._value(var.aval, spec) for var, spec in zip(closed.jaxpr.invars, arguments, strict=True)]
        self._scope = self._scope_of(closed.jaxpr, [*constants, *inputs])
        for atom, spec in zip(closed.jaxpr.outvars, results, strict=False):
            if spec is not None and not isinstance(atom, core.Literal):
                self._pin(self._scope.keys[atom], spec)
        self._spread_all()

    @property
    def results(self) -> tuple[Spec, ...]:
        """How the results of the jaxpr are split."""
        return tuple(map(self.spec, self._scope.jaxpr.outvars))

    def spec(self, atom: Any, scope: _Scope | None = None) -> Spec:
        """Returns how a value of the jaxpr (by default) or of an inner one is split."""
        if isinstance(atom, core.Literal):
            return replicated(atom.aval)
        return self._at((scope or self._scope).keys[atom])

    def of_body(self, place: int) -> list[Spec]:
        """Returns how the arguments of the body of the scan at `place` are split."""
        scope = self._scope.inner[place]["jaxpr"]
        return [self.spec(var, scope) for var in scope.jaxpr.invars]

    def gathers(self, place: int) -> list[tuple[int, Spec]]:
        """Returns for the product at `place` the operands that are gathered, and how they are split afterwards."""
        op = self._scope.ops.get(place)
        if op is None or self._scope.jaxpr.eqns[place].primitive.name not in PRODUCTS:
            return []
        targets = self._targets(op, self._execution(op))
        return [
            (k, target)
            for k, (key, target) in enumerate(zip(op.tensors[: op.operands], targets, strict=False))
            if key >= 0 and set(itertools.chain(*self._at(key))) > set(itertools.chain(*target))
        ]

    # Shardings spread.

    def _at(self, key: Key) -> Spec:
        return tuple(self._specs[key])

    def _value(self, aval: Any, spec: Spec | None = None) -> Key:
        typed = typed_spec(aval)
        self._avals.append(aval)
        self._specs.append(list(spec or typed or replicated(aval)))
        self._pinned.append(spec is not None or typed is not None)
        return len(self._avals) - 1

    def _pin(self, key: Key, spec: Spec) -> None:
        if not self._pinned[key]:
            self._specs[key], self._pinned[key] = list(spec), True

    def _scope_of(self, jaxpr: core.Jaxpr, inputs: Sequence[Key]) -> _Scope:
        """Numbers the values of a jaxpr and those in it, and collects its ops."""
        keys: dict[Any, Key] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))
        scope = _Scope(jaxpr, keys, {}, {})

        def read(atoms: Iterable[Any]) -> list[Key]:
            return [-1 if isinstance(atom, core.Literal) else keys[atom] for atom in atoms]

        for place, eqn in enumerate(jaxpr.eqns):
            operands = read(eqn.invars)
            call = called(eqn)
            if call is not None and len(call[0].constvars) == len(call[1]):
                constants = [self._value(var.aval, replicated(var.aval)) for var in call[0].constvars]
                ((name, _),) = inner_jaxprs(eqn.params).items()
                given = [self._value(eqn.invars[k].aval) if key < 0 else key for k, key in enumerate(operands)]
                inner = self._scope_of(call[0], [*constants, *given])
                scope.inner[place] = {name: inner}
                outputs = zip(eqn.outvars, call[0].outvars, strict=True)
                keys.update(
                    (var, self._value(var.aval) if isinstance(out, core.Literal) else inner.keys[out])
                    for var, out in outputs
                )
                continue
            results = [self._value(var.aval) for var in eqn.outvars]
            keys.update(zip(eqn.outvars, results, strict=True))
            if eqn.primitive.name == "scan":
                self._scan(scope, place, eqn, operands, results)
            elif eqn.primitive.name in ("cond", "while"):
                self._branches(scope, place, eqn, operands, results)
            elif eqn.primitive.name == "shard_map":
                specs = (*eqn.params["in_specs"], *eqn.params["out_specs"])
                for key, spec in zip((*operands, *results), specs, strict=True):
                    if key >= 0:
                        self._pin(key, spec_of(spec, len(self._avals[key].shape)))
            elif eqn.primitive.name in PAIRED:
                for operand, result in zip(operands, results, strict=False):
                    self._alike(operand, result)
            else:
                op = _Op([*operands, *results], len(operands), factors_of(eqn))
                scope.ops[place] = op
                self._ops.append(op)
                if eqn.primitive.name in CONSTRAINTS:
                    self._constrain(eqn, results[0])
        return scope

    def _constrain(self, eqn: Any, result: Key) -> None:
        sharding = eqn.params.get("sharding", eqn.params.get("dst_sharding"))
        if not isinstance(sharding, NamedSharding):
            return
        spec = spec_of(sharding.spec, len(eqn.outvars[0].aval.shape))
        if {*itertools.chain(*spec)} <= {*self.layout.sizes}:  # else it is of another mesh
            if eqn.params.get("unconstrained_dims"):
                self._specs[result] = list(spec)
            else:
                self._pin(result, spec)

    def _alike(self, *keys: Key) -> None:
        """Adds an op by which values of equal rank are split alike."""
        known = [key for key in keys if key >= 0]
        if len(known) > 1:
            self._ops.append(_Op(known, 1, identity(len(known), len(self._specs[known[0]]))))

    def _slices(self, whole: Key, part: Key) -> None:
        """Adds an op by which an array is split as its slices along the first dimension."""
        if whole >= 0:
            rank = len(self._specs[part])
            dims = tuple(range(1, rank + 1))
            shared = frozenset(dims)
            self._ops.append(_Op([whole, part], 1, Factors(((0, *dims), dims), frozenset(), shared, shared)))

    def _scan(self, scope: _Scope, place: int, eqn: Any, operands: list[Key], results: list[Key]) -> None:
        body = eqn.params["jaxpr"].jaxpr
        consts, carried = scan_operands(eqn.params)
        constants = [self._value(var.aval, replicated(var.aval)) for var in body.constvars]
        given = [*operands[:consts], *[-1] * (len(operands) - consts)]  # constants are the same values in the body
        inputs = [self._value(var.aval) if key < 0 else key for var, key in zip(body.invars, given, strict=True)]
        inner = self._scope_of(body, [*constants, *inputs])
        scope.inner[place] = {"jaxpr": inner}
        outputs = [-1 if isinstance(out, core.Literal) else inner.keys[out] for out in body.outvars]
        for k in range(carried):
            self._alike(operands[consts + k], inputs[consts + k], outputs[k], results[k])
        for k in range(consts + carried, len(operands)):
            self._slices(operands[k], inputs[k])
        for k in range(carried, len(results)):
            if outputs[k] >= 0:
                self._slices(results[k], outputs[k])

    def _branches(self, scope: _Scope, place: int, eqn: Any, operands: list[Key], results: list[Key]) -> None:
        """Adds the inner jaxprs of a `cond` or `while`."""
        params, given = eqn.params, {}
        if eqn.primitive.name == "cond":
            given = dict.fromkeys(inner_jaxprs(params), operands[1:])
        else:
            cond, body = params["cond_nconsts"], params["body_nconsts"]
            carry = operands[cond + body :]
            given = {"cond_jaxpr": [*operands[:cond], *carry], "body_jaxpr": [*operands[cond : cond + body], *carry]}
            for before, after in zip(carry, results, strict=True):
                self._alike(before, after)
        scope.inner[place] = {}
        for name, jaxpr in inner_jaxprs(params).items():
            inner = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
            constants = [self._value(var.aval, replicated(var.aval)) for var in inner.constvars]
            inputs = [self._value(var.aval) for var in inner.invars]
            for outer, key in zip(given[name], inputs, strict=True):
                self._alike(outer, key)
            scope.inner[place][name] = each = self._scope_of(inner, [*constants, *inputs])
            if name != "cond_jaxpr":
                for out, result in zip(inner.outvars, results, strict=True):
                    self._alike(-1 if isinstance(out, core.Literal) else each.keys[out], result)

    def _spread_all(self) -> None:
        """Spreads shardings until nothing changes: first where nothing is summed, then everywhere."""
        simple = [op for op in self._ops if not op.factors.summed]
        for ops in (simple, self._ops):
            for sweep in range(SWEEPS):
                changed = [self._spread(op) for op in (ops if sweep % 2 == 0 else reversed(ops))]
                if sweep and not any(changed):
                    break

    def _spread(self, op: _Op) -> bool:
        """Splits those dimensions of an op's values that have a factor by which others are split, largest first."""
        votes: dict[int, tuple[float, tuple[str, ...]]] = {}
        for key, dims in zip(op.tensors, op.factors.dimensions, strict=True):
            if key >= 0:
                for axes, factor in zip(self._specs[key], dims, strict=True):
                    if axes and factor in op.factors.shared:
                        votes[factor] = max(votes.get(factor, (0.0, ())), (float(array_bytes(self._avals[key])), axes))
        changed = False
        for factor, (_, axes) in sorted(votes.items(), key=lambda vote: -vote[1][0]):
            for key, dims in zip(op.tensors, op.factors.dimensions, strict=True):
                if key >= 0 and not self._pinned[key] and factor in dims:
                    changed |= self._assign(key, dims.index(factor), axes)
        return changed

    def _assign(self, key: Key, dim: int, axes: Sequence[str]) -> bool:
        spec = self._specs[key]
        if spec[dim]:
            return False
        used = {*itertools.chain(*spec)}
        free = tuple(axis for axis in axes if axis not in used)
        if not free or self._avals[key].shape[dim] % self.layout.count(free):
            return False
        spec[dim] = free
        return True

    # Execution on one device.

    def _execution(self, op: _Op) -> dict[int, tuple[str, ...]]:
        """Returns for each factor of an op the mesh axes that split it."""
        votes: dict[str, dict[int, tuple[int, float]]] = {}
        for key, dims in zip(op.tensors, op.factors.dimensions, strict=True):
            if key < 0:
                continue
            size = float(array_bytes(self._avals[key]))
            for axes, factor in zip(self._specs[key], dims, strict=True):
                for axis in axes if factor in op.factors.parallel else ():
                    count, total = votes.setdefault(axis, {}).get(factor, (0, 0.0))
                    votes[axis][factor] = count + 1, total + size
        split: dict[int, tuple[str, ...]] = {}
        for axis, factors in votes.items():
            factor = max(factors, key=lambda factor: factors[factor])
            if factors[factor][0] > 1 or factor not in op.factors.summed or self._is_better_summed(op, factor):
                split[factor] = (*split.get(factor, ()), axis)
        return split

    def _is_better_summed(self, op: _Op, factor: int) -> bool:
        """True if summing results moves fewer bytes than gathering the one operand that is split by a summed factor."""
        pairs = list(zip(op.tensors, op.factors.dimensions, strict=True))
        operands = [key for key, dims in pairs[: op.operands] if key >= 0 and factor in dims]
        results = op.tensors[op.operands :]
        gathered, summed = (sum(array_bytes(self._avals[key]) for key in keys) for keys in (operands, results))
        return 2 * summed < gathered

    def _targets(self, op: _Op, split: Mapping[int, tuple[str, ...]]) -> list[Spec]:
        """Returns how an op's operands and results must be split while it runs."""
        return [tuple(split.get(factor, ()) for factor in dims) for dims in op.factors.dimensions]

    def one_device(self, closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
        """Returns the jaxpr with the shapes of one device's shards, and collectives as equations. It cannot be run."""
        jaxpr = _Emitter(self, self._scope).jaxpr([self.spec(atom) for atom in closed.jaxpr.outvars])
        return core.ClosedJaxpr(jaxpr, closed.consts)


class _Emitter:
    """Writes the equations that one device runs for a scope."""

    def __init__(self, shards: Shards, scope: _Scope) -> None:
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
            split = self._shards._execution(op)
            targets = self._shards._targets(op, split)
            sums = tuple(axis for factor, axes in split.items() if factor in op.factors.summed for axis in axes)
            count = len(eqn.invars)
            if eqn.primitive.name in CONSTRAINTS:
                targets, sums = [self._spec(eqn.outvars[0])] * 2, ()
            self._write(eqn, targets[:count], targets[count:], sums)
        elif eqn.primitive.name == "shard_map":
            ranks = [len(getattr(atom.aval, "shape", ())) for atom in (*eqn.invars, *eqn.outvars)]
            specs = [*map(spec_of, (*eqn.params["in_specs"], *eqn.params["out_specs"]), ranks)]
            self._write(eqn, specs[: len(eqn.invars)], specs[len(eqn.invars) :])
        elif eqn.primitive.name in PAIRED:
            results = [*map(self._spec, eqn.outvars)]
            self._write(eqn, [*results, *map(self._spec, eqn.invars[len(results) :])], results)
        elif eqn.primitive.name == "scan":
            self._scan(eqn, self._scope.inner[place]["jaxpr"])
        else:
            self._inner(eqn, self._scope.inner[place])

    def _scan(self, eqn: Any, inner: _Scope) -> None:
        consts, carried = scan_operands(eqn.params)
        given = [self._shards.spec(var, inner) for var in inner.jaxpr.invars]
        carry = given[consts : consts + carried]
        returned = [*carry, *(self._shards.spec(out, inner) for out in inner.jaxpr.outvars[carried:])]
        body = core.ClosedJaxpr(_Emitter(self._shards, inner).jaxpr(returned), eqn.params["jaxpr"].consts)
        stacked = [((), *spec) for spec in given[consts + carried :]]
        results = [*carry, *(((), *spec) for spec in returned[carried:])]
        self._write(eqn, [*given[: consts + carried], *stacked], results, params={"jaxpr": body})

    def _inner(self, eqn: Any, inner: Mapping[str, _Scope]) -> None:
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
        before, after = {*itertools.chain(*have)}, {*itertools.chain(*want)}
        spec = tuple((*h, *(axis for axis in w if axis not in before)) for h, w in zip(have, want, strict=True))
        if spec != have:  # each device takes its part of what it has
            part = self._variable_of(aval, spec)
            take = eqn.replace(
                primitive=jax.lax.dynamic_slice_p, invars=[value], outvars=[part], params={}, effects=frozenset()
            )
            self._equations.append(take)
            value = part
        exchanged = tuple(
            axis for s, w in zip(spec, want, strict=True) for axis in s if axis in after and axis not in w
        )
        if exchanged:
            there = tuple(
                (*(axis for axis in s if axis not in exchanged), *(axis for axis in w if axis in exchanged))
                for s, w in zip(spec, want, strict=True)
            )
            value = self._sent("all_to_all", value, aval, there, exchanged, self._layout.bytes(aval, spec), eqn)
        lost = tuple(axis for s in have for axis in s if axis not in after)
        if lost:
            value = self._sent("all_gather", value, aval, want, lost, self._layout.bytes(aval, want), eqn)
        return value

    def _sent(self, kind: str, value: Any, aval: Any, spec: Spec, axes: Sequence[str], size: float, eqn: Any) -> Any:
        """Writes a collective that moves `size` bytes of a device, less its own part; returns its result."""
        result = self._variable_of(aval, spec)
        self._collective(kind, [value], [result], axes, size, eqn)
        return result

    def _collective(
        self, kind: str, operands: list[Any], results: list[Any], axes: Sequence[str], size: float, eqn: Any
    ) -> None:
        devices = self._layout.count(axes)
        seconds = self._layout.seconds(axes, size * (devices - 1) / devices) if devices > 1 else 0.0
        params = {"kind": kind, "axes": tuple(axes), "seconds": seconds}
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
