"""`graphrl.checkpoint`: a function whose gradient keeps what a budget allows, and computes the rest again.

The plan is made at the first call with arguments of given shapes and types, or read from disk. Planning works on arrays
alone, so `Static` splits arguments that are values of Python from the arrays of a call and joins both again.
`check_arguments` checks before tracing that jax can trace the call, so that errors name the user's arguments.
"""

import functools
import itertools
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import register_exclusion
from jax.tree_util import Partial

from graphrl.errors import ArgumentError, GraphrlError, ProblemError
from graphrl.graphs.roofline import Chip
from graphrl.process import uncollected
from graphrl.xla import libraries
from graphrl.xla.checkpoint.derivative import differentiable
from graphrl.xla.checkpoint.planner import Planned, fingerprint_of, planned
from graphrl.xla.checkpoint.program import Program, opened, program_of
from graphrl.xla.checkpoint.report import CheckpointReport
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.settings import SECONDS, Compiler, Settings
from graphrl.xla.decorated import Decorated, argument_names, function_name, named_as
from graphrl.xla.libraries import Library

register_exclusion(__file__)  # its lines are none of the user's

Held = tuple[tuple[int | str, Any], ...]  # static arguments: by place or name, what was given


class Static(NamedTuple):
    """Which arguments are values of Python, not arrays: see `jax.checkpoint`.

    Attributes:
      argnums: places of arguments; negative ones count from the last.
      argnames: names of arguments that are given by name.
    """

    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    @classmethod
    def of(cls, argnums: int | Iterable[int], argnames: str | Iterable[str]) -> "Static":
        """As a user gives them.

        Raises:
          ProblemError: they are no integers, or no names.
        """
        nums = (argnums,) if isinstance(argnums, int) else _items(argnums)
        names = (argnames,) if isinstance(argnames, str) else _items(argnames)
        if nums is None or any(type(number) is not int for number in nums):
            raise ProblemError(f"static_argnums is {argnums!r}: must be an integer or integers")
        if names is None or not all(isinstance(name, str) for name in names):
            raise ProblemError(f"static_argnames is {argnames!r}: must be a name or names")
        return cls(nums, names)

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[list[Any], dict[str, Any]], Held]:
        """A call's arguments, None in place of static ones; and these.

        Raises:
          ProblemError: there is no argument at a place.
        """
        for number in self.argnums:
            if not -len(args) <= number < len(args):
                raise ProblemError(f"static_argnums holds {number}: the call has {len(args)} arguments by place")
        places = sorted({number % len(args) for number in self.argnums})
        names = sorted({*self.argnames} & {*kwargs})
        held: Held = (*((place, args[place]) for place in places), *((name, kwargs[name]) for name in names))
        own = [None if place in places else arg for place, arg in enumerate(args)]
        return (own, {name: None if name in names else arg for name, arg in kwargs.items()}), held


def joined(args: Sequence[Any], kwargs: Mapping[str, Any], held: Held) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call that `Static.split` took apart."""
    args, kwargs = list(args), dict(kwargs)
    for key, value in held:
        if isinstance(key, int):
            args[key] = value
        else:
            kwargs[key] = value
    return args, kwargs


def traced_function(fn: Callable[..., Any], held: Held) -> Callable[..., Partial]:
    """A function to trace, that takes None in place of static arguments; jax's errors have its name, its line and the
    names of its arguments.

    Args:
      fn: the function.
      held: its static arguments.

    Returns:
      A function of the same arguments. Its result is a `Partial` with the arrays of the function's own result, and a
      function that makes the result of them: jax hands on what that is without making it of anything else, which not
      every class can.
    """

    def traced(*args: Any, **kwargs: Any) -> Partial:
        own, named = joined(args, kwargs, held)
        results = fn(*own, **named)
        _check_result(function_name(fn), results)
        whole: Any = jax.tree.structure(results)
        return Partial(whole.unflatten, *jax.tree.leaves(results))

    return named_as(fn, traced)


def check_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that jax can trace a call.

    Args:
      fn: what is called.
      args, kwargs: its arguments, None in place of static ones.

    Raises:
      ArgumentError: it cannot; one line has the name of the argument, and says what would be right.
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
    """Whether jax can compute with it: an array, a tracer or a number."""
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(leaf, jax.ShapeDtypeStruct)


def _described(leaf: Any) -> str:
    """A value that is no array, in some words."""
    if isinstance(leaf, np.ndarray):
        return f"an array of {leaf.dtype}"
    shown = f"{reprlib.repr(leaf)}, " if isinstance(leaf, str | bytes | int) else ""
    return f"{shown}of type {type(leaf).__name__}"


def _remedy(leaf: Any, static: str) -> str:
    """What would be right in place of a value that is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or hasattr(leaf, "__array__"):
        return "a jax or numpy array of numbers"
    if isinstance(leaf, int):
        return f"an array of a type that can hold it, or {static}"
    if type(leaf).__module__ == "builtins" or hasattr(leaf, "__name__"):  # functions and classes have one
        return f"an array or a number, or {static}"
    return f"a pytree, as by jax.tree_util.register_dataclass, or {static}"


def _check_result(name: str, result: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not is_value(leaf):
            place = f"result{jax.tree_util.keystr(path)}"
            raise ArgumentError(f"{name}: its {place} is {_described(leaf)}: must be an array or a number")


def _items(given: Any) -> tuple[Any, ...] | None:
    return tuple(given) if isinstance(given, Iterable) else None


MOST = 64  # functions that are kept for later calls; the oldest go
DIFFERENTIATED = frozenset({"JVPTracer", "LinearizeTracer"})  # jax's names for what a gradient is taken by
NONE_STATIC = Static()
NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)  # that jax makes arrays of, of types that it has


class CheckpointedFunction(Decorated):
    """A function that `graphrl.checkpoint` made.

    A pickle by value has the plans, but nothing that is traced or compiled. A pickle by name has neither: the function
    of the process that reads it has its own plans, and those on disk.
    """

    def __init__(self, fn: Callable[..., Any], settings: Settings, static: Static = NONE_STATIC) -> None:
        super().__init__(fn)
        self._settings, self._static = settings, static
        self._libraries: dict[type[Library], Library] = {}
        self._planned: dict[str, Planned] = {}  # by fingerprint, the last one last
        self._traced: dict[Any, Callable[..., Any]] = {}  # by function, structure and static arguments
        self._built: dict[Any, _Built] = {}  # by jaxpr, and by what is differentiated

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = libraries.library_of((args, kwargs))
        if kind is None:
            return self._run(self._fn, args, kwargs)
        library = self._libraries.setdefault(kind, kind(self._fn, {}))
        return library.call(lambda *args, **kwargs: self._run(library.pure, args, kwargs), args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without what is traced and compiled, which the next call does anew."""
        own = {"_settings": self._settings, "_static": self._static, "_planned": self._planned}
        return super().__getstate__() | own

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """From what `__getstate__` gave."""
        self.__init__(self._function(state), state["_settings"], state["_static"])  # type: ignore[misc]
        self._planned = dict(state["_planned"])

    def __repr__(self) -> str:
        return f"<graphrl.checkpoint of {self._fn!r}>"

    def report(self, *args: Any, **kwargs: Any) -> CheckpointReport:
        """What was decided for such arguments, arrays or `jax.ShapeDtypeStruct`s; without any, for those of the last
        call.

        Raises:
          GraphrlError: there was no call yet; or as the call itself.
        """
        if args or kwargs:
            call, held = self._static.split(args, kwargs)
            leaves, structure = jax.tree.flatten(call)
            is_traced = [isinstance(leaf, jax.ShapeDtypeStruct) or is_value(leaf) for leaf in leaves]

            def run(*traced: Any) -> None:
                given = iter(traced)
                values = [next(given) if is_array else leaf for is_array, leaf in zip(is_traced, leaves, strict=True)]
                own, named = jax.tree.unflatten(structure, values)
                args, kwargs = joined(own, named, held)
                self(*args, **kwargs)

            jax.eval_shape(run, *itertools.compress(leaves, is_traced))
        if not self._planned:
            raise GraphrlError("there is no report before the first call: give the arguments of one")
        return list(self._planned.values())[-1].report

    @uncollected()
    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call, held = self._static.split(args, kwargs)
        check_arguments(fn, *call)
        given, structure = jax.tree.flatten(call)
        leaves = [jnp.asarray(leaf) if isinstance(leaf, NUMBERS) else leaf for leaf in given]
        key = fn, structure, tuple((name, type(value), value) for name, value in held)  # 1 == 1.0 == True
        hashable = _has_hash(key)  # what has none is traced each time
        traced = self._traced.pop(key, None) if hashable else None
        traced = traced or traced_function(fn, held)
        own_args, own_kwargs = call
        try:  # one jaxpr for the same types
            closed, results = jax.make_jaxpr(traced, return_shape=True)(*own_args, **own_kwargs)
        except jax.errors.UnexpectedTracerError:  # custom rules may take as constants what is traced only here
            return fn(*args, **kwargs)
        own, outer = opened(closed)
        keep = hashable and not outer  # the next call closes over other tracers
        if keep:
            self._traced[key] = traced
        leaves = [*outer, *leaves]
        built = self._built_for(closed.jaxpr, own, leaves, (traced, structure) if keep else None)
        found = self._planned.pop(built.planned.fingerprint, built.planned)
        self._planned[found.fingerprint] = found  # the last one, now
        for kept in (self._traced, self._built):
            while len(kept) > MOST:
                kept.pop(next(iter(kept)))
        if found.report.as_written:
            return fn(*args, **kwargs)
        return results.func(built.run(*leaves))

    def _built_for(
        self, jaxpr: Any, closed: core.ClosedJaxpr, leaves: Sequence[Any], kept: tuple[Callable[..., Any], Any] | None
    ) -> "_Built":
        """The function to run for a jaxpr, which is `closed` once it is opened. Where it is `kept` for later calls, it
        is jitted: that takes what was traced, and the structure of the call.
        """
        key = id(jaxpr), _wanted(leaves)
        if key in self._built:
            return self._built[key]
        program = program_of(closed)
        found = self._plan_of(program, key[1])
        run = functools.partial(_evaluated, program, found)
        if kept is None:
            return _Built(jaxpr, found, run)
        # without a jit around, loops would compile each time that they are differentiated
        self._built[key] = _Built(jaxpr, found, _jitted(run, *kept))
        return self._built[key]

    def _plan_of(self, program: Program, wanted: tuple[bool, ...]) -> Planned:
        key = fingerprint_of(program, wanted, self._settings)
        found = self._planned.get(key)
        return found or planned(function_name(self), key, program, wanted, self._settings)


class _Built(NamedTuple):
    """The function to run for a jaxpr, from the first call on.

    Attributes:
      jaxpr: it is, so that its id stays its own.
      planned: the plan for it.
      run: arrays -> results under the plan.
    """

    jaxpr: Any
    planned: Planned
    run: Callable[..., list[Any]]


def _evaluated(program: Program, found: Planned, *leaves: Any) -> list[Any]:
    return evaluate(program, found.plan, leaves)


def _jitted(run: Callable[..., list[Any]], traced: Callable[..., Any], structure: Any) -> Callable[..., list[Any]]:
    """A jitted function of arrays. It is jitted as one of the call's own arguments, which jax's errors name.

    Args:
      run: the function of arrays.
      traced: the function whose name and arguments it gets.
      structure: of `traced`'s `(args, kwargs)`.
    """

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        return run(*jax.tree.leaves((args, kwargs)))

    jitted = jax.jit(named_as(traced, call))

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(structure, leaves)
        return jitted(*args, **kwargs)

    return flat


def _has_hash(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _wanted(leaves: Sequence[Any]) -> tuple[bool, ...]:
    """Of each argument, whether a gradient is taken by it: where jax does not show any, by all that have one."""
    smooth = [differentiable(jax.typeof(leaf)) for leaf in leaves]
    shown = [
        is_smooth and type(leaf).__name__ in DIFFERENTIATED for is_smooth, leaf in zip(smooth, leaves, strict=True)
    ]
    return tuple(shown if any(shown) else smooth)


def checkpoint(
    fn: Callable[..., Any] | None = None,
    *,
    budget: float | str | None = None,
    slowdown: float | None = None,
    chip: str | Chip | None = None,
    offload: bool = False,
    method: str = "auto",
    seconds: float = SECONDS,
    seed: int = 0,
    cache: bool = True,
    verify: bool | Compiler = False,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Any:
    """`jax.checkpoint` that chooses by itself what the gradient keeps, what it computes again, and what it moves to the
    host.

    Used as `jax.checkpoint` is: under `jax.grad`, `jax.vjp`, `jax.jit`, `jax.vmap`, with modules of Flax NNX and
    Equinox. Values and gradients are those of the function. The function is traced and its gradient searched for at
    most `seconds` at its first call with new shapes; the plan is kept on disk for the next process. As with `jax.jit`,
    what the function closes over is read when it is traced: a module that changes between calls must be an argument.

    A function with a custom rule that closes over a traced value has no plan: it runs as it is written, with
    `report().as_written`.

    While a call is traced and planned Python's cyclic garbage collector is off, in all threads.

    Where dimensions are symbolic, as in `jax.export`, the plan is made for one size of each variable: the largest that
    the constraints of its scope allow, else the least from 128 up. The report lists the sizes; values and gradients are
    right at all sizes. A budget of bytes then needs constraints such as "b <= 1024"; loops of a symbolic number of
    steps run in no stretches.

    The choice is a model's: memory by the liveness of what XLA is expected to leave unfused, time by roofline.
    Arguments by which no gradient is taken are recognised where jax shows them (directly under `jax.grad`, `jax.vjp`).

    Args:
      fn: a function of arrays, mostly a loss; without it, a decorator is returned.
      budget: what the backward pass may find in memory: a part, 0 to 1, of what jax keeps by itself, at the least time;
        or the peak of the whole step, such as "12GiB", with arguments, results and gradients.
      slowdown: part of the step's estimated time that may be added, for the least memory; below 0 that must be saved,
        as where loops copy what jax keeps. One of the two.
      chip: whose times count, a name of `graphrl.graphs.roofline.CHIPS` or a `graphrl.Chip`; by default that of jax's
        first device, or an A100 where that is unknown.
      offload: whether values may wait in the memory of the host, over PCIe 5.
      method: of search: "auto", "anneal", "greedy", "knapsack", "min-cut", "regular" (layers alike), or for small
        functions "cp-sat".
      seconds: of search; a third more, at most, where nothing is found within the slowdown.
      seed: of its random numbers.
      cache: whether plans are looked for, and kept, on disk.
      verify: whether XLA compiles the gradient under the plan, for jax's first device or by a function
        `(function, *args) -> jax.stages.Compiled`, so that the report has its figure. A budget of bytes is then kept by
        that figure: where it is not, or much of it is left, there are searches for a lower or a higher limit, of so
        many seconds each, until four plans were compiled; if none keeps it, the lowest that has all layers alike is
        tried too. Within a slowdown that one is searched for and compiled beside what was found, and taken if XLA needs
        clearly less. Under any limit, a part too, the function gets no plan if XLA needs no more memory without one and
        it is no slower (within a slowdown: if XLA needs less). Plans verified by a function are not kept on disk.
      static_argnums, static_argnames: arguments that are values of Python, not arrays, as in `jax.checkpoint`. A call
        with any other that jax cannot trace raises an `ArgumentError`, one line with its name.

    Returns:
      A function like `fn`; its `report()` says what was chosen.

    Raises:
      ProblemError: an option is at fault. From the first call: the budget cannot be met, and the least that can; or it
        is of bytes, and symbolic dimensions have no upper bound.
      GraphrlError: from the first call, with `verify`: XLA does not compile the gradient by itself, as within
        `jax.shard_map`, or it takes several devices. From the first call: no sizes were found that the constraints of
        symbolic dimensions allow.
    """
    settings = Settings(budget, slowdown, chip, offload, method, seconds, seed, cache, verify)
    static = Static.of(static_argnums, static_argnames)
    if fn is None:
        return lambda function: CheckpointedFunction(function, settings, static)
    if not callable(fn):
        raise GraphrlError(f"checkpoint takes a function: this is of type {type(fn).__name__}")
    return CheckpointedFunction(fn, settings, static)
