"""Several choices of every op, each informed of those before it (GO, section 4.4, eqs 5 and 6)."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.networks.mlp import MLP
from graphrl.networks.pooling import standardised
from graphrl.networks.segment_attention import SegmentAttention

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
