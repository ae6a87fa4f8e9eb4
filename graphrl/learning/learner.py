"""Learners as pure functions on states: their interface (`Learner`) and the helpers that they share.

A learner's functions jit and vmap as they are, on one device. `on_mesh` compiles them for the devices of a mesh; each
device has the parameters and a share of a batch's graphs. `keys`, `mean` and `sum_devices` give both the same results.
`check_ranges` validates a learner's settings. `descend` takes a step of Adam with global-norm clipping.
"""

import dataclasses
import functools
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
    """The complete state of training: a pytree of arrays without typed keys. A learner's own state may have more
    fields.
    """

    params: dict[str, Any]  # parameters of the networks, by name; a trained agent plays "policy"
    optimiser: Any
    step: jax.Array  # [] int32, number of updates


class Learner(NamedTuple):
    """A learning algorithm as pure functions. Every random number comes from the keys, so that equal seeds give equal
    parameters.

    `init`, `update` and `evaluate` support `jit`, `grad` and `vmap`, for example over keys:

        states = jax.vmap(learner.init)(keys)
        states, metrics = jax.jit(jax.vmap(learner.update, (0, 0, None)))(states, keys, batch)

    Under `on_mesh`, `update` and `evaluate` receive one device's share of the batch; state, params and key are equal on
    every device. Their results must be equal too, through the means of `learning.learner` and the sum of all devices'
    gradients.

    Attributes:
      init: (key, policy) -> the state before training; `policy` has the policy's initial parameters, None for new ones.
      update: (state, key, batch) -> the state after one step of learning, and metrics, of which "env_steps", if there
        is one, counts the environment steps of this update. Each update has a different key; the old state may be
        donated.
      evaluate: (params, key, batch) -> metrics of a state's parameters on held-out graphs.
      score: name of the metric of `evaluate` to maximise, which selects the best checkpoint.
      unit: unit of the score for tables and pictures, such as "%"; "" for none.
      after_validation: (state, means) -> the state after a validation, given the means of `evaluate` by name: for
        learners whose state depends on validations, such as a frozen baseline. Not jitted, but supports `vmap`.
      shardings: shardings of the state, as a prefix of its tree, if the devices share the state instead of the graphs:
        `update` then receives whole states and batches, and `evaluate` the whole batch on every device.
    """

    init: Callable[..., Any]
    update: Callable[[Any, jax.Array, Batch], tuple[Any, Metrics]]
    evaluate: Callable[[Any, jax.Array, Batch], Metrics]
    score: str
    after_validation: Callable[[Any, Mapping[str, float]], Any] = lambda state, means: state
    shardings: Any = None
    unit: str = ""


@functools.lru_cache(maxsize=1)  # runs of one learner with different seeds share its compiled programs
def on_mesh(learner: Learner, mesh: Mesh) -> Learner:
    """Jits a learner's functions for a mesh, whose devices share the graphs of a batch, or the state.

    `update` donates the state. Functions raise ProblemError for a batch that the devices cannot share evenly.
    """
    replicated, no_axis = NamedSharding(mesh, PartitionSpec()), PartitionSpec()
    shares_graphs = learner.shardings is None
    shardings, batch_spec = (replicated, PartitionSpec(AXIS)) if shares_graphs else (learner.shardings, no_axis)

    def by_device(function: Callable[..., Any]) -> Callable[..., Any]:
        specs = no_axis, no_axis, batch_spec
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=no_axis, check_vma=False)

    if shares_graphs:
        update = jax.jit(by_device(learner.update), donate_argnums=0)
    else:
        of_arguments, of_results = (shardings, replicated, replicated), (shardings, replicated)
        update = jax.jit(learner.update, in_shardings=of_arguments, out_shardings=of_results, donate_argnums=0)
    evaluate = jax.jit(by_device(learner.evaluate))
    # it runs once: on CPUs, XLA compiles it in half of the time without optimisation
    quickly: Any = {"xla_backend_optimization_level": 0} if mesh.devices.flat[0].platform == "cpu" else None
    return learner._replace(
        init=jax.jit(learner.init, out_shardings=shardings, compiler_options=quickly),
        update=OnMesh(update, shardings, NamedSharding(mesh, batch_spec)),
        evaluate=OnMesh(evaluate, replicated, NamedSharding(mesh, batch_spec)),
    )


@dataclasses.dataclass(frozen=True)
class OnMesh:
    """A function of a learner, jitted for the devices of a mesh: (state or params, key, batch) -> its results.

    Attributes:
      jitted: the jitted function.
      state, batch: shardings of its first and last argument; the key is replicated.
    """

    jitted: Any
    state: Any
    batch: NamedSharding

    def __call__(self, state: Any, key: jax.Array, batch: Batch) -> Any:
        """Calls the function. Raises ProblemError for a batch that the devices cannot share evenly."""
        if self.batch.spec:
            check_shares(jax.tree.leaves(batch)[0].shape[0], self.batch.mesh.size)
        # jit compiles for the sharding of its arguments: a state from a checkpoint must have the same sharding
        return self.jitted(jax.device_put(state, self.state), key, batch)

    def compile(self, state: Any, key: jax.Array, batch: Batch) -> None:
        """Compiles for arguments of these shapes, so that calls with them do not. Any thread may call this."""
        self.jitted.lower(*self.shapes(state, key, batch)).compile()

    def shapes(self, state: Any, key: jax.Array, batch: Batch) -> tuple[Any, ...]:
        """Returns shapes, dtypes and shardings of the arguments of a call."""
        shardings = self.state, NamedSharding(self.batch.mesh, PartitionSpec()), self.batch
        return tuple(map(_shapes, (state, key, batch), shardings))


def _shapes(tree: Any, shardings: Any) -> Any:
    """Returns shapes and dtypes of a tree's arrays with their shardings, a prefix of the tree."""

    def shape(array: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    return jax.tree.map(shape, tree, jax.tree.broadcast(shardings, tree))


def device_count() -> int:
    """Returns the number of devices that share the batch of the function that is being traced; 1 without a mesh."""
    return _mesh_size() or 1


def _mesh_size() -> int | None:
    """Returns the size of the mesh on which the function that is being traced will run; None without a mesh."""
    try:
        return jax.lax.axis_size(AXIS)
    except NameError:  # the axis is not bound
        return None


def keys(key: jax.Array, graphs: int) -> jax.Array:
    """Derives a key for each of this device's graphs, `[graphs]`, from an update's key and the graph's index in the
    whole batch. Equal seeds thus give equal parameters, up to rounding, on any number of devices and processes.
    """
    first = jax.lax.axis_index(AXIS) * graphs if _mesh_size() else 0
    return jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(graphs))


def mean(values: jax.Array) -> jax.Array:
    """Computes the mean over the values of all devices: `[]`."""
    return sum_devices(values.mean()) / device_count()


def mean_min_max(name: str, values: jax.Array) -> dict[str, jax.Array]:
    """Computes mean, minimum and maximum over all devices' values, `[]` each, named "NAME", "NAME_min", "NAME_max"."""
    least, most = values.min(), values.max()
    if _mesh_size():
        least, most = jax.lax.pmin(least, AXIS), jax.lax.pmax(most, AXIS)
    return {name: mean(values), f"{name}_min": least, f"{name}_max": most}


def explained_variance(predicted: jax.Array, returns: jax.Array) -> jax.Array:
    """Computes 1 - Var(returns - predicted) / Var(returns) over all devices' values: `[]`; 0 if all returns are equal.

    A perfect prediction has 1, a constant 0; a prediction can also be worse than a constant.
    """
    rest, whole = (mean(jnp.square(values - mean(values))) for values in (returns - predicted, returns))
    return jnp.where(whole > 0, 1 - rest / jnp.maximum(whole, jnp.finfo(whole.dtype).tiny), 0.0)


def count(values: jax.Array) -> jax.Array:
    """Counts the values of all devices: `[]` float32, as for the metric "env_steps"."""
    return jnp.float32(values.size * device_count())


def sum_devices(tree: Any) -> Any:
    """Sums the arrays of a pytree over the devices."""
    return jax.lax.psum(tree, AXIS) if _mesh_size() else tree


MAX_COUNT = 2**31 - 1  # for settings that only cost time; those that determine memory have separate limits


def check_ranges(
    settings: Any,
    *,
    integers: Mapping[str, tuple[int, int]],
    above_zero: Sequence[str],
    options: Mapping[str, Any],
    not_below_zero: Sequence[str] = (),
    fractions: Sequence[str] = (),
) -> None:
    """Checks the values of settings; numbers that `jit` or `vmap` traces have no values yet and are not checked.

    Args:
      settings: the settings, with the named fields.
      integers: for each integer field, the lowest and the highest allowed value.
      above_zero, not_below_zero, fractions: names of numeric fields that must be positive, not negative, or from 0
        to 1.
      options: for each field with names, the `Literal` of all allowed ones.

    Raises:
      ProblemError: a value is out of range.
    """
    for name, (low, high) in integers.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            upper = f"of at least {low}" if high == MAX_COUNT else f"from {low} to {high:,}"
            raise ProblemError(f"{name} is {value!r}: must be an integer {upper}")
    limits: tuple[tuple[Sequence[str], Callable[[Any], Any], str], ...] = (
        (above_zero, lambda value: 0 < value < math.inf, "a number above 0"),
        (not_below_zero, lambda value: value >= 0, "at least 0"),
        (fractions, lambda value: 0 <= value <= 1, "from 0 to 1"),
    )
    for fields, is_allowed, words in limits:
        for name in fields:
            value = getattr(settings, name)
            if not isinstance(value, jax.core.Tracer) and not is_allowed(value):
                raise ProblemError(f"{name} is {value!r}: must be {words}")
    for name, names in options.items():
        if getattr(settings, name) not in get_args(names):
            raise ProblemError(f"{name} is {getattr(settings, name)!r}: must be one of {', '.join(get_args(names))}")


# Adam's epsilon: gradients that cancel to rounding errors (below 1e-7; typical elements are about 1e-4) must not become
# full-size steps, whose sign would depend on the order of summation, and so on the devices.
EPSILON = 1e-6


def optimiser(
    learning_rate: optax.ScalarOrSchedule, max_norm: float, decay_steps: int = 0
) -> optax.GradientTransformation:
    """Creates the optimiser: Adam with global-norm clipping at `max_norm`. Over the first `decay_steps` updates, if
    any, the learning rate, a number, falls to a twentieth along a cosine.
    """
    if decay_steps:
        learning_rate = optax.cosine_decay_schedule(learning_rate, decay_steps, 0.05)
    return optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(learning_rate, eps=EPSILON))


def descend(optimiser: optax.GradientTransformation, state: Any, gradient: Any) -> tuple[Any, jax.Array]:
    """Takes one optimiser step with the summed gradients of all devices.

    Args:
      optimiser: see `optimiser`.
      state: `LearnerState`, or a state with more fields.
      gradient: gradient with respect to `state.params` for this device's graphs; summed over the devices.

    Returns:
      The new state, and the norm of the summed gradient before clipping, `[]` float32.
    """
    gradient = sum_devices(gradient)
    params, moments = gradient_step(optimiser, state.params, state.optimiser, gradient)
    length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    return state._replace(params=params, optimiser=moments, step=state.step + 1), length


def gradient_step(optimiser: optax.GradientTransformation, params: Any, moments: Any, gradient: Any) -> tuple[Any, Any]:
    """Takes one step with a gradient; returns the new parameters and the optimiser's new moments."""
    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to the power of its integer count
        updates, moments = optimiser.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments
