"""Flattens a closed jaxpr into a list of nodes: calls inlined, loops and branches as single nodes, dead code dropped.

`work.py` defines the cost of nodes with inner jaxprs; the body of each is flattened and summed recursively.

The workspace of such a node is the peak of the bytes that its body allocates, in program order, without its inputs. A
loop's includes the body's results (those of a step coexist with the carried values until the step ends). That of a
branch or a call does not include them (they are the node's own outputs).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend import core

from graphrl.graphs.readers.jaxpr.work import array_bytes, bytes_moved, equation_flops, inner_jaxprs, inner_work
from graphrl.graphs.readers.work import Step, Work, peak_bytes
from graphrl.graphs.roofline import Chip, runtime

# Inner jaxprs of these primitives are not calls; all others with one inner jaxpr of the same signature are inlined.
NOT_CALLS = frozenset(
    str.split(
        "scan while cond shard_map pallas_call custom_linear_solve reduce reduce_window select_and_scatter run_state"
    )
)
# Their inner jaxprs combine two elements: the FLOP rules cover them.
ELEMENT_BODIES = ("reduce", "scatter", "select_and_scatter")
# Effects that other ops observe only through the values or the mutable arrays.
LOCAL_EFFECTS = frozenset({"ReadEffect", "InternalMutableArrayEffect", "NamedAxisEffect"})
ARRAY_EFFECTS = LOCAL_EFFECTS | {"WriteEffect", "AccumEffect"}


class Result(NamedTuple):
    """A value that a node writes: output number `output` of node number `node`."""

    node: int
    output: int


class Outside(NamedTuple):
    """A value from outside the jaxpr, an argument or a constant: `external` is its index in `Flat.externals`."""

    external: int


class Scalar(NamedTuple):
    """A scalar that the jaxpr contains as a literal; it takes no memory."""

    value: Any


Value = Result | Outside | Scalar


@dataclasses.dataclass(frozen=True, slots=True)
class External:
    """An argument or constant: its bytes, True for weights (resident for the whole run), and a constant's value."""

    name: str
    bytes: int
    weight: bool
    array: Any = None


@dataclasses.dataclass(slots=True)
class Node:
    """One op: distinct inputs in order, bytes of each output, FLOPs and run time, and nodes that must precede it.

    `equation` is the jaxpr's equation that it computes, and `operands` are the values of the equation's operands.
    """

    type: str
    scope: str
    inputs: list[Result | Outside]
    output_bytes: list[int]
    flops: int
    runtime: float
    workspace_bytes: int
    after: list[int]
    effectful: bool
    equation: Any
    operands: list[Value]


@dataclasses.dataclass(frozen=True, slots=True)
class Flat:
    """A flattened jaxpr; `live` is True for each node that outputs or effects need."""

    nodes: list[Node]
    externals: list[External]
    outputs: list[Value]
    live: list[bool]


class _Constant(NamedTuple):
    array: Any  # kept alive so that its id stays unique
    aval: Any
    value: Outside


def flatten(closed: core.ClosedJaxpr, arguments: Sequence[External], chip: Chip) -> Flat:
    """Flattens a jaxpr whose inputs are `arguments` (in order). Array constants become externals that are weights.

    Raises:
      GraphError: an array has a symbolic dimension.
    """
    flattener = _Flattener(chip, list(arguments), {})
    outputs = flattener.run(closed.jaxpr, closed.consts, [Outside(i) for i in range(len(arguments))], "")
    return Flat(flattener.nodes, flattener.externals, outputs, _live(flattener.nodes, outputs))


class _Flattener:
    """State of one pass over a jaxpr: nodes, externals, and the last node to touch each mutable array or effect."""

    def __init__(
        self, chip: Chip, externals: list[External], bodies: dict[int, tuple[Any, Work, list["_Constant"]]]
    ) -> None:
        self.chip = chip
        self.nodes: list[Node] = []
        self.externals = externals
        self.constants: dict[int, _Constant] = {}  # by identity
        self.bodies = bodies  # work and constants of inner jaxprs by identity, shared with inner passes
        self.last_touch: dict[Value, int] = {}  # node that last used a mutable array
        self.last_effect: dict[str, int] = {}  # node that last had an effect of a kind

    def run(self, jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Value], scope: str) -> list[Value]:
        """Adds the nodes of a jaxpr applied to `arguments`; returns its outputs."""
        values: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, constant in zip(jaxpr.constvars, consts, strict=True):
            values[var] = self._constant(constant, var.aval)

        def read(atom: Any) -> Value:
            return self._literal(atom) if isinstance(atom, core.Literal) else values[atom]

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            inner_scope = "/".join(filter(None, (scope, str(equation.source_info.name_stack))))
            call = called(equation)
            if call is not None:
                outputs = self.run(call[0], call[1], inputs, inner_scope)
            else:
                outputs = self._add(equation, inputs, inner_scope)
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _literal(self, atom: Any) -> Value:
        return Scalar(atom.val) if not getattr(atom.aval, "shape", ()) else self._constant(atom.val, atom.aval)

    def _constant(self, constant: Any, aval: Any) -> Outside:
        if id(constant) not in self.constants:
            self.constants[id(constant)] = _Constant(constant, aval, Outside(len(self.externals)))
            name = f"constant.{len(self.constants) - 1}"
            self.externals.append(External(name, array_bytes(aval), weight=True, array=constant))
        return self.constants[id(constant)].value

    def _add(self, equation: Any, values: Sequence[Value], scope: str) -> list[Value]:
        """Adds one node."""
        index = len(self.nodes)
        reads: dict[Result | Outside, int] = {
            value: array_bytes(atom.aval)
            for atom, value in zip(equation.invars, values, strict=True)
            if not isinstance(value, Scalar)
        }
        output_bytes = [array_bytes(var.aval) for var in equation.outvars]
        traffic = bytes_moved(equation, list(reads.values()), sum(output_bytes))
        work, constants = self._work(equation, values, traffic)
        for constant in constants:
            reads[self._constant(constant.array, constant.aval)] = 0
        node = Node(
            type=equation.primitive.name,
            scope=scope,
            inputs=list(reads),
            output_bytes=output_bytes,
            flops=work.flops,
            runtime=work.runtime,
            workspace_bytes=work.workspace_bytes,
            after=self._predecessors(equation, values, index),
            effectful=any(type(effect).__name__ not in LOCAL_EFFECTS for effect in equation.effects),
            equation=equation,
            operands=list(values),
        )
        self.nodes.append(node)
        return [Result(index, k) for k in range(len(output_bytes))]

    def _predecessors(self, equation: Any, values: Sequence[Value], index: int) -> list[int]:
        """Finds the nodes that must come first: the last to touch the same mutable array or to have the same effect."""
        after = []
        for atom, value in zip(equation.invars, values, strict=True):
            if hasattr(atom.aval, "inner_aval"):  # a mutable array: reads and writes keep the program's order
                after.append(self.last_touch.get(value))
                self.last_touch[value] = index
        for kind in {type(effect).__name__ for effect in equation.effects} - ARRAY_EFFECTS:
            after.append(self.last_effect.get(kind))
            self.last_effect[kind] = index
        return sorted({node for node in after if node is not None and node != index})

    def _work(self, equation: Any, values: Sequence[Value], traffic: int) -> tuple[Work, list["_Constant"]]:
        """Costs a node; also returns the constants in its inner jaxprs."""
        name = equation.primitive.name
        inner = {} if name.startswith(ELEMENT_BODIES) else inner_jaxprs(equation.params)
        if not inner:
            flops = equation_flops(equation)
            return Work(flops, runtime(flops, traffic, self.chip), 0), []
        bodies = {key: self._body(jaxpr) for key, jaxpr in inner.items()}
        constants = [constant for _, consts in bodies.values() for constant in consts]
        literals = [value.value if isinstance(value, Scalar) else None for value in values]
        work = inner_work(equation, {key: body for key, (body, _) in bodies.items()}, literals)
        if name == "pallas_call":  # a kernel reads and writes its operands once, whatever its body contains
            work = work._replace(runtime=runtime(work.flops, traffic, self.chip))
        return work, constants

    def _body(self, jaxpr: Any) -> tuple[Work, list["_Constant"]]:
        """Costs one run of an inner jaxpr; also returns its constants."""
        if id(jaxpr) not in self.bodies:
            inner, consts = _open(jaxpr)
            arguments = [External(str(i), array_bytes(v.aval), weight=False) for i, v in enumerate(inner.invars)]
            walk = _Flattener(self.chip, arguments, self.bodies)
            outputs = walk.run(inner, consts, [Outside(i) for i in range(len(arguments))], "")
            live = _live(walk.nodes, outputs)
            nodes = [node for node, is_live in zip(walk.nodes, live, strict=True) if is_live]
            work = Work(
                flops=sum(node.flops for node in nodes),
                runtime=sum(node.runtime for node in nodes),
                workspace_bytes=_peak(walk.nodes, outputs, live, results=False),
                step_bytes=_peak(walk.nodes, outputs, live, results=True),
            )
            self.bodies[id(jaxpr)] = (jaxpr, work, list(walk.constants.values()))
        return self.bodies[id(jaxpr)][1:]


def _open(jaxpr: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, core.ClosedJaxpr) else (jaxpr, ())


def called(equation: Any) -> tuple[core.Jaxpr, Sequence[Any]] | None:
    """Returns the jaxpr and the constants that an equation calls; None if it is not a call.

    Calls are recognised by their signature, not by the primitive's name.
    """
    if equation.primitive.name in NOT_CALLS:
        return None
    inner = list(inner_jaxprs(equation.params).values())
    if len(inner) != 1:
        return None
    jaxpr, consts = _open(inner[0])
    same = _signature(jaxpr.invars) == _signature(equation.invars) and _signature(jaxpr.outvars) == _signature(
        equation.outvars
    )
    return (jaxpr, consts) if same else None


def _signature(atoms: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(getattr(atom.aval, "shape", None), getattr(atom.aval, "dtype", None)) for atom in atoms]


def _live(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[bool]:
    """True for each node that the outputs or effects need."""
    live = [node.effectful for node in nodes]
    for value in outputs:
        if isinstance(value, Result):
            live[value.node] = True
    for index in range(len(nodes) - 1, -1, -1):
        if live[index]:
            for value in nodes[index].inputs:
                if isinstance(value, Result):
                    live[value.node] = True
            for before in nodes[index].after:
                live[before] = True
    return live


def _peak(nodes: Sequence[Node], outputs: Sequence[Value], live: Sequence[bool], *, results: bool) -> int:
    """Computes the peak bytes that live nodes allocate, in program order; with `results`, outputs stay to the end."""
    kept = {value for value in outputs if isinstance(value, Result)}
    steps = []
    for index, node in enumerate(nodes):
        if live[index]:
            written = {Result(index, k): size for k, size in enumerate(node.output_bytes)}
            counted = {value: size if results or value not in kept else 0 for value, size in written.items()}
            steps.append(Step(counted, node.inputs, node.workspace_bytes))
    return peak_bytes(steps, kept)
