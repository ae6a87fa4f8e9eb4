"""Choices of all ops at once, and once more in the light of the choices before (GO, sections 4 and 4.2, eq. 2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.errors import ProblemError
from graphrl.networks.base import DecisionObservation
from graphrl.networks.graph_sage import GraphSage
from graphrl.networks.pair_logits import PairLogits
from graphrl.networks.pooling import mean_of, standardised
from graphrl.networks.segment_attention import SegmentLayer
from graphrl.networks.superposition import Modulation
from graphrl.networks.task_heads import TaskHeads
from graphrl.networks.votes import VoteLogits, votes

ByTask = dict[str, jax.Array]

_NEVER = -1e9  # logit of what may not be chosen: probability 0 in float32


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
        prior = {task: jnp.where(seen.action_mask[task], self.preference * chosen[task], _NEVER) for task in tasks}
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
