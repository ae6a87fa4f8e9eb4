"""Programs and plans: a function as one flat list of equations, and the decisions about it.

Calls (`jax.jit` within the function) are inlined. Functions with custom derivatives (`custom_jvp`, `custom_vjp`), the
user's own `jax.checkpoint`, loops and branches remain single equations; the bodies of scans are programs in turn. A
`Program` can be run in pieces.

A `CheckpointPlan` defines which values a gradient keeps, computes again and moves to the host: regions of equations
that are computed again, names of values that are kept or moved, plans for the bodies of scans, and stretches of loops.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.extend.core.primitives import name_p, remat_p

from graphrl.graphs.readers.jaxpr.work import inner_jaxprs
from graphrl.xla.checkpoint.sizes import Sizes, sizes_of

Name = tuple[int, int]  # a value: the place of the equation that writes it, and the index among its results
CALLS = frozenset({"jit", "pjit", "closed_call", "core_call"})
DEBUG_INFO = core.DebugInfo("graphrl.checkpoint", "piece of a program", arg_names=None, result_paths=None)
LABEL = re.compile(r"graphrl(\d+)")  # of a program, in the names of its values


@dataclasses.dataclass(frozen=True)
class Region:
    """Consecutive equations that the backward pass computes again as far as it needs them.

    Attributes:
      first, stop: places of the equations, without `stop`.
      kept: values that stay in memory for the backward pass.
      moved: values that are kept for it in the memory of the host.
      ends: for each of these, the place whose results wait for its copy, in this region or a later one; empty in bodies
        of loops, where a trip ends with its copies.
    """

    first: int
    stop: int
    kept: tuple[Name, ...] = ()
    moved: tuple[Name, ...] = ()
    ends: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class CheckpointPlan:
    """Decisions about a program.

    Attributes:
      regions: disjoint regions, in order. For equations outside of them jax keeps the values that it always keeps.
      copied: places of free equations, which each region computes for itself.
      bodies: plans for the bodies of scans, by place; others are left as they are.
      stretch: for a scan's body, steps that run forward once more together before they run backward; 1 without
        stretches.
      unrolled: whether these steps are unrolled instead of run as a loop.
    """

    regions: tuple[Region, ...] = ()
    copied: tuple[int, ...] = ()
    bodies: Mapping[int, "CheckpointPlan"] = dataclasses.field(default_factory=dict)
    stretch: int = 1
    unrolled: bool = False

    @property
    def orders(self) -> bool:
        """True if the plan makes gradients wait: if anything is computed again. See `primitives`."""
        return bool(self.regions or self.bodies)

    @property
    def is_plain(self) -> bool:
        """True if a loop's body with this plan is left as it is."""
        return not self.regions and not self.bodies and self.stretch == 1


@dataclasses.dataclass(frozen=True)
class Program:
    """A flat jaxpr.

    Attributes:
      closed: without calls among its equations; its constants are arrays: see `lift_tracers`.
      bodies: the bodies of its scans that have steps, by the scans' places among the equations.
      sizes: the sizes of its symbolic dimensions.
      label: prefix of the names of its values. It differs from the label of any program within it, also of a function
        that `graphrl.checkpoint` made, since a policy applies to everything within.
    """

    closed: core.ClosedJaxpr
    bodies: Mapping[int, "Program"]
    label: str
    sizes: Sizes

    @property
    def equations(self) -> Sequence[Any]:
        """Equations in the order of the function; a place is an index into these."""
        return self.closed.jaxpr.eqns

    @functools.cached_property
    def last_use(self) -> dict[Any, int]:
        """The last place that reads each variable; the number of equations for results."""
        uses = {atom: place for place, eqn in enumerate(self.equations) for atom in variables(eqn.invars)}
        return uses | dict.fromkeys(variables(self.closed.jaxpr.outvars), len(self.equations))

    @functools.cached_property
    def readers(self) -> Counter[Any]:
        """Number of equations that read each variable; being a result counts as one."""
        reads = [*(eqn.invars for eqn in self.equations), self.closed.jaxpr.outvars]
        return Counter(atom for atoms in reads for atom in {*variables(atoms)})

    @functools.cached_property
    def place_of(self) -> dict[Any, int]:
        """The place that writes each variable; arguments and constants are absent."""
        return {var: place for place, eqn in enumerate(self.equations) for var in eqn.outvars}

    def size(self, atom: Any) -> int:
        """Number of elements of an array."""
        return math.prod(map(self.sizes.value, atom.aval.shape))

    def trips(self, place: int) -> int:
        """Number of steps of the scan at a place."""
        return self.sizes.value(self.equations[place].params["length"])

    def text_of(self, name: Name) -> str:
        """Name by which jax's policies refer to a value."""
        return f"{self.label}:{name[0]}.{name[1]}"

    def name_of(self, text: str) -> Name | None:
        """The value with this name; None if the name is not of this program."""
        label, _, numbers = text.partition(":")
        if label != self.label:
            return None
        place, _, output = numbers.partition(".")
        return int(place), int(output)


def variables(atoms: Iterable[Any]) -> list[Any]:
    """The operands or results of an equation that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def lift_tracers(closed: core.ClosedJaxpr) -> tuple[core.ClosedJaxpr, list[Any]]:
    """A jaxpr that takes the tracers which it closes over as arguments, before its own; and these tracers. A gradient
    may be taken by them.
    """
    tracers = [const for const in closed.consts if isinstance(const, jax.core.Tracer)]
    if not tracers:
        return closed, tracers

    def run(*args: Any) -> list[Any]:
        rest = iter(args)
        consts = [next(rest) if isinstance(const, jax.core.Tracer) else const for const in closed.consts]
        return core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, consts))(*rest)

    return jax.make_jaxpr(run)(*map(jax.typeof, tracers), *closed.in_avals), tracers


def program_of(closed: core.ClosedJaxpr, label: str | None = None, sizes: Sizes | None = None) -> Program:
    """A traced function as a program. The default label is one that nothing within it has. The default sizes are chosen
    for its symbolic dimensions.

    Raises:
      GraphrlError: no sizes were found that the constraints of the dimensions allow.
    """
    if any(_is_call(eqn) for eqn in closed.jaxpr.eqns):
        closed = jax.make_jaxpr(functools.partial(_inlined, closed))(*closed.in_avals)
    sizes = sizes or sizes_of(closed.jaxpr)
    scans = {place: eqn for place, eqn in enumerate(closed.jaxpr.eqns) if _is_loop(eqn, sizes)}
    if label is None:
        label = f"graphrl{1 + max(_numbers(closed), default=-1)}"
    bodies = {place: program_of(eqn.params["jaxpr"], f"{label}.{place}", sizes) for place, eqn in scans.items()}
    return Program(closed, bodies, label, sizes)


def _numbers(jaxpr: Any) -> Iterator[int]:
    """Numbers of the labels in the names of a jaxpr's values, and of the jaxprs within it."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "name" and (label := LABEL.match(eqn.params["name"])):
            yield int(label[1])
        for inner in inner_jaxprs(eqn.params).values():
            yield from _numbers(inner)


class Values:
    """Values of a jaxpr's variables, as far as it has run."""

    def __init__(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        self._values = dict(zip(variables, values, strict=True))

    @classmethod
    def of(cls, closed: core.ClosedJaxpr, args: Sequence[Any]) -> "Values":
        """The values before the first equation."""
        return cls((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *args))

    def read(self, atoms: Iterable[Any]) -> list[Any]:
        """The values of variables and literals."""
        return [atom.val if isinstance(atom, core.Literal) else self._values[atom] for atom in atoms]

    def has(self, variable: Any) -> bool:
        """True if a variable has a value."""
        return variable in self._values

    def write(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        """Sets values of variables."""
        self._values.update(zip(variables, values, strict=True))

    def name(self, variable: Any, name: str) -> None:
        """Names a variable's value, for policies."""
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
      reads: variables from elsewhere, its arguments.
      writes: variables, its results.
    """

    equations: Sequence[Any]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]

    @classmethod
    def of(cls, equations: Sequence[Any], wanted: frozenset[Any] | None = None) -> "Piece":
        """Equations as a function of the variables that they read from elsewhere. Its results are all variables that
        they write, or the `wanted` ones of these.
        """
        written = dict.fromkeys(var for eqn in equations for var in eqn.outvars if not isinstance(var, core.DropVar))
        read = dict.fromkeys(var for eqn in equations for var in variables(eqn.invars) if var not in written)
        return cls(equations, tuple(read), tuple(var for var in written if wanted is None or var in wanted))

    def __call__(self, *args: Any) -> list[Any]:
        jaxpr = core.Jaxpr((), self.reads, self.writes, self.equations, debug_info=DEBUG_INFO)
        return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*args)


def checkpointed(run: Callable[..., Any], *args: Any, policy: Any = None, prevent_cse: bool = True) -> Any:
    """The results of a function under `jax.checkpoint`.

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


def _inlined(closed: core.ClosedJaxpr, *args: Any) -> list[Any]:
    """Runs a jaxpr with its calls replaced by the jaxprs that they call."""
    jaxpr, values, start = closed.jaxpr, Values.of(closed, args), 0
    for place, eqn in enumerate(jaxpr.eqns):
        if _is_call(eqn):
            values.run(jaxpr.eqns[start:place])
            values.write(eqn.outvars, _inlined(eqn.params["jaxpr"], *values.read(eqn.invars)))
            start = place + 1
    values.run(jaxpr.eqns[start:])
    return values.read(jaxpr.outvars)


def _is_loop(eqn: Any, sizes: Sizes) -> bool:
    """True if an equation is a scan with at least one step."""
    return eqn.primitive.name == "scan" and sizes.value(eqn.params["length"]) > 0


def _is_call(eqn: Any) -> bool:
    """True if an equation only calls a jaxpr, without shardings of its operands or results."""
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    unspecified = all(type(sharding).__name__ == "UnspecifiedValue" for sharding in shardings)
    return eqn.primitive.name in CALLS and isinstance(eqn.params.get("jaxpr"), core.ClosedJaxpr) and unspecified
