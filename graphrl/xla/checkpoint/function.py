"""`graphrl.checkpoint`: a function whose gradient keeps values within a budget, and computes the others again.

The plan is made at the first call with arguments of new shapes and types, or read from disk. `checkpoint_curve` makes
plans for several limits, to choose one from.
"""

import inspect
import itertools
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import register_exclusion
from jax.sharding import AbstractMesh, Mesh
from jax.tree_util import Partial

from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.roofline import Chip, Interconnect
from graphrl.process import pause_gc
from graphrl.units import parse_bytes
from graphrl.xla import libraries
from graphrl.xla.checkpoint.derivative import differentiable, with_split_gradients
from graphrl.xla.checkpoint.plans import Planned, find_plan, fingerprint_of
from graphrl.xla.checkpoint.program import Program, lift_tracers, program_of
from graphrl.xla.checkpoint.report import CheckpointCurve, CheckpointReport
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.settings import (
    SECONDS,
    Compiler,
    Settings,
    Static,
    StaticArgs,
    check_arguments,
    check_result,
    is_value,
    join_arguments,
)
from graphrl.xla.checkpoint.sizes import sizes_of
from graphrl.xla.decorated import Decorated, function_name, named_as
from graphrl.xla.libraries import Library

register_exclusion(__file__)  # its lines are not the user's


SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.33)
MOST = 64  # most functions that are kept for later calls; the oldest are dropped first
DIFFERENTIATED = frozenset({"JVPTracer", "LinearizeTracer"})  # jax's names for arguments that are differentiated by
NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)  # jax converts these to arrays, for types that it has
NONE_STATIC = Static()


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
    in_shardings: Any = None,
    mesh: Mesh | AbstractMesh | None = None,
    link: str | Interconnect | Mapping[str, str | Interconnect] | None = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Any:
    """`jax.checkpoint` that chooses automatically which values the gradient keeps, computes again, and moves to the
    host.

    Used as `jax.checkpoint` is: under `jax.grad`, `jax.vjp`, `jax.jit`, `jax.vmap`, with modules of Flax NNX and
    Equinox. Values and gradients are those of the function. The first call with new shapes traces the function and
    searches for a plan for at most `seconds`; the plan is kept on disk for the next process. As with `jax.jit`, values
    that the function closes over are read when it is traced: a module that changes between calls must be an argument.

    The function may have `jax.checkpoint` around parts of it, which stay as they are. Their gradients then wait for one
    another, so that XLA's scheduler delays none of them: with `budget=1.0` that is often all that a plan does.

    A function with a custom rule that closes over a traced value has no plan: it runs as it is written, with
    `report().as_written`.

    While a call is traced and planned, Python's cyclic garbage collector is off in all threads.

    If dimensions are symbolic, as in `jax.export`, the plan is made for one size of each variable: the largest that
    the constraints of its scope allow, else the least from 128 up. The report lists the sizes; values and gradients are
    right at all sizes. A budget of bytes then needs constraints such as "b <= 1024"; loops with a symbolic number of
    steps do not run in stretches.

    Several devices may share the function: by `in_shardings` or, with explicit mesh axes, by its arguments' types.
    Within `jax.shard_map` it has the shapes of shards in any case. Bytes, budgets and seconds are then one device's;
    seconds include collectives (`graphrl.xla.checkpoint.collectives`). Gradients are split as their arguments are.

    The choice relies on a model: memory by the liveness of values that XLA is expected to leave unfused, time by
    roofline. Arguments by which no gradient is taken are recognised where jax shows them (directly under `jax.grad`,
    `jax.vjp`).

    Args:
      fn: a function of arrays, mostly a loss; without it, a decorator is returned.
      budget: limit of memory, within which time is minimized: a part, 0 to 1, of the bytes that jax keeps by default
        for the backward pass; or the peak of the whole step, such as "12GiB", with arguments, results and gradients.
      slowdown: limit of time, within which memory is minimized: part of the step's estimated time that may be added; if
        negative, the part that must be saved, possible where loops copy values that jax keeps. Give one of both limits.
      chip: the chip for which run times are estimated, a name in `graphrl.graphs.roofline.CHIPS` or a `graphrl.Chip`;
        by default jax's first device, or an A100 if that is unknown.
      offload: whether values may be moved to host memory, over PCIe 5.
      method: search method: "auto", "anneal", "greedy", "knapsack", "min-cut", "regular" (layers alike), or for small
        functions "cp-sat".
      seconds: search time in seconds; it takes longer if the first two plans that it finds exceed the slowdown.
      seed: seed of the search's random numbers.
      cache: whether plans are read from disk and stored there.
      verify: whether XLA compiles the gradient under the plan, so that the report has XLA's figure: for jax's first
        device, for those of `mesh`, or by a function `(function, *args) -> jax.stages.Compiled`. A budget of bytes
        then holds by that figure. If it is exceeded, or much of it is left, further searches of `seconds` each have a
        lower or a higher limit, until four plans were compiled. If all exceed the budget, the function without a plan
        is tried, and then the plan of least memory that has all layers alike. Within a slowdown, a plan with all
        layers alike is also searched for and compiled, and taken if XLA needs clearly less memory. Within a slowdown
        or a part, the function gets no plan if XLA needs no more memory without one and it is no slower (within a
        slowdown: if XLA needs less).
        Plans verified by a function are not stored on disk.
      in_shardings: how the positional arguments are split over devices, as in `jax.jit`: `PartitionSpec`s or
        `NamedSharding`s, or None for arguments that are whole on each, for parts of the arguments' pytrees.
      mesh: the mesh to which the `PartitionSpec`s refer. If it is an `AbstractMesh`, `verify` compiles for jax's
        devices or, with a `chip` that is not here (an H100 or H200), for devices of that kind, by the extra
        `gpu-compile`. By default, the mesh of the shardings, of the arguments' types, or of the context.
      link: the link between devices, a name in `graphrl.graphs.roofline.INTERCONNECTS` or an `Interconnect`, or one for
        each mesh axis; by default that of the chip (`LINKS`), such as NVLink.
      static_argnums, static_argnames: arguments that are values of Python, not arrays, as in `jax.checkpoint`. A call
        with any other that jax cannot trace raises an `ArgumentError`, one line with its name.

    Returns:
      A function like `fn`; its `report()` describes the plan.

    Raises:
      ProblemError: an option is at fault. From the first call: the budget cannot be met (the message states the least
        that can); or it is of bytes, and symbolic dimensions have no upper bound.
      GraphrlError: from the first call, with `verify`: XLA does not compile the gradient alone, as within
        `jax.shard_map`, it takes several devices without `in_shardings`, or there is no compiler for the chip. From
        the first call: no sizes were found that the constraints of symbolic dimensions allow.
    """
    settings = Settings(budget, slowdown, chip, offload, method, seconds, seed, cache, verify, in_shardings, mesh, link)
    static = Static.of(static_argnums, static_argnames)
    if fn is None:
        return lambda function: CheckpointedFunction(function, settings, static)
    if not callable(fn):
        raise GraphrlError(f"fn is of type {type(fn).__name__}: must be a function")
    return CheckpointedFunction(fn, settings, static)


OPTIONS = frozenset(inspect.signature(checkpoint).parameters) - {"fn", "budget", "slowdown"}


def checkpoint_curve(
    fn: Callable[..., Any],
    *args: Any,
    slowdowns: Sequence[float] | None = None,
    budgets: Sequence[float | str] | None = None,
    **kwargs: Any,
) -> CheckpointCurve:
    """Plans a function's gradient for several limits, as `graphrl.checkpoint` does; returns memory and time of each.

    Args:
      fn: the function.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s; nothing is computed.
      slowdowns: limits of time; by default 0, 2, 5, 10, 20 and 33% (if there are no `budgets`).
      budgets: limits of memory instead, all as parts (0 to 1) or all in bytes, as in `checkpoint`. With `verify` the
        predicted bytes may exceed a part: the plan is then that of a larger part, no slower and with no more memory by
        XLA's figure.
      **kwargs: options of `graphrl.checkpoint` except its limits (chip, offload, method, seconds of search for each
        limit, seed, cache, verify, static_argnums, static_argnames); all others are the function's own.

    Raises:
      ProblemError: an option is at fault, or a budget cannot be met.
      ArgumentError: jax cannot trace an argument or a result; one line has its name.
    """
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    if budgets is None:
        limits = sorted(_limits("slowdown", SLOWDOWNS if slowdowns is None else slowdowns))
        reports = [checkpoint(fn, slowdown=limit, **options).report(*args, **kwargs) for limit in limits]
        return CheckpointCurve.of(limits, reports)
    if slowdowns is not None:
        raise ProblemError("slowdowns and budgets are both given: a curve has limits of one kind")
    limits = _limits("budget", budgets)
    if len({isinstance(limit, str) for limit in limits}) > 1:
        raise ProblemError("budgets are parts and bytes: must be all parts, such as 0.5, or all bytes")
    limits.sort(key=lambda limit: parse_bytes(limit) if isinstance(limit, str) else limit, reverse=True)
    reports = [checkpoint(fn, budget=limit, **options).report(*args, **kwargs) for limit in limits]
    return CheckpointCurve.of_budgets(limits, reports)


def _limits(name: str, limits: Sequence[Any]) -> list[Any]:
    """Checks limits, and converts them to Python numbers, or strings with bytes.

    Raises:
      ProblemError: `limits` is not a sequence or is empty, or a limit is out of range.
    """
    values = [] if isinstance(limits, str) or not isinstance(limits, Iterable) else list(limits)
    if not values:
        raise ProblemError(f"{name}s is {reprlib.repr(limits)}: must be a list of limits, such as [0.05, 0.2]")
    return [getattr(Settings(**{name: limit}), name) for limit in values]


class CheckpointedFunction(Decorated):
    """The function that `graphrl.checkpoint` returns.

    A pickle by value contains the plans, but nothing that is traced or compiled. A pickle by name contains neither: the
    process that loads it uses its own plans, and those on disk.
    """

    def __init__(self, fn: Callable[..., Any], settings: Settings, static: Static = NONE_STATIC) -> None:
        super().__init__(fn)
        self._settings, self._static = settings, static
        self._libraries: dict[type[Library], Library] = {}
        self._planned: dict[str, Planned] = {}  # keys are fingerprints; the most recent is last
        self._traced: dict[Any, Callable[..., Any]] = {}  # keys: function, structure and static arguments
        self._built: dict[Any, _Built] = {}  # keys: id of a jaxpr, and the arguments that are differentiated by

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = libraries.library_of((args, kwargs))
        if kind is None:
            return self._run(self._fn, args, kwargs)
        library = self._libraries.setdefault(kind, kind(self._fn, {}))
        return library.call(lambda *args, **kwargs: self._run(library.pure, args, kwargs), args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for copies and pickles, without traced and compiled functions: the next call makes them."""
        state = {"_settings": self._settings, "_static": self._static, "_planned": self._planned}
        return super().__getstate__() | state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `__getstate__`."""
        self.__init__(self._function(state), state["_settings"], state["_static"])  # type: ignore[misc]
        self._planned = dict(state["_planned"])

    def __repr__(self) -> str:
        return f"<graphrl.checkpoint of {self._fn!r}>"

    def report(self, *args: Any, **kwargs: Any) -> CheckpointReport:
        """Returns the report on the plan for the given arguments, arrays or `jax.ShapeDtypeStruct`s; without arguments,
        for those of the last call.

        Raises:
          GraphrlError: there are no arguments and there was no call yet. Also raises as the call itself.
        """
        if args or kwargs:
            call, static = self._static.split(args, kwargs)
            leaves, structure = jax.tree.flatten(call)
            is_traced = [isinstance(leaf, jax.ShapeDtypeStruct) or is_value(leaf) for leaf in leaves]

            def run(*traced: Any) -> None:
                arrays = iter(traced)
                values = [next(arrays) if is_array else leaf for is_array, leaf in zip(is_traced, leaves, strict=True)]
                traced_args, traced_kwargs = jax.tree.unflatten(structure, values)
                args, kwargs = join_arguments(traced_args, traced_kwargs, static)
                self(*args, **kwargs)

            jax.eval_shape(run, *itertools.compress(leaves, is_traced))
        if not self._planned:
            raise GraphrlError("there is no report before the first call: give arguments")
        return list(self._planned.values())[-1].report

    @pause_gc()
    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call, static = self._static.split(args, kwargs)
        check_arguments(fn, *call)
        values, structure = jax.tree.flatten(call)
        leaves = [jnp.asarray(leaf) if isinstance(leaf, NUMBERS) else leaf for leaf in values]
        key = fn, structure, tuple((name, type(value), value) for name, value in static)  # 1 == 1.0 == True
        hashable = _has_hash(key)  # a call without a hashable key is traced each time
        traced = self._traced.pop(key, None) if hashable else None
        traced = traced or traced_function(fn, static)
        own_args, own_kwargs = call
        try:  # one jaxpr for the same types
            closed, results = jax.make_jaxpr(traced, return_shape=True)(*own_args, **own_kwargs)
        except jax.errors.UnexpectedTracerError:  # custom rules may close over values that are traced only here
            return fn(*args, **kwargs)
        lifted, tracers = lift_tracers(closed)
        keep = hashable and not tracers  # the next call closes over other tracers
        if keep:
            self._traced[key] = traced
        leaves = [*tracers, *leaves]
        built = self._built_for(closed.jaxpr, lifted, leaves, structure, traced if keep else None)
        planned = self._planned.pop(built.planned.fingerprint, built.planned)
        self._planned[planned.fingerprint] = planned  # now the most recent
        for kept in (self._traced, self._built):
            while len(kept) > MOST:
                kept.pop(next(iter(kept)))
        if planned.report.as_written:
            return fn(*args, **kwargs)
        return results.func(built.run(*leaves))

    def _built_for(
        self,
        jaxpr: Any,
        closed: core.ClosedJaxpr,
        leaves: Sequence[Any],
        structure: Any,
        kept: Callable[..., Any] | None,
    ) -> "_Built":
        """Plans a traced call, and returns the function to run for it.

        Args:
          jaxpr: the traced call.
          closed: the same after `lift_tracers`.
          leaves: its arguments.
          structure: pytree structure of the call.
          kept: the traced function, if the result is to be jitted and stored for later calls.
        """
        key = id(jaxpr), _wanted(leaves)
        if key in self._built:
            return self._built[key]
        layout = self._settings.layout(closed.in_avals)
        arguments = () if layout is None else self._settings.arguments(layout, structure, closed.in_avals)
        if layout is not None and sizes_of(closed.jaxpr).by_name:
            raise ProblemError("in_shardings with symbolic dimensions is not supported: give concrete sizes")
        program = program_of(closed, layout, arguments)
        planned = self._plan_of(program, key[1])

        def run(*leaves: Any) -> list[Any]:
            return evaluate(program, planned.plan, with_split_gradients(program, leaves))

        if kept is None:
            return _Built(jaxpr, planned, run)
        # without a jit around, loops would compile each time that they are differentiated
        self._built[key] = _Built(jaxpr, planned, _jitted(run, kept, structure))
        return self._built[key]

    def _plan_of(self, program: Program, wanted: tuple[bool, ...]) -> Planned:
        key = fingerprint_of(program, wanted, self._settings)
        planned = self._planned.get(key)
        return planned or find_plan(function_name(self), key, program, wanted, self._settings)


def traced_function(fn: Callable[..., Any], static: StaticArgs) -> Callable[..., Partial]:
    """Wraps a function for tracing. In jax's errors it has the name, line and argument names of `fn`.

    Args:
      fn: the function.
      static: its static arguments.

    Returns:
      A function of the same arguments, with None in place of static ones. Its result is a `Partial` of the arrays in
      the result of `fn` and a function that rebuilds the result from them. So jax passes the result on without building
      its classes from other values, which not every class allows.
    """

    def traced(*args: Any, **kwargs: Any) -> Partial:
        own, named = join_arguments(args, kwargs, static)
        results = fn(*own, **named)
        check_result(function_name(fn), results)
        whole: Any = jax.tree.structure(results)
        return Partial(whole.unflatten, *jax.tree.leaves(results))

    return named_as(fn, traced)


class _Built(NamedTuple):
    """A traced and planned function.

    Attributes:
      jaxpr: the traced function, stored so that its id is not reused.
      planned: the plan for it.
      run: runs it under the plan: arrays -> results.
    """

    jaxpr: Any
    planned: Planned
    run: Callable[..., list[Any]]


def _jitted(run: Callable[..., list[Any]], traced: Callable[..., Any], structure: Any) -> Callable[..., list[Any]]:
    """Jits a function of arrays, as a function of the call's own arguments, so that jax's errors name these.

    Args:
      run: the function of arrays.
      traced: the function whose name and arguments it gets.
      structure: pytree structure of the `(args, kwargs)` of `traced`.
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
    """Returns for each argument whether a gradient is taken by it; if jax shows none, True for differentiable ones."""
    smooth = [differentiable(jax.typeof(leaf)) for leaf in leaves]
    differentiated = [
        is_smooth and type(leaf).__name__ in DIFFERENTIATED for is_smooth, leaf in zip(smooth, leaves, strict=True)
    ]
    return tuple(differentiated if any(differentiated) else smooth)
