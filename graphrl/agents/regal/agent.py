"""REGAL as the training loop and the commands see it."""

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.learner import Learner
from graphrl.envs.proposal.instance import instances
from graphrl.training.learner import Agent

AGENT = Agent(
    config=RegalConfig,
    learner=Learner,
    batch=lambda config, graphs, sizes: instances(graphs, sizes, config.hint_for),
    methods=("regal", "regal+", "idrs"),
    opponents=("brkga", "brkga-tuned", "list"),
)
