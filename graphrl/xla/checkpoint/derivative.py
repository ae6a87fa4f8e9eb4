"""A program and its derivative as one list of ops, each linked to the equation of the program that it comes from.

`derivative` traces a program's gradient and flattens it. jax's scopes identify the pass of an op, and the equation that
it is the derivative of.

On GPUs, XLA writes more than the operands and results of kernels, since its libraries support fewer layouts. Three
functions compute what is written in addition:

- `padded_bytes`: cuDNN pads both sides of an image equally. If a convolution does not, a padded copy of the image is
  made, in the convolution's gradients too.
- `resident_bytes`: the gradient of max-pooling is scattered into zeros, which are written when the step starts, as is
  the other operand.
- `orders_of`: cuBLAS needs the batch, free and contracted dimensions of a product each contiguous and in one order.
  Operands in other layouts are transposed first.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from graphrl.graphs.readers.jaxpr.flatten import External, Flat, Node, Outside, Result, flatten
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.graphs.roofline import Chip
from graphrl.xla.checkpoint import primitives
from graphrl.xla.checkpoint.collectives import link_seconds, one_device
from graphrl.xla.checkpoint.equations import VIEWS, is_product
from graphrl.xla.checkpoint.program import CheckpointPlan, Name, Program, Region, Values
from graphrl.xla.checkpoint.rewrite import product_of, scan_of
from graphrl.xla.checkpoint.shards import Shards, Spec, replicated

Value = Result | Outside
Order = tuple[int, ...]  # order of a value's dimensions in memory, outermost first; () for the order that they have
SCATTERED = 2  # arrays of its result's size that the gradient of max-pooling occupies all the time
SCOPE = re.compile(r"^(transpose\()?[^/]*?graphrl(\d+)")  # as jax writes the scope of an equation's derivatives


class Derivative(NamedTuple):
    """A program and its gradient as a list of ops ("nodes").

    Attributes:
      nodes: the ops in execution order; None for views and for ops that no result needs.
      backward: for each node, whether it belongs to the backward pass.
      place: for each node, the index of the program's equation that it is from, or is the derivative of.
      same: result of a view -> the value that it is a view of.
      names: value -> name, for values that can be kept by name.
      results, gradients: the program's results, and its gradients.
      returned: the program's results, in its order; None for constants.
      orders: matrix product -> its operands, and the order of dimensions in which it needs each.
      padded: place of a convolution -> bytes of the padded copy that it and its gradients read.
      outside: bytes of the values that no node computes: arguments first, then cotangents and constants.
      result_bytes: bytes of the program's results and gradients.
      traced: the jaxpr of the program and its gradient; None for a graph's derivative.
    """

    nodes: list[Node | None]
    backward: list[bool]
    place: list[int]
    same: dict[Value, Value]
    names: dict[Value, Name]
    results: frozenset[Value]
    gradients: frozenset[Value]
    returned: tuple[Value | None, ...]
    orders: Mapping[int, list[tuple[Value, Order]]]
    padded: Mapping[int, int]
    outside: list[int]
    result_bytes: int
    traced: Any = None

    def node(self, i: int) -> Node:
        """Returns node `i`, which must not be None."""
        node = self.nodes[i]
        assert node is not None
        return node

    def bytes(self, value: Value) -> int:
        """Returns the size of a value in bytes."""
        if isinstance(value, Outside):
            return self.outside[value.external]
        return self.node(value.node).output_bytes[value.output]

    def reads(self, node: int) -> list[Value]:
        """Returns the values that a node reads, in order and each once; views are replaced by their sources."""
        return list(dict.fromkeys(self.same.get(value, value) for value in self.node(node).inputs))

    def backward_nodes(self) -> list[int]:
        """Returns the indices of the backward nodes, in order."""
        return [i for i, node in enumerate(self.nodes) if node is not None and self.backward[i]]

    def readers(self, among: Iterable[int]) -> Mapping[Value, list[int]]:
        """Maps each value to those of the nodes `among` that read it, in their order; unread values are absent."""
        readers = defaultdict(list)
        for i in among:
            for value in self.reads(i):
                readers[value].append(i)
        return readers


def derivative(program: Program, wanted: Sequence[bool], chip: Chip) -> Derivative:
    """Traces the derivative by the `wanted` arguments; loops keep their carried values and compute the rest again."""
    traced, results = gradient_jaxpr(program, wanted, functools.partial(_marked, program))
    closed = on_one_device(program, wanted, traced)
    flat = flatten(closed, [External("", array_bytes(aval), weight=False) for aval in closed.in_avals], chip)
    _add_links(flat.nodes, chip)
    nodes, same, names = _without_views(program, flat)
    outputs = [same.get(value, value) for value in flat.outputs if not hasattr(value, "value")]
    count = sum(not hasattr(value, "value") for value in flat.outputs[:results])
    places = _places(flat.nodes, len(program.equations))
    return Derivative(
        nodes,
        [node.scope.startswith("transpose(") for node in flat.nodes],
        places,
        same,
        names,
        frozenset(outputs[:count]),
        frozenset(outputs[count:]),
        _returned(program, flat.outputs, same),
        {
            i: [(same.get(value, value), order) for value, order in orders_of(flat.nodes, node)]
            for i, node in enumerate(flat.nodes)
            if nodes[i] is not None and node.type == "dot_general"
        },
        {
            place: padded_bytes(node.equation)
            for place, node in zip(places, flat.nodes, strict=True)
            if node.type == "conv_general_dilated" and not node.scope.startswith("transpose(")
        },
        [external.bytes for external in flat.externals],
        sum(map(array_bytes, closed.out_avals)),
        closed,
    )


def _add_links(nodes: Iterable[Node], chip: Chip) -> None:
    """Gives nodes the seconds of their collectives; those of loops and branches are in their bodies' programs."""
    for node in nodes:
        if node.type == primitives.COLLECTIVE.name:
            node.runtime = chip.launch_seconds + link_seconds(node.equation)
        elif node.type == "shard_map":
            node.runtime += link_seconds(node.equation)


def _without_views(program: Program, flat: Flat) -> tuple[list[Node | None], dict[Value, Value], dict[Value, Name]]:
    """Returns `nodes`, `same` and `names` of a `Derivative`."""
    # A derivative may read a value as it was before its name (that of exp, tanh and others reads their own result). A
    # name cannot keep such a value.
    readers = [node for node, alive in zip(flat.nodes, flat.live, strict=True) if alive and node.type != "name"]
    unnamed = {value for node in readers for value in node.inputs}
    same: dict[Value, Value] = {}
    names: dict[Value, Name] = {}
    nodes: list[Node | None] = []
    for i, (node, live) in enumerate(zip(flat.nodes, flat.live, strict=True)):
        nodes.append(node if live else None)
        if node.type == primitives.NAME and all(isinstance(value, Result | Outside) for value in node.operands):
            passed = node.operands[: len(node.output_bytes)]
            same |= {Result(i, k): same.get(value, value) for k, value in enumerate(passed)}  # type: ignore[arg-type]
            nodes[-1] = None
        if node.type in VIEWS and len(node.inputs) == len(node.output_bytes) == 1:
            same[Result(i, 0)] = value = same.get(node.inputs[0], node.inputs[0])
            nodes[-1] = None
            name = program.name_of(node.equation.params["name"]) if node.type == "name" else None
            if name is not None and node.inputs[0] not in unnamed and not node.scope.startswith("transpose("):
                names.setdefault(value, name)
    return nodes, same, names


def differentiable(aval: Any) -> bool:
    """True if values of this type have derivatives: floating-point and complex ones."""
    return hasattr(aval, "dtype") and bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _returned(program: Program, outputs: Sequence[Any], same: Mapping[Value, Value]) -> tuple[Value | None, ...]:
    """Returns the program's results in its order; the traced derivative has differentiable results first."""
    smooth = _is_smooth(program)
    orders = _split(range(len(smooth)), smooth)
    by_number = dict(zip((*orders[0], *orders[1]), outputs, strict=False))
    in_order = (by_number[number] for number in range(len(smooth)))
    return tuple(None if hasattr(output, "value") else same.get(output, output) for output in in_order)


def _places(nodes: Iterable[Node], equations: int) -> list[int]:
    """Returns for each node the equation that it comes from; for sums of gradients, that of the node before."""
    places, last = [], {False: 0, True: equations - 1}
    for node in nodes:
        scope, backward = SCOPE.match(node.scope), node.scope.startswith("transpose(")
        if scope is not None:
            place = int(scope[2])
            last[backward] = min(place, last[True]) if backward else max(place, last[False])
        places.append(last[backward])
    return places


def gradient_jaxpr(
    program: Program, wanted: Sequence[bool], evaluate: Callable[[Sequence[Any]], list[Any]]
) -> tuple[Any, int]:
    """Traces results and gradients of a program, as functions of its arguments and of the results' cotangents; returns
    the jaxpr, with sizes for symbolic dimensions, and the number of results.

    Args:
      program: the program to differentiate.
      wanted: for each argument, whether to differentiate by it.
      evaluate: runs the program: arguments -> results.

    Raises:
      jax.errors.UnexpectedTracerError: a custom rule closes over a value that was traced with the program.
    """
    avals = program.closed.in_avals
    smooth = _is_smooth(program)

    def run(args: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        def function(*selected: Any) -> Any:
            inputs = iter(selected)
            results = evaluate([next(inputs) if want else arg for arg, want in zip(args, wanted, strict=True)])
            return _split(results, smooth)

        selected = [arg for arg, want in zip(args, wanted, strict=True) if want]
        results, pull, others = jax.vjp(function, *selected, has_aux=True)
        return results, others, pull(cotangents)

    cotangents = _split(program.closed.out_avals, smooth)[0]  # with the results' shardings and varying axes
    closed = jax.make_jaxpr(run)(list(avals), cotangents)
    for const in closed.consts:
        if isinstance(const, jax.core.Tracer):
            raise jax.errors.UnexpectedTracerError(f"a custom rule closes over a traced value: {const}")
    return program.sizes.concrete(closed), len(smooth)


def on_one_device(program: Program, wanted: Sequence[bool], traced: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Returns the jaxpr from `gradient_jaxpr` as one device runs it; gradients are split as their arguments are."""
    if program.shards is None:
        return traced
    arguments, results = split_gradient(program, wanted)
    known = [spec or replicated(aval) for spec, aval in zip(arguments, traced.in_avals, strict=True)]
    return one_device(Shards(traced, program.shards.layout, known, results), traced)


def split_gradient(program: Program, wanted: Sequence[bool]) -> tuple[list[Spec | None], list[Spec | None]]:
    """Returns how arguments and results of `gradient_jaxpr` are split over devices; None where that is not known."""
    smooth = _is_smooth(program)
    if program.shards is None:
        return [None] * (len(wanted) + sum(smooth)), [None] * (len(smooth) + sum(wanted))
    arguments = [*map(program.shards.spec, program.closed.jaxpr.invars)]
    cotangents = _split(program.shards.results, smooth)[0]
    gradients = [spec for spec, want in zip(arguments, wanted, strict=True) if want]
    return [*arguments, *cotangents], [*[None] * len(smooth), *gradients]


def with_split_gradients(program: Program, args: Sequence[Any]) -> list[Any]:
    """Returns the arguments; their gradients are split over devices as they are, which XLA does not always do."""
    if program.shards is None or not program.shards.layout.is_automatic:
        return list(args)
    shardings = map(program.shards.layout.sharding, program.shards.arguments)
    return [
        primitives.with_sharded_gradient(arg, sharding) if differentiable(jax.typeof(arg)) else arg
        for arg, sharding in zip(args, shardings, strict=True)
    ]


def _is_smooth(program: Program) -> list[bool]:
    """Returns for each result whether it has a derivative."""
    return [differentiable(getattr(var, "aval", None)) for var in program.closed.jaxpr.outvars]


def _split(items: Sequence[Any], first: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    chosen = list(zip(items, first, strict=True))
    return [item for item, is_first in chosen if is_first], [item for item, is_first in chosen if not is_first]


def _has_name(aval: Any) -> bool:
    """True if a value can be kept by name: not references, nor complex values, which jax cannot round to keep them."""
    return isinstance(aval, jax.core.ShapedArray) and not jnp.issubdtype(aval.dtype, jnp.complexfloating)


def _marked(program: Program, args: Sequence[Any]) -> list[Any]:
    """Runs a program with each equation in a separate scope, and with names on all results that can have one."""
    values = Values.of(program.closed, args)
    for place, eqn in enumerate(program.equations):
        with jax.named_scope(f"graphrl{place}"):
            if place in program.bodies:
                body = program.bodies[place]
                whole = CheckpointPlan((Region(0, len(body.equations)),))
                values.write(eqn.outvars, scan_of(eqn, body, whole, values.read(eqn.invars)))
            elif is_product(eqn) and (run := product_of(program, eqn)) is not None:
                values.write(eqn.outvars, [run(*values.read(eqn.invars))])
            else:
                values.run([eqn])
        for k, var in enumerate(eqn.outvars):
            if values.has(var) and _has_name(var.aval):
                values.name(var, program.text_of((place, k)))
    return values.read(program.closed.jaxpr.outvars)


def padded_bytes(convolution: Any) -> int:
    """Returns the bytes of a convolution's padded input; 0 if the two sides of each dimension are padded equally."""
    padding = convolution.params["padding"]
    if all(low == high for low, high in padding):
        return 0
    picture = convolution.invars[0].aval
    shape = list(picture.shape)
    for dim, (low, high) in zip(convolution.params["dimension_numbers"].lhs_spec[2:], padding, strict=True):
        shape[dim] = max(0, shape[dim] + low + high)
    return array_bytes(picture.update(shape=tuple(shape)))


def resident_bytes(nodes: Sequence[Node | None]) -> int:
    """Returns the bytes that gradients of max-pooling occupy in memory all the time."""
    return SCATTERED * sum(
        sum(node.output_bytes) for node in nodes if node is not None and node.type == "select_and_scatter_add"
    )


def orders_of(nodes: Sequence[Node], product: Node) -> list[tuple[Value, Order]]:
    """Returns for each operand of a product the value that it is a view of, and the order of dimensions that the
    product needs: () if it accepts the current one.

    Args:
      nodes: all nodes of the program, including views.
      product: a `dot_general`.
    """
    contracted, batch = product.equation.params["dimension_numbers"]
    shapes = [operand.aval.shape for operand in product.equation.invars]
    sources = [_source(nodes, operand, len(shape)) for operand, shape in zip(product.operands, shapes, strict=True)]
    place = sources[0][1].index
    pairs = [sorted(zip(*both, strict=True), key=lambda pair: place(pair[0])) for both in (batch, contracted)]
    orders = []
    for side, ((value, dims), shape) in enumerate(zip(sources, shapes, strict=True)):
        batches, sums = ([pair[side] for pair in both if shape[pair[side]] > 1] for both in pairs)
        free = [dim for dim, size in enumerate(shape) if size > 1 and dim not in (*batch[side], *contracted[side])]
        current = [dim for dim in dims if shape[dim] > 1]
        accepted = (batches + free + sums, batches + sums + free, free + batches + sums, sums + batches + free)
        orders.append((value, () if current in accepted else tuple(current.index(dim) for dim in accepted[0])))
    return orders


def _source(nodes: Sequence[Node], value: Any, rank: int) -> tuple[Value, Order]:
    """Returns the value that an operand transposes, and for each dimension of that value the operand's dimension.
    Values behind a barrier count as sources too: they are written there, in the order that their readers need.
    """
    dims = tuple(range(rank))
    while isinstance(value, Result) and nodes[value.node].type in ("transpose", "name", "copy"):
        node = nodes[value.node]
        if node.type == "transpose":
            dims = tuple(dims[node.equation.params["permutation"].index(dim)] for dim in range(rank))
        value = node.operands[0]
    return value, dims
