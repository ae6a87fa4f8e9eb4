"""How the values of a sharded program are split over the devices of a mesh.

Under `jax.jit` with shardings a function is traced with global shapes, and XLA decides how intermediates are split.
Shardings of explicit mesh axes are in the types. Else they spread, as in XLA's partitioner, from the arguments and
`with_sharding_constraint`s along the factors of equations (`factors.py`), forward and backward, largest arrays first.
Nothing is compiled. Tests compare them with XLA's own. `collectives.py` writes what one device then runs.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend import core
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from graphrl.errors import ProblemError
from graphrl.graphs.readers.jaxpr.flatten import called
from graphrl.graphs.readers.jaxpr.work import array_bytes, inner_jaxprs, scan_operands
from graphrl.graphs.roofline import LINKS, Chip, Interconnect, find_link
from graphrl.xla.checkpoint.equations import PRODUCTS
from graphrl.xla.checkpoint.factors import Factors, factors_of, identity
from graphrl.xla.checkpoint.primitives import GATHERED, NAME

Spec = tuple[tuple[str, ...], ...]  # for each dimension, the mesh axes that split it
Key = int  # number of a value among all values of a jaxpr and of the jaxprs in it
DEFAULT_LINK = "pcie-5"  # between devices for which `LINKS` has none
SWEEPS = 8  # most sweeps over the equations until shardings have spread
CONSTRAINTS = frozenset({"reshard", "sharding_constraint", GATHERED})
PAIRED = frozenset({NAME, "optimization_barrier"})  # each result is the operand of the same number


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


def layout_on(
    mesh: Any, chip: Chip, link: str | Interconnect | Mapping[str, str | Interconnect] | None = None
) -> Layout:
    """Returns the devices of a mesh; see `graphrl.checkpoint` for `link`.

    Raises:
      GraphrlError: a link is unknown, or of an axis that the mesh does not have.
    """
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    own = link if isinstance(link, Mapping) else dict.fromkeys(sizes, link)
    if unknown := sorted({*own} - {*sizes}):
        raise ProblemError(f"link has mesh axis {unknown[0]!r}: the mesh has {', '.join(sizes)}")
    links = {axis: find_link(own.get(axis) or LINKS.get(chip.name, DEFAULT_LINK)) for axis in sizes}
    return Layout(sizes, links, mesh)


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


class Op(NamedTuple):
    """An equation, or values of a loop that are split alike: tensors (operands first), their number, and factors."""

    tensors: list[Key]
    operands: int
    factors: Factors


class Scope(NamedTuple):
    """A jaxpr at one place: the keys of its variables, its ops by equation, and the scopes of its inner jaxprs."""

    jaxpr: core.Jaxpr
    keys: dict[Any, Key]
    ops: dict[int, Op]
    inner: dict[int, dict[str, "Scope"]]


class Shards:
    """How the values of a jaxpr are split over devices.

    Args:
      closed: the jaxpr.
      layout: sizes of the mesh axes.
      arguments: how the arguments are split.
      results: how results are split; None where that is not known.

    Attributes:
      layout, arguments: as given.
      scope: the jaxpr's variables, ops and inner jaxprs.
    """

    def __init__(
        self, closed: core.ClosedJaxpr, layout: Layout, arguments: Sequence[Spec], results: Sequence[Spec | None] = ()
    ) -> None:
        self.layout, self.arguments = layout, tuple(arguments)
        self._avals: list[Any] = []
        self._specs: list[list[tuple[str, ...]]] = []
        self._pinned: list[bool] = []
        self._ops: list[Op] = []
        constants = [self._value(var.aval, replicated(var.aval)) for var in closed.jaxpr.constvars]
        inputs = [self._value(var.aval, spec) for var, spec in zip(closed.jaxpr.invars, arguments, strict=True)]
        self.scope = self._scope_of(closed.jaxpr, [*constants, *inputs])
        for atom, spec in zip(closed.jaxpr.outvars, results, strict=False):
            if spec is not None and not isinstance(atom, core.Literal):
                self._pin(self.scope.keys[atom], spec)
        self._spread_all()

    @property
    def results(self) -> tuple[Spec, ...]:
        """How the results of the jaxpr are split."""
        return tuple(map(self.spec, self.scope.jaxpr.outvars))

    def spec(self, atom: Any, scope: Scope | None = None) -> Spec:
        """Returns how a value of the jaxpr (by default) or of an inner one is split."""
        if isinstance(atom, core.Literal):
            return replicated(atom.aval)
        return self._at((scope or self.scope).keys[atom])

    def of_body(self, place: int) -> list[Spec]:
        """Returns how the arguments of the body of the scan at `place` are split."""
        scope = self.scope.inner[place]["jaxpr"]
        return [self.spec(var, scope) for var in scope.jaxpr.invars]

    def gathers(self, place: int) -> list[tuple[int, Spec]]:
        """Returns for the product at `place` the operands that are gathered, and how they are split afterwards."""
        op = self.scope.ops.get(place)
        if op is None or self.scope.jaxpr.eqns[place].primitive.name not in PRODUCTS:
            return []
        targets = self.targets(op, self.execution(op))
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

    def _scope_of(self, jaxpr: core.Jaxpr, inputs: Sequence[Key]) -> Scope:
        """Numbers the values of a jaxpr and those in it, and collects its ops."""
        keys: dict[Any, Key] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))
        scope = Scope(jaxpr, keys, {}, {})

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
                op = Op([*operands, *results], len(operands), factors_of(eqn))
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
            self._ops.append(Op(known, 1, identity(len(known), len(self._specs[known[0]]))))

    def _slices(self, whole: Key, part: Key) -> None:
        """Adds an op by which an array is split as its slices along the first dimension."""
        if whole >= 0:
            rank = len(self._specs[part])
            dims = tuple(range(1, rank + 1))
            shared = frozenset(dims)
            self._ops.append(Op([whole, part], 1, Factors(((0, *dims), dims), frozenset(), shared, shared)))

    def _scan(self, scope: Scope, place: int, eqn: Any, operands: list[Key], results: list[Key]) -> None:
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

    def _branches(self, scope: Scope, place: int, eqn: Any, operands: list[Key], results: list[Key]) -> None:
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

    def _spread(self, op: Op) -> bool:
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

    def execution(self, op: Op) -> dict[int, tuple[str, ...]]:
        """Returns for each factor of an op the mesh axes that split it: for an axis the factor that most operands and
        results are split by, of several the one with most bytes.
        """
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

    def _is_better_summed(self, op: Op, factor: int) -> bool:
        """True if summing results moves fewer bytes than gathering the one operand that is split by a summed factor."""
        pairs = list(zip(op.tensors, op.factors.dimensions, strict=True))
        operands = [key for key, dims in pairs[: op.operands] if key >= 0 and factor in dims]
        results = op.tensors[op.operands :]
        gathered, summed = (sum(array_bytes(self._avals[key]) for key in keys) for keys in (operands, results))
        return 2 * summed < gathered

    def targets(self, op: Op, split: Mapping[int, tuple[str, ...]]) -> list[Spec]:
        """Returns how an op's operands and results must be split while it runs."""
        return [tuple(split.get(factor, ()) for factor in dims) for dims in op.factors.dimensions]
