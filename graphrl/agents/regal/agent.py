"""REGAL as the training loop and the commands see it."""

from graphrl.agents.regal.learner import learner
from graphrl.agents.regal.policy import Policy
from graphrl.envs.proposal.instance import instances
from graphrl.training.agent import Agent

AGENT = Agent(
    policy=Policy,
    learner=learner,
    batch=lambda config, graphs, sizes: instances(graphs, sizes, config.hint_for),
    methods=("regal", "regal+", "idrs"),
    opponents=("brkga", "brkga-tuned", "list"),
)
