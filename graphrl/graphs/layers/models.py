"""Models as layers, however they are named: what maps are made for."""

import os
from collections.abc import Mapping, Sequence

from graphrl.errors import GraphrlError
from graphrl.files import content, shown
from graphrl.graphs.datasets.sets import LeftOut, is_zoo, load_graph, load_graphs, model_files
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.layers.coarsen import coarsened
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits


def layers_of(
    model: str, dims: Mapping[str, int] | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> ComputationGraph:
    """The layers of a model; of graph JSON, of workloads and of generated graphs the graph as it is.

    Args:
      model: file or name, see `load_graph`.
      dims, limits: see `read_graph`.

    Raises:
      GraphrlError: it cannot be read.
    """
    is_program = _is_program(model, limits)
    graph = load_graph(model, dims=dims, limits=limits)
    return coarsened(graph) if is_program else graph


def load_layers(
    models: Sequence[str],
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    left_out: LeftOut | None = None,
) -> list[ComputationGraph]:
    """The layers of every graph of `load_graphs`, see `layers_of`.

    Args:
      models, dims, limits, left_out: see `load_graphs`.

    Raises:
      GraphrlError: as `load_graphs`.
    """
    layers: list[ComputationGraph] = []
    for model in models:
        for part in model_files(model) or [model]:
            graphs = load_graphs([part], dims=dims, limits=limits, left_out=left_out)
            layers += map(coarsened, graphs) if graphs and _is_program(part, limits) else graphs
    return layers


def _is_program(model: str, limits: ReadLimits) -> bool:
    """Whether its ops are those of a program, finer than layers.

    Raises:
      GraphrlError: it is a pipe, which can be read only once, or cannot be read.
    """
    if is_zoo(model) or not os.path.exists(model):
        return is_zoo(model)
    if not os.path.isfile(model):
        raise GraphrlError(f"{shown(model)} is no regular file: layers are read from one alone")
    with content(model, max_unpacked=limits.memory) as data:
        return data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{"
