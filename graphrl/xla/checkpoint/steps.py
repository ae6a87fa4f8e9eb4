"""Whole training steps: their gradients follow plans, and XLA reports the memory of the whole step.

A training step takes a gradient somewhere within, by `jax.value_and_grad` (as NNX and Equinox do too). Once a step is
traced, its forward and its backward pass are not distinguished, and custom derivatives are gone. So plans enter
while it is traced: `jax.grad` and `jax.value_and_grad` then differentiate the planned function (`_planned_vjp`). The
plans to follow are a context of jax (`jax.make_user_context`), part of the keys of all its caches: a step that was
jitted before is traced again within the context, and what was traced outside of it stays as it is.
"""

import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import register_exclusion
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.graphs.roofline import Chip
from graphrl.xla import libraries
from graphrl.xla.checkpoint.derivative import differentiable, with_split_gradients
from graphrl.xla.checkpoint.microbatches import Loss, Microbatches
from graphrl.xla.checkpoint.plans import program_text
from graphrl.xla.checkpoint.program import CheckpointPlan, lift_tracers, program_of
from graphrl.xla.checkpoint.rewrite import evaluate, fits
from graphrl.xla.checkpoint.settings import Static, check_arguments, is_value, join_arguments
from graphrl.xla.checkpoint.step_shards import Link, StepShards, abstract, marked, step_shards
from graphrl.xla.decorated import argument_names
from graphrl.xla.libraries import Arguments, Library
from graphrl.xla.topology import chip_of, compile_for, concrete_mesh

try:  # both gradients call this name, whenever and wherever the user has made them
    from jax._src import api as _api
    from jax._src import config as _config

    _vjp: Any = _api.vjp
    jax_context: Any = _config.trace_context  # returns the settings of which jax traces a step again if they change
except (ImportError, AttributeError):
    _api = _vjp = jax_context = None  # type: ignore[assignment]

register_exclusion(__file__)  # its lines are not the user's

MESH = AbstractMesh((1,), ("device",), axis_types=(AxisType.Auto,))


class Rules:
    """How gradients are computed while a step is traced; records the functions that are differentiated.

    Args:
      plans: plans for these functions, in their order; those without one stay as they are.
      count: number of microbatches.
      small: the functions at the size of one microbatch, if there are several.
      shared: how devices share the step; None on one device, or as long as it is not known.

    Attributes:
      losses: fingerprint -> function, in the order of the trace; the same function is there once.
      shared: as given.
    """

    def __init__(
        self,
        plans: Sequence[CheckpointPlan] = (),
        count: int = 1,
        small: Sequence[Loss] = (),
        shared: StepShards | None = None,
    ) -> None:
        self.losses: dict[str, Loss] = {}
        self.shared = shared
        self._plans, self._count, self._small = plans, count, small

    def vjp(self, traced: "_Traced", primals: Sequence[Any], has_aux: bool) -> Any:
        """Acts as `jax.vjp` of a traced function, of which `jax.value_and_grad` takes a gradient.

        Raises:
          ProblemError: the function cannot run in microbatches.
        """
        loss, number = self._loss(traced.loss)
        plan = self._plans[number] if number < len(self._plans) else CheckpointPlan()
        if self._count == 1:
            plan, closed_over = _fitting_plan(loss, plan), traced.closed_over
            if not self._plans:
                leaves, structure = jax.tree.flatten(primals)
                values = marked([*closed_over, *leaves], number)
                closed_over = values[: len(closed_over)]
                primals = jax.tree.unflatten(structure, values[len(closed_over) :])

            def planned(*primals: Any) -> Any:
                args = with_split_gradients(loss.program, [*closed_over, *jax.tree.leaves(primals)])
                return traced.result(evaluate(loss.program, plan, args))

            return _vjp(planned, *primals, has_aux=has_aux)
        if number >= len(self._small):
            raise ProblemError("microbatches: the step takes other gradients in a smaller batch")
        parts = Microbatches.of(loss, self._small[number], self._count)
        leaves, structure = jax.tree.flatten(primals)
        args = [*traced.closed_over, *map(jnp.asarray, leaves)]
        results, gradients = parts.run(_fitting_plan(parts.small, plan), _vjp, args)
        left, own = iter(gradients), zip(leaves, loss.wanted[len(traced.closed_over) :], strict=True)
        whole = [next(left) if wanted else np.zeros(jnp.shape(leaf), jax.dtypes.float0) for leaf, wanted in own]
        value, *aux = traced.result(results) if has_aux else (traced.result(results),)
        return value, lambda _: jax.tree.unflatten(structure, whole), *aux

    def _loss(self, loss: Loss) -> tuple[Loss, int]:
        """Returns the function of a gradient, with the shardings of its values, and its number."""
        if loss.fingerprint not in self.losses:
            self.losses[loss.fingerprint] = loss if self.shared is None else self.shared.split(len(self.losses), loss)
        return self.losses[loss.fingerprint], [*self.losses].index(loss.fingerprint)


def _fitting_plan(loss: Loss, plan: CheckpointPlan) -> CheckpointPlan:
    """Returns the plan; none for a function of other equations, such as that of arguments with other shapes."""
    return plan if fits(loss.program, plan) else CheckpointPlan()


_RULES = jax.make_user_context(None)


class _Traced(NamedTuple):
    """A function of a gradient in a trace.

    Attributes:
      loss: the function.
      closed_over: values that it closes over.
      result: arrays -> its result: value, or value and auxiliary result.
    """

    loss: Loss
    closed_over: list[Any]
    result: Callable[[Sequence[Any]], Any]


def _planned_vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, **options: Any) -> Any:
    """Replaces `jax.vjp` in jax's gradients: within the context it follows the rules."""
    rules = _RULES.value
    if rules is None:
        return _vjp(fun, *primals, has_aux=has_aux, **options)
    with _RULES(None):  # gradients within the function are part of it
        traced = _traced(fun, primals, has_aux)
        if traced is None:
            return _vjp(fun, *primals, has_aux=has_aux, **options)
        return rules.vjp(traced, primals, has_aux)


def _traced(fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> _Traced | None:
    """Traces the function of a gradient; None if it is no function to an array, or closes over a traced value in a way
    that cannot be traced: then jax raises its own error, or takes its gradient as it is written.
    """
    leaves, structure = jax.tree.flatten(primals)
    outputs: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        outputs[:], whole = jax.tree.flatten(fun(*jax.tree.unflatten(structure, leaves)))
        arrays = [leaf for leaf in outputs if is_value(leaf)]
        outputs[:] = [whole, [None if is_value(leaf) else leaf for leaf in outputs]]
        return arrays

    try:
        closed = jax.make_jaxpr(flat)(*leaves)
    except jax.errors.UnexpectedTracerError:
        return None
    if not closed.out_avals or closed.out_avals[0].shape != ():
        return None
    closed, tracers = lift_tracers(closed)
    wanted = (*[False] * len(tracers), *(differentiable(jax.typeof(leaf)) for leaf in leaves))
    text = repr((program_text(closed), wanted, [each.str_short() for each in closed.in_avals]))
    whole, others = outputs

    def result(arrays: Sequence[Any]) -> Any:
        values = iter(arrays)
        return jax.tree.unflatten(whole, [next(values) if each is None else each for each in others])

    return _Traced(Loss(program_of(closed), wanted, hashlib.sha256(text.encode()).hexdigest()[:32]), tracers, result)


class TracedStep(NamedTuple):
    """A traced step.

    Attributes:
      closed: the step as a function of arrays.
      donated: indices of its arguments that are donated.
      losses: the functions of its gradients.
      shardings: for each argument, its own sharding over several devices; None without.
      axes: for each argument, the axis of the batch; None without.
      shared: how devices share it; None on one device, or as long as it is not known.
    """

    closed: core.ClosedJaxpr
    donated: tuple[int, ...]
    losses: tuple[Loss, ...]
    shardings: tuple[Any, ...]
    axes: tuple[int | None, ...]
    shared: StepShards | None = None

    @property
    def outside_bytes(self) -> int:
        """Bytes of arguments and results; results in the memory of donated arguments count once; of one device."""
        local = self.on_one_device()
        arguments, results = local.in_avals, local.out_avals
        donated = Counter((arguments[k].shape, arguments[k].dtype) for k in self.donated)
        reused = donated & Counter((aval.shape, aval.dtype) for aval in results if hasattr(aval, "shape"))
        shared = sum(array_bytes(jax.ShapeDtypeStruct(*key)) * count for key, count in reused.items())
        return sum(map(array_bytes, (*arguments, *results))) - shared

    def with_shards(self, chip: Chip, link: Link) -> "TracedStep":
        """Returns the step, traced as it is, with the shardings of its values; raises as `step_shards`."""
        shared = step_shards(self.closed, self.shardings, self.losses, chip, link)
        if shared is None:
            return self
        losses = tuple(shared.split(number, loss) for number, loss in enumerate(self.losses))
        return self._replace(losses=losses, shared=shared)

    @property
    def parts(self) -> int:
        """Number of parts into which devices split the batch."""
        return 1 if self.shared is None else self.shared.parts(self.axes)

    def on_one_device(self) -> core.ClosedJaxpr:
        """Returns the step as one device runs it, with collectives; for estimates."""
        return self.closed if self.shared is None else self.shared.one_device(self.closed)

    def mesh(self, chip: str | None) -> Mesh:
        """Returns the devices to compile for: those of the shardings if they are of the chip, else
        the same number of the chip.

        Raises:
          GraphrlError: XLA has no compiler for the chip here.
        """
        mesh = MESH if self.shared is None else self.shared.layout.mesh
        if isinstance(mesh, Mesh) and chip is not None:
            is_there = chip.removesuffix("-fp32") == chip_of(mesh.devices.flat[0].device_kind)
            mesh = mesh if is_there else abstract(mesh)
        return concrete_mesh(mesh, chip)

    def compile(self, chip: str | None) -> "StepMemory":
        """Compiles the step for a chip, present or not, by default jax's devices; returns the memory of one device.

        Raises:
          GraphrlError: XLA has no compiler for the chip here, does not compile the step, or reports no memory.
        """
        mesh, closed = self.mesh(chip), self.closed
        if self.shared is None:
            shardings: list[Any] = [NamedSharding(mesh, PartitionSpec())] * len(self.closed.in_avals)
        else:
            layout = dataclasses.replace(self.shared.layout, mesh=mesh)
            shardings = [layout.sharding(spec) for spec in self.shared.arguments]
            closed = closed if mesh is self.shared.layout.mesh else abstract(closed)
        shapes = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
            for aval, sharding in zip(closed.in_avals, shardings, strict=True)
        ]
        memory = compile_for(core.jaxpr_as_fun(closed), *shapes, donate_argnums=self.donated).memory_analysis()
        if memory is None:
            raise GraphrlError("fit: this backend does not report the memory of a compiled step")
        sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.alias_size_in_bytes
        return StepMemory(int(sizes[0] + sizes[1] - sizes[2]), int(memory.temp_size_in_bytes))


class StepMemory(NamedTuple):
    """Bytes of a compiled step, by XLA's figure.

    Attributes:
      outside: arguments and results; results in the memory of donated arguments count once.
      temporaries: all else at the peak.
    """

    outside: int
    temporaries: int

    @property
    def total(self) -> int:
        """All bytes at the peak."""
        return self.outside + self.temporaries


class Step:
    """A training step that can be traced, compiled and called under `Rules`.

    Args:
      fn: the step: a function, or what `jax.jit`, `nnx.jit` or `eqx.filter_jit` return.
      options: options of `jax.jit`, for a function that is not jitted yet.
      static: its static arguments.
      batch_axis: for arguments that have the batch, by name, its axis in all their arrays.

    Attributes:
      options: these arguments, without the step.
      batch_axis: as given.

    Raises:
      GraphrlError: jax's gradients cannot be planned in this version of jax.
    """

    def __init__(
        self, fn: Callable[..., Any], options: Mapping[str, Any], static: Static, batch_axis: Mapping[str, int]
    ) -> None:
        if _api is None:
            raise GraphrlError("fit: this jax has another implementation of gradients: use graphrl.checkpoint")
        _api.vjp = _planned_vjp
        self.options, self.batch_axis = (options, static, batch_axis), batch_axis
        self._fn, self._static, self._is_jitted, self._jit = fn, static, hasattr(fn, "lower"), options
        if self._is_jitted and "donate_argnums" in options:
            raise ProblemError("donate_argnums: the step is jitted already: give it to its jit")
        self._jitted = fn if self._is_jitted else jax.jit(fn, **options)
        self._libraries: dict[type[Library], tuple[Library, Any]] = {}

    def call(self, rules: Rules | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the step; jax traces and compiles it at the first call with these rules."""
        kind = None if self._is_jitted else libraries.library_of((args, kwargs))
        with _RULES(rules):
            if kind is None:
                return self._jitted(*args, **kwargs)
            library, jitted = self._of_library(kind)
            return library.call(jitted, args, kwargs)

    def trace(
        self, rules: Rules, args: Sequence[Any], kwargs: Mapping[str, Any], batch: int | None = None
    ) -> TracedStep:
        """Traces the step.

        Args:
          rules: rules of its gradients.
          args, kwargs: its arguments, arrays or `jax.ShapeDtypeStruct`s.
          batch: batch size in place of that of the arguments.

        Raises:
          ProblemError: the arguments do not have the batch, or the step cannot run with another batch or in
            microbatches.
        """
        with self._encoded(args, kwargs) as (target, (encoded_args, encoded_kwargs)):
            call, static = self._static.split(encoded_args, encoded_kwargs)
            if target is self._jitted:
                types = jax.ShapeDtypeStruct
                check_arguments(self._fn, *jax.tree.map(lambda leaf: 0 if isinstance(leaf, types) else leaf, call))
            leaves, structure = jax.tree.flatten(call)
            axes = self._axes(args, kwargs, call)
            if batch is not None:
                leaves = [_resized(leaf, axis, batch) for leaf, axis in zip(leaves, axes, strict=True)]

            def run(*leaves: Any) -> list[Any]:
                own, named = jax.tree.unflatten(structure, leaves)
                own, named = join_arguments(own, named, static)
                return jax.tree.leaves(target(*own, **named))

            try:
                with _RULES(rules):
                    closed = jax.make_jaxpr(run)(*leaves)
            except (TypeError, ValueError) as error:  # the step runs with its own batch, so shapes are written into it
                if batch is None or isinstance(error, GraphrlError):
                    raise
                why = " ".join(str(error).split())[:200]
                raise ProblemError(
                    f"the step does not run with a batch of {batch} (its shapes must follow its arguments): {why}"
                ) from error
        donated = {
            var
            for eqn in closed.jaxpr.eqns
            for var, is_donated in zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False)
            if is_donated and not isinstance(var, core.Literal)
        }
        places = tuple(k for k, var in enumerate(closed.jaxpr.invars) if var in donated)
        own = tuple(getattr(leaf, "sharding", None) for leaf in leaves)
        shardings = tuple(each if each is not None and each.num_devices > 1 else None for each in own)
        return TracedStep(closed, places, tuple(rules.losses.values()), shardings, tuple(axes), rules.shared)

    def static_values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the values of a call's static arguments."""
        numbers = {number % max(1, len(args)) for number in self._static.argnums}
        named = zip(argument_names(self._fn, args, kwargs), [*args, *kwargs.values()], strict=True)
        return tuple(v for k, (name, v) in enumerate(named) if k in numbers or name in self._static.argnames)

    def batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Returns the batch size of a call's arguments.

        Raises:
          ProblemError: there is no argument of a name, an array has no such axis, or batch sizes differ.
        """
        names = argument_names(self._fn, args, kwargs)
        if unknown := [name for name in self.batch_axis if name not in names]:
            raise ProblemError(f"batch_axis has {unknown[0]!r}: the step's arguments are {', '.join(names)}")
        named, sizes = dict(zip(names, [*args, *kwargs.values()], strict=True)), set[int]()
        for name, axis in self.batch_axis.items():
            for shape in map(jnp.shape, jax.tree.leaves(named[name])):
                if type(axis) is not int or not 0 <= axis < len(shape):
                    raise ProblemError(f"batch_axis is {axis!r} for {name}, which has an array of shape {shape}")
                sizes.add(shape[axis])
        if len(sizes) != 1:
            raise ProblemError(f"batch_axis names arrays of batch sizes {sorted(sizes)}: must be of one")
        return sizes.pop()

    @contextlib.contextmanager
    def _encoded(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Callable[..., Any], Arguments]]:
        """Context manager that yields a jitted function, and a call's arguments for it."""
        kind = libraries.library_of((args, kwargs))
        if kind is None:
            yield self._jitted, (tuple(args), dict(kwargs))
        else:
            library, jitted = self._of_library(kind)
            with library.encoded(args, kwargs) as encoded:
                yield jitted, encoded

    def _of_library(self, kind: type[Library]) -> tuple[Library, Any]:
        """Returns the step as a function of encoded modules, and jitted; the own jit of a jitted step is within it."""
        if kind not in self._libraries:
            library = kind(self._fn, {} if self._is_jitted else self._jit)
            jitted = library.pure if self._is_jitted else jax.jit(library.pure, **library.jit_kwargs)
            self._libraries[kind] = library, jitted
        return self._libraries[kind]

    def _axes(self, args: Sequence[Any], kwargs: Mapping[str, Any], call: Any) -> list[int | None]:
        """Returns for each array of an encoded call the axis of the batch; None without."""
        encoded_args, encoded_kwargs = call
        names = argument_names(self._fn, args, kwargs)[: len(encoded_args)]
        parts = [*zip(names, encoded_args, strict=True), *sorted(encoded_kwargs.items())]  # the order of jax's pytrees
        return [self.batch_axis.get(name) for name, part in parts for _ in jax.tree.leaves(part)]


def _resized(leaf: Any, axis: int | None, size: int) -> Any:
    """Returns the type of an array with another size along an axis."""
    if axis is None:
        return leaf
    shape = jnp.shape(leaf)
    sharding = each if isinstance(each := getattr(leaf, "sharding", None), NamedSharding) else None
    return jax.ShapeDtypeStruct((*shape[:axis], size, *shape[axis + 1 :]), leaf.dtype, sharding=sharding)
