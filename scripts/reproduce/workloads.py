"""GO's workloads by name: training steps as graphs, and the problems of table 2 (devices of 16 GiB, PCIe or NVLink).

As in the TensorFlow graphs that GO places, every parameter is an op (`variable/...`), whose device stores it for the
whole run. Ops on other devices get a copy by a transfer. Its update writes into its buffer, after all ops that still
read the old value. Groups follow TensorFlow's two rules. A variable is grouped with its update. An op of the backward
pass is grouped with the op of the forward pass whose gradient it computes (`colocate_gradients_with_ops`).

Run times are for a chip that moves one byte a second and computes in no time. They equal the bytes that an op moves,
which `graphrl.graphs.datasets.workloads.go` turns into seconds on a real chip.
"""

import dataclasses
import datetime
import functools
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets.workloads.go import (
    FAMILIES,
    KIND,
    LEVEL,
    MEMORY_BYTES,
    TRAFFIC,
    VARIABLE,
    WORKLOADS,
    Setting,
    Workload,
)
from graphrl.graphs.datasets.zoo.program import ZooProgram
from graphrl.graphs.datasets.zoo.storage import table, write_programs
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.graphs.roofline import INTERCONNECTS
from reproduce.models.go_images import amoebanet, inception_v3
from reproduce.models.go_layers import Batch, Model, Weights
from reproduce.models.go_sequences import gnmt, rnnlm, transformer_xl, wavenet

OVER: dict[Transfer, str] = {"link": "nvlink-1", "rendezvous": "pcie-3"}  # a key of `INTERCONNECTS` for each model


def problem(workload: Workload, transfer: Transfer, interconnect: str) -> Problem:
    """Builds the problem of least makespan on the workload's devices, with resident parameters at their variables.

    Args:
      workload: workload that defines the number of devices.
      transfer: resources that a transfer occupies: see `Problem`.
      interconnect: a key of `INTERCONNECTS`.
    """
    latency, bandwidth, _ = INTERCONNECTS[interconnect]
    return Problem("makespan", workload.devices, transfer, latency, bandwidth, MEMORY_BYTES, resident_weights=True)


RATE = 0.1
UPDATE = "update"  # the scope of ops that change a parameter
STACKED: dict[str, Callable[..., Model]] = {"rnnlm": rnnlm, "gnmt": gnmt, "transformer-xl": transformer_xl}
ARCHITECTURES: dict[str, Callable[..., Model]] = {
    **{f"{name}-{layers}": functools.partial(fn, layers) for name, fn in STACKED.items() for layers in (2, 4, 8)},
    "inception": inception_v3,
    "amoebanet": amoebanet,
    "wavenet-2x18": functools.partial(wavenet, 2, 18),
    "wavenet-4x36": functools.partial(wavenet, 4, 36),
}

_NUMBER = re.compile(r"/?#(\d+)")
_ARGUMENT = "parameters/"


class Traced(NamedTuple):
    """A graph of n ops and the group of each: `[n] int32`, from 0 in the order of first appearance."""

    graph: ComputationGraph
    colocation: np.ndarray


def write(architecture: str, folder: Path) -> Path:
    """Traces an architecture at all its batch sizes and writes its file. Returns the path."""
    programs = []
    for setting in WORKLOADS.values():
        if setting.architecture == architecture:
            graph, colocation = traced(ARCHITECTURES[architecture](batch=setting.batch), architecture)
            programs.append(_program(setting, graph, colocation))
    return write_programs(programs, folder)


def _program(setting: Setting, graph: ComputationGraph, colocation: np.ndarray) -> ZooProgram:
    return ZooProgram(
        architecture=setting.architecture,
        family=next(family for family in FAMILIES if setting.architecture.startswith(family)),
        kind=KIND,
        batch=setting.batch,
        level=LEVEL,
        graph=graph,
        versions={"jax": importlib.metadata.version("jax")},
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        colocation=colocation,
    )


def traced(model: Model, name: str) -> Traced:
    """Traces the graph of a model's training step; nothing is computed."""
    parameters = model.parameters()
    step = training_step(model, numbered)
    graph = from_jax(step, parameters, model.batch, chip=TRAFFIC, name=name, weights_argnums=0)
    graph = _after_readers(_with_variables(graph, sorted(parameters)))
    ops = tuple(_without_numbers(graph.ops))
    _, groups = table(map(_group, graph.ops))
    return Traced(dataclasses.replace(graph, ops=ops, outputs=_renamed(graph.outputs)), np.array(groups, np.int32))


def _with_variables(graph: ComputationGraph, parameters: Sequence[str]) -> ComputationGraph:
    """Adds an op for every parameter, which its readers read, and makes its update write in place.

    The first outputs of the graph are the new values, in the order of `parameters`.
    """
    sizes = {tensor.name: tensor.bytes for tensor in graph.inputs}
    variables = {_ARGUMENT + name: _variable(name, sizes[_ARGUMENT + name]) for name in parameters}
    tensors = {argument: op.outputs[0].name for argument, op in variables.items()}
    updates = dict(zip(graph.outputs[: len(parameters)], tensors.values(), strict=True))
    ops = [
        dataclasses.replace(
            op,
            inputs=tuple(tensors.get(name, name) for name in op.inputs),
            outputs=tuple(dataclasses.replace(tensor, alias=updates.get(tensor.name)) for tensor in op.outputs),
            weight_bytes=0,
        )
        for op in graph.ops
    ]
    return dataclasses.replace(graph, ops=(*variables.values(), *ops))


def _variable(name: str, size: int) -> Op:
    argument, op = _ARGUMENT + name, f"{VARIABLE}/{name}"
    output = Tensor(f"{op}:0", size, alias=argument)
    return Op(op, VARIABLE, inputs=(argument,), outputs=(output,), weight_bytes=size)


def _after_readers(graph: ComputationGraph) -> ComputationGraph:
    """Orders every update after the ops that read the parameter, except those that it depends on anyway."""
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(graph.ops):
        for name in op.inputs:
            readers.setdefault(name, []).append(index)
    ops = list(graph.ops)
    for index, op in enumerate(ops):
        variables = [tensor.alias for tensor in op.outputs if tensor.alias is not None and op.type != VARIABLE]
        for variable in variables:
            before = _ancestors(graph.arrays.predecessors, index)
            after = tuple(ops[reader].name for reader in readers[variable] if not before[reader])
            ops[index] = dataclasses.replace(op, after=after)
    return dataclasses.replace(graph, ops=tuple(ops))


def _ancestors(predecessors: list[list[int]], index: int) -> np.ndarray:
    """Marks the ops that precede one in every order, itself included: `[n] bool`."""
    before = np.zeros(len(predecessors), bool)
    before[index] = True
    stack = [index]
    while stack:
        for op in predecessors[stack.pop()]:
            if not before[op]:
                before[op] = True
                stack.append(op)
    return before


def _group(op: Op) -> str:
    """Returns the key that all ops of a group share."""
    number = _NUMBER.search(op.name)
    if number is not None:
        return number[1]
    scope, _, name = op.name.partition("/")
    return name if scope == VARIABLE else name.rpartition("/")[0]


def _without_numbers(ops: Sequence[Op]) -> list[Op]:
    return [
        dataclasses.replace(
            op,
            name=_NUMBER.sub("", op.name),
            inputs=_renamed(op.inputs),
            outputs=tuple(
                dataclasses.replace(t, name=_NUMBER.sub("", t.name), alias=t.alias and _NUMBER.sub("", t.alias))
                for t in op.outputs
            ),
            after=_renamed(op.after),
            layer=None,  # no cost depends on shapes
        )
        for op in ops
    ]


def _renamed(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(_NUMBER.sub("", name) for name in names)


Parameters = dict[str, jax.Array]
Step = Callable[[Parameters, Batch], tuple[Parameters, jax.Array, Any]]


def training_step(model: Model, mark: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn) -> Step:
    """Builds `step(parameters, batch) -> (parameters, loss, state)`, plain gradient descent.

    Args:
      model: model that defines the loss.
      mark: wrapper of the loss before it is differentiated: see `numbered`.
    """

    def step(parameters: Parameters, batch: Batch) -> tuple[Parameters, jax.Array, Any]:
        loss = mark(lambda parameters, batch: model.loss(Weights(parameters), batch))
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, batch)
        updated = {}
        for name, parameter in parameters.items():
            with jax.named_scope(f"{UPDATE}/{name}"):
                updated[name] = parameter - RATE * gradients[name]
        return updated, value, state

    return step


def numbered(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that equation i of its jaxpr runs in the scope `#i`.

    JAX's derivatives keep the scope, so an op of the backward pass names its op of the forward pass.
    """

    def with_numbers(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        jaxpr = closed.jaxpr
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= dict(zip(jaxpr.invars, jax.tree.leaves(args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            primitive = equation.primitive
            with jax.named_scope(f"{equation.source_info.name_stack}/#{number}"):
                results = primitive.bind(*map(read, equation.invars), **primitive.get_bind_params(equation.params))
            values.update(zip(equation.outvars, results if primitive.multiple_results else [results], strict=True))
        return jax.tree.unflatten(jax.tree.structure(shape), map(read, jaxpr.outvars))

    return with_numbers
