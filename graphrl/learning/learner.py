"""Learners as pure functions on states: the contract, several devices, checks of settings, and gradient descent.

`on_mesh` compiles a learner for the devices of a mesh; each device has the parameters and a share of a batch's graphs.
`mean` and `keys` are for the functions that run on each device. `check_ranges` checks a learner's settings. `descend`
is a step of Adam with global-norm clipping.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.errors import ProblemError
from graphrl.mesh import AXIS, check_shares

Batch = Any  # pytree of arrays, leading axis g (graphs) on each
Metrics = dict[str, jax.Array]  # [] float32 each, means over the graphs of a batch, the same on all devices


class LearnerState(NamedTuple):
    """All that training changes: a pytree of arrays, no typed keys among them. A learner's own may have more fields."""

    params: dict[str, Any]  # of the networks, by name; those of "policy" are what a trained agent plays
    optimiser: Any
    step: jax.Array  # [] int32, updates made


class Learner(NamedTuple):
    """An agent's way to learn. Every random number comes from the keys, so that equal seeds give equal parameters.

    `update` and `evaluate` are for one device's share of the batch: state, params and key are the same on every device,
    and so must be what they give, by `learning.learner`'s means and by the sum of all devices' gradients.

    Attributes:
      init: (key, policy) -> the state before training; `policy` are parameters that its policy has, None for new ones.
      update: (state, key, batch) -> the state after one step of learning, and what to record. The key is another for
        each update; the old state may be donated.
      evaluate: (params, key, batch) -> how good the parameters of a state are on held-out graphs.
      score: the metric of `evaluate` that is to be as large as possible: it chooses the best checkpoint.
      validated: (state, means) -> the state to go on with once the held-out graphs were looked at, with the means of
        `evaluate` by name: where a learner keeps what changes only when they say so, as a frozen baseline. Not jitted.
      places: where the parts of a state lie, shardings in a prefix of its tree, if the devices share the state in place
        of the graphs: `update` is then for whole states and batches, `evaluate` sees the whole batch on every device.
    """

    init: Callable[..., Any]
    update: Callable[[Any, jax.Array, Batch], tuple[Any, Metrics]]
    evaluate: Callable[[Any, jax.Array, Batch], Metrics]
    score: str
    validated: Callable[[Any, Mapping[str, float]], Any] = lambda state, means: state
    places: Any = None


def on_mesh(learner: Learner, mesh: Mesh) -> Learner:
    """The same learner, its functions jitted: the devices of the mesh share the graphs of a batch, or the state.

    Its `update` donates the state. With a batch that the devices cannot share, functions raise ProblemError.
    """
    copies, everywhere = NamedSharding(mesh, PartitionSpec()), PartitionSpec()
    shares_graphs = learner.places is None
    places, of_batch = (copies, PartitionSpec(AXIS)) if shares_graphs else (learner.places, everywhere)

    def by_device(function: Callable[..., Any]) -> Callable[..., Any]:
        specs = everywhere, everywhere, of_batch
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False)

    def placed(compiled: Callable[..., Any], where: Any) -> Callable[..., Any]:
        def run(state: Any, key: jax.Array, batch: Any) -> Any:
            if shares_graphs:
                check_shares(jax.tree.leaves(batch)[0].shape[0], mesh.size)
            # where its arguments lie is part of what jit compiles for: a state from a checkpoint must lie there too
            return compiled(jax.device_put(state, where), key, batch)

        return run

    if shares_graphs:
        update = jax.jit(by_device(learner.update), donate_argnums=0)
    else:
        of_arguments, of_results = (places, copies, copies), (places, copies)
        update = jax.jit(learner.update, in_shardings=of_arguments, out_shardings=of_results, donate_argnums=0)
    return learner._replace(
        init=jax.jit(learner.init, out_shardings=places),
        update=placed(update, places),
        evaluate=placed(jax.jit(by_device(learner.evaluate)), copies),
    )


def keys(key: jax.Array, graphs: int) -> jax.Array:
    """Keys of this device's graphs `[graphs]`: each from the update's key and the graph's place in the whole batch, so
    that the same seeds give the same parameters, to rounding, on any number of devices and processes.
    """
    place = jax.lax.axis_index(AXIS) * graphs + jnp.arange(graphs)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, place)


def mean(values: jax.Array) -> jax.Array:
    """Of all devices' values: `[]`."""
    return jax.lax.pmean(values.mean(), AXIS)


def extent(name: str, values: jax.Array) -> dict[str, jax.Array]:
    """Mean, least and most of all devices' values, `[]` each: "name", "name_least" and "name_most"."""
    least, most = jax.lax.pmin(values.min(), AXIS), jax.lax.pmax(values.max(), AXIS)
    return {name: mean(values), f"{name}_least": least, f"{name}_most": most}


MOST = 2**31 - 1  # of what costs time alone; what is built before training gets a limit of its own


def check_ranges(
    settings: Any,
    *,
    integers: Mapping[str, tuple[int, int]],
    above_zero: Sequence[str],
    options: Mapping[str, Any],
    not_below_zero: Sequence[str] = (),
) -> None:
    """Looks at the fields of settings.

    Args:
      settings: whose fields are named.
      integers: the lowest and the highest that is right.
      above_zero, not_below_zero: numbers.
      options: of names, the `Literal` of all that there are.

    Raises:
      ProblemError: a value is out of range.
    """
    for name, (low, high) in integers.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            upper = f"of at least {low}" if high == MOST else f"from {low} to {high:,}"
            raise ProblemError(f"{name} is {value!r}: must be an integer {upper}")
    for name in above_zero:
        if not 0 < getattr(settings, name) < math.inf:
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be a number above 0")
    for name in not_below_zero:
        if not getattr(settings, name) >= 0:
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be at least 0")
    for name, names in options.items():
        if getattr(settings, name) not in get_args(names):
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be one of {', '.join(get_args(names))}")


# Adam's: gradients that cancel to rounding errors (below 1e-7; a gradient's elements are some 1e-4) must not become
# steps of full length, which another order of summation, on other devices, would turn round.
EPSILON = 1e-6


def optimiser(learning_rate: optax.ScalarOrSchedule, longest: float) -> optax.GradientTransformation:
    """Adam; gradients longer than `longest` are shortened."""
    return optax.chain(optax.clip_by_global_norm(longest), optax.adam(learning_rate, eps=EPSILON))


def descend(optimiser: optax.GradientTransformation, state: Any, gradient: Any) -> tuple[Any, jax.Array]:
    """One step with the gradients of all devices of a mesh.

    Args:
      optimiser: see above.
      state: `LearnerState`, or with more fields.
      gradient: of this device's graphs, of `state.params`; those of the devices are added up.

    Returns:
      The state after it, and the gradient's length, `[]` float32.
    """
    gradient = jax.lax.psum(gradient, AXIS)
    params, moments = moved(optimiser, state.params, state.optimiser, gradient)
    length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    return state._replace(params=params, optimiser=moments, step=state.step + 1), length


def moved(optimiser: optax.GradientTransformation, params: Any, moments: Any, gradient: Any) -> tuple[Any, Any]:
    """Parameters and the optimiser's moments after one step with a gradient."""
    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to the power of its integer count
        updates, moments = optimiser.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments
