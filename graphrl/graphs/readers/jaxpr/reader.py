"""Computation graphs from JAX functions: `from_jax` traces a function on abstract arguments and reads its jaxpr.

Each equation of the jaxpr becomes one op. Calls (jit, custom derivatives, remat, ...) are inlined, a loop or a branch
is a single op, and dead code is dropped (`flatten.py`). Tensors are the arrays that evaluating the jaxpr op by op
allocates: views such as `reshape` are ops with outputs of real bytes, and nothing is fused. The roofline model gives
run times, from each op's FLOPs (`work.py`) and memory traffic; those of loops are sums over their bodies.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.jaxpr.flatten import External, Flat, Outside, Result, flatten
from graphrl.graphs.readers.jaxpr.work import array_bytes, equation_layer
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, find_chip


def from_jax(
    fn: Callable[..., Any],
    *abstract_args: Any,
    chip: str | Chip = DEFAULT_CHIP,
    name: str | None = None,
    static_argnums: int | Sequence[int] = (),
    weights_argnums: int | Sequence[int] = (),
    **abstract_kwargs: Any,
) -> ComputationGraph:
    """Traces `fn` and returns its computation graph; nothing is computed and no memory allocated.

    Args:
      fn: a JAX function; training steps (`jax.grad`, `jax.value_and_grad`, optimiser updates) included.
      *abstract_args: its arguments: pytrees of arrays or `jax.ShapeDtypeStruct`s.
      chip: a name in `roofline.CHIPS`, or the caller's own `Chip`, for the run times.
      name: graph name; by default the function's.
      static_argnums: arguments that are Python values, as in `jax.jit`.
      weights_argnums: arguments that are parameters (optimiser state, ...): resident on a device for the whole run.
        Their bytes, like those of closed-over array constants, become `weight_bytes` of the first op that reads each,
        so that the sum over the ops is the model's. All other arguments are inputs, which cost nothing.
      **abstract_kwargs: keyword arguments of `fn` (bind one with the name `chip` or `name` with `functools.partial`).

    Returns:
      The graph: ops in program order, named `scope/primitive.index` after `jax.named_scope` (with `jvp(...)` and
        `transpose(...)` as JAX adds them). Their types are the primitives' names. All arguments (`params/conv/bias`)
        and the constants in use are external inputs. Outputs of `fn` that are computed are kept outputs. Side effects
        (ordered prints, mutable arrays) keep their order through control edges.

    Raises:
      GraphrlError: `fn` is not a function, an argument number is out of range, or the chip is unknown.
      GraphError: the function computes nothing, or shapes are symbolic. Errors of `fn` itself pass through.
    """
    if not callable(fn):
        raise GraphrlError(f"from_jax: {fn!r} is not a function: must be a callable that JAX can trace")
    static = _argnums("static_argnums", static_argnums, len(abstract_args))
    weights = _argnums("weights_argnums", weights_argnums, len(abstract_args))
    figures = find_chip(chip)
    closed = jax.make_jaxpr(fn, static_argnums=static)(*abstract_args, **abstract_kwargs)
    arguments = _externals(fn, abstract_args, abstract_kwargs, static, weights, closed.in_avals)
    flat = flatten(closed, arguments, figures)
    nodes = [index for index, alive in enumerate(flat.live) if alive]
    return _graph(flat, nodes, name or _name(fn), len(arguments))


def _argnums(option: str, numbers: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Normalises argument numbers to a tuple, each from 0 to `count` - 1 (negative ones count from the end)."""
    places = []
    for number in (numbers,) if isinstance(numbers, int) else tuple(numbers):
        if type(number) is not int or not -count <= number < count:
            raise GraphrlError(
                f"from_jax: {option} holds {number!r}: the function is given {count} positional arguments"
            )
        places.append(number % count)
    return tuple(sorted(set(places)))


def _name(fn: Any) -> str:
    while not hasattr(fn, "__name__") and hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def _externals(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static: tuple[int, ...],
    weights: tuple[int, ...],
    avals: Sequence[Any],
) -> list[External]:
    """Returns name, bytes and kind of every array argument, in the order of the jaxpr's inputs."""
    names = _parameter_names(fn, len(args))
    arguments = []
    for i, arg in enumerate(args):
        if i not in static:
            arguments += [(_path(names[i], path), i in weights) for path, _ in jax.tree_util.tree_leaves_with_path(arg)]
    for key in sorted(kwargs):
        arguments += [(_path(key, path), False) for path, _ in jax.tree_util.tree_leaves_with_path(kwargs[key])]
    return [External(name, array_bytes(aval), weight) for (name, weight), aval in zip(arguments, avals, strict=True)]


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = [p for p in inspect.signature(fn).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        parameters = []
    names = [parameter.name for parameter in parameters][:count]
    return names + [f"arg{i}" for i in range(len(names), count)]


def _path(root: str, path: Any) -> str:
    return "/".join([root, jax.tree_util.keystr(path, simple=True, separator="/")]) if path else root


def _graph(flat: Flat, live: Sequence[int], name: str, num_arguments: int) -> ComputationGraph:
    """Builds the graph: live nodes become ops with unique names."""
    scoped = [(flat.nodes[index].scope, f"{flat.nodes[index].type}.{i}") for i, index in enumerate(live)]
    op_names = {index: "/".join(filter(None, name)) for index, name in zip(live, scoped, strict=True)}
    tensors = {
        Result(index, k): Tensor(f"{op_names[index]}:{k}", size)
        for index in live
        for k, size in enumerate(flat.nodes[index].output_bytes)
    }
    read = {value.external for index in live for value in flat.nodes[index].inputs if isinstance(value, Outside)}
    externals = _external_tensors(flat, num_arguments, read, {tensor.name for tensor in tensors.values()})
    counted: set[int] = set()  # weights that an earlier op counts
    ops = []
    for index in live:
        node = flat.nodes[index]
        own = {
            v.external for v in node.inputs if isinstance(v, Outside) and flat.externals[v.external].weight
        } - counted
        counted |= own
        inputs = [externals[v.external] if isinstance(v, Outside) else tensors[v] for v in node.inputs]
        ops.append(
            Op(
                name=op_names[index],
                type=node.type,
                runtime=node.runtime,
                inputs=tuple(tensor.name for tensor in inputs),
                outputs=tuple(tensors[Result(index, k)] for k in range(len(node.output_bytes))),
                after=tuple(op_names[before] for before in node.after),
                workspace_bytes=node.workspace_bytes,
                weight_bytes=sum(flat.externals[i].bytes for i in own),
                flops=node.flops,
                layer=equation_layer(node.equation),
            )
        )
    kept = dict.fromkeys(tensors[value].name for value in flat.outputs if isinstance(value, Result))
    return ComputationGraph(name, tuple(ops), tuple(externals.values()), tuple(kept))


def _external_tensors(flat: Flat, num_arguments: int, read: set[int], taken: set[str]) -> dict[int, Tensor]:
    """Names all arguments, and the constants that live ops read, uniquely; returns their tensors by index."""
    tensors = {}
    for index, external in enumerate(flat.externals):
        if index < num_arguments or index in read:
            name = external.name
            while name in taken:
                name += "'"
            taken.add(name)
            tensors[index] = Tensor(name, external.bytes)
    return tensors
