"""A program as a function that follows a plan: regions under `jax.checkpoint`, with names for what is kept.

Regions, names and barriers are jax's own primitives, which every backend, sharding and later transformation takes.
`scan_in_stretches` runs a loop as a scan of scans, each of which is computed again in whole before it runs backward.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from graphrl.graphs.readers.jaxpr.work import scan_operands
from graphrl.xla.checkpoint.primitives import after, finished, moved, together
from graphrl.xla.checkpoint.program import CheckpointPlan, Name, Piece, Program, Region, Values, checkpointed, variables
from graphrl.xla.checkpoint.rules import rule_of

Arrays = list[Any]
Step = Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]  # carry, slices -> carry, results


def scan_in_stretches(
    step: Step, first: Arrays, xs: Arrays, stretch: int, *, unrolled: bool, length: int, reverse: bool, unroll: int
) -> tuple[Arrays, Arrays]:
    """`jax.lax.scan`, whose steps are computed again some at a time.

    Args:
      step, first, xs, length, reverse, unroll: as `lax.scan` has them.
      stretch: steps that are computed again together, of which the last ones to run may be fewer; 1 where none are.
      unrolled: whether they stand one after the other, and are no loop.
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
    begin, end = (left, length) if reverse else (0, length - left)  # of what runs first
    carry, ys = _stretches(run, first, _cut(xs, begin, end), length // stretch, stretch, reverse)
    rest = _cut(xs, 0, left) if reverse else _cut(xs, end, length)
    carry, last = _stretches(run, carry, rest, 1, left, reverse)
    return carry, [jax.numpy.concatenate(pair[:: -1 if reverse else 1]) for pair in zip(ys, last, strict=True)]


def _stretches(
    run: Callable[..., tuple[Arrays, Arrays]], first: Arrays, xs: Arrays, count: int, stretch: int, reverse: bool
) -> tuple[Arrays, Arrays]:
    """So many stretches, all of the same length."""
    run = functools.partial(run, length=stretch)
    if count == 1:  # in no loop of its own: compilers must not take what is computed again for what was before
        return checkpointed(run, first, xs)
    blocks = [x.reshape(count, stretch, *x.shape[1:]) for x in xs]
    body = functools.partial(checkpointed, run, prevent_cse=False)
    carry, ys = jax.lax.scan(body, first, blocks, length=count, reverse=reverse)
    return carry, [y.reshape(count * stretch, *y.shape[2:]) for y in ys]


def _steps(step: Step, carry: Arrays, xs: Arrays, order: Sequence[int]) -> tuple[Arrays, Arrays]:
    """Steps one after the other, whose results are stacked."""
    ys = {}
    for k in order:
        carry, ys[k] = step(carry, [jax.lax.index_in_dim(x, k, keepdims=False) for x in xs])
    return carry, [jax.numpy.stack(rows) for rows in zip(*(ys[k] for k in range(len(ys))), strict=True)]


def _cut(xs: Sequence[Any], begin: int, end: int) -> Arrays:
    return [jax.lax.slice_in_dim(x, begin, end) for x in xs]


HOST = "pinned_host"  # the memory for what loops move

Copies = dict[int, list[Any]]  # on the host, by the place that waits for them


def evaluate(program: Program, plan: CheckpointPlan, args: Sequence[Any], *, in_loop: bool = False) -> list[Any]:
    """The results of a program; its derivative keeps what the plan says.

    Args:
      program: whose arguments are `args`.
      plan: about it.
      args: arrays or tracers.
      in_loop: whether it is the body of a loop: what the backward loop computes again, no compiler takes for what the
        forward loop has computed.
    """
    values, copies = Values.of(program.closed, args), Copies()
    _run(program, plan, values, plan.copied)
    start, apart = 0, not in_loop or len(plan.regions) > 1
    for region in plan.regions:
        _run_between(program, plan, values, range(start, region.first))
        _run_region(program, plan, values, region, apart, copies)
        start = region.stop
    _run_between(program, plan, values, range(start, len(program.equations)))
    results = values.read(program.closed.jaxpr.outvars)
    return finished(results) if plan.orders and not in_loop else results


def fits(program: Program, plan: CheckpointPlan) -> bool:
    """Whether a plan's places are those of a program."""
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


def _own(plan: CheckpointPlan, places: Iterable[int]) -> list[int]:
    return [place for place in places if place not in plan.copied]


def _run_between(program: Program, plan: CheckpointPlan, values: Values, places: Iterable[int]) -> None:
    """Runs what is in no region. Where there are any, it also hands on its gradients together."""
    own = _own(plan, places)
    with _together(program, values, [program.equations[place] for place in own] if plan.orders else []):
        _run(program, plan, values, own)


@contextlib.contextmanager
def _together(program: Program, values: Values, equations: Sequence[Any]) -> Iterator[None]:
    """What equations read hands on its gradients together where they run within."""
    read = Piece.of(equations).reads
    before = values.read(read)
    values.write(read, _tied(program, values, read))
    yield
    values.write(read, before)


def _tied(program: Program, values: Values, read: Sequence[Any]) -> list[Any]:
    """The values of what is read; their gradients are handed on together where others wait for some of them. Those of
    arguments alone are results, into whose memory compilers had better write them at once.
    """
    own = values.read(read)
    return together(own) if any(var in program.place_of for var in read) else own


def _run_region(
    program: Program, plan: CheckpointPlan, values: Values, region: Region, apart: bool, copies: Copies
) -> None:
    """Runs a region; `apart` keeps compilers from taking what is computed again for what was computed before. Copies to
    the host that end in a later region are added to `copies`, and those that end here are taken from it.
    """
    own = _own(plan, range(region.first, region.stop))
    if not own:
        return
    places = sorted({*own, *_copies(program, plan, own)})
    written = {var for place in own for var in program.equations[place].outvars}
    later = frozenset(var for var in written if program.last_use.get(var, -1) >= region.stop)
    piece = Piece.of([program.equations[place] for place in places], later)
    names = {name: program.text_of(name) for name in (*region.kept, *region.moved)}
    ends = dict(zip(region.moved, region.ends, strict=bool(region.ends)))
    begun = {place: copies.pop(place) for place in own if place in copies}

    def run(begun: Copies, *args: Any) -> tuple[list[Any], Copies]:
        inner, waiting = Values(piece.reads, args), {place: list(some) for place, some in begun.items()}
        _run(program, plan, inner, places, names, ends, waiting)
        return inner.read(piece.writes), {place: some for place, some in waiting.items() if place >= region.stop}

    by_jax = [name for name in region.moved if name not in ends]
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[text for name, text in names.items() if name not in by_jax],
        names_which_can_be_offloaded=[names[name] for name in by_jax],
        offload_src="device",
        offload_dst=HOST,
    )
    read = _tied(program, values, piece.reads)
    results, left = checkpointed(run, begun, *read, policy=policy, prevent_cse=apart)
    values.write(piece.writes, results)
    for place, some in left.items():
        copies.setdefault(place, []).extend(some)


def _copies(program: Program, plan: CheckpointPlan, readers: Iterable[int]) -> set[int]:
    """The copied equations that some others need, directly or through each other."""
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
    """Runs equations in order: scans as planned, names on results that have one, copies to the host of those that have
    a place where these end.
    """
    waiting: list[Any] = []
    copies = Copies() if copies is None else copies
    special = {*(place for place, _ in names), *ends.values(), *copies}
    for place in places:
        eqn = program.equations[place]
        own = _own_way(program, plan, place)
        waiting += [eqn] if own is None else []
        if own is None and place not in special:
            continue
        values.run(waiting)
        waiting = []
        if own is not None:
            values.write(eqn.outvars, own(values.read(eqn.invars)))
        for k, var in enumerate(eqn.outvars):
            if values.has(var):
                _mark(values, var, (place, k), names, ends, copies)
    values.run(waiting)


def _own_way(program: Program, plan: CheckpointPlan, place: int) -> Callable[[Sequence[Any]], list[Any]] | None:
    """What gives an equation's results for its operands; None where the equation itself does."""
    eqn = program.equations[place]
    if place in plan.bodies:
        return functools.partial(scan_of, eqn, program.bodies[place], plan.bodies[place])
    rule = rule_of(program, eqn) if plan.orders else None
    return None if rule is None else lambda operands: [rule(*operands)]


def _mark(
    values: Values, var: Any, name: Name, names: Mapping[Name, str], ends: Mapping[Name, int], copies: Copies
) -> None:
    """Gives a value its name, or begins its copy to the host; and lets it wait for the copies that end there."""
    if name in ends:
        (value,) = values.read([var])
        value, copy = moved(value, names[name])
        copies.setdefault(ends[name], []).append(copy)
        values.write([var], [value])
    elif name in names:
        values.name(var, names[name])
    if name[0] in copies:
        (value,) = values.read([var])
        values.write([var], [after(value, copies[name[0]])])


def scan_of(eqn: Any, body: Program, plan: CheckpointPlan, operands: Sequence[Any]) -> list[Any]:
    """A scan whose body does what a plan says."""
    params = eqn.params
    consts, carried = scan_operands(params)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = evaluate(body, plan, [*operands[:consts], *carry, *x], in_loop=not plan.unrolled)
        return results[:carried], results[carried:]

    first, xs = list(operands[consts : consts + carried]), list(operands[consts + carried :])
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, ys = scan_in_stretches(step, first, xs, plan.stretch, unrolled=plan.unrolled, **options)
    return [*carry, *ys]
