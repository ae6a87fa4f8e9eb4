"""User input: the options of `graphrl.checkpoint` and a call's arguments, checked before anything is traced.

Planning works on arrays alone, so `Static` splits static arguments (Python values) from the arrays of a call, and
`join_arguments` joins both again. `check_arguments` checks that jax can trace the call, so that errors name the user's
arguments.
"""

import dataclasses
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, get_abstract_mesh

from graphrl.errors import ArgumentError, GraphrlError, ProblemError
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, Interconnect, find_chip, find_link
from graphrl.optimize import DEFAULT_SECONDS, check_seed
from graphrl.solvers.base import Budget
from graphrl.units import format_bytes, parse_bytes
from graphrl.xla.checkpoint.shards import Layout, Spec, layout_on, spec_of, typed_spec
from graphrl.xla.checkpoint.solvers.auto import find_solver
from graphrl.xla.checkpoint.solvers.choice import Pricing
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.decorated import argument_names, function_name
from graphrl.xla.topology import chip_here, compile_for, concrete_mesh

SECONDS = DEFAULT_SECONDS
Compiler = Callable[..., Any]  # a function and its arguments' shapes -> a `jax.stages.Compiled`
Call = tuple[list[Any], dict[str, Any]]  # positional and keyword arguments
StaticArgs = tuple[tuple[int | str, Any], ...]  # static arguments: position or name, and value


class UnmetError(ProblemError):
    """Raised if no choice within the limit exists or was found.

    Attributes:
      least: for a limit of the peak, the lowest peak found, in bytes without arguments, results and gradients.
    """

    def __init__(self, message: str, least: float | None = None) -> None:
        super().__init__(message)
        self.least = least


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of `graphrl.checkpoint`; see there. Limits may be real numbers of Python, NumPy or jax.

    Raises:
      ProblemError: an option is out of range, or there is not exactly one limit; one line states the valid values.
    """

    budget: float | str | None = None
    slowdown: float | None = None
    chip: str | Chip | None = None
    offload: bool = False
    method: str = "auto"
    seconds: float = SECONDS
    seed: int = 0
    cache: bool = True
    verify: bool | Compiler = False
    in_shardings: Any = None
    mesh: Mesh | AbstractMesh | None = None
    link: str | Interconnect | Mapping[str, str | Interconnect] | None = None

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.slowdown is None):
            raise ProblemError(
                'checkpoint needs one limit: budget=0.5 (part of what jax keeps), budget="12GiB" (the peak of the '
                "whole step) or slowdown=0.1 (of the step)"
            )
        if isinstance(self.budget, str):
            parse_bytes(self.budget)
        else:
            self._set_part("budget", 0.0, 'a part from 0 to 1, or bytes such as "12GiB"')
        self._set_part("slowdown", -1.0, "a part of the step's time, from -1 (all of it is saved) to 1")
        for name in ("offload", "cache"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemError(f"{name} is {getattr(self, name)!r}: must be True or False")
        _ = compiler_of(self.verify)
        if self.chip is not None:
            find_chip(self.chip)
        if self.mesh is not None and not isinstance(self.mesh, Mesh | AbstractMesh):
            raise ProblemError(f"mesh is a {type(self.mesh).__name__}: must be a jax.sharding.Mesh or AbstractMesh")
        for sharding in jax.tree.leaves(self.in_shardings, is_leaf=_is_sharding):
            if not _is_sharding(sharding):
                fault = f"in_shardings has {reprlib.repr(sharding)}: must be PartitionSpecs or NamedShardings"
                raise ProblemError(fault)
        for link in self.link.values() if isinstance(self.link, Mapping) else [self.link]:
            _ = link is None or find_link(link)
        find_solver(self.method)
        check_seed(self.seed)
        _ = Budget(None, self.seconds)

    def _set_part(self, name: str, least: float, right: str) -> None:
        """Converts the option `name`, if it is given, to a float from `least` to 1.

        Raises:
          ProblemError: it is out of range; the message describes valid values by `right`.
        """
        value = getattr(self, name)
        if value is None:
            return
        part = _real(value)
        if part is None or not least <= part <= 1:
            raise ProblemError(f"{name} is {value!r}: must be {right}")
        object.__setattr__(self, name, part)

    @property
    def resolved_chip(self) -> Chip:
        """The chip for which run times are estimated: by default jax's first device if its name is known."""
        return find_chip(self.chip if self.chip is not None else chip_here() or DEFAULT_CHIP)

    @property
    def compiler(self) -> Compiler | None:
        """The function that compiles gradients to verify plans; None without verification."""
        return compiler_of(self.verify)

    def shardings(self, layout: Layout) -> Callable[[Spec | None], NamedSharding | None]:
        """Returns a function that gives the shardings of arrays, on the devices to compile for.

        Raises:
          GraphrlError: XLA has no compiler for these devices here.
        """
        return dataclasses.replace(layout, mesh=self._devices(layout)).sharding

    def _devices(self, layout: Layout) -> Mesh:
        """Returns the mesh of the devices to compile for; raises as `concrete_mesh`."""
        return concrete_mesh(layout.mesh, None if self.chip is None else find_chip(self.chip).name)

    @property
    def is_stored(self) -> bool:
        """True if plans are stored on disk: with `cache`, unless a user's function compiles the gradients."""
        return self.cache and isinstance(self.verify, bool)

    def verified_for(self, layout: Layout | None) -> tuple[str, ...]:
        """Returns kind and platform version of the devices that plans are verified for; none if `verify` is not True.

        Args:
          layout: the devices that share the function; None for one device.

        Raises:
          GraphrlError: XLA has no compiler for these devices here.
        """
        if self.verify is not True:
            return ()
        device = jax.devices()[0] if layout is None else self._devices(layout).devices.flat[0]
        return device.device_kind, device.client.platform_version

    def layout(self, avals: Sequence[Any]) -> Layout | None:
        """Returns the devices that share a function with arguments of these types; None if it runs on one."""
        given = jax.tree.leaves(self.in_shardings, is_leaf=_is_sharding)
        mesh = self.mesh or next((each.mesh for each in given if isinstance(each, NamedSharding)), None)
        if mesh is None:
            typed = (getattr(getattr(aval, "sharding", None), "mesh", None) for aval in avals)
            meshes = [each for each in (*typed, get_abstract_mesh()) if each is not None and not each.empty]
            mesh = next(iter(meshes), None)
            if self.in_shardings is None and (mesh is None or set(mesh.axis_types) == {AxisType.Auto}):
                return None  # automatic axes, of which types show nothing
            if mesh is None:
                raise ProblemError("in_shardings has PartitionSpecs alone: give their mesh=")
        return None if mesh.size == 1 else layout_on(mesh, self.resolved_chip, self.link)

    def arguments(self, layout: Layout, structure: Any, avals: Sequence[Any]) -> list[Spec]:
        """Returns how the arguments of a call are split over devices, by their types or `in_shardings`.

        Args:
          layout: the devices.
          structure: pytree structure of the call's `(args, kwargs)`.
          avals: types of the arguments, the last of which are those of the call.

        Raises:
          ProblemError: `in_shardings` do not fit the arguments.
        """
        args, kwargs = jax.tree.unflatten(structure, [0] * structure.num_leaves)
        prefix = jax.tree.map(lambda each: each or PartitionSpec(), self.in_shardings, is_leaf=_is_sharding)
        if _is_sharding(self.in_shardings):
            prefix = [self.in_shardings or PartitionSpec()] * len(args)
        try:
            whole = jax.tree.broadcast(list(prefix), list(args), is_leaf=_is_sharding)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise ProblemError(f"in_shardings do not fit the positional arguments, as in jax.jit: {reason}") from error
        given = jax.tree.leaves(whole, is_leaf=_is_sharding)
        rest = len(avals) - len(given) - len(jax.tree.leaves(kwargs))
        partitions = [*[None] * rest, *given, *[None] * (len(avals) - rest - len(given))]
        specs = []
        for aval, sharding in zip(avals, partitions, strict=True):
            partition = sharding.spec if isinstance(sharding, NamedSharding) else sharding
            shape = getattr(aval, "shape", ())
            spec = typed_spec(aval) or spec_of(partition, len(shape))
            if unknown := [axis for axes in spec for axis in axes if axis not in layout.sizes]:
                raise ProblemError(f"in_shardings has mesh axis {unknown[0]!r}: the mesh has {', '.join(layout.sizes)}")
            if len(partition or ()) > len(shape):
                raise ProblemError(f"in_shardings has {partition} for an array of shape {shape}")
            specs.append(spec)
        return specs

    def goal(self, pricing: Pricing) -> Goal:
        """Converts the user's limit to bytes, or to a slowdown, for one gradient.

        Raises:
          UnmetError: arguments, results and gradients alone exceed the budget.
        """
        if self.slowdown is not None:
            return Goal(slowdown=self.slowdown, moves=self.offload)
        if not isinstance(self.budget, str):
            assert self.budget is not None
            return Goal(kept=self.budget * pricing.plain.kept, moves=self.offload)
        outside = pricing.gradient.argument_bytes + pricing.gradient.result_bytes
        left = parse_bytes(self.budget) - outside
        if left <= 0:
            raise UnmetError(
                f"budget is {self.budget}: arguments, results and gradients alone need {format_bytes(outside)} "
                "(a part of what jax keeps is from 0 to 1)"
            )
        return Goal(peak=left, moves=self.offload)


def _is_sharding(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec | NamedSharding)


def compiler_of(verify: object) -> Compiler | None:
    """Returns the function that compiles, given the option `verify`; None without verification.

    Raises:
      ProblemError: the option is of another type.
    """
    if isinstance(verify, bool):
        return compile_here if verify else None
    if not callable(verify):
        raise ProblemError(
            f"verify is {verify!r}: must be True, False or a function that compiles, as "
            "(function, *args) -> jax.stages.Compiled"
        )
    return verify


def compiled_memory(
    compiler: Compiler, what: str, function: Callable[..., Any], args: Sequence[Any]
) -> tuple[Any, int]:
    """Compiles a function to verify a plan; returns XLA's figures of memory, and the number of devices.

    Args:
      compiler: the function that compiles.
      what: the function's name in messages.
      function: the function.
      args: its arguments as `jax.ShapeDtypeStruct`s, in pytrees.

    Raises:
      GraphrlError: XLA does not compile it, or the backend does not report memory.
      ProblemError: the compiler does not return a `jax.stages.Compiled`.
    """
    try:
        compiled = compiler(function, *args)
    except Exception as error:  # jax raises many types, some without a message
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(" :")
        raise GraphrlError(f"verify: XLA does not compile {what} (plan without verify): {why}") from error
    if not hasattr(compiled, "memory_analysis"):
        raise ProblemError(f"verify gave a {type(compiled).__name__}: must be a jax.stages.Compiled")
    if (memory := compiled.memory_analysis()) is None:
        raise GraphrlError("verify: this backend does not report the memory of a compiled function")
    shardings = jax.tree.leaves(getattr(compiled, "input_shardings", ()))
    return memory, max((each.num_devices for each in shardings), default=1)


def compile_here(function: Callable[..., Any], *args: Any) -> Any:
    """Compiles a function for the shapes `args`, for the devices of their shardings or jax's first device; returns a
    `jax.stages.Compiled`.
    """
    if any(shape.sharding is not None for shape in jax.tree.leaves(args)):
        return compile_for(function, *args)
    with jax.default_device(jax.devices()[0]):
        return jax.jit(function).lower(*args).compile()


def _real(value: object) -> float | None:
    """Converts a real number of any library to a float; None for other values, and for tracers of jax."""
    if isinstance(value, jax.Array | np.ndarray) and not isinstance(value, jax.core.Tracer) and value.ndim == 0:
        value = value.item()
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else None


class Static(NamedTuple):
    """Positions and names of static arguments: Python values, not arrays, as in `jax.checkpoint`.

    Attributes:
      argnums: positions of static arguments; negative ones count from the last.
      argnames: names of static keyword arguments.
    """

    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    @classmethod
    def of(cls, argnums: int | Iterable[int], argnames: str | Iterable[str]) -> "Static":
        """Creates it from the options `static_argnums` and `static_argnames`.

        Raises:
          ProblemError: they are not integers, or not names.
        """
        nums = (argnums,) if isinstance(argnums, int) else _items(argnums)
        names = (argnames,) if isinstance(argnames, str) else _items(argnames)
        if nums is None or any(type(number) is not int for number in nums):
            raise ProblemError(f"static_argnums is {argnums!r}: must be an integer or integers")
        if names is None or not all(isinstance(name, str) for name in names):
            raise ProblemError(f"static_argnames is {argnames!r}: must be a name or names")
        return cls(nums, names)

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, StaticArgs]:
        """Splits a call's arguments into the call with None in place of static ones, and the static ones.

        Raises:
          ProblemError: the call has no positional argument of a number in `argnums`.
        """
        for number in self.argnums:
            if not -len(args) <= number < len(args):
                raise ProblemError(f"static_argnums has {number}: the call has {len(args)} positional arguments")
        places = sorted({number % len(args) for number in self.argnums})
        names = sorted({*self.argnames} & {*kwargs})
        static: StaticArgs = (*((place, args[place]) for place in places), *((name, kwargs[name]) for name in names))
        arrays = [None if place in places else arg for place, arg in enumerate(args)]
        return (arrays, {name: None if name in names else arg for name, arg in kwargs.items()}), static


def join_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], static: StaticArgs) -> Call:
    """Inserts static arguments again into a call from `Static.split`."""
    args, kwargs = list(args), dict(kwargs)
    for key, value in static:
        if isinstance(key, int):
            args[key] = value
        else:
            kwargs[key] = value
    return args, kwargs


def check_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that jax can trace a call.

    Args:
      fn: the function.
      args, kwargs: its arguments, None in place of static ones.

    Raises:
      ArgumentError: jax cannot trace an argument; one line names the argument and states valid values.
    """
    if all(map(is_value, jax.tree.leaves((args, kwargs)))):
        return
    keys = (*range(len(args)), *kwargs)
    for name, key, value in zip(argument_names(fn, args, kwargs), keys, (*args, *kwargs.values()), strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if not is_value(leaf):
                option = "static_argnums" if isinstance(key, int) else "static_argnames"
                static = f"static, with {key!r} in {option}"
                remedy = f"must be {_remedy(leaf, 'static as an argument of its own' if path else static)}"
                place = f"{name}{jax.tree_util.keystr(path)}"
                raise ArgumentError(f"{function_name(fn)}: argument {place} is {_described(leaf)}: {remedy}")


def is_value(leaf: Any) -> bool:
    """True if jax can compute with a value: an array, a tracer or a number."""
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(leaf, jax.ShapeDtypeStruct)


def _described(leaf: Any) -> str:
    """Describes a value that is not an array, for error messages."""
    if isinstance(leaf, np.ndarray):
        return f"an array of {leaf.dtype}"
    text = f"{reprlib.repr(leaf)}, " if isinstance(leaf, str | bytes | int) else ""
    return f"{text}of type {type(leaf).__name__}"


def _remedy(leaf: Any, static: str) -> str:
    """Describes valid replacements for a value that is not an array; `static` is how to make the argument static."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or hasattr(leaf, "__array__"):
        return "a jax or numpy array of numbers"
    if isinstance(leaf, int):
        return f"an array of a type that can hold it, or {static}"
    if type(leaf).__module__ == "builtins" or hasattr(leaf, "__name__"):  # functions and classes have one
        return f"an array or a number, or {static}"
    return f"a pytree, as by jax.tree_util.register_dataclass, or {static}"


def check_result(name: str, result: Any) -> None:
    """Checks that a function's result consists of arrays and numbers.

    Raises:
      ArgumentError: it does not; one line states where in the result.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not is_value(leaf):
            place = f"result{jax.tree_util.keystr(path)}"
            raise ArgumentError(f"{name}: its {place} is {_described(leaf)}: must be an array or a number")


def _items(value: Any) -> tuple[Any, ...] | None:
    return tuple(value) if isinstance(value, Iterable) else None
