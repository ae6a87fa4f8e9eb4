"""GO and its predecessor GDP as the training loop and the commands see them."""

import dataclasses

from graphrl.agents.go.batch import batch
from graphrl.agents.go.learner import learner
from graphrl.agents.go.policy import GdpPolicy, Policy
from graphrl.learning.spread import on_mesh
from graphrl.training.agent import Agent
from graphrl.training.data import DataConfig
from graphrl.training.schedule import Schedule

SEEN = ("erdos-renyi", "barabasi-albert", "watts-strogatz", "layered")

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: on_mesh(learner(config), mesh),
    batch=batch,
    methods=lambda _: ("go", "go+"),
    opponents=("list", "etf", "anneal-ops", "equal-stages", "stage-dp", "anneal-load", "auto"),
    data=DataConfig(
        # stochastic blocks are held out: on them it is measured what a policy is worth where it was not trained
        train=tuple(f"{kind}:{ops}x30@10000" for ops in (200, 500) for kind in SEEN),
        validation=tuple(f"{kind}:500x4@5000" for kind in SEEN),
        test=("stochastic-block:1000x10", "layered:1000x10"),
        graphs=4,
        buckets=2,
    ),
    schedule=Schedule(steps=400, validate_every=50, checkpoint_every=25),
)
GDP = dataclasses.replace(AGENT, policy=GdpPolicy)
