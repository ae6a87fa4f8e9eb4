"""The interface between networks and agents, and the layers that all networks share.

- `Network`: two pure functions, `init` and `apply`, independent of the library; `network` wraps a Linen module.
- `GraphObservation`, `PairObservation`, `DecisionObservation`: the observations that networks take.
- `MLP`: the multilayer perceptron in all networks.
- `signed_log`: features of quantities over many orders of magnitude.
- `mean_of`, `standardised`: the mean over the ops of a graph, and each op relative to the others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    import jraph


Params = Any  # a nested dict of arrays


class GraphObservation(Protocol):
    """Observation of one padded graph. The environments' observations implement it."""

    @property
    def graph(self) -> "jraph.GraphsTuple":
        """Nodes `[n + 1, F]` (padding edges connect to the last one), edges `[e, H]`."""

    @property
    def mask(self) -> jax.Array:
        """`[n]` bool, True for real ops."""


class PairObservation(Protocol):
    """Observation for networks on pairs of ops. The observations of `Ordering-v0` implement it."""

    @property
    def nodes(self) -> jax.Array:
        """F features of each op: `[n, F]` float32."""

    @property
    def relation(self) -> jax.Array:
        """`[n, n]` uint8, at `[i, j]` the relation of op j to op i, encoded as in `graphs.features.relations`."""

    @property
    def mask(self) -> jax.Array:
        """`[n]` bool, True for real ops."""


class PlanFeatures(Protocol):
    """Features from simulating the last choices, which show a policy how to improve them."""

    @property
    def ops(self) -> jax.Array:
        """K features of each op: `[n, K]` float32."""

    @property
    def devices(self) -> jax.Array:
        """Q features of each pair of an op and an option of the task "placement": `[n, o, Q]` float32."""


class DecisionObservation(GraphObservation, Protocol):
    """Observation for networks that make one or more choices for every op in parallel. The observations of `Compile-v0`
    implement it. A choice is named by its task, such as "placement"; o, its number of options, may differ by task.
    """

    @property
    def order(self) -> jax.Array:
        """`[n]` int32, every op once: the real ones in a topological order, then padding."""

    @property
    def options(self) -> dict[str, jax.Array]:
        """For each task `[o, G]` float32, features of its options."""

    @property
    def action_mask(self) -> dict[str, jax.Array]:
        """For each task `[n, o]` bool, True for allowed options: at least one per op."""

    @property
    def previous(self) -> dict[str, jax.Array]:
        """For each task `[n]` int32, the last choice; -1 before the first."""

    @property
    def plan_features(self) -> PlanFeatures:
        """Features from simulating the choices `previous`."""


Observation = GraphObservation | PairObservation


class Network(NamedTuple):
    """A network as pure functions; a population of them is `jax.vmap` over `init`.

    init: (key, observation) -> params, a nested dict of float32 arrays.
    apply: (params, observation) -> output. Values at padding ops are arbitrary and do not affect real ops.
    """

    init: Callable[[jax.Array, Observation], Params]
    apply: Callable[[Params, Observation], jax.Array]


def network(module: nn.Module) -> Network:
    """Converts a Linen module that maps one observation to an array into a `Network`."""

    def init(key: jax.Array, observation: Observation) -> Params:
        return module.init(key, observation)["params"]

    def apply(params: Params, observation: Observation) -> jax.Array:
        return module.apply({"params": params}, observation)  # type: ignore[return-value]

    return Network(init, apply)


NEVER = -1e9  # logit of forbidden options, score of masked pairs: probability 0 in float32
SMALL = nn.initializers.variance_scaling(1e-2, "fan_in", "normal")  # for last layers with initial outputs near 0


class MLP(nn.Module):
    """One hidden layer, ReLU, and a linear output.

    Attributes:
      hidden: width of the hidden layer.
      outputs: width of the last layer.
      last_init: initial weights of the last layer.
    """

    hidden: int
    outputs: int
    last_init: Callable[..., jax.Array] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., F]` float32 to `[..., outputs]`."""
        x = nn.relu(nn.Dense(self.hidden)(x))
        return nn.Dense(self.outputs, kernel_init=self.last_init)(x)


def signed_log(x: Any) -> Any:
    """Computes sign(x) log(1 + |x|), of NumPy's arrays in NumPy."""
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    return xp.sign(x) * xp.log1p(xp.abs(x))


def mean_of(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean `[w]` over the rows `[n, w]` float32 where `mask` `[n]` is True; 0 if there are no such rows."""
    real = mask[:, None].astype(jnp.float32)
    return (rows * real).sum(0) / jnp.maximum(real.sum(), 1.0)


def standardised(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """Shifts and scales each of w features to mean 0 and standard deviation 1 over the rows `[n, w]` float32 where
    `mask` `[n]` is True.

    This removes what all rows have in common and keeps their differences. Deviations far below 0.01 are not amplified
    to 1.
    """
    centred = rows - mean_of(rows, mask)[None]
    return centred * jax.lax.rsqrt(mean_of(jnp.square(centred), mask)[None] + 1e-4)
