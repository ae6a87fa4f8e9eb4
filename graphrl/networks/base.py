"""What a network is to an agent: two pure functions, whatever library made them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jraph

Params = Any  # a nested dict of arrays


class GraphObservation(Protocol):
    """What a network sees of one padded graph: the observations of the environments are such."""

    @property
    def graph(self) -> jraph.GraphsTuple:
        """Nodes `[n + 1, F]` (the last is for padding edges to hang on), edges `[e, H]`."""

    @property
    def mask(self) -> jax.Array:
        """`[n]` bool, which nodes are real ops."""


class Network(NamedTuple):
    """A network as pure functions; a population of them is `jax.vmap` over `init`.

    init: (key, observation) -> params, a nested dict of float32 arrays.
    apply: (params, observation) -> output. What stands at padding ops means nothing and reaches no real op.
    """

    init: Callable[[jax.Array, GraphObservation], Params]
    apply: Callable[[Params, GraphObservation], jax.Array]


def network(module: nn.Module) -> Network:
    """A Linen module that maps one observation to an array, as a `Network`."""

    def init(key: jax.Array, observation: GraphObservation) -> Params:
        return module.init(key, observation)["params"]

    def apply(params: Params, observation: GraphObservation) -> jax.Array:
        return module.apply({"params": params}, observation)  # type: ignore[return-value]

    return Network(init, apply)
