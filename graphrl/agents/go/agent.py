"""GO as the training loop and the commands see it."""

from graphrl.agents.go.batch import batch
from graphrl.agents.go.learner import learner
from graphrl.agents.go.policy import Policy
from graphrl.learning.spread import on_mesh
from graphrl.training.agent import Agent
from graphrl.training.data import DataConfig
from graphrl.training.schedule import Schedule

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: on_mesh(learner(config), mesh),
    batch=batch,
    methods=lambda _: ("go", "go+"),
    opponents=("list", "etf", "anneal-bundled", "auto"),
    data=DataConfig(
        train=("regal-like:200x60@10000", "layered:200x60@10000", "regal-like:500x60@10000", "layered:500x60@10000"),
        validation=("regal-like:500x8@5000", "layered:500x8@5000"),
        test=("regal-like:1000x10", "layered:1000x10"),
        graphs=4,
        buckets=2,
    ),
    schedule=Schedule(steps=400, validate_every=50, checkpoint_every=25),
)
