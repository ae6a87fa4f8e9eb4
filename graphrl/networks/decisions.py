"""GO's policy, which makes several choices for every op (GO, sections 4.2 to 4.4).

- `DecisionLogits` chooses for all ops in parallel, and iterates given the previous choices (sections 4 and 4.2, eq. 2).
- `TaskHeads`: several choices per op, each conditioned on those before it (section 4.4, eqs 5 and 6).
- `SegmentAttention`: attention along a sequence that is divided into segments (Transformer-XL, Dai et al. 2019; section
  4.2).
- `Modulation`: superposition, which rescales features by factors that depend on the graph, so that one network serves
  many kinds of graphs (section 4.3).
- `votes` (ours): for each option of an op, the choices of the ops around it, as features of the pair.
- `PairLogits`: logits of an op's options from features of each pair of op and option, by one perceptron for all pairs.
"""

import functools
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.errors import ProblemError
from graphrl.networks.base import MLP, NEVER, SMALL, DecisionObservation, mean_of, standardised
from graphrl.networks.encoders import GraphSage

WINDOWS = (8, 32, 128)  # windows of 1/8, 1/32 and 1/128 of the order's length; device loads differ along the order
PAIR_FEATURES = 5 + len(WINDOWS)


def votes(chosen: jax.Array, senders: jax.Array, receivers: jax.Array, order: jax.Array) -> jax.Array:
    """Computes features of the neighbours' choices, `[n, o, PAIR_FEATURES]` float32, for each op v and option k:

    - the weight with which v has chosen k;
    - the share of v's predecessors that have chosen k, and of its successors; and their numbers, log1p;
    - the share of the ops near v in the order that have chosen k, for windows of several lengths.

    Memory is linear in n. The features are equivariant to permutations of the options.

    Args:
      chosen: `[n, o]` float32, the probabilities of options, or one-hot choices; 0 for padding.
      senders, receivers: `[e]` int32, ops that edges lead from and to; n for padding.
      order: `[n]` int32, the ops, first to last.
    """
    counts = [_sums(chosen, *ends) for ends in ((senders, receivers), (receivers, senders))]
    shares = [count / jnp.maximum(count.sum(-1, keepdims=True), 1.0) for count in counts]
    place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=jnp.int32))
    until = jnp.pad(jnp.cumsum(chosen[order], 0), ((1, 0), (0, 0)))
    real = chosen.sum()
    near = [_near(until, place, real / parts) for parts in WINDOWS]
    return jnp.stack([chosen, *shares, *map(jnp.log1p, counts), *near], -1)


class VoteLogits(nn.Module):
    """Logits that are linear in the features of `votes`, with weights computed from the op's embedding; initially 0."""

    @nn.compact
    def __call__(self, ops: jax.Array, features: jax.Array) -> jax.Array:
        """Maps op embeddings `[n, w]` and features `[n, o, PAIR_FEATURES]` to logits `[n, o]` float32."""
        weights = nn.Dense(PAIR_FEATURES, kernel_init=nn.initializers.zeros, name="weights")(ops)
        return jnp.einsum("nok,nk->no", features, weights)


def _sums(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Returns for each op the sum over its senders' values `[n, o]`."""
    return jnp.zeros_like(values).at[receivers].add(values.at[senders].get(mode="fill", fill_value=0), mode="drop")


def _near(until: jax.Array, place: jax.Array, width: jax.Array) -> jax.Array:
    """Computes how the choices of the `width` ops around each op divide among the options: shares `[n, o]`. `until`
    `[n + 1, o]` has cumulative sums of choices along the order.
    """
    last = until.shape[0] - 1
    half = jnp.maximum(width / 2, 1.0).astype(jnp.int32)
    begin, end = jnp.clip(place - half, 0, last), jnp.clip(place + half + 1, 0, last)
    sums = until[end] - until[begin]
    return sums / jnp.maximum(sums.sum(-1, keepdims=True), 1.0)


class PairLogits(nn.Module):
    """Logits of an op's options from features of each pair of op and option, and their differences from those of the
    op's current option; initially 0. The logits are equivariant to permutations of the options.

    Attributes:
      width: width of the two hidden layers.
    """

    width: int

    @nn.compact
    def __call__(self, ops: jax.Array, pairs: jax.Array, chosen: jax.Array) -> jax.Array:
        """Returns the logits, `[n, o]` float32.

        Args:
          ops: `[n, K]` float32, features per op.
          pairs: `[n, o, Q]` float32, features per op and option.
          chosen: `[n, o]` float32, the probabilities of options, or one-hot choices.
        """
        own = jnp.einsum("no,noq->nq", chosen, pairs)[:, None]
        pair_hidden = nn.Dense(self.width, name="pairs")(jnp.concatenate([pairs, pairs - own], -1))
        hidden = nn.relu(pair_hidden + nn.Dense(self.width, name="ops")(ops)[:, None])
        hidden = nn.relu(nn.Dense(self.width, name="hidden")(hidden))
        return nn.Dense(1, kernel_init=nn.initializers.zeros, name="logit")(hidden)[..., 0]


class SegmentAttention(nn.Module):
    """Multi-head attention of every element of a sequence to the elements of its segment and of the previous segment.

    There are no positional encodings: the elements of these two segments are a set. The previous segment is a cache, as
    in Transformer-XL: no gradient flows into its vectors, only into the weights of their keys and values. A stack of k
    layers thus sees k segments back.

    Memory is linear in the sequence: only one segment's attention weights are in memory at a time. In training they are
    recomputed for the gradient.

    Attributes:
      width: width of the outputs, w: a multiple of `heads`.
      heads: number of heads, at least 1.
      segment: number of elements per segment.
      cached: True to attend to the previous segment as well.
    """

    width: int
    heads: int
    segment: int
    cached: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps elements `[n, F]` float32 to `[n, w]` float32; only elements where `mask` `[n]` bool is True are
        attended to.
        """
        each = (self.heads, self.width // self.heads)
        memory = nn.DenseGeneral((2, *each), use_bias=False, name="key_value")
        query = nn.DenseGeneral(each, use_bias=False, name="query")(x) * each[1] ** -0.5
        size = min(self.segment, len(x))
        segments = [_segments(part, size) for part in (query, memory(x), memory(jax.lax.stop_gradient(x)), mask)]
        empty_cache = jnp.zeros_like(segments[2][0]), jnp.zeros_like(segments[3][0])
        step = jax.checkpoint(functools.partial(_step, cached=self.cached), prevent_cse=False)
        outputs = jax.lax.scan(step, empty_cache, tuple(segments))[1]
        return nn.Dense(self.width, name="out")(outputs.reshape(-1, self.width)[: len(x)])


class SegmentLayer(nn.Module):
    """A transformer layer: x = x + attention(LN(x)); x = x + MLP(LN(x)).

    The position of the layer norms is ours.

    Attributes:
      attention: the attention; its width is that of the layer, w.
    """

    attention: SegmentAttention

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps elements `[n, w]` float32 to `[n, w]` float32; `mask` `[n]` bool is True for real elements."""
        width = self.attention.width
        x += self.attention(nn.LayerNorm(name="norm_attention")(x), mask)
        return x + MLP(2 * width, width, name="mlp")(nn.LayerNorm(name="norm_mlp")(x))


def _segments(part: jax.Array, size: int) -> jax.Array:
    """Divides `[n, ...]` into `[segments, size, ...]`, padded with zeros."""
    rest = [(0, 0)] * (part.ndim - 1)
    return jnp.pad(part, [(0, -len(part) % size), *rest]).reshape(-1, size, *part.shape[1:])


def _step(
    cache: tuple[jax.Array, jax.Array], segment: tuple[jax.Array, ...], *, cached: bool
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Returns the cache for the next segment (keys, values and mask), and this segment's outputs `[s, heads, c]`."""
    query, memory, next_memory, mask = segment
    next_cache = next_memory, mask
    if cached:
        memory, mask = jnp.concatenate([cache[0], memory]), jnp.concatenate([cache[1], mask])
    scores = jnp.einsum("qhc,khc->hqk", query, memory[:, 0])
    weights = jax.nn.softmax(jnp.where(mask[None, None], scores, NEVER))
    return next_cache, jnp.einsum("hqk,khc->qhc", weights, memory[:, 1])


Coupling = Literal["recurrent", "none"]


class TaskHeads(nn.Module):
    """Logits of the options of every task, one task after the other:

    H^t = LN([A^(t-1), H^(t-1)])  (eq. 5), A^t = FC_t(attention(H^t))  (eq. 6); all tasks share one LN and one
    attention.

    The vectors of options are inputs: op v's logit of option o of task t is FC_t(H_v) o / sqrt(w), so that no
    parameter's shape depends on the number of options, for example of devices. A^(t-1) is the mean of the option
    vectors of the previous task, weighted by their probabilities; before the first task it is 0. (In the paper it is
    the output of FC, whose width is the number of options.) The attention's output is added to H^(t-1), which keeps its
    width. FC_t takes H^t standardised over the graph's ops, which keeps only the differences between them.

    Without coupling each task applies its FC_t to the ops' vectors independently of the others, as in GDP.

    Attributes:
      tasks: names of the tasks (choices per op), in the order in which they are decided.
      attention: the attention; its width is that of all vectors, w.
      coupling: "recurrent" or "none".
      spread: approximate standard deviation of the initial logits, in nats. Devices are interchangeable: the uniform
        policy is a saddle of the expected reward, and a policy that starts there learns next to nothing.
    """

    tasks: tuple[str, ...]
    attention: SegmentAttention
    coupling: Coupling = "recurrent"
    spread: float = 1.0

    @nn.compact
    def __call__(
        self, ops: jax.Array, mask: jax.Array, options: dict[str, jax.Array], prior: dict[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Returns logits `[n, o]` float32 for each task.

        Args:
          ops: `[n, w]` float32, op embeddings in the order of the sequence.
          mask: `[n]` bool, True for real ops.
          options: for each task the embeddings of its options, `[o, w]` float32.
          prior: for each task `[n, o]` float32, added to the logits; `NEVER` forbids an option.
        """
        norm, width = nn.LayerNorm(name="norm"), ops.shape[1]
        last_init = nn.initializers.variance_scaling(self.spread**2, "fan_in", "normal")
        action, logits = jnp.zeros_like(ops), {}
        for task in self.tasks:
            if self.coupling == "recurrent":
                ops += self.attention(norm(jnp.concatenate([action, ops], -1)), mask)
            vectors = MLP(width, width, last_init, name=task)(standardised(ops, mask))
            logits[task] = vectors @ options[task].T * width**-0.5 + prior[task]
            action = jax.nn.softmax(logits[task]) @ options[task]
        return logits


Superposition = Literal["graph", "ops", "none"]


class Modulation(nn.Module):
    """GO's superposition: factors m(h_G) for the features that enter each layer, x^(l+1) = a^l(m(h_G) * x^l).

    A further transformer layer takes the vectors of the graph's ops; the factors are an affine map of its output. The
    paper leaves open whether each op has its own factors ("ops"), or the graph has one factor per feature from the mean
    over its ops ("graph"). Initial factors near 1 are ours.

    Attributes:
      layer: the transformer layer.
      of: "graph" for the same factors for all ops, or "ops" for separate ones.
    """

    layer: SegmentLayer
    of: Superposition

    @nn.compact
    def __call__(self, ops: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps op embeddings `[n, w]` float32, in sequence order, to factors, `[1, w]` ("graph") or `[n, w]`."""
        read = nn.LayerNorm(name="norm")(self.layer(ops, mask))
        if self.of == "graph":
            read = mean_of(read, mask)[None]
        return nn.Dense(ops.shape[1], kernel_init=SMALL, bias_init=nn.initializers.ones, name="factors")(read)


ByTask = dict[str, jax.Array]


class OpEmbedding(nn.Module):
    """Embeddings of ops, h_G in the paper (GO), and of their options.

    An option's vector is LN(W [features, sum over the ops that chose it / number of ops] + b). The inputs of an op are
    its features, standardised over the graph, the vectors of its chosen options, the mean features of all ops, and the
    mean vector of all allowed options. Without standardisation, what all ops have in common outweighs their
    differences, and a policy learns to treat them alike. The paper has no options as inputs, and does not state how
    decisions enter.

    Attributes:
      tasks: names of the tasks (choices per op).
      width: width of all vectors, w.
      sage: the graph network.
      plan_features: True adds features from simulating the previous choices (ours).
    """

    tasks: tuple[str, ...]
    width: int
    sage: GraphSage
    plan_features: bool = False

    @nn.compact
    def __call__(self, observation: DecisionObservation, chosen: ByTask) -> tuple[jax.Array, ByTask]:
        """Returns the embeddings of the ops, `[n, w]`, and of each task's options, `[o, w]`, float32.

        Args:
          observation: observation of one graph.
          chosen: for each task `[n, o]` float32, the probabilities of options, or one-hot choices; 0 before the first
            choice.
        """
        nodes, real = observation.graph.nodes[:-1], observation.mask[:, None]
        options, decision_sum, context = {}, jnp.zeros((len(nodes), self.width)), jnp.zeros(self.width)
        for task in self.tasks:
            weights = jnp.where(real, chosen[task], 0.0)
            chooser_mean = weights.T @ nodes / jnp.maximum(real.sum(dtype=jnp.float32), 1.0)
            features = jnp.concatenate([observation.options[task], chooser_mean], -1)
            vectors = nn.LayerNorm(name=f"norm_{task}")(nn.Dense(self.width, name=f"options_{task}")(features))
            options[task] = vectors
            decision_sum += weights @ vectors
            context += mean_of(vectors, (observation.action_mask[task] & real).any(0))
        context = jnp.concatenate([context, mean_of(nodes, observation.mask)])
        same = jnp.broadcast_to(context, (len(nodes), len(context)))
        inputs = [standardised(nodes, observation.mask), decision_sum, same]
        inputs += [observation.plan_features.ops] if self.plan_features else []
        ops = self.sage(jnp.concatenate(inputs, -1), observation.graph.senders, observation.graph.receivers)
        return ops, options


class DecisionVectors(nn.Module):
    """Op embeddings given the last choices: the input of a value head.

    Attributes:
      embedding: the embedding of ops and options.
    """

    embedding: OpEmbedding

    def __call__(self, observation: DecisionObservation) -> jax.Array:
        """Returns the op embeddings, `[n, w]` float32; rows of padding ops are arbitrary."""
        return self.embedding(observation, last_chosen(observation))[0]


class DecisionLogits(nn.Module):
    """GO's policy: the graph network, layers of attention along the ops in topological order, and the tasks' heads.

    p(y^(i) | G, y^(i-1)) is a product over ops (eq. 2). In an episode of several steps y^(i-1) is the choice of the
    previous step. Within a call it is the probabilities of the previous iteration (ours: the network does not sample).

    Attributes:
      embedding: embedding of ops and options.
      layers: attention layers along the sequence of ops.
      heads: heads of the tasks.
      modulation: modulation of each layer's inputs, or None.
      iterations: number of iterations (i in eq. 2), at least 1, all with the same weights.
      preference: bonus in nats for the last choice, added to its logit (ours).
      votes: True adds logits from the choices of the ops around an op (ours), see `votes`. If
        `embedding.plan_features`, logits of each pair of op and device are added in addition (ours), see `PairLogits`.
    """

    embedding: OpEmbedding
    layers: tuple[SegmentLayer, ...]
    heads: TaskHeads
    modulation: Modulation | None = None
    iterations: int = 1
    preference: float = 0.0
    votes: bool = False

    def setup(self) -> None:
        """Creates a `VoteLogits` for each task, if `votes`, and `PairLogits`, if there are plan features."""
        self.voters = {task: VoteLogits() for task in self.embedding.tasks} if self.votes else {}
        self.movers = PairLogits(self.embedding.width) if self.embedding.plan_features else None

    def __call__(self, observation: DecisionObservation) -> ByTask:
        """Returns logits `[n, o]` float32 for each task, about -1e9 for forbidden options."""
        tasks = self.embedding.tasks
        if set(observation.options) != set(tasks):
            has = ", ".join(sorted(observation.options))
            raise ProblemError(
                f"the network decides {', '.join(tasks)}: the observation must have these, and has {has}"
            )
        chosen = last_chosen(observation)
        mask = observation.action_mask
        prior = {task: jnp.where(mask[task], self.preference * chosen[task], NEVER) for task in tasks}
        logits = self._iterate(observation, chosen, prior)
        for _ in range(self.iterations - 1):
            logits = self._iterate(observation, {task: jax.nn.softmax(logits[task]) for task in tasks}, prior)
        return logits

    def _iterate(self, observation: DecisionObservation, chosen: ByTask, prior: ByTask) -> ByTask:
        """Computes the logits of one iteration: permutes ops into sequence order, and the logits back."""
        ops, options = self.embedding(observation, chosen)
        prior = {task: prior[task] + self._pair_logits(observation, task, ops, chosen[task]) for task in prior}
        ops, mask, prior = jax.tree.map(lambda rows: rows[observation.order], (ops, observation.mask, prior))
        factors = 1.0 if self.modulation is None else self.modulation(ops, mask)
        for layer in self.layers:
            ops = layer(factors * ops, mask)
        place = jnp.zeros_like(observation.order).at[observation.order].set(jnp.arange(len(mask), dtype=jnp.int32))
        return jax.tree.map(lambda rows: rows[place], self.heads(ops, mask, options, prior))

    def _pair_logits(self, observation: DecisionObservation, task: str, ops: jax.Array, chosen: jax.Array) -> jax.Array:
        """Computes logits from features of pairs of ops and options: `[n, o]` float32."""
        chosen = jnp.where(observation.mask[:, None], chosen, 0.0)
        logits, features = jnp.zeros_like(chosen), list[jax.Array]()
        if self.votes:
            features.append(votes(chosen, observation.graph.senders, observation.graph.receivers, observation.order))
            logits += self.voters[task](ops, features[0])
        if self.movers is not None and task == "placement":
            pairs = jnp.concatenate([*features, observation.plan_features.devices], -1)
            logits += self.movers(jnp.concatenate([ops, observation.plan_features.ops], -1), pairs, chosen)
        return logits


def last_chosen(observation: DecisionObservation) -> ByTask:
    """Returns the last choices one-hot, `[n, o]` float32 for each task; all 0 before the first choice."""
    counts = {task: len(options) for task, options in observation.options.items()}
    return {task: jax.nn.one_hot(choice, counts[task]) for task, choice in observation.previous.items()}
