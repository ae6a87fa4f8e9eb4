"""Run time, memory traffic and workspace of XLA instructions, those of loops and calls from what they call."""

from graphrl.graphs.readers.hlo.flops import Flops, trip_count
from graphrl.graphs.readers.hlo.lower import Lowered, Work, peak
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.values import SHOWN, ValueReader
from graphrl.graphs.roofline import Chip, runtime

# Those whose called computations are programs with buffers of their own; a fusion's or a reduction's stay in registers.
CALLERS = frozenset({"async-start", "call", "conditional", "while"})
_ENDS = frozenset(str.split("async-done all-gather-done all-reduce-done collective-permute-done copy-done"))
_MAX_MOVED = 10**30  # bytes


class Works:
    """What instructions of a module take on a chip."""

    def __init__(self, module: HloModule, values: ValueReader, chip: Chip) -> None:
        self.module, self.values, self.chip = module, values, chip
        self.flops = Flops(module)
        self._work: dict[str, Work] = {}

    def of(self, computation: Computation, i: Instruction) -> Work:
        """Work of one instruction of `computation`."""
        if i.opcode in CALLERS:
            return self._caller(i)
        if i.opcode in _ENDS:
            return Work(0, runtime(0, 0, self.chip), 0)
        flops = self.flops.of(computation, i)
        moved = min(bytes_moved(self.module, computation, i), _MAX_MOVED)
        return Work(flops, runtime(flops, moved, self.chip), 0)

    def _caller(self, i: Instruction) -> Work:
        bodies = [self.of_computation(name) for name in i.called]
        workspace = max((body.workspace_bytes for body in bodies), default=0)
        if i.opcode == "conditional":
            return Work(max(b.flops for b in bodies), max(b.runtime for b in bodies), workspace)
        trips = trip_count(i) if i.opcode == "while" else 1
        return Work(trips * sum(b.flops for b in bodies), trips * sum(b.runtime for b in bodies), workspace)

    def of_computation(self, name: str) -> Work:
        """Work of one run of a computation, in the order of its schedule: its results lie in the caller's buffers."""
        if name not in self._work:
            computation = self.module.computations[name]
            values = self.values.of(computation)
            ops = Lowered(self.module, computation, values, self.of).ops
            workspace = 0 if computation.on_host else peak(ops, values)
            self._work[name] = Work(sum(op.flops for op in ops), sum(op.runtime for op in ops), workspace)
        return self._work[name]


def bytes_moved(module: HloModule, computation: Computation, i: Instruction) -> int:
    """Bytes between memory and chip: every operand once and the result; of what is sliced or updated, the part.

    Those to and from the host's memory are among them, as if they went at the main memory's bandwidth.
    """
    if i.opcode != "fusion":
        sizes = {name: computation.by_name[name].shape.leaf_bytes for name in i.operands}
        return sum(_part(i, name, size) for name, size in sizes.items()) + _written(computation, i)
    body = module.computations[i.called[0]]
    taken = {name: body.parameters[k] for k, name in enumerate(i.operands)}
    return sum(_read_inside(body, parameter) for parameter in taken.values()) + _written(body, body.root)


def _written(computation: Computation, i: Instruction) -> int:
    if i.opcode == "dynamic-update-slice":
        return computation.by_name[i.operands[1]].shape.bytes
    place = SHOWN.get(i.opcode)
    return sum(leaf.bytes for index, leaf in i.shape.leaves if index[:1] != (place,))


def _part(i: Instruction, operand: str, size: int) -> int:
    """Bytes that an instruction reads of an operand of `size` bytes."""
    if operand == i.operands[0] and operand not in i.operands[1:]:
        if i.opcode in ("dynamic-slice", "gather", "slice"):
            return min(size, i.shape.leaf_bytes)
        if i.opcode == "dynamic-update-slice":
            return 0
    return size


def _read_inside(body: Computation, parameter: Instruction) -> int:
    """Bytes that a fusion reads of an operand: all of it, unless it only takes parts."""
    size = parameter.shape.leaf_bytes
    return min(size, sum(_part(user, parameter.name, size) for user in body.users[parameter.name]))
