"""`graphrl.shard_problem` and `graphrl.shard`: a function, the problem of its shardings, and the function split.

The plan's shardings are written into the function as constraints: results and operands of each equation are split
by its strategy. XLA's partitioner then inserts the collectives. Under a limit of memory, a gathered value
is not kept from the forward to the backward pass: it is gathered again. With `verify` the search is repeated within
less until XLA's figure keeps the limit.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.api_util import shaped_abstractify
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from graphrl.errors import ProblemError
from graphrl.graphs.readers.jaxpr.work import inner_jaxprs
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, Interconnect, find_chip
from graphrl.sharding.problem import UNLIMITED, ShardingProblem
from graphrl.sharding.search import search
from graphrl.units import format_bytes, parse_bytes
from graphrl.xla.checkpoint.collectives import moves
from graphrl.xla.checkpoint.settings import Compiler, compiled_memory, compiler_of
from graphrl.xla.checkpoint.shards import Layout, Scope, Spec, layout_on
from graphrl.xla.decorated import function_name
from graphrl.xla.shard.program import UNIT, Program
from graphrl.xla.shard.strategies import is_splittable
from graphrl.xla.topology import chip_here, concrete_mesh

SECONDS = 10.0  # of the search, by default
TRIES = 4  # most plans that are compiled for one limit
MARGIN = 0.005  # share of the limit by which the next search stays below it
FAR = 50  # equations after which a value is gathered again under a limit, rather than kept


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """The plan of a sharded function, by the model of its problem.

    Attributes:
      function: name of the function.
      mesh: mesh axis -> number of devices.
      seconds: estimated time of a call, without the launches of kernels.
      unsplit_seconds: the same if each device computes everything.
      collectives: bytes that one device sends, by kind of collective.
      peak_bytes: most bytes on one device at any time.
      compiled_bytes: the same by XLA, with `verify`: arguments, results and temporaries; else None.
      limit: limit of these; None without one.
      nodes, strategies: size of the problem.
      arguments: path of an argument -> how it is split, for those that are.
      unknown: primitive whose equations every device computes in whole -> their number.
      compilations: number of plans that XLA has compiled.
    """

    function: str
    mesh: Mapping[str, int]
    seconds: float
    unsplit_seconds: float
    collectives: Mapping[str, float]
    peak_bytes: int
    limit: int | None
    nodes: int
    strategies: int
    arguments: Mapping[str, PartitionSpec]
    unknown: Mapping[str, int]
    compiled_bytes: int | None = None
    compilations: int = 0

    def __str__(self) -> str:
        mesh = " x ".join(f"{size} {axis}" for axis, size in self.mesh.items())
        within = "" if self.limit is None else f" of {format_bytes(self.limit)}"
        verified = "" if self.compiled_bytes is None else f"; {format_bytes(self.compiled_bytes)} by XLA"
        sent = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in self.collectives.items() if size)
        lines = [
            f"{self.function} on {mesh} devices: {self.nodes:,} nodes, {self.strategies:,} strategies",
            f"estimated {1e3 * self.seconds:.3f} ms a call; {1e3 * self.unsplit_seconds:.3f} ms if nothing is split",
            f"memory {format_bytes(self.peak_bytes)}{within} a device{verified}",
            f"sent by a device: {sent or 'nothing'}",
        ]
        if self.unknown:
            lines.append("not split: " + ", ".join(f"{name} ({count})" for name, count in self.unknown.items()))
        lines += [f"  {path}: {spec}" for path, spec in self.arguments.items()]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class ShardedFunction:
    """A function that the devices of a mesh share; called as the function, whose values it has.

    Attributes:
      jitted: the function under `jax.jit`, with `in_shardings`, `out_shardings` and constraints; it can be lowered,
        compiled and called in other jitted functions.
      in_shardings: a sharding for each array of the positional arguments, as in `jax.jit`; place arguments by
        `jax.device_put(args, in_shardings)`.
      out_shardings: the same for the results.
      report: the plan.
    """

    jitted: Any
    in_shardings: tuple[Any, ...]
    out_shardings: Any
    report: ShardReport

    def __call__(self, *args: Any) -> Any:
        return self.jitted(*args)


class ShardableFunction:
    """A function on a mesh, the problem of its shardings, and the way back from plans.

    Attributes:
      problem: the problem; costs are picoseconds.
      program: the function's equations with their strategies: `program.nodes[v].strategies[s]` is strategy s of node v.
    """

    def __init__(
        self, fn: Callable[..., Any], mesh: Mesh, args: Sequence[Any], layout: Layout, chip: Chip, limit: int | None
    ) -> None:
        paths, self._inputs = jax.tree_util.tree_flatten_with_path(tuple(args))
        self._paths = [f"args{jax.tree_util.keystr(path)}" for path, _ in paths]
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*jax.tree.map(_unplaced, tuple(args)))
        self._outputs, self._mesh, self._fn = jax.tree.structure(shapes), mesh, fn
        self.program = Program(closed, layout, chip)
        self.problem: ShardingProblem = self.program.problem(function_name(fn), limit)

    def apply(self, strategies: Sequence[int]) -> ShardedFunction:
        """Returns the function split by a plan of the problem.

        Args:
          strategies: a strategy for each node, as `graphrl shard` and `problem.total_cost` take them.

        Raises:
          ProblemError: it is no plan of the problem.
        """
        plan = self.problem.check(strategies)
        writer = _Writer(self.program, plan.tolist(), self._mesh, is_limited=self.problem.limit < UNLIMITED)
        program, scope = self.program, self.program.scope
        flat = core.jaxpr_as_fun(core.ClosedJaxpr(writer.jaxpr(scope), program.closed.consts))
        inputs = [writer.sharding(writer.spec(scope, var), var.aval) for var in scope.jaxpr.invars]
        outputs = [
            writer.sharding(spec, var.aval) for spec, var in zip(writer.left(scope), scope.jaxpr.outvars, strict=True)
        ]
        in_shardings = jax.tree.unflatten(self._inputs, inputs)
        out_shardings = jax.tree.unflatten(self._outputs, outputs)

        def run(*args: Any) -> Any:
            return jax.tree.unflatten(self._outputs, flat(*jax.tree.leaves(args)))

        run.__name__ = run.__qualname__ = function_name(self._fn)
        jitted = jax.jit(run, in_shardings=in_shardings, out_shardings=out_shardings)
        return ShardedFunction(jitted, in_shardings, out_shardings, self._report(plan, inputs))

    def compiled_bytes(self, own: ShardedFunction, compiler: Compiler) -> int:
        """Compiles the split function; returns XLA's bytes on one device: arguments, results and temporaries.

        Args:
          own: the function, from `apply`.
          compiler: compiles a function for shapes with shardings.

        Raises:
          GraphrlError: XLA does not compile it, or the backend does not report memory.
        """
        shapes = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
            for aval, sharding in zip(self.program.closed.in_avals, jax.tree.leaves(own.in_shardings), strict=True)
        ]
        args = jax.tree.unflatten(self._inputs, shapes)
        memory, _ = compiled_memory(compiler, "the split function", own.jitted, args)
        sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
        return int(sum(sizes) - memory.alias_size_in_bytes)

    def _report(self, plan: np.ndarray, inputs: Sequence[NamedSharding]) -> ShardReport:
        problem, program = self.problem, self.program
        arguments = {
            path: sharding.spec for path, sharding in zip(self._paths, inputs, strict=True) if any(sharding.spec)
        }
        return ShardReport(
            problem.name,
            dict(program.layout.sizes),
            problem.total_cost(plan) * UNIT,
            problem.total_cost(np.zeros_like(plan)) * UNIT,
            program.collectives(plan.tolist()),
            problem.peak(plan),
            None if problem.limit == UNLIMITED else problem.limit,
            len(program.nodes),
            len(problem.cost),
            arguments,
            dict(program.unknown),
        )


def shard_problem(
    fn: Callable[..., Any],
    mesh: Mesh | AbstractMesh,
    *args: Any,
    memory: int | str | None = None,
    chip: str | Chip | None = None,
    link: str | Interconnect | Mapping[str, str | Interconnect] | None = None,
) -> ShardableFunction:
    """Makes a sharding problem of a function: how to split all its values over a mesh in the least time.

    The function is traced; its equations get strategies by which each axis of the mesh splits one of their dimensions,
    with their estimated time, collectives and memory (`graphrl.xla.shard.program`). Equations for which that is not
    known are computed by every device in whole; `report.unknown` counts them.

    Args:
      fn: a function of arrays in pytrees, such as a training step or `jax.value_and_grad(loss)`.
      mesh: devices; its axes are used as automatic ones. An abstract mesh gets jax's devices or, for a `chip` that is
        not here, devices to compile for (extra `gpu-compile`).
      *args: its arguments: arrays, or `jax.ShapeDtypeStruct`s. Their own shardings do not matter.
      memory: limit of the memory of one device, in bytes or as "12GiB"; by default unlimited.
      chip: the kind of the devices, a name in `graphrl.graphs.roofline.CHIPS` or a `graphrl.Chip`; by default that of
        jax's first device, or an A100 if it is unknown.
      link: the link between devices, a name in `graphrl.graphs.roofline.INTERCONNECTS` or an `Interconnect`, or one for
        each mesh axis; by default that of the chip.

    Raises:
      ProblemError: the mesh has one device, or the limit is no number of bytes.
      GraphrlError: unknown chip or link, or there are no devices for the mesh.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ProblemError(f"mesh is a {type(mesh).__name__}: must be a jax.sharding.Mesh or AbstractMesh")
    limit = parse_bytes(memory) if isinstance(memory, str) else memory
    if limit is not None and not 0 < limit < UNLIMITED:
        raise ProblemError(f'memory is {memory!r}: must be a number of bytes of one device, as in "12GiB"')
    figures = find_chip(chip if chip is not None else chip_here() or DEFAULT_CHIP)
    devices = concrete_mesh(mesh, None if chip is None else figures.name)
    if devices.size == 1:
        raise ProblemError("mesh has one device: must have several")
    devices = Mesh(devices.devices, devices.axis_names, axis_types=(AxisType.Auto,) * len(devices.axis_names))
    layout = layout_on(devices, figures, link)
    return ShardableFunction(fn, devices, args, layout, figures, limit)


def shard(
    fn: Callable[..., Any],
    mesh: Mesh | AbstractMesh,
    *args: Any,
    seconds: float = SECONDS,
    memory: int | str | None = None,
    chip: str | Chip | None = None,
    link: str | Interconnect | Mapping[str, str | Interconnect] | None = None,
    seed: int = 0,
    verify: bool | Compiler = False,
) -> ShardedFunction:
    """Splits a function over the devices of a mesh such that a call takes the least estimated time.

        step = graphrl.shard(jax.value_and_grad(loss), mesh, params, batch, memory="60GiB")
        params, batch = jax.device_put((params, batch), step.in_shardings)
        value, gradient = step(params, batch)
        print(step.report)

    The function needs no shardings of its own; `with_sharding_constraint`s in it are kept. Results of the type of an
    argument, such as gradients and new weights, are split as this argument. Values are those of the function, up to
    the rounding of sums in another order.

    Args:
      fn, mesh, *args, memory, chip, link: as in `graphrl.shard_problem`.
      seconds: search time in seconds; tracing and compilation of the search itself come on top. With `verify`, of each
        search.
      seed: seed of the search's random numbers.
      verify: whether XLA compiles the plan, for the mesh's devices, and its figure decides whether `memory` is kept. If
        it is exceeded, the search is repeated within less, until four plans have been compiled; the estimate is mostly
        some percent below XLA's figure. Or a function that compiles, as `(function, *args) -> jax.stages.Compiled`.

    Raises:
      ProblemError: as `graphrl.shard_problem`; or no plan was found that fits into memory (with `verify`, one line
        states the least bytes reached by XLA's figure).
      GraphrlError: as `graphrl.shard_problem`; with `verify`, XLA does not compile the function.
    """
    compiler = compiler_of(verify)
    split = shard_problem(fn, mesh, *args, memory=memory, chip=chip, link=link)
    if compiler is not None:
        return _verified(split, compiler, seconds, seed)
    plan, _ = search(split.problem, seconds, seed=seed)
    return split.apply(plan.strategies)


def _verified(split: ShardableFunction, compiler: Compiler, seconds: float, seed: int) -> ShardedFunction:
    """Searches for plans and compiles them, until one is within the limit by XLA's figure; raises as `shard`."""
    limit, low, high, compiled = split.problem.limit, 0, split.problem.limit, list[int]()
    following = limit
    while len(compiled) < TRIES and (following == limit or low < following < high):
        try:
            plan, _ = search(dataclasses.replace(split.problem, limit=following), seconds, seed=seed)
        except ProblemError:  # nothing fits by the estimate
            if not compiled:
                raise
            low = following
            following = (low + high) // 2 if high - low > 2 * MARGIN * limit else 0
            continue
        own = split.apply(plan.strategies)
        compiled.append(split.compiled_bytes(own, compiler))
        if compiled[-1] <= limit:
            report = dataclasses.replace(own.report, compiled_bytes=compiled[-1], compilations=len(compiled))
            return dataclasses.replace(own, report=report)
        high = own.report.peak_bytes
        following = max(low + 1, high - (compiled[-1] - limit) - int(MARGIN * limit))
    raise ProblemError(
        f"memory is {format_bytes(limit)}: the least reached in {len(compiled)} compilations is "
        f"{format_bytes(min(compiled))} ({min(compiled):,} bytes) a device by XLA"
    )


def _unplaced(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the type of an argument without its sharding: where arguments are does not matter to a plan."""
    aval = shaped_abstractify(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


class _Writer:
    """Writes the jaxprs of a program with the shardings of a plan.

    Attributes:
      is_limited: whether memory is limited.
    """

    def __init__(self, program: Program, plan: Sequence[int], mesh: Mesh, *, is_limited: bool) -> None:
        self._program, self._plan, self.is_limited = program, plan, is_limited
        self._layout = dataclasses.replace(program.layout, mesh=mesh)
        self._params: dict[Spec, Any] = {}

    def sharding(self, spec: Spec, aval: Any) -> NamedSharding:
        whole = NamedSharding(self._layout.mesh, PartitionSpec())
        return (self._layout.sharding(spec) or whole) if is_splittable(aval) else whole

    def spec(self, scope: Scope, atom: Any) -> Spec:
        """Returns how a value is left by the equation that writes it."""
        writer = None if isinstance(atom, core.Literal) else self._program.producer.get(scope.keys[atom])
        if writer is None:
            return ((),) * len(getattr(atom.aval, "shape", ()))
        return self._program.nodes[writer[0]].strategies[self._plan[writer[0]]].results[writer[1]]

    def left(self, scope: Scope) -> list[Spec]:
        """Returns how the results of a jaxpr are left."""
        leaving = self._program.leaving[id(scope)]
        return [self._read(way, scope, atom) for way, atom in zip(leaving, scope.jaxpr.outvars, strict=True)]

    def jaxpr(self, scope: Scope) -> core.Jaxpr:
        """Writes a jaxpr."""
        old, body = scope.jaxpr, _Body(self, scope)
        for place, eqn in enumerate(old.eqns):
            ways = self._program.wanted.get((id(scope), place))
            reads = [
                self._read(way, scope, atom)
                for way, atom in zip(ways or [None] * len(eqn.invars), eqn.invars, strict=True)
            ]
            body.write(eqn, reads, self._inner(scope, place, eqn), constrained=ways is not None)
        returned = list(old.outvars)
        if id(scope) in self._program.leaving and old.eqns:
            pairs = zip(old.outvars, self.left(scope), strict=True)
            returned = [body.read(atom, spec, old.eqns[-1]) for atom, spec in pairs]
        return old.replace(eqns=body.equations, outvars=returned)

    def steps(self, aval: Any, have: Spec, want: Spec) -> list[Spec]:
        """Returns the splits through which an array goes, by one collective each: XLA's partitioner would gather the
        whole array for some changes that take two.
        """
        return [move.spec for move in moves(self._layout, aval, have, want)]

    def constraint(self, spec: Spec) -> tuple[Any, dict[str, Any]]:
        """Returns primitive and parameters of a sharding constraint."""
        if spec not in self._params:
            sharding = self._layout.sharding(spec)
            shape = jax.ShapeDtypeStruct((self._layout.count(self._layout.sizes),) * len(spec), np.float32)
            (eqn,) = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(shape).jaxpr.eqns
            self._params[spec] = eqn.primitive, eqn.params
        return self._params[spec]

    def _inner(self, scope: Scope, place: int, eqn: Any) -> dict[str, Any]:
        """Returns the parameters of an equation, whose inner jaxpr is written if it is a scan or a call."""
        if place not in scope.inner or eqn.primitive.name in ("cond", "while"):
            return dict(eqn.params)
        ((name, inner),) = scope.inner[place].items()
        old = inner_jaxprs(eqn.params)[name]
        if not isinstance(eqn.params.get(name), type(old)):
            return dict(eqn.params)  # a high-level primitive, which stays as it is
        new: Any = self.jaxpr(inner)
        return {**eqn.params, name: core.ClosedJaxpr(new, old.consts) if isinstance(old, core.ClosedJaxpr) else new}

    def _read(self, way: tuple[int, int] | None, scope: Scope, atom: Any) -> Spec:
        if way is None:
            return self.spec(scope, atom)
        node, number = way
        return self._program.nodes[node].strategies[self._plan[node]].operands[number]


class _Body:
    """Equations of one jaxpr while they are written.

    Attributes:
      equations: the equations so far.
    """

    def __init__(self, writer: _Writer, scope: Scope) -> None:
        self._writer, self._scope = writer, scope
        self._moved: dict[tuple[Any, Spec], tuple[Any, int]] = {}  # variable and split -> variable, and its place
        self.equations: list[Any] = []

    def write(self, eqn: Any, reads: Sequence[Spec], params: Mapping[str, Any], *, constrained: bool) -> None:
        """Writes an equation that reads its operands split as given; its results are constrained unless it is a call,
        within which they are already.
        """
        pairs = [*zip(eqn.invars, reads, strict=True)]
        late = self._late(eqn, [atom for atom, spec in pairs if self._is_old(atom, spec)])
        operands = [self.read(atom, spec, eqn, late) for atom, spec in pairs]
        results = [
            core.Var(var.aval) if constrained and is_splittable(var.aval) and not isinstance(var, core.DropVar) else var
            for var in eqn.outvars
        ]
        self.equations.append(eqn.replace(invars=operands, outvars=results, params=params))
        for before, after in zip(results, eqn.outvars, strict=True):
            if before is not after:
                self._constrain(before, after, self._writer.spec(self._scope, after), eqn)

    def read(self, atom: Any, spec: Spec, eqn: Any, late: Mapping[Any, Any] = {}) -> Any:
        """Returns a value, split as given, for an equation; `late` has variables to use in place of others."""
        if isinstance(atom, core.Literal):
            return atom
        before = late.get(atom, atom)
        for step in self._writer.steps(atom.aval, self._writer.spec(self._scope, atom), spec):
            after, _ = self._moved.get((atom, step), (None, 0))
            if after is None or atom in late:
                after = core.Var(atom.aval)
                self._moved[atom, step] = after, len(self.equations)
                self._constrain(before, after, step, eqn)
            before = after
        return before

    def _is_old(self, atom: Any, spec: Spec) -> bool:
        """True if a value was last split so many equations ago, and should not be kept so under a limit of memory."""
        if isinstance(atom, core.Literal) or (atom, spec) not in self._moved:
            return False
        return self._writer.is_limited and len(self.equations) - self._moved[atom, spec][1] > FAR

    def _late(self, eqn: Any, atoms: Sequence[Any]) -> dict[Any, Any]:
        """Makes variables wait for another operand of an equation; returns variables in place of both.

        XLA would else merge the collectives of several readers into the first, and keep the result.
        """
        other = next((a for a in eqn.invars[::-1] if not isinstance(a, core.Literal) and a not in atoms), None)
        if not atoms or other is None:
            return {}
        waiting = [*dict.fromkeys(atoms), other]
        late = {atom: core.Var(atom.aval) for atom in waiting}
        (barrier,) = jax.make_jaxpr(jax.lax.optimization_barrier)(1.0).jaxpr.eqns
        self.equations.append(
            eqn.replace(
                primitive=barrier.primitive,
                params=barrier.params,
                invars=waiting,
                outvars=[*late.values()],
                effects=frozenset(),
            )
        )
        return late

    def _constrain(self, before: Any, after: Any, spec: Spec, eqn: Any) -> None:
        primitive, params = self._writer.constraint(spec)
        self.equations.append(
            eqn.replace(primitive=primitive, params=params, invars=[before], outvars=[after], effects=frozenset())
        )
