"""EGRL as the training loop and the commands see it."""

from collections.abc import Sequence

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, layers
from graphrl.agents.egrl.learner import learner
from graphrl.agents.egrl.policy import Policy
from graphrl.costs.maps.chips import NNP_I
from graphrl.costs.maps.padding import MapSizes, common_sizes
from graphrl.costs.maps.problem import map_problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.layers.models import load_layers
from graphrl.training.agent import Agent
from graphrl.training.data import DataConfig
from graphrl.training.schedule import Schedule


def batch(config: EgrlConfig, graphs: Sequence[ComputationGraph], to: MapSizes) -> Layers:
    """Graphs as problems of the chip."""
    return layers([map_problem(graph, config.problem) for graph in graphs], config.hint, to)


def sizes(graphs: Sequence[ComputationGraph]) -> MapSizes:
    """That hold all of the graphs, on whatever chip."""
    return common_sizes([map_problem(graph, NNP_I) for graph in graphs])


AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner(config, mesh, data.batch(1).rows),
    batch=batch,
    methods=lambda _: ("egrl-policy",),
    opponents=("compiler", "benefit", "greedy-dp", "local-search"),
    data=DataConfig(
        train=("workloads:resnet50",),
        validation=("workloads:resnet101",),
        test=("workloads:bert", "zoo:inference/b1/jaxpr/test-split"),
        graphs=1,
    ),
    schedule=Schedule(steps=400, validate_every=25, checkpoint_every=25),
    load=load_layers,
    sizes=sizes,
    shares="individuals",
)
