"""What a computation graph is, on the host: ops, the tensors between them, and the rules that they obey.

A graph is a directed acyclic multigraph of any size. `ComputationGraph` holds it as people write it (names), and
`ComputationGraph.arrays` as algorithms read it (indices). Both are immutable.
"""

import dataclasses
import functools

import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.arrays import GraphArrays, indexed
from graphrl.graphs.layers.layer import Layer
from graphrl.graphs.pipelined import Machine, Pipelined
from graphrl.graphs.topology import rings

MAX_COUNT = 2**31 - 1  # ops, tensors, uses: indices are int32 on the device
MAX_BYTES = 2**62  # one tensor; sums stay inside int64 for any graph that fits in memory
MAX_TOTAL_BYTES = 2**63 - 1
MAX_WORK = 10**30  # seconds or FLOPs of one op: sums stay finite


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A value that ops read.

    Attributes:
      name: unique among all tensors of the graph.
      bytes: size in memory, >= 0.
      alias: name of an input of the producing op whose buffer this tensor always is: no bytes of its own, and the
        buffer lives until the last use of either.
      reuses: name of an input of the producing op whose buffer this tensor takes over where that op is the
        input's last use.
      transfer_seconds: that a transfer takes under the objective max_load, None for what latency and bandwidth say.
    """

    name: str
    bytes: int = 0
    alias: str | None = None
    reuses: str | None = None
    transfer_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
      name: unique among all ops of the graph.
      type: what it computes, e.g. "MatMul"; any text.
      runtime: seconds on any device, >= 0.
      inputs: names of the tensors that it reads.
      outputs: the tensors that it writes.
      after: names of ops that must have ended before it starts (control predecessors).
      workspace_bytes: memory that it holds only while it runs.
      weight_bytes: memory resident on its device for the whole run.
      flops: floating-point operations.
      layer: shapes and window, where they are known; no cost depends on them.
      pipelined: colocation, and CPUs, which the objective max_load looks at; None: any accelerator, and no CPU.
    """

    name: str
    type: str = ""
    runtime: float = 0.0
    inputs: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    after: tuple[str, ...] = ()
    workspace_bytes: int = 0
    weight_bytes: int = 0
    flops: int = 0
    layer: Layer | None = None
    pipelined: Pipelined | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A checked directed acyclic graph of ops; the package's text has the rules.

    Attributes:
      name: of the graph.
      ops: in any order; an op's index is its place.
      inputs: external tensors: always there, free of cost.
      outputs: names of the tensors that stay in memory to the end.
      machine: the devices that its file names, None if it names none.

    Raises:
      GraphError: on construction, one line that names the fault, if a rule is broken.
    """

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    machine: Machine | None = None

    def __post_init__(self) -> None:
        _check_counts(self)
        for op in self.ops:
            _check_numbers(op)
        for tensor in self.inputs:
            _check_name("an input tensor", tensor.name)
            _check_bytes(f"input {tensor.name!r}", "bytes", tensor.bytes)
            if tensor.alias is not None or tensor.reuses is not None:
                raise GraphError(f"input {tensor.name!r}: an external input can have neither alias nor reuses")
        if self.machine is not None:
            _check_machine(self.machine)
        _check_total(self)
        object.__setattr__(self, "_arrays", indexed(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComputationGraph):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in dataclasses.fields(self))

    def __hash__(self) -> int:
        return hash((self.name, self.ops, self.inputs, self.outputs))

    def __repr__(self) -> str:
        a = self.arrays
        return f"ComputationGraph({self.name!r}, {a.num_ops} ops, {a.num_tensors} tensors, {len(a.use_op)} uses)"

    @property
    def arrays(self) -> GraphArrays:
        """The graph as index arrays."""
        return self._arrays  # type: ignore[attr-defined]

    @functools.cached_property
    def colocation(self) -> np.ndarray | None:
        """The group of each op, `[n] int64` numbered by their first ops; None if every op may stand alone."""
        numbers: dict[object, int] = {}
        group = [
            numbers.setdefault(
                index if op.pipelined is None or op.pipelined.colocation is None else (op.pipelined.colocation,),
                len(numbers),
            )
            for index, op in enumerate(self.ops)
        ]
        return None if len(numbers) == len(group) else np.array(group, np.int64)

    @functools.cached_property
    def leaders(self) -> np.ndarray:
        """The first op of each op's group, `[n] int64`: itself if it may stand alone."""
        if self.colocation is None:
            return np.arange(len(self.ops))
        return np.unique(self.colocation, return_index=True)[1][self.colocation]

    @functools.cached_property
    def mates(self) -> np.ndarray:
        """The next op of each op's group, after the last its first, `[n] int64`: itself if it may stand alone."""
        return rings(self.leaders)

    @functools.cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the produced tensors, by tensor index."""
        return tuple(tensor.name for op in self.ops for tensor in op.outputs)


def _check_counts(graph: ComputationGraph) -> None:
    if not graph.ops:
        raise GraphError(f"graph {graph.name!r} has no ops: there is nothing to plan")
    uses = sum(len(op.inputs) + len(op.after) for op in graph.ops)
    if len(graph.ops) > MAX_COUNT or uses > MAX_COUNT:
        raise GraphError(f"graph {graph.name!r} has {len(graph.ops)} ops and {uses} edges: at most 2^31 - 1 of each")


def _check_bytes(owner: str, field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise GraphError(f"{owner}: {field} is {_shown(value)}: must be an integral number of bytes")
    if value < 0 or value > MAX_BYTES:
        raise GraphError(f"{owner}: {field} is {_shown(value)}: must be from 0 to 2^62")


def _check_name(owner: str, name: object) -> None:
    if not isinstance(name, str):
        raise GraphError(f"{owner} has the name {_shown(name)}: must be text")
    if not name:
        raise GraphError(f"{owner} has an empty name: every op and tensor needs a unique one")


def _shown(value: object) -> str:
    """The value in at most some forty characters; a huge integer by its size, as Python refuses to print some."""
    if isinstance(value, int) and abs(value) >= 2**100:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1} or more"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _check_seconds(owner: str, field: str, value: object) -> None:
    numeric = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not numeric or value != value:  # only NaN differs from itself
        raise GraphError(f"{owner}: {field} is {_shown(value)}: must be a finite number of seconds")
    if value < 0:  # type: ignore[operator]
        raise GraphError(f"{owner}: {field} is {_shown(value)}: must be at least 0 seconds")
    if value > float(MAX_WORK):  # type: ignore[operator]
        raise GraphError(f"{owner}: {field} is {_shown(value)}: must be a finite number up to 10^30 seconds")


def _check_numbers(op: Op) -> None:
    _check_name("an op", op.name)
    _check_seconds(f"op {op.name!r}", "runtime", op.runtime)
    _check_bytes(f"op {op.name!r}", "workspace_bytes", op.workspace_bytes)
    _check_bytes(f"op {op.name!r}", "weight_bytes", op.weight_bytes)
    if isinstance(op.flops, bool) or not isinstance(op.flops, int | np.integer) or not 0 <= op.flops <= MAX_WORK:
        raise GraphError(f"op {op.name!r}: flops is {_shown(op.flops)}: must be an integer from 0 to 10^30")
    if op.layer is not None:
        _check_layer(op.name, op.layer)
    if op.pipelined is not None:
        _check_pipelined(op.name, op.pipelined)
    for tensor in op.outputs:
        _check_name(f"op {op.name!r}: an output", tensor.name)
        _check_bytes(f"op {op.name!r}, output {tensor.name!r}", "bytes", tensor.bytes)
        if tensor.transfer_seconds is not None:
            _check_seconds(f"op {op.name!r}, output {tensor.name!r}", "transfer_seconds", tensor.transfer_seconds)


def _check_layer(op: str, layer: Layer) -> None:
    for field in Layer.__dataclass_fields__:
        value = getattr(layer, field)
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise GraphError(f"op {op!r}: layer.{field} is {_shown(value)}: must be an integer from 0 to 2^31 - 1")


def _check_pipelined(op: str, pipelined: Pipelined) -> None:
    where = f"op {op!r}"
    if pipelined.cpu_runtime is not None:
        _check_seconds(where, "pipelined.cpu_runtime", pipelined.cpu_runtime)
    for field in ("cpu_only", "backward"):
        if type(value := getattr(pipelined, field)) is not bool:
            raise GraphError(f"{where}: pipelined.{field} is {_shown(value)}: must be true or false")
    if pipelined.colocation is not None and type(pipelined.colocation) is not int:
        raise GraphError(f"{where}: pipelined.colocation is {_shown(pipelined.colocation)}: must be an integer")
    if pipelined.cpu_only and pipelined.cpu_runtime is None:
        raise GraphError(f"{where}: pipelined.cpu_only is true without cpu_runtime: it could run nowhere")


def _check_machine(machine: Machine) -> None:
    for field in ("accelerators", "cpus"):
        if type(value := getattr(machine, field)) is not int or not 0 <= value <= MAX_COUNT:
            raise GraphError(f"machine.{field} is {_shown(value)}: must be an integer from 0 to 2^31 - 1")
    if machine.memory_bytes is not None:
        _check_bytes("the machine", "memory_bytes", machine.memory_bytes)


def _check_total(graph: ComputationGraph) -> None:
    total = sum(
        int(op.workspace_bytes) + int(op.weight_bytes) + sum(int(tensor.bytes) for tensor in op.outputs)
        for op in graph.ops
    )
    if total > MAX_TOTAL_BYTES:
        raise GraphError(f"graph {graph.name!r} needs {total} bytes in all: sums must stay below 2^63")
