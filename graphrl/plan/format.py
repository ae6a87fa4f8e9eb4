"""The plan file: format "graphrl-plan", version 1, read strictly (unknown keys are errors).

A plan of kernels is version 2. It has `chip`, which determines the kernels' run times, and `inlined`, the names of the
ops that kernels compute (`Inlining`); its placement and order name kernels by their roots. The model has `memory_limit`
and `cpus` only if the problem does; an infinite bandwidth is null; gzipped files are also read.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphrl.costs.fusion.exact import KernelGraph, fused_graph, fusion_of
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, PlanError, suggest
from graphrl.files import write_atomically
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.json import read_strict_json
from graphrl.graphs.roofline import Chip
from graphrl.plan.steps import OpStep, Step, TransferStep
from graphrl.units import as_integer


@dataclasses.dataclass(frozen=True)
class Inlining:
    """The ops that are computed inside kernels, in a plan of kernels.

    Attributes:
      chip: chip whose figures give the run times of kernels.
      inlined: names of the ops that are not kernels themselves, in the graph's order.
    """

    chip: Chip
    inlined: tuple[str, ...]

    @classmethod
    def of(cls, graph: ComputationGraph) -> "Inlining | None":
        """Reads the inlining from a graph of kernels; None for other graphs."""
        if not isinstance(graph, KernelGraph):
            return None
        problem = graph.fusion.problem
        return cls(problem.chip, problem.names(graph.fusion.inlined))

    def kernels(self, graph: ComputationGraph) -> KernelGraph:
        """Builds the graph of kernels from a graph of single ops; returns a graph of these kernels unchanged.

        Raises:
          PlanError: an op is not in the graph, may not be inlined, or makes a kernel too large.
        """
        if isinstance(graph, KernelGraph) and self.of(graph) == self:
            return graph
        number = {op.name: index for index, op in enumerate(graph.ops)}
        chosen = np.zeros(len(graph.ops), bool)
        for name in self.inlined:
            if name not in number:
                raise PlanError(f"inlined names op {name!r}, which graph {graph.name!r} does not have")
            if chosen[number[name]]:
                raise PlanError(f"inlined names op {name!r} twice: must name it once")
            chosen[number[name]] = True
        return fused_graph(fusion_of(fusion_problem(graph, self.chip), chosen))


FORMAT, VERSION, FUSED_VERSION = "graphrl-plan", 1, 2
_KEYS = (
    "format", "version", "graph", "method", "objective", "value", "makespan", "peak_memory", "seconds", "evaluations",
    "seed", "model", "placement", "order",
)  # fmt: skip
_FUSED_KEYS = ("chip", "inlined")
_CHIP_NUMBERS = ("flops_per_second", "bytes_per_second", "launch_seconds")
_MODEL_KEYS = ("devices", "transfer", "latency", "bandwidth", "resident_weights")


def plan_to_dict(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a plan to an object of the file's format, keys in the file's order.

    Args:
      fields: fields of the plan, as `plan_from_dict` returns them.

    Raises:
      PlanError: a cost is infinite, which JSON cannot represent.
    """
    if not (math.isfinite(fields["value"]) and math.isfinite(fields["makespan"])):
        raise PlanError(f"the makespan is {fields['makespan']}: only a finite one can be written")
    problem, inlining = fields["problem"], fields["inlining"]
    model = {key: getattr(problem, key) for key in _MODEL_KEYS}
    if math.isinf(problem.bandwidth):
        model["bandwidth"] = None
    if problem.memory_limit is not None:
        model["memory_limit"] = problem.memory_limit
    if problem.cpus:
        model["cpus"] = problem.cpus
    fused = {} if inlining is None else {"chip": dataclasses.asdict(inlining.chip), "inlined": list(inlining.inlined)}
    written = {
        **fields,
        "format": FORMAT,
        "version": FUSED_VERSION if fused else VERSION,
        "objective": problem.objective,
        "peak_memory": list(fields["peak_memory"]),
        "model": model,
        **fused,
        "placement": dict(fields["placement"]),
        "order": [_step_to_dict(step) for step in fields["order"]],
    }
    return {key: written[key] for key in (*_KEYS[:-2], *fused, *_KEYS[-2:])}


def write_plan(data: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the result of `plan_to_dict` to a file, atomically.

    The file has one line per key, op of the placement and step of the order.

    Raises:
      GraphrlError: the file cannot be written.
    """
    lines = []
    for key, value in data.items():
        if key == "placement":
            items = [f"  {json.dumps(op)}: {device}" for op, device in value.items()]
            text = "{\n" + ",\n".join(items) + "\n }"
        elif key == "order":
            text = "[\n" + ",\n".join(f"  {json.dumps(step)}" for step in value) + "\n ]"
        elif key == "inlined":
            text = "[\n" + ",\n".join(f"  {json.dumps(op)}" for op in value) + "\n ]"
        else:
            text = json.dumps(value, allow_nan=False)
        lines.append(f" {json.dumps(key)}: {text}")
    write_atomically(path, lambda file: file.write("{\n" + ",\n".join(lines) + "\n}\n"))


def read_plan(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the fields of a plan from a file.

    Raises:
      GraphrlError: the file cannot be read.
      PlanError: the file is not a plan; one line that names the file and the first fault.
    """
    return read_strict_json(path, plan_from_dict, PlanError)


def plan_from_dict(data: object) -> dict[str, Any]:
    """Reads the fields of a plan from an object of the file's format.

    Raises:
      PlanError: one line that names the first fault.
    """
    if not isinstance(data, dict):
        raise PlanError(f"holds {_shape(data)}: must be a JSON object of format {FORMAT!r}")
    if data.get("format") != FORMAT:
        raise PlanError(f"format is {_short(data.get('format'))}: must be {FORMAT!r}")
    version = data.get("version")
    if version not in (VERSION, FUSED_VERSION) or isinstance(version, bool):
        raise PlanError(f"version is {_short(version)}: this graphrl reads versions {VERSION} and {FUSED_VERSION}")
    fused = version == FUSED_VERSION
    _check_keys(data, "the plan", _KEYS + _FUSED_KEYS if fused else _KEYS)
    problem = _problem(data)
    peaks = _typed(data, "peak_memory", list, "a list of byte counts")
    if len(peaks) != problem.devices:
        raise PlanError(f"peak_memory has {len(peaks)} entries for {problem.devices} devices: must have one each")
    value = _number(data, "value")
    return {
        "graph": _typed(data, "graph", str, "a name"),
        "problem": problem,
        "method": _typed(data, "method", str, "a name"),
        "placement": _placement(data, problem.devices),
        "order": tuple(_step(step, index) for index, step in enumerate(_typed(data, "order", list, "a list of steps"))),
        "value": value,
        "makespan": float(_number(data, "makespan")),
        "peak_memory": tuple(_integer(peak, f"peak_memory of device {device}") for device, peak in enumerate(peaks)),
        "seconds": float(_number(data, "seconds")),
        "evaluations": _integer(data["evaluations"], "evaluations"),
        "seed": _integer(data["seed"], "seed", minimum=None),
        "inlining": _inlining(data) if fused else None,
    }


def _step_to_dict(step: Step) -> dict[str, Any]:
    return {"op": step.op} if isinstance(step, OpStep) else {"transfer": step.tensor, "to": step.to}


def _check_keys(data: dict[str, Any], where: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    for key in data:
        if key not in needed and key not in optional:
            raise PlanError(f"{where} has the unknown key {_short(key)}: {suggest(key, needed + optional)}")
    for key in needed:
        if key not in data:
            raise PlanError(f"{where} has no key {key!r}: it is required")


def _problem(data: dict[str, Any]) -> Problem:
    model = _typed(data, "model", dict, "an object")
    _check_keys(model, "model", _MODEL_KEYS, ("memory_limit", "cpus"))
    limit = model.get("memory_limit")
    return Problem(
        objective=data["objective"] if isinstance(data["objective"], str) else _short(data["objective"]),  # type: ignore[arg-type]
        devices=_integer(model["devices"], "model.devices"),
        transfer=model["transfer"] if isinstance(model["transfer"], str) else _short(model["transfer"]),  # type: ignore[arg-type]
        latency=float(_number(model, "latency", "model.latency")),
        bandwidth=math.inf if model["bandwidth"] is None else float(_number(model, "bandwidth", "model.bandwidth")),
        memory_limit=None if limit is None else _integer(limit, "model.memory_limit"),
        resident_weights=_typed(model, "resident_weights", bool, "true or false"),
        cpus=_integer(model.get("cpus", 0), "model.cpus"),
    )


def _inlining(data: dict[str, Any]) -> Inlining:
    figures, inlined = _typed(data, "chip", dict, "an object"), _typed(data, "inlined", list, "a list of op names")
    _check_keys(figures, "chip", tuple(field.name for field in dataclasses.fields(Chip)))
    for op in inlined:
        if not isinstance(op, str):
            raise PlanError(f"inlined has {_short(op)}: must be a list of op names")
    flops, moved, launch = (float(_number(figures, key, f"chip.{key}")) for key in _CHIP_NUMBERS)
    name, source = (_typed(figures, key, str, "a text") for key in ("name", "source"))
    try:
        return Inlining(Chip(name, flops, moved, launch, source), tuple(inlined))
    except GraphrlError as error:
        raise PlanError(str(error)) from None


def _placement(data: dict[str, Any], devices: int) -> dict[str, int]:
    given = _typed(data, "placement", dict, "an object of devices by op name")
    placement = {op: _integer(device, f"the device of op {op!r}") for op, device in given.items()}
    for op, device in placement.items():
        if device >= devices:
            raise PlanError(f"op {op!r} is placed on device {device}: must be from 0 to {devices - 1}")
    return placement


def _step(step: object, index: int) -> Step:
    where = f"order[{index}]"
    if isinstance(step, dict):
        if step.keys() == {"op"} and isinstance(step["op"], str):
            return OpStep(step["op"])
        if step.keys() == {"transfer", "to"} and isinstance(step["transfer"], str):
            return TransferStep(step["transfer"], _integer(step["to"], f"{where}.to"))
    raise PlanError(f'{where} is {_short(step)}: must be {{"op": name}} or {{"transfer": tensor, "to": device}}')


def _typed(data: dict[str, Any], key: str, kind: type, what: str) -> Any:
    if not isinstance(data[key], kind):
        raise PlanError(f"{key} is {_short(data[key])}: must be {what}")
    return data[key]


def _number(data: dict[str, Any], key: str, where: str | None = None) -> int | float:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PlanError(f"{where or key} is {_short(value)}: must be a finite number of at least 0")
    try:
        float(value)
    except OverflowError:
        raise PlanError(f"{where or key} is {_short(value)}: must be a finite number of at least 0") from None
    return value


def _integer(value: Any, where: str, minimum: int | None = 0) -> int:
    value = as_integer(value)
    if type(value) is not int or (minimum is not None and value < minimum):
        raise PlanError(f"{where} is {_short(value)}: must be an integer" + (" of at least 0" if minimum == 0 else ""))
    return value


def _short(value: object) -> str:
    """Shortens a value of the file for a message: one line, not too long."""
    if type(value) is int and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    text = repr(value) if value is None or isinstance(value, str | int | float | bool) else _shape(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _shape(value: object) -> str:
    kinds = {list: "a list", dict: "an object", str: "a string", type(None): "null"}
    return kinds.get(type(value), "a number")
