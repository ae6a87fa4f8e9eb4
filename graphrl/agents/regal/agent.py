"""REGAL as the training loop and the commands see it: as published, and with a list schedule as a hint."""

import dataclasses

from graphrl.agents.regal.learner import learner
from graphrl.agents.regal.policy import HintPolicy, Policy
from graphrl.envs.proposal.instance import instances
from graphrl.training.agent import Agent

AGENT = Agent(
    policy=Policy,
    learner=learner,
    batch=lambda config, graphs, sizes: instances(graphs, sizes, config.hint_for),
    methods=lambda config: ("regal", "idrs") if config.hint == "none" else ("regal-hint", "regal+", "idrs-hint"),
    opponents=("brkga", "brkga-tuned", "list"),
)
HINT = dataclasses.replace(AGENT, policy=HintPolicy)
