"""Memory of every device along an order, exactly.

Memory rules, per device, along the order:

- A device holds *buffers*. A tensor that is produced or transferred there has its own buffer, of its declared bytes,
  except an output with `alias`: it lives in the buffer that the aliased tensor has on that device (the tensor itself
  or its transferred copy), or, if the aliased tensor is an external input, in no counted memory at all (0 bytes).
  A transfer of an alias allocates its declared bytes at the receiver, as a buffer of its own.
- An op on a allocates its outputs' buffers on a; then live bytes plus workspace are compared with a's peak; then each
  distinct input counts one use as done. A transfer from a to b allocates its copy on b, compares there, and counts as
  one use of the tensor on a.
- A buffer is freed when all uses on its device of all tensors in it are done (at once, after the comparison, if there
  are none), unless a tensor that was produced into it is in the graph's `outputs`: then never. Copies of such a
  tensor on other devices are freed like any other.
- An output that `reuses` an input takes over that input's buffer if the op holds the last uses of all tensors in the
  buffer, and the buffer is neither kept nor external: nothing is allocated, nothing is freed, and the buffer keeps the
  *input's* size until the output's own uses are done (an output may in turn pass it on). Otherwise it allocates as
  usual. If two outputs of an op want one buffer, the first has it.
- With `resident_weights`, the weights of a device's ops are there from the start.
"""

import numpy as np

from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import EXTERNAL, ComputationGraph
from graphrl.graphs.topology import grouped


class SharedBuffers:
    """Which instances share a buffer, named by the instance that allocates it (see the module's memory rules)."""

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        a = graph.arrays
        t = a.num_tensors
        self.of = np.arange(t + len(routes.transfers))  # [instances] the buffer of each
        aliases = np.flatnonzero(a.alias >= 0)
        for tensor in aliases[np.argsort(a.rank[a.producer[aliases]], kind="stable")].tolist():
            source = routes.instance(int(a.alias[tensor]), int(routes.home[tensor]), problem.devices)
            self.of[tensor] = self.of[source]
        self.allocates = (a.alias < 0).tolist()  # [t]
        self.bytes = np.concatenate([np.where(a.alias < 0, a.tensor_bytes, 0), a.tensor_bytes[routes.transfer_tensor]])
        self.bytes[:t][a.alias == EXTERNAL] = 0
        self.pinned = np.zeros(len(self.of), bool)  # never freed
        self.pinned[self.of[:t][a.kept | (a.alias == EXTERNAL)]] = True
        used = np.concatenate([routes.use_instance, routes.transfer_tensor])
        self.uses = np.bincount(self.of[used], minlength=len(self.of))  # [instances] uses on the device, of the buffer


def memory_changes(
    graph: ComputationGraph, problem: Problem, routes: Routes, slots: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Per device `[c, 3] int64`: order entry, bytes compared with the peak, bytes after the entry's releases."""
    a = graph.arrays
    n, t = routes.num_ops, routes.num_tensors
    buffers = SharedBuffers(graph, problem, routes)
    size, left, pinned = buffers.bytes.tolist(), buffers.uses.tolist(), buffers.pinned.tolist()
    reads = grouped(a.use_op, buffers.of[routes.use_instance], n)  # [n] the buffer of each distinct input
    outputs = grouped(a.producer, np.arange(t), n)
    reuses = {
        tensor: int(buffers.of[routes.instance(int(a.reuses[tensor]), int(routes.home[tensor]), problem.devices)])
        for tensor in np.flatnonzero(a.reuses >= 0).tolist()
    }
    workspace, placement = a.workspace_bytes.tolist(), routes.placement.tolist()
    live = [0] * problem.devices
    if problem.resident_weights:
        for device, weight in zip(placement, a.weight_bytes.tolist(), strict=True):
            live[device] += weight
    changes = [[(-1, bytes_live, bytes_live)] for bytes_live in live]
    home_buffer = buffers.of[routes.transfer_tensor].tolist()
    home, to = routes.home[routes.transfer_tensor].tolist(), routes.transfer_to.tolist()
    for entry, slot in enumerate(slots.tolist()):
        if slot >= n:
            k = slot - n
            live[to[k]] += size[t + k]
            changes[to[k]].append((entry, live[to[k]], live[to[k]]))
            released, compared, here = [home_buffer[k]], live[home[k]], home[k]
        else:
            here, released = placement[slot], reads[slot]
            taken = set()
            for tensor in outputs[slot]:
                source = reuses.get(tensor)
                if source is not None and source not in taken and _is_last_use(source, released, left, pinned):
                    taken.add(source)
                    size[tensor], size[source] = size[source], 0  # so that the release below frees nothing
                elif buffers.allocates[tensor]:
                    live[here] += size[tensor]
            compared = live[here] + workspace[slot]
            live[here] -= sum(size[tensor] for tensor in outputs[slot] if _is_unused(tensor, buffers, left, pinned))
        for buffer in released:
            left[buffer] -= 1
            if left[buffer] == 0 and not pinned[buffer]:
                live[here] -= size[buffer]
        changes[here].append((entry, compared, live[here]))
    return tuple(np.array(device, np.int64) for device in changes)


def _is_last_use(buffer: int, reads: list[int], left: list[int], pinned: list[bool]) -> bool:
    """Whether an op that reads the buffers `reads` holds all uses of a buffer that are left."""
    return not pinned[buffer] and left[buffer] == reads.count(buffer)


def _is_unused(tensor: int, buffers: SharedBuffers, left: list[int], pinned: list[bool]) -> bool:
    """Whether an output's own buffer is free as soon as it is written."""
    return buffers.allocates[tensor] and left[tensor] == 0 and not pinned[tensor]
