"""Programs and plans: a function as a flat list of equations, and what its gradient does with their results.

Calls (`jax.jit` within the function) are inlined. Functions with custom derivatives (`custom_jvp`, `custom_vjp`), the
user's own `jax.checkpoint`, loops and branches remain single equations; the bodies of scans are programs in turn. A
`Program` can be run in pieces.

A `CheckpointPlan` defines which values a gradient keeps, computes again and moves to the host: regions of equations
that are computed again, names of values that are kept or moved, plans for the bodies of scans, and stretches of loops.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.extend.core.primitives import name_p, remat_p

from graphrl.graphs.readers.jaxpr.work import inner_jaxprs
from graphrl.xla.checkpoint.equations import is_fused
from graphrl.xla.checkpoint.primitives import gather_equation
from graphrl.xla.checkpoint.shards import Layout, Shards, Spec
from graphrl.xla.checkpoint.sizes import Sizes, sizes_of

Name = tuple[int, int]  # identifies a value: place (index) of the equation that writes it, and index among its results
CALLS = frozenset({"jit", "pjit", "closed_call", "core_call"})
DEBUG_INFO = core.DebugInfo("graphrl.checkpoint", "piece of a program", arg_names=None, result_paths=None)
LABEL = re.compile(r"graphrl(\d+)")  # label of a program, in the names of its values


@dataclasses.dataclass(frozen=True)
class Region:
    """Consecutive equations that the backward pass computes again as far as it needs them.

    Attributes:
      first, stop: index of the first equation, and of the first one after the region.
      kept: values that stay in device memory for the backward pass.
      moved: values that are kept for it in host memory.
      ends: for each of these, the equation whose results wait for its copy, in this region or a later one; empty in
        loop bodies, where each step waits for its copies at its end.
    """

    first: int
    stop: int
    kept: tuple[Name, ...] = ()
    moved: tuple[Name, ...] = ()
    ends: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class CheckpointPlan:
    """The regions of a program that its gradient computes again, and the values that it keeps or moves to the host.

    Attributes:
      regions: disjoint regions, in order. For equations outside of them jax keeps its default values.
      copied: indices of cheap equations that depend on arguments only; each region computes them for itself.
      bodies: index of a scan -> plan for its body; other scans are left as they are.
      stretch: for a scan's body, number of steps that run forward once more together before they run backward; 1 if
        the steps of a scan are not computed again.
      unrolled: whether these steps are unrolled instead of run as a loop.
    """

    regions: tuple[Region, ...] = ()
    copied: tuple[int, ...] = ()
    bodies: Mapping[int, "CheckpointPlan"] = dataclasses.field(default_factory=dict)
    stretch: int = 1
    unrolled: bool = False

    def orders(self, program: "Program") -> bool:
        """True if anything is computed again, by the plan or by the user's own rules; gradients then wait for one
        another, see `primitives`.
        """
        return bool(self.regions or self.bodies) or program.has_rules

    @property
    def is_plain(self) -> bool:
        """True if the plan changes nothing."""
        return not self.regions and not self.bodies and self.stretch == 1

    @property
    def summary(self) -> str:
        """The plan in a few words."""
        if self.is_plain:
            return "as it is"
        regions, bodies, loops = [*self.regions], [*self.bodies.values()], 0
        while bodies:
            body = bodies.pop()
            regions, loops = [*regions, *body.regions], loops + (body.stretch > 1)
            bodies += body.bodies.values()
        moved = sum(len(region.moved) for region in regions)
        counts = {
            "{} segment{} recomputed": len(regions),
            "{} loop{} in stretches": loops,
            "{} value{} offloaded": moved,
        }
        return ", ".join(text.format(count, "s" * (count > 1)) for text, count in counts.items() if count)


@dataclasses.dataclass(frozen=True)
class Program:
    """A function, or the body of a scan, as a jaxpr without calls.

    Attributes:
      closed: the jaxpr; its constants are arrays: see `lift_tracers`.
      bodies: index of a scan among the equations -> its body, for scans with at least one step.
      label: prefix of the names of its values. It differs from the labels of all programs within it, including those of
        functions that `graphrl.checkpoint` made, since a policy applies to everything within.
      sizes: the sizes of its symbolic dimensions.
      shards: how its values are split over devices; None on one device.
    """

    closed: core.ClosedJaxpr
    bodies: Mapping[int, "Program"]
    label: str
    sizes: Sizes
    shards: Shards | None = None

    @property
    def equations(self) -> Sequence[Any]:
        """Equations in execution order; a "place" is an index into these."""
        return self.closed.jaxpr.eqns

    @functools.cached_property
    def last_use(self) -> dict[Any, int]:
        """Variable -> place of the last equation that reads it; for results, the number of equations."""
        uses = {atom: place for place, eqn in enumerate(self.equations) for atom in variables(eqn.invars)}
        return uses | dict.fromkeys(variables(self.closed.jaxpr.outvars), len(self.equations))

    @functools.cached_property
    def readers(self) -> Counter[Any]:
        """Variable -> number of equations that read it; being a result counts as one."""
        reads = [*(eqn.invars for eqn in self.equations), self.closed.jaxpr.outvars]
        return Counter(atom for atoms in reads for atom in {*variables(atoms)})

    @functools.cached_property
    def has_rules(self) -> bool:
        """True if the user has put `jax.checkpoint` around parts of the program."""
        return any(eqn.primitive is remat_p for eqn in self.equations)

    @functools.cached_property
    def place_of(self) -> dict[Any, int]:
        """Variable -> place of the equation that writes it; arguments and constants are absent."""
        return {var: place for place, eqn in enumerate(self.equations) for var in eqn.outvars}

    def size(self, atom: Any) -> int:
        """Returns the number of elements of an array on one device."""
        size = math.prod(map(self.sizes.value, atom.aval.shape))
        if self.shards is None:
            return size
        return size // self.shards.layout.count(itertools.chain(*self.shards.spec(atom)))

    def trips(self, place: int) -> int:
        """Returns the number of steps of the scan at a place."""
        return self.sizes.value(self.equations[place].params["length"])

    def text_of(self, name: Name) -> str:
        """Returns the name by which jax's policies refer to a value."""
        return f"{self.label}:{name[0]}.{name[1]}"

    def name_of(self, text: str) -> Name | None:
        """Returns the value with this name; None if no value of this program has it."""
        label, _, numbers = text.partition(":")
        if label != self.label:
            return None
        place, _, output = numbers.partition(".")
        return int(place), int(output)


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Filters the operands or results of an equation: returns those that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def lift_tracers(closed: core.ClosedJaxpr) -> tuple[core.ClosedJaxpr, list[Any]]:
    """Converts tracers that a jaxpr closes over to arguments, before its own, since a gradient may be taken by them;
    returns the new jaxpr and the tracers.
    """
    tracers = [const for const in closed.consts if isinstance(const, jax.core.Tracer)]
    if not tracers:
        return closed, tracers

    def run(*args: Any) -> list[Any]:
        rest = iter(args)
        consts = [next(rest) if isinstance(const, jax.core.Tracer) else const for const in closed.consts]
        return core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, consts))(*rest)

    return jax.make_jaxpr(run)(*map(jax.typeof, tracers), *closed.in_avals), tracers


def program_of(
    closed: core.ClosedJaxpr,
    layout: Layout | None = None,
    arguments: Sequence[Spec] = (),
    label: str | None = None,
    sizes: Sizes | None = None,
) -> Program:
    """Converts a traced function to a program.

    Args:
      closed: the function.
      layout: the devices that share it; None for one device.
      arguments: how its arguments are split over these.
      label: label of the program; by default, one that nothing within it has.
      sizes: sizes of symbolic dimensions; by default, they are chosen.

    Raises:
      GraphrlError: no sizes were found that the constraints of the dimensions allow.
    """
    if any(_is_call(eqn) for eqn in closed.jaxpr.eqns):
        closed = inlined(closed)
    shards = None
    if layout is not None:
        shards = Shards(closed, layout, arguments)
        closed, shards = with_gathers(closed, shards, arguments)
    sizes = sizes or sizes_of(closed.jaxpr)
    scans = {place: eqn for place, eqn in enumerate(closed.jaxpr.eqns) if _is_loop(eqn, sizes)}
    if label is None:
        label = f"graphrl{1 + max(_numbers(closed), default=-1)}"
    bodies = {
        place: program_of(
            eqn.params["jaxpr"], layout, () if shards is None else shards.of_body(place), f"{label}.{place}", sizes
        )
        for place, eqn in scans.items()
    }
    return Program(closed, bodies, label, sizes, shards)


def with_gathers(
    closed: core.ClosedJaxpr, shards: Shards, arguments: Sequence[Spec]
) -> tuple[core.ClosedJaxpr, Shards]:
    """Gives operands of products that must be gathered equations of their own, so that plans can keep them.

    Only operands that are computed from arguments alone and without kernels, such as weights and their conversions.
    """
    jaxpr = closed.jaxpr
    outside, equations = {*jaxpr.constvars, *jaxpr.invars}, list[Any]()
    for place, eqn in enumerate(jaxpr.eqns):
        if is_fused(eqn) and outside.issuperset(variables(eqn.invars)):
            outside |= {*eqn.outvars}
        operands = [*eqn.invars]
        for k, spec in shards.gathers(place):
            if (var := eqn.invars[k]) in outside:
                back = shards.layout.sharding(shards.spec(var))
                operands[k] = core.Var(var.aval)
                gather = gather_equation(eqn, var, operands[k], sharding=shards.layout.sharding(spec), back=back)
                equations.append(gather)
        equations.append(eqn.replace(invars=operands))
    if len(equations) == len(jaxpr.eqns):
        return closed, shards
    closed = core.ClosedJaxpr(jaxpr.replace(eqns=equations), closed.consts)
    return closed, Shards(closed, shards.layout, arguments)


def _numbers(jaxpr: Any) -> Iterator[int]:
    """Yields the numbers of program labels in the names of values, in a jaxpr and in those within it."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "name" and (label := LABEL.match(eqn.params["name"])):
            yield int(label[1])
        for inner in inner_jaxprs(eqn.params).values():
            yield from _numbers(inner)


class Values:
    """Values of a jaxpr's variables while its equations are evaluated one after another."""

    def __init__(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        self._values = dict(zip(variables, values, strict=True))

    @classmethod
    def of(cls, closed: core.ClosedJaxpr, args: Sequence[Any]) -> "Values":
        """Creates the values before the first equation: constants and arguments."""
        return cls((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *args))

    def read(self, atoms: Iterable[Any]) -> list[Any]:
        """Returns the values of variables and literals."""
        return [atom.val if isinstance(atom, core.Literal) else self._values[atom] for atom in atoms]

    def has(self, variable: Any) -> bool:
        """True if a variable has a value."""
        return variable in self._values

    def write(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        """Sets values of variables."""
        self._values.update(zip(variables, values, strict=True))

    def name(self, variable: Any, name: str) -> None:
        """Names a variable's value, so that the policies of `jax.checkpoint` can refer to it."""
        self._values[variable] = name_p.bind(self._values[variable], name=name)  # also under `jax_remat3`

    def run(self, equations: Sequence[Any]) -> None:
        """Evaluates equations whose operands have values."""
        piece = Piece.of(equations)
        self.write(piece.writes, piece(*self.read(piece.reads)))


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some equations as a function.

    Attributes:
      equations: the equations, in order.
      reads: its arguments: variables that the equations read from elsewhere.
      writes: its results: variables that the equations write.
    """

    equations: Sequence[Any]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]

    @classmethod
    def of(cls, equations: Sequence[Any], wanted: frozenset[Any] | None = None) -> "Piece":
        """Creates a function of equations; its results are all variables that they write, or the `wanted` ones of
        these.
        """
        written = dict.fromkeys(var for eqn in equations for var in eqn.outvars if not isinstance(var, core.DropVar))
        read = dict.fromkeys(var for eqn in equations for var in variables(eqn.invars) if var not in written)
        return cls(equations, tuple(read), tuple(var for var in written if wanted is None or var in wanted))

    def __call__(self, *args: Any) -> list[Any]:
        jaxpr = core.Jaxpr((), self.reads, self.writes, self.equations, debug_info=DEBUG_INFO)
        return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*args)


def checkpointed(run: Callable[..., Any], *args: Any, policy: Any = None, prevent_cse: bool = True) -> Any:
    """Runs a function under `jax.checkpoint`, and returns its results.

    Binds jax's primitive instead of calling `jax.checkpoint`. The implementation under `jax_remat3` ignores the names
    that a policy saves (jax 0.10), and delays recomputation by other barriers, so that plans would need more memory.

    Args:
      run: arrays in pytrees -> arrays in pytrees.
      *args: the function's arguments.
      policy, prevent_cse: as in `jax.checkpoint`.
    """
    leaves, structure = jax.tree.flatten(args)

    def flat(*leaves: Any) -> Any:
        return run(*jax.tree.unflatten(structure, leaves))

    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    inner = closed.jaxpr
    jaxpr = inner.replace(constvars=(), invars=[*inner.constvars, *inner.invars], debug_info=DEBUG_INFO)
    results = remat_p.bind(
        *closed.consts, *leaves, jaxpr=jaxpr, prevent_cse=prevent_cse, differentiated=False, policy=policy
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def inlined(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Returns a jaxpr without calls of `jax.jit`."""
    return jax.make_jaxpr(functools.partial(_run_inlined, closed))(*closed.in_avals)


def _run_inlined(closed: core.ClosedJaxpr, *args: Any) -> list[Any]:
    """Evaluates a jaxpr with its calls inlined."""
    jaxpr, values, start = closed.jaxpr, Values.of(closed, args), 0
    for place, eqn in enumerate(jaxpr.eqns):
        if _is_call(eqn):
            values.run(jaxpr.eqns[start:place])
            values.write(eqn.outvars, _run_inlined(eqn.params["jaxpr"], *values.read(eqn.invars)))
            start = place + 1
    values.run(jaxpr.eqns[start:])
    return values.read(jaxpr.outvars)


def _is_loop(eqn: Any, sizes: Sizes) -> bool:
    """True if an equation is a scan with at least one step."""
    return eqn.primitive.name == "scan" and sizes.value(eqn.params["length"]) > 0


def _is_call(eqn: Any) -> bool:
    """True if an equation only calls a jaxpr, and specifies no shardings of operands or results."""
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    unspecified = all(type(sharding).__name__ == "UnspecifiedValue" for sharding in shardings)
    return eqn.primitive.name in CALLS and isinstance(eqn.params.get("jaxpr"), core.ClosedJaxpr) and unspecified
