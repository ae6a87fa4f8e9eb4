"""Autoregressive decoder, which is called at every step (Topoformer, appendix B; Kool, van Hoof and Welling, 2019)."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.errors import ProblemError
from graphrl.networks.base import NEVER, PairObservation, Params, mean_of


class Prepared(NamedTuple):
    """What the steps of one graph share: made once."""

    graph: jax.Array  # [w], the part of the context that is the graph's
    context: jax.Array  # [n + 1, 2, w], of each op and of "none yet": its part as first and as last op
    keys: jax.Array  # [h, n, w / h], of the glimpse's heads
    values: jax.Array  # [h, n, w / h]
    ops: jax.Array  # [n, w], what the glimpse is compared with


class Stepwise(NamedTuple):
    """A network that is asked at every step, as pure functions of one graph.

    init: (key, observation) -> params.
    prepare: (params, observation) -> `Prepared`, the encoder's part: once a graph.
    step: (params, prepared, first and last `[2]` int32, ready `[n]` bool) -> logits `[n]` float32, `NEVER` where an
      op is not ready. First and last are ops of the order so far, n while there is none.
    """

    init: Callable[[jax.Array, PairObservation], Params]
    prepare: Callable[[Params, PairObservation], Prepared]
    step: Callable[[Params, Prepared, jax.Array, jax.Array], jax.Array]


class AutoregressiveDecoder(nn.Module):
    """The distribution of the next op, given the order so far.

    The context node is W_g (mean of h over ops) + W_c [h_first, h_last], learned vectors in place of ops while there
    are none. It attends to the ready ops with `heads` heads (the glimpse), and its compatibility with each ready op,
    u_j = clip * tanh(glimpse k_j / sqrt(w)), is that op's logit. The paper says only that Kool's decoder is adapted by
    masking to the ready ops; sizes and the first op in the context are Kool's.

    Attributes:
      encoder: observation -> `[n, w]`.
      width: w, the encoder's.
      heads: of the glimpse, a divisor of the width.
      clip: nats; no logit is farther from 0.
    """

    encoder: nn.Module
    width: int
    heads: int = 8
    clip: float = 10.0

    def setup(self) -> None:
        if self.heads < 1 or self.width % self.heads:
            raise ProblemError(f"heads is {self.heads}: must divide the width, {self.width}")
        self.of_graph = nn.Dense(self.width, use_bias=False)
        self.of_context = nn.DenseGeneral((2, self.width), use_bias=False)
        self.nobody = self.param("nobody", nn.initializers.normal(self.width**-0.5), (2, self.width))
        self.projected = nn.Dense(3 * self.width, use_bias=False)
        self.glimpse_out = nn.Dense(self.width, use_bias=False)

    def __call__(self, observation: PairObservation) -> jax.Array:
        """Logits `[n]` of the first step if every op were ready: for `init`."""
        nobody = jnp.full(2, len(observation.mask), jnp.int32)
        return self.step(self.prepare(observation), nobody, observation.mask)

    def prepare(self, observation: PairObservation) -> Prepared:
        """See `Stepwise`."""
        nodes = self.encoder(observation)
        mean = mean_of(nodes, observation.mask)
        keys, values, ops = jnp.split(self.projected(nodes), 3, axis=-1)
        split = (len(nodes), self.heads, self.width // self.heads)
        return Prepared(
            graph=self.of_graph(mean),
            context=jnp.concatenate([self.of_context(nodes), self.nobody[None]]),
            keys=jnp.moveaxis(keys.reshape(split), 1, 0),
            values=jnp.moveaxis(values.reshape(split), 1, 0),
            ops=ops,
        )

    def step(self, prepared: Prepared, ends: jax.Array, ready: jax.Array) -> jax.Array:
        """See `Stepwise`."""
        first, last = ends
        query = prepared.graph + prepared.context[first, 0] + prepared.context[last, 1]
        per_head = query.reshape(self.heads, -1)
        scores = jnp.einsum("hd,hnd->hn", per_head, prepared.keys) * per_head.shape[1] ** -0.5
        weights = jax.nn.softmax(jnp.where(ready[None], scores, NEVER))
        glimpse = self.glimpse_out(jnp.einsum("hn,hnd->hd", weights, prepared.values).reshape(-1))
        compatibility = prepared.ops @ glimpse * self.width**-0.5
        return jnp.where(ready, self.clip * jnp.tanh(compatibility), NEVER)


def stepwise(module: AutoregressiveDecoder) -> Stepwise:
    """The decoder as pure functions."""

    def init(key: jax.Array, observation: PairObservation) -> Params:
        return module.init(key, observation)["params"]

    def prepare(params: Params, observation: PairObservation) -> Prepared:
        return module.apply({"params": params}, observation, method="prepare")  # type: ignore[return-value]

    def step(params: Params, prepared: Prepared, ends: jax.Array, ready: jax.Array) -> jax.Array:
        return module.apply({"params": params}, prepared, ends, ready, method="step")  # type: ignore[return-value]

    return Stepwise(init, prepare, step)
