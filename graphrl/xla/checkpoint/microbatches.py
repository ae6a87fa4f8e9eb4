"""Gradients in microbatches: a loss runs on parts of the batch, one after another, and the gradients are averaged.

The loss is traced twice, for the whole batch and for one microbatch: arrays whose shapes differ have the batch, along
the axis that differs. This is exact if the loss is a mean over the batch. A program cannot show that it is, so the
user states it by naming the batch axis. Results of the loss:

| result | in microbatches |
|---|---|
| the value | mean |
| independent of the batch (weights, counters, keys) | computed once |
| has the batch axis (outputs of each example) | joined |
| other floating-point numbers (metrics, running statistics) | mean |
| other integers | refused: a count would be a sum, a maximum would not |

On several devices, each microbatch takes an equal share of the examples of each device, so that none move.

Statistics over the batch, as in batch normalisation, are those of a microbatch, so results differ there. Typed random
keys differ in each microbatch; keys that are plain integers cannot be recognised, and draw the same numbers in each.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from graphrl.errors import ProblemError
from graphrl.xla.checkpoint.derivative import differentiable, with_split_gradients
from graphrl.xla.checkpoint.program import CheckpointPlan, Program
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.shards import Spec

MEAN, ONCE = "mean", "once"
Combined = str | int  # MEAN, ONCE, or the axis along which the results of microbatches are joined


class Loss(NamedTuple):
    """A function that a gradient differentiates, traced.

    Attributes:
      program: the function: the values that it closes over come first, then the arguments to differentiate by. Of the
        results the value comes first, then auxiliary ones.
      wanted: for each argument, whether to differentiate by it.
      fingerprint: hash of its equations.
    """

    program: Program
    wanted: tuple[bool, ...]
    fingerprint: str


class Microbatches(NamedTuple):
    """A loss in microbatches.

    Attributes:
      small: the loss of one microbatch.
      number: number of microbatches.
      axes: for each argument, the axis of the batch; None without.
      combined: for each result, how the results of the microbatches become one.
    """

    small: Loss
    number: int
    axes: tuple[int | None, ...]
    combined: tuple[Combined, ...]

    @classmethod
    def of(cls, whole: Loss, small: Loss, count: int) -> "Microbatches":
        """Creates it from the loss of the whole batch and that of one microbatch.

        Raises:
          ProblemError: the loss cannot run in microbatches; one line states why.
        """
        avals, parts = whole.program.closed.in_avals, small.program.closed.in_avals
        constants = [np.shape(each) for each in whole.program.closed.consts]
        if len(avals) != len(parts) or constants != [np.shape(each) for each in small.program.closed.consts]:
            raise ProblemError("microbatches: the loss reads other values in a smaller batch, or constants of its size")
        axes = tuple(_axis(*pair, count, "reads") for pair in zip(avals, parts, strict=True))
        if any(axis is not None and wanted for axis, wanted in zip(axes, whole.wanted, strict=True)):
            raise ProblemError("microbatches: a gradient is taken by an array that has the batch axis")
        results = zip(whole.program.closed.out_avals, small.program.closed.out_avals, strict=True)
        joined = [_axis(*pair, count, "returns") for pair in results]
        combined = tuple(_combined(small.program, axes, k, axis) for k, axis in enumerate(joined))
        return cls(small, count, axes, combined)

    def run(self, plan: CheckpointPlan, vjp: Callable[..., Any], args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Runs the loss and its gradient.

        Args:
          plan: the plan for the loss of one microbatch.
          vjp: `jax.vjp`.
          args: its arguments for the whole batch.

        Returns:
          its results; and for each wanted argument, its gradient.
        """
        means = [k for k, how in enumerate(self.combined) if how == MEAN]
        joined = [k for k, how in enumerate(self.combined) if isinstance(how, int)]
        smooth = [k for k, wanted in enumerate(self.small.wanted) if wanted]

        def step(sums: Any, parts: Any) -> tuple[Any, list[Any]]:
            number, slices = parts
            read = iter(slices)
            inputs = [
                _with_own_key(arg, number) if axis is None else next(read)
                for arg, axis in zip(args, self.axes, strict=True)
            ]
            results, gradients = self._differentiated(plan, vjp, inputs, smooth)
            return jax.tree.map(jnp.add, sums, ([results[k] for k in means], gradients)), [results[k] for k in joined]

        avals, parts = self.small.program.closed.out_avals, self._parts
        shards = self.small.program.shards
        specs: Sequence[Spec | None] = [None] * len(args) if shards is None else shards.arguments
        first = (
            [_zeros(avals[k]) for k in means],
            [self._placed(jnp.zeros_like(args[k]), specs[k]) for k in smooth],
        )
        blocks = [
            self._placed(_blocks(arg, axis, self.number, parts), spec and ((), *spec))
            for arg, axis, spec in zip(args, self.axes, specs, strict=True)
            if axis is not None
        ]
        sums, stacks = jax.lax.scan(step, first, (jnp.arange(self.number), blocks))
        averages, gradients = jax.tree.map(lambda total: total / self.number, sums)
        results = dict(zip(means, averages, strict=True)) | self._once(args)
        results |= {k: _joined(stack, self.combined[k], parts) for k, stack in zip(joined, stacks, strict=True)}
        return [results[k] for k in range(len(self.combined))], gradients

    @property
    def _parts(self) -> int:
        """Number of blocks of the batch of which each microbatch takes a part: as devices split it."""
        program = self.small.program
        sizes = [
            aval.shape[axis] for aval, axis in zip(program.closed.in_avals, self.axes, strict=True) if axis is not None
        ]
        sizes += [
            aval.shape[how]
            for aval, how in zip(program.closed.out_avals, self.combined, strict=True)
            if isinstance(how, int)
        ]
        if program.shards is None:
            return 1
        split = zip(program.shards.arguments, self.axes, strict=True)
        parts = math.lcm(*(program.shards.layout.count(spec[axis]) for spec, axis in split if axis is not None))
        return math.gcd(parts, *sizes)

    def _placed(self, value: Any, spec: Spec | None) -> Any:
        """Constrains how a value is split over devices; types with explicit mesh axes have this already."""
        shards = self.small.program.shards
        if shards is None or not shards.layout.is_automatic:
            return value
        return jax.lax.with_sharding_constraint(value, shards.layout.sharding(spec))

    def _differentiated(
        self, plan: CheckpointPlan, vjp: Callable[..., Any], inputs: Sequence[Any], smooth: Sequence[int]
    ) -> tuple[list[Any], list[Any]]:
        """Returns the results of one microbatch and its gradients."""

        def loss(*values: Any) -> tuple[Any, list[Any]]:
            own = list(inputs)
            for k, value in zip(smooth, values, strict=True):
                own[k] = value
            value, *others = evaluate(self.small.program, plan, with_split_gradients(self.small.program, own))
            return value, others

        value, pullback, others = vjp(loss, *(inputs[k] for k in smooth), has_aux=True)
        return [value, *others], list(pullback(jnp.ones_like(value)))

    def _once(self, args: Sequence[Any]) -> dict[int, Any]:
        """Computes the results that are independent of the batch."""
        closed = self.small.program.closed
        jaxpr, used = dce_jaxpr(closed.jaxpr, [how == ONCE for how in self.combined])
        read = [arg for arg, is_used in zip(args, used, strict=True) if is_used]
        results = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, closed.consts))(*read)
        return dict(zip((k for k, how in enumerate(self.combined) if how == ONCE), results, strict=True))


def _axis(whole: Any, part: Any, count: int, verb: str) -> int | None:
    """Returns the axis along which an array of the whole batch is `count` times one of a microbatch; None if equal.

    Raises:
      ProblemError: the shapes differ otherwise.
    """
    shapes = getattr(whole, "shape", ()), getattr(part, "shape", ())
    differing = [k for k, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b]
    if len(shapes[0]) != len(shapes[1]) or len(differing) > 1 or whole.dtype != part.dtype:
        raise ProblemError(f"microbatches: the loss {verb} {whole.str_short()}, and {part.str_short()} in a part")
    if not differing:
        return None
    axis = differing[0]
    if shapes[0][axis] != count * shapes[1][axis]:
        raise ProblemError(
            f"microbatches: the loss {verb} {whole.str_short()}, but {part.str_short()} in one of {count} parts"
        )
    return axis


def _combined(program: Program, axes: Sequence[int | None], k: int, axis: int | None) -> Combined:
    """Returns how result `k` of the microbatches becomes one; `axis` is its batch axis.

    Raises:
      ProblemError: it cannot become one.
    """
    aval = program.closed.out_avals[k]
    if axis is not None:
        return axis
    if k == 0:
        return MEAN
    _, used = dce_jaxpr(program.closed.jaxpr, [number == k for number in range(len(program.closed.out_avals))])
    if not any(is_used and own is not None for is_used, own in zip(used, axes, strict=True)):
        return ONCE
    if differentiable(aval):
        return MEAN
    raise ProblemError(
        f"microbatches: the loss returns {aval.str_short()} that depends on the batch, neither a mean nor of each "
        "example: return it as a float that is a mean, or for each example"
    )


def _with_own_key(value: Any, number: Any) -> Any:
    """Returns a value; if it is a typed random key (or several), that of a microbatch."""
    if not jnp.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key):
        return value
    fold = jax.random.fold_in
    for _ in range(jnp.ndim(value)):
        fold = jax.vmap(fold, (0, None))
    return fold(value, number)


def _zeros(aval: Any) -> Any:
    """Returns zeros of a type, split over devices as the type is if the mesh has explicit axes."""
    return jnp.zeros(aval.shape, aval.dtype, device=aval.sharding if aval.sharding.mesh.explicit_axes else None)


def _blocks(value: Any, axis: int, count: int, parts: int) -> Any:
    """Splits an array into blocks along an axis, each with an equal share of each of `parts` parts of the array; the
    first axis of the result counts the blocks.
    """
    shape = jnp.shape(value)
    before, after = shape[:axis], shape[axis + 1 :]
    split = value.reshape(*before, parts, count, shape[axis] // (parts * count), *after)
    return jnp.moveaxis(split, axis + 1, 0).reshape(count, *before, shape[axis] // count, *after)


def _joined(stack: Any, axis: Combined, parts: int) -> Any:
    """Joins stacked blocks along an axis: reverses `_blocks`."""
    assert isinstance(axis, int)
    count, *shape = stack.shape
    before, after = shape[:axis], shape[axis + 1 :]
    split = stack.reshape(count, *before, parts, shape[axis] // parts, *after)
    return jnp.moveaxis(split, 0, axis + 1).reshape(*before, count * shape[axis], *after)
