"""Proximal policy optimisation (Schulman et al. 2017) for any environment and any networks.

Actions consist of choices: a pytree of int32 arrays, each element an option, as the environment's `action_spec`
defines. The policy network outputs a pytree of the same structure, of logits with one additional axis. Forbidden
options have a logit so low that they are never drawn (`settings.masked` sets it). A choice with a single allowed
option, as at padding, adds 0 to log-probabilities and entropies.

`train` is the loop for fixed instances; `update` is one step with a batch of fresh ones, as a `Learner` needs it;
`sample_actions` and `learn` are for episodes of one step. All support any number of devices, which share the instances.

Letters: t steps of a roll-out, g instances (graphs), a environments per instance.
"""

from graphrl.learning.ppo.rollout import Episode, PolicyValue, play, play_episode, run_episode
from graphrl.learning.ppo.settings import PpoSettings
from graphrl.learning.ppo.update import Samples, improve, init, learn, sample_actions, sample_rewards, train, update

__all__ = [
    "Episode",
    "PolicyValue",
    "PpoSettings",
    "Samples",
    "improve",
    "init",
    "learn",
    "play",
    "play_episode",
    "run_episode",
    "sample_actions",
    "sample_rewards",
    "train",
    "update",
]
