"""Computation graphs on the host: ops, tensors, and the checks that make a graph valid.

A graph is a directed acyclic multigraph of any size. `ComputationGraph` is the form for users, by names. `GraphArrays`
(its `arrays`) is the form for algorithms: indices, and derived quantities. Both are immutable.

`Pipelined` and `Machine` describe pipelined execution on accelerators and CPUs. Only the objective `max_load`
(`graphrl.costs`) uses them, except for colocation, which every placement keeps.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.layers import Layer
from graphrl.graphs.topology import (
    Waiting,
    bit_matrix,
    distinct,
    grouped,
    longest_paths,
    reached,
    rings,
    topological_order,
)

NONE, EXTERNAL = -1, -2  # in place of a tensor index

MAX_COUNT = 2**31 - 1  # ops, tensors, uses: indices are int32 on the device
MAX_BYTES = 2**62  # one tensor; sums stay inside int64 for any graph that fits in memory
MAX_TOTAL_BYTES = 2**63 - 1
MAX_WORK = 10**30  # seconds, FLOPs or bytes moved of one op: sums stay finite


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A value that ops read.

    Attributes:
      name: unique among all tensors of the graph.
      bytes: size in memory, >= 0.
      alias: name of an input of the producing op whose buffer this tensor always occupies. It allocates nothing, and
        the buffer lives until the last use of either.
      reuses: name of an input of the producing op whose buffer this tensor takes over if that op is the input's last
        use.
      transfer_seconds: duration of a transfer under the objective max_load; None to compute it from latency and
        bandwidth.
    """

    name: str
    bytes: int = 0
    alias: str | None = None
    reuses: str | None = None
    transfer_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Pipelined:
    """An op's devices, times and colocation group in pipelined execution.

    Attributes:
      cpu_runtime: seconds on a CPU, >= 0 (`Op.runtime` is in seconds on an accelerator); None if no CPU can run it.
      cpu_only: True if no accelerator can run it.
      colocation: ops of the same number run on one device; None for an op without a group.
      backward: True in the backward pass of a training step: a contiguous split is one of the forward pass.
    """

    cpu_runtime: float | None = None
    cpu_only: bool = False
    colocation: int | None = None
    backward: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a graph's file defines, for pipelined execution.

    Attributes:
      accelerators, cpus: number of accelerators, and of CPUs.
      memory_bytes: memory of each accelerator, None without a limit.
    """

    accelerators: int
    cpus: int = 0
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
      name: unique among all ops of the graph.
      type: name of its computation, e.g. "MatMul"; any text.
      runtime: run time in seconds, the same on every device, >= 0.
      inputs: names of the tensors that it reads.
      outputs: the tensors that it writes.
      after: names of ops that must end before it starts (control predecessors).
      workspace_bytes: memory allocated only while it runs.
      weight_bytes: memory resident on its device for the whole run.
      flops: floating-point operations.
      layer: shapes and window, None if unknown; no cost depends on them.
      pipelined: colocation group and CPU times; None if the op can run on any accelerator and on no CPU.
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
    """A checked directed acyclic graph of ops; the rules are in the docstring of `graphrl.graphs`.

    Attributes:
      name: graph name.
      ops: in any order; an op's index is its position.
      inputs: tensors from outside the graph: always available, at no cost.
      outputs: names of the tensors that stay in memory to the end.
      machine: the machine that its file defines, None without one.

    Raises:
      GraphError: on construction, if a rule is broken: one line that names the fault.
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
    def arrays(self) -> "GraphArrays":
        """The graph as index arrays."""
        return self._arrays  # type: ignore[attr-defined]

    @functools.cached_property
    def colocation(self) -> np.ndarray | None:
        """Colocation group of each op, `[n] int64`, numbered by first appearance; None if no two ops share a group."""
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
        """First op of each op's colocation group, `[n] int64`: the op itself if it is alone."""
        if self.colocation is None:
            return np.arange(len(self.ops))
        return np.unique(self.colocation, return_index=True)[1][self.colocation]

    @functools.cached_property
    def next_colocated(self) -> np.ndarray:
        """Next op of each op's colocation group, cyclically, `[n] int64`: the op itself if it is alone."""
        return rings(self.leaders)

    @functools.cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors that ops produce, in the order of tensor indices."""
        return tuple(tensor.name for op in self.ops for tensor in op.outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class GraphArrays:
    """A graph as index arrays.

    Letters in shapes: n ops in the graph's order; t tensors, in the order of producers and outputs; e uses, which are
    (tensor, consumer) pairs; f control edges. External inputs, which cost nothing, are left out.
    """

    runtime: np.ndarray  # [n] float64, seconds
    workspace_bytes: np.ndarray  # [n] int64
    weight_bytes: np.ndarray  # [n] int64
    flops: np.ndarray  # [n] float64
    producer: np.ndarray  # [t] int32, op
    tensor_bytes: np.ndarray  # [t] int64
    kept: np.ndarray  # [t] bool, named in the graph's outputs
    alias: np.ndarray  # [t] int32, tensor whose buffer this one is; NONE, or EXTERNAL for an external input's
    reuses: np.ndarray  # [t] int32, tensor whose buffer this one may take over; NONE, or EXTERNAL: no effect
    use_tensor: np.ndarray  # [e] int32, distinct (tensor, op) pairs, sorted
    use_op: np.ndarray  # [e] int32
    control_source: np.ndarray  # [f] int32, distinct pairs, sorted
    control_target: np.ndarray  # [f] int32
    topological: np.ndarray  # [n] int32, ops in a topological order (the lowest ready index first)

    @property
    def num_ops(self) -> int:
        return len(self.runtime)

    @property
    def num_tensors(self) -> int:
        return len(self.producer)

    def dependencies(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all distinct (source op, target op) pairs by data or control, sorted, as two `[m] int32` arrays."""
        return self._dependencies

    @functools.cached_property
    def predecessors(self) -> list[list[int]]:
        """The ops that each op depends on, by data or control, ascending: `[n]` lists."""
        source, target = self._dependencies
        return grouped(target, source, self.num_ops)

    @functools.cached_property
    def successors(self) -> list[list[int]]:
        """The ops that depend on each op, by data or control, ascending: `[n]` lists."""
        return grouped(*self._dependencies, self.num_ops)

    def waiting(self) -> Waiting:
        """Returns new counters of unfinished predecessors, for simulating an order from its start."""
        return Waiting(map(len, self.predecessors), self.successors)

    @functools.cached_property
    def rank(self) -> np.ndarray:
        """The position of each op in `topological`: `[n] int64`."""
        rank = np.empty(self.num_ops, np.int64)
        rank[self.topological] = np.arange(self.num_ops)
        return rank

    @property
    def depth(self) -> np.ndarray:
        """Number of edges on the longest path to each op: `[n] int64`."""
        return self._from_start[0]

    @property
    def height(self) -> np.ndarray:
        """Number of edges on the longest path from each op: `[n] int64`."""
        return self._to_end[0]

    @property
    def head(self) -> np.ndarray:
        """Earliest start of each op on unlimited devices without transfers, in seconds: `[n] float64`."""
        return self._from_start[1]

    @property
    def tail(self) -> np.ndarray:
        """Longest total run time of any path that starts after each op, in seconds: `[n] float64`."""
        return self._to_end[1]

    def ancestors(self) -> np.ndarray:
        """True if the column op precedes the row op in every order: `[n, n]` bool, recomputed at each call."""
        return bit_matrix(reached(self.topological.tolist(), self.predecessors)).astype(bool)

    @functools.cached_property
    def _dependencies(self) -> tuple[np.ndarray, np.ndarray]:
        source = np.concatenate([self.producer[self.use_tensor], self.control_source]).astype(np.int64)
        target = np.concatenate([self.use_op, self.control_target]).astype(np.int64)
        pairs = distinct(source * max(1, self.num_ops) + target)
        return (pairs // max(1, self.num_ops)).astype(np.int32), (pairs % max(1, self.num_ops)).astype(np.int32)

    @functools.cached_property
    def _from_start(self) -> tuple[np.ndarray, np.ndarray]:
        return longest_paths(self.topological, *self._dependencies, self.runtime)

    @functools.cached_property
    def _to_end(self) -> tuple[np.ndarray, np.ndarray]:
        return longest_paths(self.topological[::-1], *self._dependencies[::-1], self.runtime)


def indexed(graph: "ComputationGraph") -> GraphArrays:
    """Builds the index arrays of a graph; raises GraphError for duplicate names, undefined names and cycles."""
    ops = graph.ops
    op_index = _unique({}, ((op.name, i) for i, op in enumerate(ops)), "op")
    external = _unique({}, ((tensor.name, EXTERNAL) for tensor in graph.inputs), "input tensor")
    tensors = [(i, tensor) for i, op in enumerate(ops) for tensor in op.outputs]
    tensor_index: dict[str, int] = dict(external)
    for index, (op, tensor) in enumerate(tensors):
        if tensor.name in tensor_index:
            first = tensor_index[tensor.name]
            owner = "an external input" if first < 0 else f"an output of op {ops[tensors[first][0]].name!r}"
            raise GraphError(f"op {ops[op].name!r}: output {tensor.name!r} is already {owner}")
        tensor_index[tensor.name] = index
    uses, control = _edges(ops, op_index, tensor_index)
    producer = np.array([i for i, _ in tensors], np.int32)
    sources = np.concatenate([producer[uses[:, 0]], control[:, 0]])
    targets = np.concatenate([uses[:, 1], control[:, 1]])
    kept = np.zeros(len(tensors), bool)
    for name in graph.outputs:
        if name not in tensor_index:
            raise GraphError(f"graph output {name!r} is not a tensor of the graph")
        if tensor_index[name] >= 0:
            kept[tensor_index[name]] = True
    return GraphArrays(
        runtime=np.array([op.runtime for op in ops], np.float64),
        workspace_bytes=np.array([op.workspace_bytes for op in ops], np.int64),
        weight_bytes=np.array([op.weight_bytes for op in ops], np.int64),
        flops=np.array([op.flops for op in ops], np.float64),
        producer=producer,
        tensor_bytes=np.array([tensor.bytes for _, tensor in tensors], np.int64),
        kept=kept,
        alias=_shared(ops, tensors, tensor_index, "alias"),
        reuses=_shared(ops, tensors, tensor_index, "reuses"),
        use_tensor=uses[:, 0],
        use_op=uses[:, 1],
        control_source=control[:, 0],
        control_target=control[:, 1],
        topological=topological_order([op.name for op in ops], sources, targets),
    )


def _unique(index: dict[str, int], items: Iterable[tuple[str, int]], what: str) -> dict[str, int]:
    for name, i in items:
        if name in index:
            raise GraphError(f"{what} {name!r} appears twice: names must be unique")
        index[name] = i
    return index


def _edges(ops: Sequence["Op"], op_index: dict[str, int], tensor_index: dict[str, int]) -> list[np.ndarray]:
    """Returns uses `[e, 2]`, as (tensor, op), and control edges `[f, 2]`, as (source op, target op), int32."""
    uses, control = set(), set()
    for i, op in enumerate(ops):
        for name in op.inputs:
            if name not in tensor_index:
                raise GraphError(f"op {op.name!r}: input {name!r} is not a tensor: neither an output nor an input")
            if tensor_index[name] >= 0:
                uses.add((tensor_index[name], i))
        for name in op.after:
            if name not in op_index:
                raise GraphError(f"op {op.name!r}: control predecessor {name!r} is not an op of the graph")
            control.add((op_index[name], i))
    return [np.array(sorted(pairs), np.int32).reshape(-1, 2) for pairs in (uses, control)]


def _shared(
    ops: Sequence["Op"], tensors: Sequence[tuple[int, "Tensor"]], tensor_index: dict[str, int], field: str
) -> np.ndarray:
    """Finds the tensor whose buffer each tensor shares through `field` ("alias" or "reuses"): `[t] int32`."""
    shared = np.full(len(tensors), NONE, np.int32)
    taken: set[tuple[int, str]] = set()
    for index, (producer, tensor) in enumerate(tensors):
        name = getattr(tensor, field)
        if name is None:
            continue
        where = f"op {ops[producer].name!r}, output {tensor.name!r}"
        if tensor.alias is not None and tensor.reuses is not None:
            raise GraphError(f"{where}: has both alias and reuses: must have at most one")
        if name not in ops[producer].inputs:
            raise GraphError(f"{where}: {field} names {name!r}, which is not an input of this op")
        source = tensor_index[name]
        if field == "reuses":
            if (producer, name) in taken:
                raise GraphError(f"{where}: reuses names {name!r}, whose buffer another output of this op takes")
            taken.add((producer, name))
            if source >= 0 and tensors[source][1].bytes < tensor.bytes:
                have = tensors[source][1].bytes
                raise GraphError(f"{where}: {tensor.bytes} bytes cannot reuse {name!r} of {have} bytes: must fit")
        shared[index] = source
    return shared


def _check_counts(graph: ComputationGraph) -> None:
    if not graph.ops:
        raise GraphError(f"graph {graph.name!r} has no ops: there is nothing to plan")
    uses = sum(len(op.inputs) + len(op.after) for op in graph.ops)
    if len(graph.ops) > MAX_COUNT or uses > MAX_COUNT:
        raise GraphError(f"graph {graph.name!r} has {len(graph.ops)} ops and {uses} edges: at most 2^31 - 1 of each")


def _check_bytes(owner: str, field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise GraphError(f"{owner}: {field} is {_shorten(value)}: must be an integral number of bytes")
    if value < 0 or value > MAX_BYTES:
        raise GraphError(f"{owner}: {field} is {_shorten(value)}: must be from 0 to 2^62")


def _check_name(owner: str, name: object) -> None:
    if not isinstance(name, str):
        raise GraphError(f"{owner} has the name {_shorten(name)}: must be text")
    if not name:
        raise GraphError(f"{owner} has an empty name: every op and tensor needs a unique one")


def _shorten(value: object) -> str:
    """Formats a value in at most 40 characters; of a huge integer, which Python may refuse to print, only its size."""
    if isinstance(value, int) and abs(value) >= 2**100:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1} or more"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _check_seconds(owner: str, field: str, value: object) -> None:
    numeric = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not numeric or value != value:  # only NaN differs from itself
        raise GraphError(f"{owner}: {field} is {_shorten(value)}: must be a finite number of seconds")
    if value < 0:  # type: ignore[operator]
        raise GraphError(f"{owner}: {field} is {_shorten(value)}: must be at least 0 seconds")
    if value > float(MAX_WORK):  # type: ignore[operator]
        raise GraphError(f"{owner}: {field} is {_shorten(value)}: must be a finite number up to 10^30 seconds")


def _check_numbers(op: Op) -> None:
    _check_name("an op", op.name)
    _check_seconds(f"op {op.name!r}", "runtime", op.runtime)
    _check_bytes(f"op {op.name!r}", "workspace_bytes", op.workspace_bytes)
    _check_bytes(f"op {op.name!r}", "weight_bytes", op.weight_bytes)
    if isinstance(op.flops, bool) or not isinstance(op.flops, int | np.integer) or not 0 <= op.flops <= MAX_WORK:
        raise GraphError(f"op {op.name!r}: flops is {_shorten(op.flops)}: must be an integer from 0 to 10^30")
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
            raise GraphError(f"op {op!r}: layer.{field} is {_shorten(value)}: must be an integer from 0 to 2^31 - 1")


def _check_pipelined(op: str, pipelined: Pipelined) -> None:
    where = f"op {op!r}"
    if pipelined.cpu_runtime is not None:
        _check_seconds(where, "pipelined.cpu_runtime", pipelined.cpu_runtime)
    for field in ("cpu_only", "backward"):
        if type(value := getattr(pipelined, field)) is not bool:
            raise GraphError(f"{where}: pipelined.{field} is {_shorten(value)}: must be true or false")
    if pipelined.colocation is not None and type(pipelined.colocation) is not int:
        raise GraphError(f"{where}: pipelined.colocation is {_shorten(pipelined.colocation)}: must be an integer")
    if pipelined.cpu_only and pipelined.cpu_runtime is None:
        raise GraphError(f"{where}: pipelined.cpu_only is true without cpu_runtime: the op could not run on any device")


def _check_machine(machine: Machine) -> None:
    for field in ("accelerators", "cpus"):
        if type(value := getattr(machine, field)) is not int or not 0 <= value <= MAX_COUNT:
            raise GraphError(f"machine.{field} is {_shorten(value)}: must be an integer from 0 to 2^31 - 1")
    if machine.memory_bytes is not None:
        _check_bytes("the machine", "memory_bytes", machine.memory_bytes)


def _check_total(graph: ComputationGraph) -> None:
    total = sum(
        int(op.workspace_bytes) + int(op.weight_bytes) + sum(int(tensor.bytes) for tensor in op.outputs)
        for op in graph.ops
    )
    if total > MAX_TOTAL_BYTES:
        raise GraphError(f"graph {graph.name!r} needs {total} bytes in all: sums must stay below 2^63")
