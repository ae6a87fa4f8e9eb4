"""The rewrite: runs a program such that its gradient follows a plan.

Regions run under `jax.checkpoint`, with names for kept values, and barriers between them: jax's own primitives, which
every backend, sharding and later transformation supports. `scan_in_stretches` runs a loop as a scan of scans, each of
which is computed again in whole before it runs backward. If anything is computed again, some equations have custom
derivatives, for which compilers need less memory (`rule_of`):

| equation | rule |
|---|---|
| product, convolution (`product`) | the gradient of the smaller operand comes first |
| gather, scatter (`gathered`, `scattered`) | the zeros that are added to wait for the scattered values |

Each of a product's two gradients reads the other operand. If the gradient of the larger operand is computed first, that
operand still has to be kept for the other gradient. With the rule it is no longer needed before an array of its size is
written again. Not all products have the rule: see `is_from_sums`. Scattered values are added to zeros, or to another
number. The zeros depend on nothing, so XLA may write all zeros of a program in one kernel at its start.
"""

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.extend.core.primitives import remat_p
from jax.interpreters import ad, batching, mlir

from graphrl.graphs.readers.jaxpr.work import scan_operands
from graphrl.xla.checkpoint.equations import is_fill, is_fused, is_of_variables, is_product
from graphrl.xla.checkpoint.primitives import GATHERED, finish_forward, join_gradients, pinned, send_to_host, wait_for
from graphrl.xla.checkpoint.program import CheckpointPlan, Name, Piece, Program, Region, Values, checkpointed, variables
from graphrl.xla.checkpoint.sizes import holds

Arrays = list[Any]
Step = Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]  # carry, slices -> carry, results
Copies = dict[int, list[Any]]  # equation -> copies on the host for which its results wait
HOST = "pinned_host"  # the memory for values that loops move
MANY = 4  # see `is_from_sums`


def evaluate(program: Program, plan: CheckpointPlan, args: Sequence[Any], *, in_loop: bool = False) -> list[Any]:
    """Runs a program and returns its results; its derivative keeps values according to the plan.

    Args:
      program: the program to run.
      plan: the plan to follow.
      args: the program's arguments, arrays or tracers.
      in_loop: whether the program is the body of a loop. Then there is no risk that a compiler merges recomputation, in
        the backward loop, with the first computation in the forward loop.
    """
    values, copies = Values.of(program.closed, args), Copies()
    _run(program, plan, values, plan.copied)
    start, prevent_cse = 0, not in_loop or len(plan.regions) > 1
    for region in plan.regions:
        _run_between(program, plan, values, range(start, region.first))
        _run_region(program, plan, values, region, prevent_cse, copies)
        start = region.stop
    _run_between(program, plan, values, range(start, len(program.equations)))
    results = values.read(program.closed.jaxpr.outvars)
    return finish_forward(results) if plan.orders(program) and not in_loop else results


def fits(program: Program, plan: CheckpointPlan) -> bool:
    """True if all equations and results that a plan refers to exist in a program."""
    equations = program.equations
    stops = [0, *(region.stop for region in plan.regions)]
    names = [name for region in plan.regions for name in (*region.kept, *region.moved)]
    return (
        all(stop <= r.first <= r.stop <= len(equations) for r, stop in zip(plan.regions, stops, strict=False))
        and all(0 <= place < len(equations) and 0 <= k < len(equations[place].outvars) for place, k in names)
        and all(len(r.ends) in (0, len(r.moved)) for r in plan.regions)
        and all(0 <= place < len(equations) for place in (*plan.copied, *(end for r in plan.regions for end in r.ends)))
        and all(place in program.bodies and fits(program.bodies[place], body) for place, body in plan.bodies.items())
        and all(1 <= body.stretch <= program.trips(place) for place, body in plan.bodies.items())
    )


def scan_of(eqn: Any, body: Program, plan: CheckpointPlan, operands: Sequence[Any]) -> list[Any]:
    """Runs a scan whose body follows a plan; returns its results."""
    params = eqn.params
    consts, carried = scan_operands(params)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = evaluate(body, plan, [*operands[:consts], *carry, *x], in_loop=not plan.unrolled)
        return results[:carried], results[carried:]

    first, xs = list(operands[consts : consts + carried]), list(operands[consts + carried :])
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, ys = scan_in_stretches(step, first, xs, plan.stretch, unrolled=plan.unrolled, **options)
    return [*carry, *ys]


def scan_in_stretches(
    step: Step, first: Arrays, xs: Arrays, stretch: int, *, unrolled: bool, length: int, reverse: bool, unroll: int
) -> tuple[Arrays, Arrays]:
    """Runs `jax.lax.scan` such that the backward pass computes blocks of `stretch` steps again, one block at a time.

    Args:
      step, first, xs, length, reverse, unroll: as in `lax.scan`.
      stretch: number of steps in a block; the last block to run may be shorter. 1 for no recomputation.
      unrolled: whether the steps of a stretch are unrolled instead of run as a loop.
    """

    def run(carry: Arrays, xs: Arrays, *, length: int) -> tuple[Arrays, Arrays]:
        if unrolled:
            return _steps(step, carry, xs, range(length)[:: -1 if reverse else 1])
        return jax.lax.scan(step, carry, xs, length=length, reverse=reverse, unroll=min(unroll, length))

    if stretch == 1:
        steps = None if xs else length  # jax takes a symbolic length from arrays alone
        return jax.lax.scan(step, first, xs, length=steps, reverse=reverse, unroll=unroll)
    left = length % stretch
    if not left:
        return _stretches(run, first, xs, length // stretch, stretch, reverse)
    begin, end = (left, length) if reverse else (0, length - left)  # range of the steps that run first
    carry, ys = _stretches(run, first, _cut(xs, begin, end), length // stretch, stretch, reverse)
    rest = _cut(xs, 0, left) if reverse else _cut(xs, end, length)
    carry, last = _stretches(run, carry, rest, 1, left, reverse)
    return carry, [jax.numpy.concatenate(pair[:: -1 if reverse else 1]) for pair in zip(ys, last, strict=True)]


def rule_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """Returns a function, operands -> result, to run an equation with a custom derivative; None for most equations."""
    if is_product(eqn):
        return product_of(program, eqn)
    if not is_of_variables(eqn):
        return None
    if eqn.primitive.name == "gather":
        return functools.partial(gathered, eqn)
    if eqn.primitive.name == "scatter-add" and eqn.invars[0] in program.place_of:
        filled = program.equations[program.place_of[eqn.invars[0]]]
        if is_fill(filled) and isinstance(filled.invars[0], core.Literal):
            return functools.partial(scattered, filled.invars[0].val, eqn)
    return None


def product_of(program: Program, eqn: Any) -> Callable[..., Any] | None:
    """Returns a function, operands -> result, that runs a product with a custom derivative; None if `is_from_sums`."""
    left, right = map(program.size, eqn.invars)
    return None if is_from_sums(program, eqn) else functools.partial(product, eqn, 0 if left < right else 1)


def is_from_sums(program: Program, product: Any) -> bool:
    """True if a product's larger operand is computed from sums over at least `MANY` times its elements, in one
    fused kernel: by equations whose results a single equation reads.

    The gradient of the summed array reads its factors once more. Without the rule of `product`, that gradient does not
    wait for the operand. Compilers then read the factors once for both, and never write the summed array.
    """
    larger = max(product.invars, key=program.size)
    waiting, visited = [larger], {larger}
    while waiting:
        atom = waiting.pop()
        place = program.place_of.get(atom)
        if place is None or program.readers[atom] > 1 or not is_fused(program.equations[place]):
            continue
        read = variables(program.equations[place].invars)
        if program.equations[place].primitive.name == "reduce_sum" and any(
            program.size(summed) >= MANY * program.size(larger) and summed in program.place_of for summed in read
        ):
            return True
        new = {other for other in read if program.size(other) >= program.size(larger)} - visited
        visited |= new
        waiting += new
    return False


def product(equation: Any, smaller: int, left: Any, right: Any) -> Any:
    """Runs a matrix product or convolution whose gradient by the smaller operand is computed first.

    Args:
      equation: the equation, linear in each of two different variables.
      smaller: index of the smaller operand, 0 or 1.
      left, right: its operands' values.
    """
    multiply = Piece.of([equation])

    def bind(*operands: Any) -> Any:
        return multiply(*operands)[0]

    def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Returns result and tangent; transposed, the term with the larger operand's tangent waits for the other."""
        order = [k for k in (1 - smaller, smaller) if type(tangents[k]) is not SymbolicZero]
        terms: list[Any] = []
        for k in order:
            tangent_k = tangents[k]
            if terms:
                terms[0], tangent_k = join_gradients([terms[0], tangent_k])
            terms.append(bind(*(tangent_k if number == k else operand for number, operand in enumerate(primals))))
        return bind(*primals), sum(terms[1:], terms[0])

    run = jax.custom_jvp(bind)
    run.defjvp(tangent, symbolic_zeros=True)
    return run(left, right)


def gathered(equation: Any, operand: Any, indices: Any) -> Any:
    """Runs a gather; the operand's gradient is scattered into zeros that wait for the result's gradient."""
    run = Piece.of([equation])
    params = {**equation.params, "fill_value": 0}  # tangents outside of the array are zero

    def gather(operand: Any, indices: Any) -> Any:
        return run(operand, indices)[0]

    def tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return gather(*primals), _GATHER.bind(tangents[0], primals[1], **params)

    custom = jax.custom_jvp(gather)
    custom.defjvp(tangent, symbolic_zeros=True)
    return custom(operand, indices) if _is_whole(operand) else gather(operand, indices)


def scattered(number: Any, equation: Any, operand: Any, indices: Any, updates: Any) -> Any:
    """Runs a scatter into an array filled with one number; the array is written only once the updates are computed.

    Args:
      number: the number.
      equation: the scatter's equation.
      operand, indices, updates: its operands' values.
    """
    if _is_whole(updates):
        operand = _filled(number, jax.typeof(operand), updates)
    return Piece.of([equation])(operand, indices, updates)[0]


def _stretches(
    run: Callable[..., tuple[Arrays, Arrays]], first: Arrays, xs: Arrays, count: int, stretch: int, reverse: bool
) -> tuple[Arrays, Arrays]:
    """Runs `count` blocks of `stretch` steps, each under `jax.checkpoint`."""
    run = functools.partial(run, length=stretch)
    if count == 1:  # not in a separate loop: compilers must not merge recomputation with the first computation
        return checkpointed(run, first, xs)
    blocks = [x.reshape(count, stretch, *x.shape[1:]) for x in xs]
    body = functools.partial(checkpointed, run, prevent_cse=False)
    carry, ys = jax.lax.scan(body, first, blocks, length=count, reverse=reverse)
    return carry, [y.reshape(count * stretch, *y.shape[2:]) for y in ys]


def _steps(step: Step, carry: Arrays, xs: Arrays, order: Sequence[int]) -> tuple[Arrays, Arrays]:
    """Runs unrolled steps in the given order, and stacks their results."""
    ys = {}
    for k in order:
        carry, ys[k] = step(carry, [jax.lax.index_in_dim(x, k, keepdims=False) for x in xs])
    return carry, [jax.numpy.stack(rows) for rows in zip(*(ys[k] for k in range(len(ys))), strict=True)]


def _cut(xs: Sequence[Any], begin: int, end: int) -> Arrays:
    return [jax.lax.slice_in_dim(x, begin, end) for x in xs]


def _not_copied(plan: CheckpointPlan, places: Iterable[int]) -> list[int]:
    return [place for place in places if place not in plan.copied]


def _run_between(program: Program, plan: CheckpointPlan, values: Values, places: Iterable[int]) -> None:
    """Runs equations outside of all regions. If anything is computed again, their gradients are joined too, those of
    each of the user's own checkpoints by themselves.
    """
    not_copied = _not_copied(plan, places)
    if not plan.orders(program):
        return _run(program, plan, values, not_copied)
    rules = (place if program.equations[place].primitive is remat_p else None for place in not_copied)
    for _, group in itertools.groupby(zip(rules, not_copied, strict=True), operator.itemgetter(0)):
        group_places = [place for _, place in group]
        with _joined_gradients(program, values, [program.equations[place] for place in group_places]):
            _run(program, plan, values, group_places)


@contextlib.contextmanager
def _joined_gradients(program: Program, values: Values, equations: Sequence[Any]) -> Iterator[None]:
    """Within this context, the values that `equations` read receive their gradients together."""
    read = Piece.of(equations).reads
    before = values.read(read)
    values.write(read, _with_joined_gradients(program, values, read))
    yield
    values.write(read, before)


def _with_joined_gradients(program: Program, values: Values, read: Sequence[Any]) -> list[Any]:
    """Returns the values of the variables `read`, which receive their gradients together unless all are arguments.

    Gradients of arguments are results, which compilers should write directly to the memory of the results.
    """
    operands = values.read(read)
    return join_gradients(operands) if any(var in program.place_of for var in read) else operands


def _run_region(
    program: Program, plan: CheckpointPlan, values: Values, region: Region, prevent_cse: bool, copies: Copies
) -> None:
    """Runs a region; `prevent_cse` keeps compilers from merging recomputation with the first computation.

    Copies to the host that end in a later region are added to `copies`, and those that end here are taken from it.
    """
    not_copied = _not_copied(plan, range(region.first, region.stop))
    if not not_copied:
        return
    places = sorted({*not_copied, *_copies(program, plan, not_copied)})
    written = {var for place in not_copied for var in program.equations[place].outvars}
    later = frozenset(var for var in written if program.last_use.get(var, -1) >= region.stop)
    piece = Piece.of([program.equations[place] for place in places], later)
    names = {name: program.text_of(name) for name in (*region.kept, *region.moved)}
    ends = dict(zip(region.moved, region.ends, strict=bool(region.ends)))
    arriving = {place: copies.pop(place) for place in not_copied if place in copies}

    def run(arriving: Copies, *args: Any) -> tuple[list[Any], Copies]:
        inner, waiting = Values(piece.reads, args), {place: list(group) for place, group in arriving.items()}
        _run(program, plan, inner, places, names, ends, waiting)
        return inner.read(piece.writes), {place: group for place, group in waiting.items() if place >= region.stop}

    by_jax = [name for name in region.moved if name not in ends]
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[text for name, text in names.items() if name not in by_jax],
        names_which_can_be_offloaded=[names[name] for name in by_jax],
        offload_src="device",
        offload_dst=HOST,
    )
    read = _with_joined_gradients(program, values, piece.reads)
    results, left = checkpointed(run, arriving, *read, policy=policy, prevent_cse=prevent_cse)
    values.write(piece.writes, results)
    for place, group in left.items():
        copies.setdefault(place, []).extend(group)


def _copies(program: Program, plan: CheckpointPlan, readers: Iterable[int]) -> set[int]:
    """Returns the copied equations that `readers` need, directly or through each other."""
    needed: set[int] = set()
    waiting = list(readers)
    while waiting:
        read = variables(program.equations[waiting.pop()].invars)
        places = {program.place_of[var] for var in read if var in program.place_of}
        new = places & set(plan.copied) - needed
        needed |= new
        waiting += new
    return needed


def _run(
    program: Program,
    plan: CheckpointPlan,
    values: Values,
    places: Iterable[int],
    names: Mapping[Name, str] = {},
    ends: Mapping[Name, int] = {},
    copies: Copies | None = None,
) -> None:
    """Runs equations in order: scans follow their plans, results in `names` get these names, and results in `ends` are
    copied to the host.
    """
    waiting: list[Any] = []
    copies = Copies() if copies is None else copies
    special = {*(place for place, _ in names), *ends.values(), *copies}
    for place in places:
        eqn = program.equations[place]
        implementation = _implementation(program, plan, place)
        waiting += [eqn] if implementation is None else []
        if implementation is None and place not in special:
            continue
        values.run(waiting)
        waiting = []
        if implementation is not None:
            values.write(eqn.outvars, implementation(values.read(eqn.invars)))
        if eqn.primitive.name == GATHERED and (place, 0) in names:  # kept as the product needs it
            values.write(eqn.outvars, [pinned(eqn, *values.read(eqn.invars))])
        for k, var in enumerate(eqn.outvars):
            if values.has(var):
                _mark(values, var, (place, k), names, ends, copies)
    values.run(waiting)


def _implementation(program: Program, plan: CheckpointPlan, place: int) -> Callable[[Sequence[Any]], list[Any]] | None:
    """Returns a function, operands -> results, to run instead of an equation; None if the equation itself is run."""
    eqn = program.equations[place]
    if place in plan.bodies:
        return functools.partial(scan_of, eqn, program.bodies[place], plan.bodies[place])
    rule = rule_of(program, eqn) if plan.orders(program) else None
    return None if rule is None else lambda operands: [rule(*operands)]


def _mark(
    values: Values, var: Any, name: Name, names: Mapping[Name, str], ends: Mapping[Name, int], copies: Copies
) -> None:
    """Names a value or starts its copy to the host, and makes it wait for the copies that end at its equation."""
    if name in ends:
        (value,) = values.read([var])
        value, copy = send_to_host(value, names[name])
        copies.setdefault(ends[name], []).append(copy)
        values.write([var], [value])
    elif name in names:
        values.name(var, names[name])
    if name[0] in copies:
        (value,) = values.read([var])
        values.write([var], [wait_for(value, copies[name[0]])])


def _filled(number: Any, aval: Any, value: Any) -> Any:
    """Returns an array filled with a number, which is computed only after `value`, of floating-point numbers.

    The dependency is a `where` that XLA cannot simplify, since XLA drops values that only pass a barrier together with
    needed ones. If `value` is distributed over devices, this sends a small message between them.
    """
    if not holds(operator.ge, jax.typeof(value).size, 1):  # there may be nothing to wait for
        return jax.lax.full(aval.shape, number, aval.dtype)
    first = jax.lax.stop_gradient(value)[(0,) * jax.numpy.ndim(value)]
    never = (first != first) & (first == first)
    return jax.lax.full(aval.shape, jax.numpy.where(never, 1, number).astype(aval.dtype))


def _is_whole(value: Any) -> bool:
    """True if a value has floating-point numbers and is not sharded over a mesh of devices by its type."""
    aval = jax.typeof(value)
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.floating) and aval.sharding.mesh.empty


def _gather(operand: Any, indices: Any, **params: Any) -> Any:
    return jax.lax.gather_p.bind(operand, indices, **params)


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return _GATHER.bind(*primals, **params), _GATHER.bind(tangents[0], primals[1], **params)


def _transpose(cotangent: Any, operand: Any, indices: Any, **params: Any) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(operand.aval), None]
    numbers = params["dimension_numbers"]
    how = jax.lax.ScatterDimensionNumbers(
        update_window_dims=numbers.offset_dims,
        inserted_window_dims=numbers.collapsed_slice_dims,
        scatter_dims_to_operand_dims=numbers.start_index_map,
        operand_batching_dims=numbers.operand_batching_dims,
        scatter_indices_batching_dims=numbers.start_indices_batching_dims,
    )
    options = {name: params[name] for name in ("indices_are_sorted", "unique_indices", "mode")}
    zeros = _filled(0, operand.aval, cotangent)
    return [jax.lax.scatter_add(zeros, indices, cotangent, how, **options), None]


def _batched(values: Any, dims: Any, **params: Any) -> Any:
    gather: Any = batching.primitive_batchers[jax.lax.gather_p]  # type: ignore[index]
    return gather(values, dims, **params)


_GATHER = core.Primitive("graphrl_gather")  # gathers tangents
_GATHER.def_impl(_gather)
_GATHER.def_abstract_eval(lambda *avals, **params: jax.lax.gather_p.abstract_eval(*avals, **params)[0])
mlir.register_lowering(_GATHER, mlir.lower_fun(_gather, multiple_results=False))
ad.primitive_jvps[_GATHER] = _jvp
ad.primitive_transposes[_GATHER] = _transpose
batching.primitive_batchers[_GATHER] = _batched
