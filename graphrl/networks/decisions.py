"""Decoders of several choices for every op (GO, sections 4.2 to 4.4).

- `DecisionLogits` makes all ops' choices at once, and iterates in the light of the choices before (sections 4 and 4.2,
  eq. 2).
- `TaskHeads`: several choices of an op, each informed of those before it (section 4.4, eqs 5 and 6).
- `SegmentAttention`: attention along a sequence that is divided into segments (Transformer-XL, Dai et al. 2019;
  section 4.2).
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

WINDOWS = (8, 32, 128)  # parts of the order, in each of which options are loaded differently
PAIR_FEATURES = 5 + len(WINDOWS)


def votes(chosen: jax.Array, senders: jax.Array, receivers: jax.Array, order: jax.Array) -> jax.Array:
    """`[n, o, PAIR_FEATURES]` float32: of op v and option k

    - whether v has chosen k;
    - the share of the ops before v that have, and of those after it; and their numbers, log1p;
    - of the ops that stand near v in the order, the share that have, for parts of the order of several lengths.

    Memory is linear in n. Nothing depends on the options' numbers: permuted options have permuted features.

    Args:
      chosen: `[n, o]` float32, the probabilities of options, or 1 for what was chosen; 0 for padding.
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
    """Logits that each op makes of its pair features, weighing them as its vector says; 0 for all when untrained."""

    @nn.compact
    def __call__(self, ops: jax.Array, features: jax.Array) -> jax.Array:
        """Vectors `[n, w]` and features `[n, o, PAIR_FEATURES]` to `[n, o]` float32."""
        weights = nn.Dense(PAIR_FEATURES, kernel_init=nn.initializers.zeros, name="weights")(ops)
        return jnp.einsum("nok,nk->no", features, weights)


def _sums(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Of each receiver the sum of its senders' values `[n, o]`."""
    return jnp.zeros_like(values).at[receivers].add(values.at[senders].get(mode="fill", fill_value=0), mode="drop")


def _near(until: jax.Array, place: jax.Array, width: jax.Array) -> jax.Array:
    """Shares `[n, o]` of options among `width` ops around each, of sums `[n + 1, o]` along the order."""
    last = until.shape[0] - 1
    half = jnp.maximum(width / 2, 1.0).astype(jnp.int32)
    begin, end = jnp.clip(place - half, 0, last), jnp.clip(place + half + 1, 0, last)
    sums = until[end] - until[begin]
    return sums / jnp.maximum(sums.sum(-1, keepdims=True), 1.0)


class PairLogits(nn.Module):
    """What an op's option is worth, by what is seen of the two together and of the option that the op has now; 0 for
    all when untrained. It does not depend on the options' numbers.

    Attributes:
      width: of the two hidden layers.
    """

    width: int

    @nn.compact
    def __call__(self, ops: jax.Array, pairs: jax.Array, chosen: jax.Array) -> jax.Array:
        """`[n, o]` float32.

        Args:
          ops: `[n, K]` float32, of each op.
          pairs: `[n, o, Q]` float32, of each op and option.
          chosen: `[n, o]` float32, the probabilities of options, or 1 for what was chosen.
        """
        own = jnp.einsum("no,noq->nq", chosen, pairs)[:, None]
        of_pairs = nn.Dense(self.width, name="pairs")(jnp.concatenate([pairs, pairs - own], -1))
        hidden = nn.relu(of_pairs + nn.Dense(self.width, name="ops")(ops)[:, None])
        hidden = nn.relu(nn.Dense(self.width, name="hidden")(hidden))
        return nn.Dense(1, kernel_init=nn.initializers.zeros, name="logit")(hidden)[..., 0]


class SegmentAttention(nn.Module):
    """Multi-head attention of every element to those of its segment and of the segment before.

    There are no positions: what elements are in those two segments counts, not where. What is seen of the segment
    before is a cache, as it is for later segments of a text that is being read: no gradient flows into its vectors (but
    into the weights that make keys and values of them). A stack of k layers thus sees k segments back.

    Memory is linear in the sequence: one segment's weights are in memory at a time, in training too, where they are
    made again for the gradient.

    Attributes:
      width: of the outputs, w: a multiple of the heads.
      heads: at least 1.
      segment: elements of a segment.
      cached: whether the segment before is seen.
    """

    width: int
    heads: int
    segment: int
    cached: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`[n, F]` float32 and which elements are real, `[n]` bool, to `[n, w]` float32; only real ones are seen."""
        each = (self.heads, self.width // self.heads)
        memory = nn.DenseGeneral((2, *each), use_bias=False, name="key_value")
        query = nn.DenseGeneral(each, use_bias=False, name="query")(x) * each[1] ** -0.5
        size = min(self.segment, len(x))
        segments = [_segments(part, size) for part in (query, memory(x), memory(jax.lax.stop_gradient(x)), mask)]
        nothing = jnp.zeros_like(segments[2][0]), jnp.zeros_like(segments[3][0])
        step = jax.checkpoint(functools.partial(_step, cached=self.cached), prevent_cse=False)
        attended = jax.lax.scan(step, nothing, tuple(segments))[1]
        return nn.Dense(self.width, name="out")(attended.reshape(-1, self.width)[: len(x)])


class SegmentLayer(nn.Module):
    """A layer of a transformer: x = x + attention(LN(x)); x = x + MLP(LN(x)).

    Where layers are normalised is ours.

    Attributes:
      attention: whose width is that of the layer, w.
    """

    attention: SegmentAttention

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`[n, w]` float32 and which elements are real, `[n]` bool, to `[n, w]` float32."""
        width = self.attention.width
        x += self.attention(nn.LayerNorm(name="norm_attention")(x), mask)
        return x + MLP(2 * width, width, name="mlp")(nn.LayerNorm(name="norm_mlp")(x))


def _segments(part: jax.Array, size: int) -> jax.Array:
    """`[n, ...]` to `[segments, size, ...]`, with zeros at the end."""
    rest = [(0, 0)] * (part.ndim - 1)
    return jnp.pad(part, [(0, -len(part) % size), *rest]).reshape(-1, size, *part.shape[1:])


def _step(
    cache: tuple[jax.Array, jax.Array], segment: tuple[jax.Array, ...], *, cached: bool
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """One segment's outputs `[s, heads, c]`, and what the next one sees of it: keys and values, and what is real."""
    query, memory, kept, seen = segment
    next_cache = kept, seen
    if cached:
        memory, seen = jnp.concatenate([cache[0], memory]), jnp.concatenate([cache[1], seen])
    scores = jnp.einsum("qhc,khc->hqk", query, memory[:, 0])
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, NEVER))
    return next_cache, jnp.einsum("hqk,khc->qhc", weights, memory[:, 1])


Coupling = Literal["recurrent", "none"]


class TaskHeads(nn.Module):
    """Logits of the options of every task, one task after the other:

    H^t = LN([A^(t-1), H^(t-1)])  (eq. 5), A^t = FC_t(attention(H^t))  (eq. 6); all tasks have one LN and one attention.

    Options have vectors, which are inputs: op v's logit of option o of task t is FC_t(H_v) o / sqrt(w), so that a
    number of options, of devices for one, is no shape of a parameter. A^(t-1) is the mean of the vectors of the task
    before, weighted by their probabilities; before the first task it is 0. (In the paper it is what FC gives, whose
    width is the number of options.) The attention's output is added to H^(t-1), which keeps its width, and FC_t reads
    H^t standardised over the graph's ops: what tells them apart.

    Without coupling each task has its FC_t on the ops' vectors and knows nothing of the others, as in GDP.

    Attributes:
      tasks: names, in the order in which they are decided.
      attention: whose width is that of all vectors, w.
      coupling: "recurrent" or "none".
      spread: deviation of the untrained logits, about, in nats. Devices are alike: a policy that puts every op on each
        with equal probability is a saddle of the expected reward, and one that begins there learns next to nothing.
    """

    tasks: tuple[str, ...]
    attention: SegmentAttention
    coupling: Coupling = "recurrent"
    spread: float = 1.0

    @nn.compact
    def __call__(
        self, ops: jax.Array, mask: jax.Array, options: dict[str, jax.Array], prior: dict[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Of each task `[n, o]` float32.

        Args:
          ops: `[n, w]` float32, in the order of the sequence.
          mask: `[n]` bool, which are real.
          options: of each task the vectors of its options, `[o, w]` float32.
          prior: of each task `[n, o]` float32, logits that are added: those of what may not be chosen forbid it.
        """
        norm, width = nn.LayerNorm(name="norm"), ops.shape[1]
        last_init = nn.initializers.variance_scaling(self.spread**2, "fan_in", "normal")
        action, logits = jnp.zeros_like(ops), {}
        for task in self.tasks:
            if self.coupling == "recurrent":
                ops += self.attention(norm(jnp.concatenate([action, ops], -1)), mask)
            of_task = MLP(width, width, last_init, name=task)(standardised(ops, mask))
            logits[task] = of_task @ options[task].T * width**-0.5 + prior[task]
            action = jax.nn.softmax(logits[task]) @ options[task]
        return logits


Superposition = Literal["graph", "ops", "none"]


class Modulation(nn.Module):
    """m(h_G) of x^(l+1) = a^l(m(h_G) * x^l): factors of the features that enter each layer.

    One more transformer layer reads the vectors of the graph's ops; an affine map of what it gives are the factors.
    The paper leaves open whether every op has factors of its own ("ops") or the graph has one for each feature, of the
    mean over its ops ("graph"). Ours is that the untrained factors are near 1.

    Attributes:
      layer: the transformer layer.
      of: "graph" or "ops".
    """

    layer: SegmentLayer
    of: Superposition

    @nn.compact
    def __call__(self, ops: jax.Array, mask: jax.Array) -> jax.Array:
        """`[n, w]` float32, in the order of the sequence, and which are real, `[n]` bool, to `[1 or n, w]` float32."""
        read = nn.LayerNorm(name="norm")(self.layer(ops, mask))
        if self.of == "graph":
            read = mean_of(read, mask)[None]
        return nn.Dense(ops.shape[1], kernel_init=SMALL, bias_init=nn.initializers.ones, name="factors")(read)


ByTask = dict[str, jax.Array]


class OpEmbedding(nn.Module):
    """Vectors of ops, h_G, and of the options that they have.

    An option's vector is LN(W [features, sum over the ops that chose it / all ops] + b). An op is seen as its features,
    standardised over the graph (else what all ops have in common outweighs what tells them apart, and a policy learns
    to treat them alike), the vectors of what was chosen of it, the mean features of all ops, and the mean vector of all
    options that there are. The paper has no options as inputs, and does not say how decisions come in.

    Attributes:
      tasks: their names.
      width: of all vectors, w.
      sage: the graph network.
      played: whether an op is seen with what came of the choices before (ours).
    """

    tasks: tuple[str, ...]
    width: int
    sage: GraphSage
    played: bool = False

    @nn.compact
    def __call__(self, seen: DecisionObservation, chosen: ByTask) -> tuple[jax.Array, ByTask]:
        """Vectors of ops `[n, w]`, and of each task's options `[o, w]`, float32.

        Args:
          seen: one graph.
          chosen: of each task `[n, o]` float32, the probabilities of options, or 1 for what was chosen; 0 for nothing.
        """
        nodes, real = seen.graph.nodes[:-1], seen.mask[:, None]
        options, decided, context = {}, jnp.zeros((len(nodes), self.width)), jnp.zeros(self.width)
        for task in self.tasks:
            weights = jnp.where(real, chosen[task], 0.0)
            held = weights.T @ nodes / jnp.maximum(real.sum(dtype=jnp.float32), 1.0)
            features = jnp.concatenate([seen.options[task], held], -1)
            vectors = nn.LayerNorm(name=f"norm_{task}")(nn.Dense(self.width, name=f"options_{task}")(features))
            options[task] = vectors
            decided += weights @ vectors
            context += mean_of(vectors, (seen.action_mask[task] & real).any(0))
        context = jnp.concatenate([context, mean_of(nodes, seen.mask)])
        same = jnp.broadcast_to(context, (len(nodes), len(context)))
        inputs = [standardised(nodes, seen.mask), decided, same]
        inputs += [seen.played.ops] if self.played else []
        ops = self.sage(jnp.concatenate(inputs, -1), seen.graph.senders, seen.graph.receivers)
        return ops, options


class DecisionVectors(nn.Module):
    """The vectors of ops in the light of what was chosen last: what a value is read from.

    Attributes:
      embedding: what makes them.
    """

    embedding: OpEmbedding

    def __call__(self, seen: DecisionObservation) -> jax.Array:
        """`[n, w]` float32; rows of padding ops mean nothing."""
        return self.embedding(seen, last_chosen(seen))[0]


class DecisionLogits(nn.Module):
    """GO's policy: the graph network, layers of attention along the ops in topological order, and the tasks' heads.

    p(y^(i) | G, y^(i-1)) is a product over ops (eq. 2). In an episode of several steps y^(i-1) is what was chosen in
    the step before. Within a call it is the probabilities of the iteration before (ours: a network draws nothing).

    Attributes:
      embedding: of ops and options.
      layers: of attention along the sequence of ops.
      heads: of the tasks.
      modulation: of what enters each layer, or None.
      iterations: i, at least 1, all with the same weights.
      preference: the untrained policy prefers what was chosen last by so many nats (ours).
      votes: whether the ops around an op have a say in what it chooses (ours), see `votes`. Where the embedding sees
        what was played, each op and device are looked at together, too (ours), see `PairLogits`.
    """

    embedding: OpEmbedding
    layers: tuple[SegmentLayer, ...]
    heads: TaskHeads
    modulation: Modulation | None = None
    iterations: int = 1
    preference: float = 0.0
    votes: bool = False

    def setup(self) -> None:
        """The parts of which there is one for each task."""
        self.voters = {task: VoteLogits() for task in self.embedding.tasks} if self.votes else {}
        self.movers = PairLogits(self.embedding.width) if self.embedding.played else None

    def __call__(self, seen: DecisionObservation) -> ByTask:
        """Of each task `[n, o]` float32: as low as none is drawn where an option may not be chosen."""
        tasks = self.embedding.tasks
        if set(seen.options) != set(tasks):
            has = ", ".join(sorted(seen.options))
            raise ProblemError(
                f"the network decides {', '.join(tasks)}: the observation must have these, and has {has}"
            )
        chosen = last_chosen(seen)
        prior = {task: jnp.where(seen.action_mask[task], self.preference * chosen[task], NEVER) for task in tasks}
        logits = self._decided(seen, chosen, prior)
        for _ in range(self.iterations - 1):
            logits = self._decided(seen, {task: jax.nn.softmax(logits[task]) for task in tasks}, prior)
        return logits

    def _decided(self, seen: DecisionObservation, chosen: ByTask, prior: ByTask) -> ByTask:
        """The logits of one iteration; along the sequence, and back to the ops' numbers."""
        ops, options = self.embedding(seen, chosen)
        prior = {task: prior[task] + self._of_pairs(seen, task, ops, chosen[task]) for task in prior}
        ops, mask, prior = jax.tree.map(lambda rows: rows[seen.order], (ops, seen.mask, prior))
        factors = 1.0 if self.modulation is None else self.modulation(ops, mask)
        for layer in self.layers:
            ops = layer(factors * ops, mask)
        place = jnp.zeros_like(seen.order).at[seen.order].set(jnp.arange(len(mask), dtype=jnp.int32))
        return jax.tree.map(lambda rows: rows[place], self.heads(ops, mask, options, prior))

    def _of_pairs(self, seen: DecisionObservation, task: str, ops: jax.Array, chosen: jax.Array) -> jax.Array:
        """What is seen of ops and options together has to say: `[n, o]` float32."""
        chosen = jnp.where(seen.mask[:, None], chosen, 0.0)
        logits, features = jnp.zeros_like(chosen), list[jax.Array]()
        if self.votes:
            features.append(votes(chosen, seen.graph.senders, seen.graph.receivers, seen.order))
            logits += self.voters[task](ops, features[0])
        if self.movers is not None and task == "placement":
            pairs = jnp.concatenate([*features, seen.played.devices], -1)
            logits += self.movers(jnp.concatenate([ops, seen.played.ops], -1), pairs, chosen)
        return logits


def last_chosen(seen: DecisionObservation) -> ByTask:
    """Of each task `[n, o]` float32: 1 for what was chosen last, 0 elsewhere."""
    return {task: jax.nn.one_hot(was, seen.options[task].shape[0]) for task, was in seen.previous.items()}
