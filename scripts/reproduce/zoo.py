"""Architectures of the zoo by name, and tracing of one into its files, in a separate process (`build_zoo.py`)."""

import contextlib
import datetime
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from graphrl.graphs.datasets.zoo.program import KINDS, ZooProgram
from graphrl.graphs.datasets.zoo.storage import contents, file_name, write_programs
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.callback import Scheduler
from graphrl.xla.hook import captured
from reproduce.models.keras import APPLICATIONS, RECURRENT, TEXT, VISION
from reproduce.models.programs import Program, abstract_variables, inference, training_step
from reproduce.models.zoo import PLAIN, Architecture, Function

ARCHITECTURES = {
    architecture.name: architecture for architecture in (*APPLICATIONS, *TEXT, *VISION, *RECURRENT, *PLAIN)
}
SCHEDULERS: tuple[Scheduler, ...] = ("default", "memory")


def missing_files(architecture: Architecture, folder: Path) -> list[tuple[str, str]]:
    """Lists kind and level of the files that are missing or have other batch sizes than the architecture."""
    missing = []
    for kind in KINDS:
        batches = set(getattr(architecture, kind))
        for level in architecture.levels:
            path = folder / file_name(architecture.name, kind, level)
            if not (path.exists() and {row[3] for row in contents(path)} == batches):
                missing.append((kind, level))
    return missing


def trace(architecture: Architecture, folder: Path) -> None:
    """Writes the missing files of an architecture, each as soon as it is made."""
    missing = missing_files(architecture, folder)
    model = build_model(architecture) if missing else None
    for kind in KINDS:
        programs = {
            batch: make_program(architecture, model, kind, batch)
            for batch in getattr(architecture, kind)
            if any(kind == other for other, _ in missing)
        }
        for level in (level for other, level in missing if other == kind):
            read = _from_jaxpr if level == "jaxpr" else _from_xla
            entries = [
                _entry(architecture, model, kind, batch, level, read(program)) for batch, program in programs.items()
            ]
            write_programs(entries, folder)


def build_model(architecture: Architecture) -> Any:
    with abstract_variables() if architecture.keras else contextlib.nullcontext():
        return architecture.build()


def make_program(architecture: Architecture, model: Any, kind: str, batch: int) -> Program:
    options: dict[str, Any] = {"batch": batch}
    if isinstance(model, Function):
        model, options["weights"] = model.fn, model.weights
    if kind == "inference":
        return inference(model, architecture.inputs, **options)
    return training_step(model, architecture.inputs, **options, **architecture.training_call)


def _from_jaxpr(program: Program) -> dict[str, Any]:
    return {"graph": from_jax(program.fn, *program.args, weights_argnums=program.weights)}


def _from_xla(program: Program) -> dict[str, Any]:
    """Compiles a program; returns its graph, XLA's two schedules, and predicted bytes of temporaries in both."""
    lowered = jax.jit(program.fn).lower(*program.args)
    modules = {key: captured(lowered, key) for key in SCHEDULERS}
    read = {key: read_hlo(module, chip=DEFAULT_CHIP) for key, module in modules.items()}
    graph = read["default"].graph
    index = {op.name: i for i, op in enumerate(graph.ops)}
    return {
        "graph": graph,
        "schedules": {key: np.array([index[op.name] for op in each.graph.ops], np.int32) for key, each in read.items()},
        "temp_bytes": {key: TempPredictor(module)(module.order(module.entry)) for key, module in modules.items()},
    }


def _entry(
    architecture: Architecture, model: Any, kind: str, batch: int, level: str, graph: dict[str, Any]
) -> ZooProgram:
    return ZooProgram(
        architecture=architecture.name,
        family=architecture.family,
        kind=kind,
        batch=batch,
        level=level,
        versions=dict(_versions(model)),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        **graph,
    )


def _versions(model: Any) -> Iterator[tuple[str, str]]:
    """Yields versions of the packages that a program depends on."""
    bases = {base.__module__.split(".")[0] for base in type(model).__mro__}
    for package, module in (
        ("jax", ""),
        ("jaxlib", ""),
        ("keras", "keras"),
        ("keras-hub", "keras_hub"),
        ("flax", "flax"),
    ):
        if not module or module in bases:
            yield package, importlib.metadata.version(package)
