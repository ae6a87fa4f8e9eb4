"""Pairs of a forward and a backward loop, and the arrays that the forward loop keeps for the backward loop.

jax turns `lax.scan` under `grad` into a forward loop of T trips, which writes a slice of `[T, ...]` in each trip, and a
backward loop, which reads one in each of its trips. Such an array is a **residual** here.

`Expressions` numbers the values of a computation by the expressions that compute them, across fusions, since XLA fuses
one expression into many places. A **reference** (fusion, instruction) is an instruction inside of a fusion, or
("", instruction) one of the computation itself. References of one **number** have the same bits (value numbering,
Alpern, Wegman and Zadeck 1988). LLVM may contract a product and a sum to one operation with one rounding, depending on
the rest of the fusion: such a sum is equal only to itself.
"""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.work import known_trips
from graphrl.xla.recompute.candidates import CHEAP

Reference = tuple[str, str]
# Fields that describe an instruction's place rather than its computation.
_PLACE = str.split(
    "name metadata id operand_ids control_predecessor_ids called_computation_ids frontend_attributes statistics_viz "
    "original_value"
)
_KNOWN = CHEAP | {"bitcast", "constant"}
# Products, and ops that XLA expands into code that ends in a product. Products with a power of two count too: a
# subnormal or overflowing result differs inside of a contracted sum.
_PRODUCTS = frozenset(("multiply", "erf", "power"))
# These pass a product on unchanged, so that it may be contracted with a sum behind them.
_MOVING = frozenset(
    str.split(
        "bitcast broadcast concatenate convert copy dynamic-slice negate pad reshape reverse select slice transpose"
    )
)
# These use rounded operands: they are not contracted with a product before them.
_ROUNDING = frozenset(str.split("abs clamp compare divide maximum minimum multiply sign")) | _MOVING
_FROM_ZERO = {"init": "0", "step": "1"}
_PASS_THROUGH = ("bitcast", "copy")


class Expressions:
    """Value numbering of a computation: equal numbers mean equal bits, also across fusions.

    Attributes:
      module, computation: the computation and its module.
      number: reference -> number of its value.
      contracted: references inside of fusions that may be contracted with a product or have an opcode that is not
        compared: each has a number of its own.
      products: references inside of fusions that may be contracted with a sum.
    """

    def __init__(self, module: HloModule, computation: Computation) -> None:
        self.module, self.computation = module, computation
        self.number: dict[Reference, int] = {}
        self.contracted: set[Reference] = set()
        self.products: set[Reference] = set()
        self._numbers: dict[object, int] = {}
        for i in computation.instructions:
            if i.opcode == "fusion" and i.attributes.fusion_kind == "kLoop":
                self._add_fusion(i)
                self.number["", i.name] = self.number[i.name, self.inside(i.name).root.name]
            else:
                is_known = i.opcode in _KNOWN or i.opcode == "get-tuple-element"
                self.number["", i.name] = self._of(i, "") if is_known else self._new(("", i.name))

    def inside(self, fusion: str) -> Computation:
        """Returns the fused computation of a fusion."""
        return self.module.computations[self.computation.by_name[fusion].called[0]]

    def instruction(self, reference: Reference) -> Instruction:
        """Returns the instruction of a reference."""
        scope, name = reference
        return (self.inside(scope) if scope else self.computation).by_name[name]

    def origin(self, reference: Reference) -> Reference:
        """Follows parameters and fusions; returns the reference at which the value is computed."""
        while True:
            scope, name = reference
            i = self.instruction(reference)
            if scope and i.opcode == "parameter":
                reference = "", self.computation.by_name[scope].operands[i.attributes.parameter_number]
            elif not scope and i.opcode == "fusion" and i.attributes.fusion_kind == "kLoop":
                reference = name, self.inside(name).root.name
            else:
                return reference

    def operands(self, reference: Reference) -> list[Reference]:
        """Returns the references of an instruction's operands."""
        return [(reference[0], name) for name in self.instruction(reference).operands]

    def is_parameter(self, reference: Reference) -> bool:
        """True if a reference is a parameter of a fusion."""
        return bool(reference[0]) and self.instruction(reference).opcode == "parameter"

    def _add_fusion(self, fusion: Instruction) -> None:
        for i in self.module.computations[fusion.called[0]].instructions:
            reference = fusion.name, i.name
            if i.opcode == "parameter":
                self.number[reference] = self.number["", fusion.operands[i.attributes.parameter_number]]
                continue
            of_product = any((fusion.name, name) in self.products for name in i.operands)
            if i.opcode in _PRODUCTS or (of_product and i.opcode in _MOVING):
                self.products.add(reference)
            if i.opcode not in _KNOWN or (of_product and i.opcode not in _ROUNDING):
                self.contracted.add(reference)
                self.number[reference] = self._new(reference)
            else:
                self.number[reference] = self._of(i, fusion.name)

    def _of(self, i: Instruction, scope: str) -> int:
        kept = type(i.attributes)()
        kept.CopyFrom(i.attributes)
        for field in _PLACE:
            kept.ClearField(field)
        operands = tuple(self.number[scope, name] for name in i.operands)
        return self._new((kept.SerializeToString(deterministic=True), operands))

    def _new(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


@dataclasses.dataclass(frozen=True, eq=False)
class Residual:
    """An array of which each trip of the forward loop writes one slice; all trips together write the whole array.

    Attributes:
      place: index in the tuple that the forward loop carries.
      argument: index in the tuple of the backward loop's initial values.
      axis: axis of the array along which the slices are stacked.
      writer: name of the instruction in the forward loop's body that writes the slice.
      update: reference of the slice.
      bytes: size of the whole array.
    """

    place: int
    argument: int
    axis: int
    writer: str
    update: Reference
    bytes: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """A read of a residual in a backward loop.

    Attributes:
      reader: name of the instruction in the loop's body.
      slices: names of the `dynamic-slice`s: inside of the reader if that is a fusion, else the reader itself.
      index: reference of the slices' index.
    """

    reader: str
    slices: tuple[str, ...]
    index: Reference


class Loops:
    """A forward and a backward loop of one computation.

    Attributes:
      module: the module.
      caller: the computation that runs them.
      forward, backward: the loops.
      trips: number of trips of the forward loop; None if unknown.
      counter: index of the induction variable in the tuple that the forward loop carries, if it counts from 0 by 1;
        else None.
      residuals: the residuals, in the order in which the caller reads them.
    """

    def __init__(self, module: HloModule, caller: Computation, forward: Instruction, backward: Instruction) -> None:
        self.module, self.caller, self.forward, self.backward = module, caller, forward, backward
        self.trips, self.counter = known_trips(forward), _counter(forward)
        self.residuals = tuple(self._residuals())

    @functools.cached_property
    def forward_body(self) -> Expressions:
        """Expressions of the forward loop's body."""
        return Expressions(self.module, self.module.computations[self.forward.called[0]])

    @functools.cached_property
    def backward_body(self) -> Expressions:
        """Expressions of the backward loop's body."""
        return Expressions(self.module, self.module.computations[self.backward.called[0]])

    @functools.cached_property
    def shared(self) -> Mapping[int, int]:
        """Values that both loops receive and neither changes: index in the forward tuple -> in the backward tuple."""
        bodies = self.forward_body.computation, self.backward_body.computation
        kept_forward, kept_backward = map(unchanged, bodies)
        backward = {name: k for k, name in enumerate(initial_values(self.caller, self.backward)) if k in kept_backward}
        # the backward loop receives initial values of the forward loop, or its unchanged results
        forward = [*enumerate(initial_values(self.caller, self.forward)), *part_names(self.caller, self.forward.name)]
        return {k: backward[name] for k, name in forward if k in kept_forward and name in backward}

    @functools.cached_property
    def index(self) -> Reference | None:
        """Reference of the index at which the backward loop reads residuals: a trip of the forward loop."""
        indices = (reading.index for residual in self.residuals for reading in self._readings(residual))
        return next(indices, None)

    def readings(self, residual: Residual) -> Sequence[Reading]:
        """Returns all reads of a residual in the backward loop, at the common index.

        Empty if the residual is used in any other way than slice by slice, in the backward loop or elsewhere.
        """
        readings = self._readings(residual)
        numbers = {self.backward_body.number[reading.index] for reading in readings}
        return readings if self.index is not None and numbers == {self.backward_body.number[self.index]} else []

    def _readings(self, residual: Residual) -> Sequence[Reading]:
        caller, (body, condition) = self.caller, (self.module.computations[name] for name in self.backward.called)
        given = caller.by_name[self.backward.operands[0]]
        for name in (name for k, name in part_names(caller, self.forward.name) if k == residual.place):
            if caller.users[name] != (given,):
                return []
        if given.operands.count(given.operands[residual.argument]) != 1:
            return []
        if any(k == residual.argument and caller.users[name] for k, name in part_names(caller, self.backward.name)):
            return []
        if any(k == residual.argument for k, _ in part_names(condition)):
            return []
        arrays = [name for k, name in part_names(body) if k == residual.argument]
        users = [(user, name) for name in arrays for user in body.users[name] if user is not body.root]
        readings = [self._reading(user, name, residual) for user, name in users]
        known = [reading for reading in readings if reading is not None]
        return known if len(known) == len(readings) else []

    def _residuals(self) -> Iterator[Residual]:
        if self.trips is None or self.counter is None:
            return
        carried = dict(part_names(self.caller, self.forward.name))
        names: dict[str, int] = {}
        for k, name in enumerate(initial_values(self.caller, self.backward)):
            names.setdefault(name, k)
        kept = unchanged(self.module.computations[self.backward.called[0]])
        for k, name in part_names(self.caller, self.forward.name):
            if name in names and names[name] in kept and carried[k] == name:
                residual = self._residual(k, names[name])
                if residual is not None:
                    yield residual

    def _residual(self, place: int, given: int) -> Residual | None:
        body, forward = self.forward_body.computation, self.forward_body
        writer = body.by_name[body.root.operands[place]]
        reference = ("", writer.name)
        if writer.opcode == "fusion":
            reference = writer.name, forward.inside(writer.name).root.name
        i = forward.instruction(reference)
        if i.opcode != "dynamic-update-slice":
            return None
        target, update, *indices = forward.operands(reference)
        own = [name for k, name in part_names(body) if k == place]
        if [forward.origin(target)] != [("", name) for name in own] or body.users[own[0]] != (writer,):
            return None
        if body.users[writer.name] != (body.root,) or body.root.operands.count(writer.name) != 1:
            return None
        if any(k == place for k, _ in part_names(self.module.computations[self.forward.called[1]])):
            return None
        axis = _axis(i.shape.dims, forward.instruction(update).shape.dims)
        if axis is None or i.shape.dims[axis] != self.trips or not self._counts(indices[axis]):
            return None
        return Residual(place, given, axis, writer.name, update, i.shape.bytes)

    def _counts(self, index: Reference) -> bool:
        """True if a value of the forward loop is its induction variable."""
        index = self.forward_body.origin(index)
        i = self.forward_body.instruction(index)
        while i.opcode in _PASS_THROUGH:
            index = self.forward_body.origin(self.forward_body.operands(index)[0])
            i = self.forward_body.instruction(index)
        body = self.forward_body.computation
        return i.opcode == "get-tuple-element" and (
            i.operands[0] == body.parameters[0].name and i.attributes.tuple_index == self.counter
        )

    def _reading(self, user: Instruction, array: str, residual: Residual) -> Reading | None:
        backward, shape = self.backward_body, self.forward_body.instruction(residual.update).shape
        if user.opcode == "dynamic-slice":
            slices = [user] if user.operands[0] == array and array not in user.operands[1:] else []
            scope = ""
        elif user.opcode == "fusion" and user.attributes.fusion_kind == "kLoop" and user.operands.count(array) == 1:
            body, scope = backward.inside(user.name), user.name
            parameter = body.parameters[user.operands.index(array)]
            slices = list(body.users[parameter.name])
            if any(s.opcode != "dynamic-slice" or parameter.name in s.operands[1:] for s in slices):
                return None
        else:
            return None
        indices = [(scope, s.operands[1 + residual.axis]) for s in slices]
        numbers = {backward.number[index] for index in indices}
        if len(numbers) != 1 or any(s.shape != shape for s in slices):
            return None
        return Reading(user.name, tuple(s.name for s in slices), indices[0])


def loops_of(module: HloModule) -> Iterator[Loops]:
    """Yields the pairs of loops in a module that have residuals."""
    called = Counter(name for c in module.computations.values() for i in c.instructions for name in i.called)
    for caller in module.sequential:
        loops = [i for i in caller.instructions if i.opcode == "while" and _is_plain(module, caller, i)]
        loops = [i for i in loops if all(called[name] == 1 for name in i.called)]
        for backward in loops:
            parts = [
                i
                for name in initial_values(caller, backward)
                if (i := caller.by_name[name]).opcode == "get-tuple-element"
            ]
            read = {i.operands[0] for i in parts}
            for forward in loops:
                if forward.name in read and forward is not backward:
                    pair = Loops(module, caller, forward, backward)
                    if pair.residuals:
                        yield pair


def part_names(computation: Computation, source: str = "") -> Iterator[tuple[int, str]]:
    """Yields index and name of each `get-tuple-element` that reads a tuple, by default the first parameter."""
    for i in computation.users[source or computation.parameters[0].name]:
        if i.opcode == "get-tuple-element":
            yield i.attributes.tuple_index, i.name


def _counter(loop: Instruction) -> int | None:
    """Returns the index of a loop's induction variable in its carried tuple; None unless it counts from 0 by 1."""
    try:
        config = json.loads(loop.attributes.backend_config or b"{}")
        if config["known_init_step"] != _FROM_ZERO:
            return None
        return int(config["known_induction_variable"]["tuple_index"])
    except (ValueError, KeyError, TypeError):
        return None


def unchanged(body: Computation) -> frozenset[int]:
    """Returns the indices, in the carried tuple, of the values that a loop's body passes on unchanged."""
    parts = {name: k for k, name in part_names(body)}
    return frozenset(k for k, name in enumerate(body.root.operands) if parts.get(name) == k)


def initial_values(caller: Computation, loop: Instruction) -> tuple[str, ...]:
    """Returns the names of a loop's initial values."""
    return caller.by_name[loop.operands[0]].operands


def _axis(whole: Sequence[int], part: Sequence[int]) -> int | None:
    """Returns the only axis along which `part` is smaller than `whole`, if its size is 1 there; else None."""
    smaller = [k for k, (size, part_size) in enumerate(zip(whole, part, strict=True)) if size != part_size]
    return smaller[0] if len(smaller) == 1 and part[smaller[0]] == 1 else None


def _is_plain(module: HloModule, caller: Computation, loop: Instruction) -> bool:
    """True if the loop's tuples are built only right before it and in its body, and are read only part by part."""
    given = caller.by_name[loop.operands[0]]
    if given.opcode != "tuple" or len(caller.users[given.name]) != 1 or loop.is_root or given.is_root:
        return False
    if any(i.opcode != "get-tuple-element" for i in caller.users[loop.name]):
        return False
    body, condition = (module.computations[name] for name in loop.called)
    if body.root.opcode != "tuple" or body.users[body.root.name]:
        return False
    parameters = [(c, c.parameters[0].name) for c in (body, condition)]
    return all(i.opcode == "get-tuple-element" for c, name in parameters for i in c.users[name])
