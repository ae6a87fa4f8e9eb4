"""Topoformer as the training loop and the commands see it."""

from graphrl.agents.topoformer.learner import learner
from graphrl.agents.topoformer.policy import Policy
from graphrl.envs.ordering.instance import instances
from graphrl.learning.spread import on_mesh
from graphrl.training.agent import Agent
from graphrl.training.data import DataConfig
from graphrl.training.schedule import Schedule

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: on_mesh(learner(config), mesh),
    batch=lambda _, graphs, sizes: instances(graphs, sizes),
    methods=lambda _: ("topoformer", "topoformer+"),
    opponents=("random-priorities", "depth-first", "breadth-first", "anneal"),
    data=DataConfig(
        train=("layered:100x128@10000", "layered:200x128@10000", "layered:500x32@10000"),
        validation=("layered:200x64@5000",),
        test=("layered:500x100",),
        graphs=8,
        curriculum=9_000,
        fresh=True,
    ),
    schedule=Schedule(steps=14_000, validate_every=250, checkpoint_every=250),
)
