"""REGAL as the training loop and the commands see it: as published, and with a list schedule as a hint."""

import dataclasses

from graphrl.agents.regal.learner import learner
from graphrl.agents.regal.policy import HintPolicy, Policy
from graphrl.envs.proposal.instance import instances
from graphrl.learning.spread import on_mesh
from graphrl.training.agent import Agent

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: on_mesh(learner(config), mesh),
    batch=lambda config, graphs, sizes: instances(graphs, sizes, config.hint_for),
    methods=lambda config: ("regal", "idrs") if config.hint == "none" else ("regal-hint", "regal+", "idrs-hint"),
    opponents=("brkga", "brkga-tuned", "list"),
)
HINT = dataclasses.replace(AGENT, policy=HintPolicy)
