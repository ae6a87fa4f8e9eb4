"""The interface between networks and agents, and the layers that all networks share.

- `Network`: two pure functions, `init` and `apply`, whatever library made them; `network` makes one of a Linen module.
- `GraphObservation`, `PairObservation`, `DecisionObservation`: the observations that networks take.
- `MLP`: the multilayer perceptron that all networks are made of.
- `mean_of`, `standardised`: the mean over the ops of a graph, and each op relative to the others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    import jraph


Params = Any  # a nested dict of arrays


class GraphObservation(Protocol):
    """What a network sees of one padded graph: the observations of the environments are such."""

    @property
    def graph(self) -> "jraph.GraphsTuple":
        """Nodes `[n + 1, F]` (the last is for padding edges to hang on), edges `[e, H]`."""

    @property
    def mask(self) -> jax.Array:
        """`[n]` bool, which nodes are real ops."""


class PairObservation(Protocol):
    """What a network sees that looks at pairs of ops: the observations of `Ordering-v0` are such."""

    @property
    def nodes(self) -> jax.Array:
        """`[n, F]` float32."""

    @property
    def relation(self) -> jax.Array:
        """`[n, n]` uint8, at `[i, j]` how op j stands to op i, as `graphs.features.relations` has it."""

    @property
    def mask(self) -> jax.Array:
        """`[n]` bool, which nodes are real ops."""


class Played(Protocol):
    """What came of the choices that were made last, as far as it tells which are better."""

    @property
    def ops(self) -> jax.Array:
        """`[n, K]` float32, of each op."""

    @property
    def devices(self) -> jax.Array:
        """`[n, o, Q]` float32, of each op and option of the task "placement"."""


class DecisionObservation(GraphObservation, Protocol):
    """What a network sees that makes one choice or several of every op at once: the observations of `Compile-v0` are
    such. Choices ("tasks") have names; each has o options, the number of which is a shape of the observation only.
    """

    @property
    def order(self) -> jax.Array:
        """`[n]` int32, every op once: the real ones in a topological order, then those that are padding."""

    @property
    def options(self) -> dict[str, jax.Array]:
        """Of each task `[o, G]` float32, features of its options."""

    @property
    def action_mask(self) -> dict[str, jax.Array]:
        """Of each task `[n, o]` bool, what may be chosen: at least one option."""

    @property
    def previous(self) -> dict[str, jax.Array]:
        """Of each task `[n]` int32, what was chosen last; -1 for nothing yet."""

    @property
    def played(self) -> Played:
        """What came of that."""


Observation = GraphObservation | PairObservation


class Network(NamedTuple):
    """A network as pure functions; a population of them is `jax.vmap` over `init`.

    init: (key, observation) -> params, a nested dict of float32 arrays.
    apply: (params, observation) -> output. What stands at padding ops means nothing and reaches no real op.
    """

    init: Callable[[jax.Array, Observation], Params]
    apply: Callable[[Params, Observation], jax.Array]


def network(module: nn.Module) -> Network:
    """A Linen module that maps one observation to an array, as a `Network`."""

    def init(key: jax.Array, observation: Observation) -> Params:
        return module.init(key, observation)["params"]

    def apply(params: Params, observation: Observation) -> jax.Array:
        return module.apply({"params": params}, observation)  # type: ignore[return-value]

    return Network(init, apply)


NEVER = -1e9  # logit of what may not be chosen, score of what is not seen: probability 0 in float32
SMALL = nn.initializers.variance_scaling(1e-2, "fan_in", "normal")  # of a last layer whose outputs begin near 0


class MLP(nn.Module):
    """One hidden layer, ReLU, and a linear output.

    Attributes:
      hidden: width of the hidden layer.
      outputs: of the last layer.
      last_init: initial weights of the last layer.
    """

    hidden: int
    outputs: int
    last_init: Callable[..., jax.Array] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., F]` float32 to `[..., outputs]`."""
        x = nn.relu(nn.Dense(self.hidden)(x))
        return nn.Dense(self.outputs, kernel_init=self.last_init)(x)


def mean_of(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the rows `[n, w]` float32 that `mask` `[n]` has: `[w]`; 0 of none."""
    real = mask[:, None].astype(jnp.float32)
    return (rows * real).sum(0) / jnp.maximum(real.sum(), 1.0)


def standardised(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """Each feature of the rows `[n, w]` float32 shifted and scaled to mean 0 and deviation 1 over those of `mask`.

    What all rows have in common goes, what tells them apart stays; deviations far below 0.01 are not blown up.
    """
    centred = rows - mean_of(rows, mask)[None]
    return centred * jax.lax.rsqrt(mean_of(jnp.square(centred), mask)[None] + 1e-4)
