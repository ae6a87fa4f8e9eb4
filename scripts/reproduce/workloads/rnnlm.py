"""RNNLM: stacked LSTMs over words, unrolled (Zaremba et al. 2014; Jozefowicz et al. 2016).

GO's supplement with the sizes could not be had; these are ours: 2,048 units, 64 sequences of 40 words out of 10,000
(the Penn treebank's), no dropout, no projection, state zero at the start.
"""

import jax
from jax import lax

from reproduce.workloads.layers import cross_entropy, dense, embed, lstm, resting, steps_of
from reproduce.workloads.model import Batch, Model, tokens
from reproduce.workloads.weights import Weights


def rnnlm(layers: int, units: int = 2048, steps: int = 40, batch: int = 64, words: int = 10_000) -> Model:
    """`layers` LSTMs; words and labels step after step, `[steps * batch]`."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        with jax.named_scope("embedding"):
            inputs = steps_of(embed(w, "embedding", data["words"], words, units), steps)
            states = [resting(batch, units)] * layers
        outputs = []
        for t, x in enumerate(inputs):
            for layer in range(layers):
                with jax.named_scope(f"lstm{layer}/t{t}"):
                    states[layer] = lstm(w, f"lstm{layer}", x, states[layer])
                    x = states[layer][0]
            outputs.append(x)
        with jax.named_scope("softmax"):
            logits = dense(w, "softmax", lax.concatenate(outputs, 0), words)
            return cross_entropy(logits, data["labels"]), None

    return Model(loss, {"words": tokens(steps * batch), "labels": tokens(steps * batch)}, words)
