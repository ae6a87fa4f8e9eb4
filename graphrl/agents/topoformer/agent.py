"""Topoformer as the training loop and the commands see it."""

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.learner import Learner
from graphrl.envs.ordering.instance import instances
from graphrl.training.data import DataConfig
from graphrl.training.learner import Agent
from graphrl.training.schedule import Schedule

AGENT = Agent(
    config=TopoformerConfig,
    learner=Learner,
    batch=lambda _, graphs, sizes: instances(graphs, sizes),
    methods=("topoformer", "topoformer+"),
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
