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
    return layers([map_problem(graph, config.problem) for graph in graphs], to, config.hint)


def sizes(graphs: Sequence[ComputationGraph]) -> MapSizes:
    """That hold all of the graphs, on whatever chip."""
    return common_sizes([map_problem(graph, NNP_I) for graph in graphs])


def _zoo(batch: int, *models: str) -> tuple[str, ...]:
    return tuple(f"zoo:{model}/inference/b{batch}/jaxpr" for model in models)


# Of at most 150 layers, and whose compiler's map can be bettered by more than a hundredth, or by learning's mistakes.
_SINGLE = (
    *("mobilenet", "mobilenetv2", "mobilenetv3large", "mobilenetv3small", "resnet50", "resnet50v2", "resnet101v2"),
    *("densenet121", "retinanet_resnet50", "deeplabv3_resnet50", "deit_small", "vit_base", "gpt2", "electra_small"),
)
_HELD_OUT = (
    *("convnexttiny", "efficientnetb0", "efficientnetb3", "efficientnetv2b0", "segformer_b0", "t5_small", "bart_base"),
)

AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner(config, mesh, data.batch(1).rows),
    batch=batch,
    methods=lambda _: ("egrl-policy",),
    opponents=("compiler", "benefit", "greedy-dp", "local-search"),
    data=DataConfig(
        train=("workloads:resnet50", *_zoo(1, *_SINGLE), *_zoo(8, "albert_base", "deit_small", "distilbert")),
        validation=_zoo(1, *_HELD_OUT),
        test=("workloads:resnet101", "workloads:bert", "zoo:inference/b1/jaxpr/test-split"),
        graphs=len(_HELD_OUT),
    ),
    schedule=Schedule(steps=400, validate_every=25, checkpoint_every=25),
    load=load_layers,
    sizes=sizes,
    shares="individuals",
)
