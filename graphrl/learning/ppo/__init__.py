"""Proximal policy optimisation (Schulman et al. 2017) for any environment and any networks.

Actions are made of choices: a pytree of int32 arrays, each element an option, as the environment's `action_spec` says.
The policy network gives a pytree of the same structure, of logits with one axis more. What may not be chosen has a
logit so low that it never is (`settings.masked` sets it); where a single option is left, as at padding, a choice adds
nothing to log-probabilities and entropies.

`train` is the loop for instances that stay the same; `update` is one step with a batch of fresh ones, as a `Learner`
has it; `attempt` and `learn` are for episodes of one step. All are for any number of devices, which share the
instances.

Letters: t steps of a roll-out, g instances (graphs), a environments of each.
"""

from graphrl.learning.ppo.rollout import PolicyValue, play
from graphrl.learning.ppo.settings import PpoSettings
from graphrl.learning.ppo.update import Tried, attempt, improve, init, learn, train, tried, update

__all__ = [
    "PolicyValue",
    "PpoSettings",
    "Tried",
    "attempt",
    "improve",
    "init",
    "learn",
    "play",
    "train",
    "tried",
    "update",
]
