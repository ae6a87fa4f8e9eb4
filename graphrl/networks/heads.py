"""Output heads on the op embeddings of an encoder: logits of the ops' choices, priorities, the value of a graph.

- `ChoiceLogits` and `GraphValue`: REGAL's policy and baseline.
- `Priorities`, `ReadyOps` and `AutoregressiveDecoder`: Topoformer's decoders; the first runs once per graph, a small
  part of the second and all of the third at every step.
- `OpLogits`: logits of any environment's choices.
- `SubActionLogits` and `TwinValue`: EGRL's actor and critic, for several choices per op.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.errors import ProblemError
from graphrl.networks.base import MLP, NEVER, SMALL, GraphObservation, PairObservation, Params, mean_of

FIRST_SCALE = 0.2  # of the priorities of `ReadyOps`
_CERTAIN = 1e4  # nats: the other options have probability 0 in float32


class ChoiceLogits(nn.Module):
    """Logits of independent choices for every op, with one perceptron per choice (REGAL's workshop paper, eq. 1,
    MLP_a,i and MLP_b,i). The ICLR paper has one perceptron for all of an op's choices, as here with `shared`.

    Attributes:
      encoder: observation -> `[n, w]`.
      width: width of the hidden layers.
      choices: shape of an op's logits, for example (3, 16) for 3 choices among 16 options, or (3, 2, 4).
      preferred: the option that the initial policy prefers for every choice, or for each of the last axis of
        `choices[:-1]`.
      preference: nats by which the preferred option exceeds the others.
      shared: True uses one perceptron for all choices.
      fixed: number of an op's first genes (the first axis of `choices`) that always have the preferred option.
    """

    encoder: nn.Module
    width: int
    choices: tuple[int, ...]
    preferred: tuple[int, ...]
    preference: float
    shared: bool
    fixed: int = 0

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """Returns the logits, `[n, *choices]` float32."""
        nodes, options = self.encoder(observation), self.choices[-1]
        size, shape = math.prod(self.choices), (nodes.shape[0], *self.choices)
        one_hot = jax.nn.one_hot(jnp.asarray(self.preferred), options)
        nats = jnp.where(jnp.arange(self.choices[0]) < self.fixed, _CERTAIN, self.preference)
        bias = jnp.broadcast_to(nats.reshape(-1, *[1] * (len(shape) - 2)), shape) * jnp.broadcast_to(one_hot, shape)
        if self.shared:
            logits = MLP(self.width, size, SMALL, name="choices")(nodes)
        else:
            each = [MLP(self.width, options, SMALL, name=f"choice_{i}") for i in range(size // options)]
            logits = jnp.concatenate([head(nodes) for head in each], -1)
        return logits.reshape(shape) + bias


class OpLogits(nn.Module):
    """Logits of the choices of every op, or of the choice of an op, by one perceptron for each array of choices."""

    encoder: nn.Module

    @nn.compact
    def __call__(self, observation: Any) -> Any:
        """Returns the logits: float32, with the structure and the shapes of `observation.action_mask`."""
        x = self.encoder(observation)

        def logits(mask: jax.Array) -> jax.Array:
            size = math.prod(mask.shape[1:])
            return MLP(x.shape[1], size)(x).reshape(mask.shape)

        return jax.tree.map(logits, observation.action_mask)


class GraphValue(nn.Module):
    """Scalar value of a graph: MLP_b(mean over ops of MLP_g(h_v)) (REGAL's workshop paper, A.3, scalar baseline).

    Attributes:
      encoder: observation -> `[n, w]`.
      width: width of the hidden layers.
      typical: approximate initial output for every graph.
    """

    encoder: nn.Module
    width: int
    typical: float = 0.0

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """Returns the value, `[]` float32."""
        each = MLP(self.width, self.width, name="of_op")(self.encoder(observation))
        mean = mean_of(each, observation.mask)
        return MLP(self.width, 1, SMALL, name="of_graph")(mean)[0] + self.typical


class Priorities(nn.Module):
    """Topoformer's priorities: y = MLP(h) with ReLU (Gagrani et al. 2022, eq. 7), normalised (eq. 17).

    Attributes:
      encoder: observation -> `[n, w]`.
      width: width of the hidden layer.
      alpha: standard deviation of the priorities.
    """

    encoder: nn.Module
    width: int
    alpha: float = 5.0

    @nn.compact
    def __call__(self, observation: PairObservation) -> jax.Array:
        """Returns the priorities, `[n]` float32 in nats; values of padding ops are arbitrary."""
        raw = MLP(self.width, 1, name="priority")(self.encoder(observation))[:, 0]
        return normalise(raw, observation.mask, self.alpha)


class ReadyOps(nn.Module):
    """The head of `decoding/sequential.py`: `Priorities`, and a perceptron that also sees features of every step.

    The priorities are multiplied by a learned scale, which is small at first: else untrained priorities decide alone.

    Attributes:
      encoder: observation -> `[n, w]`.
      width: width of the priorities' hidden layer.
      alpha: standard deviation of the priorities.
      hidden: h, width of the perceptron's hidden layer.
      features: F, number of features of an op at a step.
      freeze: True stops gradients to encoder and priorities.
    """

    encoder: nn.Module
    width: int
    alpha: float
    hidden: int
    features: int
    freeze: bool = False

    @nn.compact
    def __call__(self, observation: PairObservation) -> tuple[jax.Array, ...]:
        """Returns the priorities `[n]`, each op's part of the hidden layer `[n, h]`, the features' weights `[F, h]` and
        the last layer's `[h]`: float32. Values of padding ops are arbitrary.
        """
        nodes = self.encoder(observation)
        raw = MLP(self.width, 1, name="priority")(nodes)[:, 0]
        if self.freeze:
            nodes, raw = jax.lax.stop_gradient((nodes, raw))
        scale = self.param("scale", nn.initializers.constant(FIRST_SCALE), ())
        return (
            scale * normalise(raw, observation.mask, self.alpha),
            nn.Dense(self.hidden, name="hidden")(nodes),
            self.param("features", nn.initializers.lecun_normal(), (self.features, self.hidden)),
            self.param("out", nn.initializers.normal(0.1), (self.hidden,)),
        )


def normalise(priorities: jax.Array, mask: jax.Array, alpha: float = 5.0) -> jax.Array:
    """Scales priorities `[n]` to mean 0 and deviation `alpha` over the ops of `mask` (eq. 17); equal ones become 0."""
    real = mask.astype(jnp.float32)
    count = jnp.maximum(real.sum(), 1.0)
    centred = (priorities - (priorities * real).sum() / count) * real
    variance = (centred**2).sum() / count
    return alpha * centred * jax.lax.rsqrt(variance + 1e-12)


class Encoder(Protocol):
    """A module that computes a vector for every op, as `GraphUNet` and `NeighbourMeans` do."""

    width: int

    def __call__(self, observation: GraphObservation, actions: jax.Array | None = None) -> jax.Array:
        """Returns op embeddings, `[n, width]` float32; `actions` `[n, A]` float32 are additional op features."""


class Acted(NamedTuple):
    """Input of a critic: an observation and the action to evaluate."""

    observation: GraphObservation
    action: jax.Array  # [n, choices, options] float32, one-hot, noisy one-hot, or probabilities


class SubActionLogits(nn.Module):
    """EGRL's actor: the encoder, tanh layers, and a linear layer for each of an op's choices.

    Attributes:
      encoder: graph encoder.
      choices: number of choices per op.
      options: number of options per choice.
      hidden: number of tanh layers; EGRL has two after its Graph U-Net.
      last_init: initial weights of the linear layer.
    """

    encoder: Encoder
    choices: int
    options: int
    hidden: int = 2
    last_init: Callable[..., jax.Array] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """Returns the logits, `[n, choices, options]` float32."""
        nodes = self.encoder(observation)
        for _ in range(self.hidden):
            nodes = nn.tanh(nn.Dense(self.encoder.width)(nodes))
        return nn.DenseGeneral((self.choices, self.options), kernel_init=self.last_init, name="logits")(nodes)


class TwinValue(nn.Module):
    """EGRL's critic: an encoder of features and action, the maximum over ops, and two perceptrons.

    Attributes:
      encoder: encoder of the graph, which takes the action as additional op features.
    """

    encoder: Encoder

    @nn.compact
    def __call__(self, acted: Acted) -> jax.Array:
        """Returns two independent estimates of the action's value, `[2]` float32."""
        observation, action = acted
        actions = action.reshape(len(action), -1)
        nodes = self.encoder(observation, actions)
        graph = jnp.where(observation.mask[:, None], nodes, -jnp.inf).max(0)
        return jnp.concatenate([self._head(graph) for _ in range(2)])

    def _head(self, graph: jax.Array) -> jax.Array:
        for _ in range(2):
            graph = nn.relu(nn.Dense(self.encoder.width)(graph))
        return nn.Dense(1)(graph)


class Prepared(NamedTuple):
    """Values of `AutoregressiveDecoder` that are computed once per graph, for all decoding steps."""

    graph: jax.Array  # [w], the graph's part of the context
    context: jax.Array  # [n + 1, 2, w], each op's part of the context as first and as last op; at n, before any op
    keys: jax.Array  # [h, n, w / h], attention keys of the glimpse's h heads
    values: jax.Array  # [h, n, w / h]
    ops: jax.Array  # [n, w], keys of the final logits


class Stepwise(NamedTuple):
    """A network that is called at every decoding step, as pure functions of one graph.

    init: (key, observation) -> params.
    prepare: (params, observation) -> `Prepared`, the encoder's part: once per graph.
    step: (params, prepared, first and last `[2]` int32, ready `[n]` bool) -> logits `[n]` float32, `NEVER` where an op
    is not ready. First and last are ops of the order so far, both n before the first step.
    """

    init: Callable[[jax.Array, PairObservation], Params]
    prepare: Callable[[Params, PairObservation], Prepared]
    step: Callable[[Params, Prepared, jax.Array, jax.Array], jax.Array]


class AutoregressiveDecoder(nn.Module):
    """Topoformer's distribution of the next op, given the order so far (appendix B).

    The context node is W_g (mean of h over ops) + W_c [h_first, h_last], with learned vectors before the first step. It
    attends to the ready ops with `heads` heads (the glimpse), and its compatibility with each ready op, u_j = clip *
    tanh(glimpse k_j / sqrt(w)), is that op's logit. The paper states only that Kool's decoder is adapted by masking to
    the ready ops; sizes and the first op in the context are Kool's.

    Attributes:
      encoder: observation -> `[n, w]`.
      width: w, the width of the encoder's outputs.
      heads: number of heads of the glimpse, a divisor of the width.
      clip: largest absolute logit, nats.
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
        self.start = self.param("nobody", nn.initializers.normal(self.width**-0.5), (2, self.width))
        self.projected = nn.Dense(3 * self.width, use_bias=False)
        self.glimpse_out = nn.Dense(self.width, use_bias=False)

    def __call__(self, observation: PairObservation) -> jax.Array:
        """Returns the first step's logits `[n]` if every real op were ready; only for `init`."""
        none = jnp.full(2, len(observation.mask), jnp.int32)
        return self.step(self.prepare(observation), none, observation.mask)

    def prepare(self, observation: PairObservation) -> Prepared:
        """See `Stepwise`."""
        nodes = self.encoder(observation)
        mean = mean_of(nodes, observation.mask)
        keys, values, ops = jnp.split(self.projected(nodes), 3, axis=-1)
        split = (len(nodes), self.heads, self.width // self.heads)
        return Prepared(
            graph=self.of_graph(mean),
            context=jnp.concatenate([self.of_context(nodes), self.start[None]]),
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
    """Converts the decoder to pure functions."""

    def init(key: jax.Array, observation: PairObservation) -> Params:
        return module.init(key, observation)["params"]

    def prepare(params: Params, observation: PairObservation) -> Prepared:
        return module.apply({"params": params}, observation, method="prepare")  # type: ignore[return-value]

    def step(params: Params, prepared: Prepared, ends: jax.Array, ready: jax.Array) -> jax.Array:
        return module.apply({"params": params}, prepared, ends, ready, method="step")  # type: ignore[return-value]

    return Stepwise(init, prepare, step)
