"""Graphs of anything that has one: JAX functions, files, folders, and names of sets such as `layered:500x20`,
`zoo:training/hlo` and `workloads:resnet50`.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import content, quote_path
from graphrl.graphs.coarsen import coarsened
from graphrl.graphs.datasets import workloads, zoo
from graphrl.graphs.datasets.families import FAMILIES, sample
from graphrl.graphs.datasets.workloads import is_workload
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers import FORMATS, read_graph
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, ReadLimits
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip

Model = ComputationGraph | str | os.PathLike[str] | Callable[..., Any]
LeftOut = Callable[[str, GraphrlError], object]  # called with a file that cannot be read, and its error

_SET = re.compile(r"([a-z-]+):(\d+)?(?:x(\d+))?(?:@(\d+))?")
MAX_GRAPHS, MAX_OPS = 1_000_000, 10_000_000  # of a set, and of each of its graphs: more is a typing error
_MANIFEST = "manifest.json"  # next to the graphs in a folder that scripts/make_graphs.py wrote


def model_graph(
    model: Model,
    *args: Any,
    chip: str | Chip = DEFAULT_CHIP,
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    weights_argnums: int | Sequence[int] = (),
) -> ComputationGraph:
    """Loads or traces the graph of a model.

    Args:
      model: a graph, a path or a name as in `load_graph`, or a JAX function.
      *args: only for a function: its arguments, arrays or `jax.ShapeDtypeStruct`s; it is traced, not run.
      chip, dims, limits: see `read_graph`.
      weights_argnums: only for a function: see `from_jax`.

    Raises:
      GraphrlError: the model has a wrong type, cannot be read, or has arguments although it is no function.
    """
    is_function = callable(model)
    if args and not is_function:
        raise ProblemError(f"{len(args)} arguments for a model that is not a function: only functions take arguments")
    if isinstance(model, ComputationGraph):
        return model
    if isinstance(model, str | os.PathLike):
        return load_graph(model, chip=chip, dims=dims, limits=limits)
    if not is_function:
        raise ProblemError(f"model is of type {type(model).__name__}: must be a graph, a path or a JAX function")
    from graphrl.graphs.readers.jaxpr.reader import from_jax

    return from_jax(model, *args, chip=chip, weights_argnums=weights_argnums)


def load_graph(
    model: str | os.PathLike[str],
    *,
    chip: str | Chip = DEFAULT_CHIP,
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> ComputationGraph:
    """Loads one graph: a file, a program of the model zoo, or a set that has one graph.

    Args:
      model: a path, or a name as in `load_graphs`: `zoo:efficientnetb0/training/b8/hlo`, `layered:200@7`,
        `workloads:bert`.
      chip, dims, limits: see `read_graph`.

    Raises:
      GraphrlError: the file cannot be read or is not a graph.
      ProblemError: a set's name is wrong, or it has several graphs.
    """
    if is_zoo(model):
        return zoo.load(str(model)).graph
    if is_workload(model):
        return workloads.load(str(model))
    if not isinstance(model, str) or not _is_generated(model):
        return read_graph(model, chip=chip, dims=dims, limits=limits)
    graphs = generated_set(model)
    if graphs.count > 1:
        raise ProblemError(
            f"{quote_path(model)} names {graphs.count:,} graphs, where one is needed: for example "
            f"{graphs.kind}@{graphs.first}"
        )
    return graphs.graph(graphs.first)


def load_graphs(
    models: Sequence[str],
    *,
    chip: str | Chip = DEFAULT_CHIP,
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    left_out: LeftOut | None = None,
) -> list[ComputationGraph]:
    """Loads the graphs of files, folders (their files by name; folders inside are left out) and sets.

    Args:
      models: paths, or names of sets: `layered:500x20` is 20 layered graphs of 500 ops with seeds 0 to 19,
        `layered:500x20@100` those with seeds 100 to 119; without `x20` it is one. `zoo:training/hlo` is all programs of
        the model zoo that match both words (see `zoo.select`), `workloads:bert` one of `workloads.NAMES` and
        `workloads:gnmt-*` several.
      chip, dims, limits: see `read_graph`.
      left_out: called with each file that cannot be read or is not a graph, and its error; the others are loaded.

    Raises:
      GraphrlError: a folder cannot be read or has no graphs; or, without `left_out`, a file.
      ProblemError: a set's name is wrong.
    """
    graphs: list[ComputationGraph] = []
    for model in models:
        files = model_files(model)
        graphs += () if files else _named(model)
        for file in files:
            try:
                graphs.append(read_graph(file, chip=chip, dims=dims, limits=limits))
            except GraphrlError as error:
                if left_out is None:
                    raise
                left_out(file, error)
    return graphs


def layers_of(
    model: str, dims: Mapping[str, int] | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> ComputationGraph:
    """Loads a model and merges its ops into layers; graph JSON, workloads and generated graphs are returned unchanged.

    Args:
      model: path or name, see `load_graph`.
      dims, limits: see `read_graph`.

    Raises:
      GraphrlError: the model cannot be read.
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
    """Loads several models as graphs of layers, see `layers_of`.

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


def is_zoo(model: object) -> bool:
    """True if the argument names programs of the model zoo ("zoo:...") and not a file."""
    return isinstance(model, str) and model.startswith(zoo.PREFIX) and not os.path.lexists(model)


def _is_generated(model: str) -> bool:
    """True if the argument looks like the name of a set of generated graphs, even a wrong one, and is not a file."""
    return (model.partition(":")[0] in FAMILIES or _SET.fullmatch(model) is not None) and not os.path.exists(model)


def model_files(model: str) -> list[str]:
    """Lists the files that a model argument names: the file itself, those in the folder, or the empty list for a set.

    Raises:
      GraphrlError: the argument is a folder that cannot be read or has no graphs.
    """
    if is_zoo(model) or is_workload(model):
        return []
    if not os.path.isdir(model):
        return [] if _is_generated(model) else [model]
    suffixes = tuple(suffix + packed for reader in FORMATS for suffix in reader.suffixes for packed in ("", ".gz"))
    try:
        names = sorted(name for name in os.listdir(model) if name.endswith(suffixes) and name != _MANIFEST)
    except OSError as error:
        raise GraphrlError(f"cannot read {quote_path(model)}: {error.strerror or error}") from None
    files = [str(Path(model) / name) for name in names if not name.startswith(".")]
    if not files:
        raise GraphrlError(f"{quote_path(model)}: the folder has no graphs: their names end in {', '.join(suffixes)}")
    return files


def in_both(
    models: Sequence[str], others: Sequence[str], generated: "Callable[[str], GeneratedSet] | None" = None
) -> str | None:
    """Returns the name of a graph that `load_graphs` of both arguments would load; None if they share none.

    Graphs are compared by name, without reading or generating them: by their own names in a set or in the model zoo, or
    by file paths. `generated` parses the names of sets (default: `generated_set`).

    Raises:
      GraphrlError: a folder cannot be read.
      ProblemError: a set's name is wrong.
    """
    generated = generated or generated_set
    (names, sets), (other_names, other_sets) = _identities(models, generated), _identities(others, generated)
    shared = itertools.chain(names & other_names, *(one.shared(other) for one in sets for other in other_sets))
    return min(shared, default=None)


def _identities(
    models: Sequence[str], generated: "Callable[[str], GeneratedSet]"
) -> tuple[set[str], list["GeneratedSet"]]:
    """Splits arguments into names and paths of single graphs, and generated sets, which may be too large to list."""
    names: set[str] = set()
    sets: list[GeneratedSet] = []
    for model in models:
        if is_zoo(model):
            names |= {zoo.PREFIX + entry.name for entry in zoo.select(model)}
        elif is_workload(model):
            names |= {name.partition("/")[0] for name in workloads.select(model)}
        elif files := model_files(model):
            names |= {os.path.realpath(file) for file in files}
        else:
            sets.append(generated(model))
    return names, sets


def _named(name: str) -> Iterator[ComputationGraph]:
    if is_zoo(name):
        return (zoo.load(entry.name).graph for entry in zoo.select(name))
    if is_workload(name):
        return map(workloads.load, workloads.select(name))
    graphs = generated_set(name)
    return map(graphs.graph, graphs.seeds)


@dataclasses.dataclass(frozen=True)
class GeneratedSet:
    """A set of generated graphs, parsed from its name, such as `layered:500x20@100`."""

    family: str
    ops: int | None  # None if the seed determines it
    count: int
    first: int  # seed

    @property
    def kind(self) -> str:
        """The set's name without the number of graphs and the seed, such as `layered:500`."""
        return f"{self.family}:{'' if self.ops is None else self.ops}"

    @property
    def seeds(self) -> range:
        """Seeds of the graphs in the set."""
        return range(self.first, self.first + self.count)

    def shared(self, other: "GeneratedSet") -> list[str]:
        """Returns the name of the first graph that is in both sets, if any."""
        first = max(self.first, other.first)
        both = self.kind == other.kind and first in self.seeds and first in other.seeds
        return [f"{self.kind}@{first}"] if both else []

    def graph(self, seed: int) -> ComputationGraph:
        """Generates the graph of a seed, which need not be in the set.

        Raises:
          ProblemError: the generator cannot make such graphs.
        """
        try:
            return sample(self.family, self.ops, seed)[0]
        except ProblemError as error:
            raise ProblemError(f"{self.kind}: {error}") from None


def generated_set(name: str) -> GeneratedSet:
    """Parses the name of a set (see `load_graphs`).

    Raises:
      ProblemError: the name is not one of a set, or the set is empty or too large.
    """
    match = _SET.fullmatch(name)
    family, ops, count, first = match.groups() if match else ("", None, None, None)
    if family not in FAMILIES or (ops is None and not FAMILIES[family].any_size):
        families = {name: entry for name, entry in FAMILIES.items() if not name.startswith("kinds-")}
        examples = ", ".join(f"{name}:{'' if entry.any_size else 100}x20" for name, entry in families.items())
        raise ProblemError(
            f"{quote_path(name)} is no file, no folder and no set of graphs; sets are {examples}, zoo:hlo"
        )
    if count is not None and int(count) == 0:
        raise ProblemError(f"{quote_path(name)} is an empty set: the number after x must be at least 1")
    for what, number, most in (("graphs", count, MAX_GRAPHS), ("ops", ops, MAX_OPS)):
        if number is not None and int(number) > most:
            raise ProblemError(f"{quote_path(name)} has {number[:20]} {what}: must be at most {most:,}")
    return GeneratedSet(family, None if ops is None else int(ops), int(count or 1), int(first or 0))


def _is_program(model: str, limits: ReadLimits) -> bool:
    """True if the model is a program (zoo, ONNX, HLO), whose ops are finer than layers.

    Raises:
      GraphrlError: the model is a pipe, which can be read only once, or cannot be read.
    """
    if is_zoo(model) or not os.path.exists(model):
        return is_zoo(model)
    if not os.path.isfile(model):
        raise GraphrlError(f"{quote_path(model)} is not a regular file: layers are read from a single file")
    with content(model, max_unpacked=limits.memory) as data:
        return data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{"
