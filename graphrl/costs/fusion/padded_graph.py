"""The graph of kernels as a `PaddedGraph`, built on the device: the input of `costs/device`.

The twin of `padding.pad(fused_graph(...))`, except for units, which stay the graph's, and for control successors, which
have separate rows. Letters in shapes are those of `graphs/padding.py`, and M and A of `device.py`. Functions take one
graph and one fusion; use `jax.vmap` for more.

`kernel_buffers` finds the buffers that the kernels' outputs share, as `fused_graph` does by names.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import take
from graphrl.costs.fusion.device import DeviceKernels, PaddedFusion
from graphrl.graphs.padding import NEVER, READS, ROW_WIDTH, WAITS, PaddedGraph, Sizes, bucket


class Buffers(NamedTuple):
    """Tensors that share a buffer, by their new numbers; shares that no longer exist have tensor t, like padding."""

    owned_bytes: jax.Array  # [t] float32, by old number: bytes that its producer allocates
    tensor: jax.Array  # [s] int32
    of: jax.Array  # [s] int32
    reuses: jax.Array  # [s] bool


def kernel_buffers(
    graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels, is_written: jax.Array, new: jax.Array
) -> Buffers:
    """Finds the buffers that the outputs of a graph's kernels share.

    Args:
      is_written: `[t]` bool, True if a root writes the tensor.
      new: `[t + 1]` int32, its number among the written tensors.
    """
    t = graph.sizes.tensors
    if graph.sizes.shares == 0:
        return Buffers(graph.owned_bytes, graph.share_tensor, graph.share_of, graph.share_reuses)
    alias = jnp.full(t + 1, t, jnp.int32).at[jnp.where(graph.share_reuses, t, graph.share_tensor)].set(graph.share_of)
    alias = alias.at[t].set(t)
    outside = (graph.owned_bytes == 0) & (graph.tensor_bytes > 0) & (alias[:t] == t)
    # the tensor in whose buffer each tensor is: its own, t for none, t + 1 for an external input's
    own = jnp.arange(t, dtype=jnp.int32)
    buffer = jnp.where(is_written, own, jnp.where(outside, t + 1, alias[:t]))
    buffer = jnp.append(buffer, jnp.array([t, t + 1], jnp.int32))
    for _ in range((problem.max_ops - 1).bit_length()):  # a chain through inlined ops is no longer than a kernel
        buffer = take(buffer, buffer)
    source_buffer = take(buffer, alias)[:t]
    owned = jnp.where((alias[:t] < t) & (source_buffer == t), graph.tensor_bytes, graph.owned_bytes)

    of = jnp.where(graph.share_reuses, graph.share_of, take(buffer, graph.share_of))
    remains = take(jnp.append(is_written, False), graph.share_tensor) & (of < t)
    remains &= ~(graph.share_reuses & _is_lost(graph, problem, kernels, jnp.append(is_written, False)))
    return Buffers(
        owned_bytes=owned,
        tensor=jnp.where(remains, take(new, graph.share_tensor), t),
        of=jnp.where(remains, take(new, jnp.minimum(of, t)), t),
        reuses=remains & graph.share_reuses,
    )


def _is_lost(graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels, is_written: jax.Array) -> jax.Array:
    """True for shares whose source buffer no longer exists, or is read by a member other than the root: `[s]` bool."""
    n, t = graph.sizes.ops, graph.sizes.tensors
    root = jnp.where(graph.share_tensor < t, take(jnp.append(graph.producer, 0), graph.share_tensor), n)
    members = take(jnp.concatenate([kernels.members, jnp.full((1, problem.max_ops), n, jnp.int32)]), root)
    inner = jnp.where(members == root[:, None], n, members)
    reads = (take(problem.reads, inner) == graph.share_of[:, None, None]).any((1, 2))
    return reads | ~take(is_written, graph.share_of)


class PaddedKernels(NamedTuple):
    """The kernels of a graph as a padded graph, in the order of their roots."""

    graph: PaddedGraph
    root: jax.Array  # [n] int32, op of the graph of single ops; n for padding
    tensor: jax.Array  # [t] int32, tensor of the graph of single ops; t for padding
    fits: jax.Array  # [] bool, True if all uses of kernels fit; if not, the graph lacks some of them


class _Numbers(NamedTuple):
    """Ops and tensors that remain in the graph of kernels, and their new numbers."""

    is_root: jax.Array  # [n] bool
    op: jax.Array  # [n + 1] int32, the kernel of each root; n for others
    is_written: jax.Array  # [t] bool, True if a root writes it
    tensor: jax.Array  # [t + 1] int32, new number; t for others
    root: jax.Array  # [n] int32, as in `PaddedKernels`
    old_tensor: jax.Array  # [t] int32, as in `PaddedKernels`


def kernel_sizes(sizes: Sizes, room: float = 2.0) -> Sizes:
    """Returns padded sizes for the kernels of graphs of these sizes.

    Args:
      room: factor by which uses may grow: each kernel that computes an inlined op reads the op's inputs.
    """
    uses = bucket(int(room * sizes.uses))
    rows = sizes.ops + sizes.tensors + sizes.controls + uses // ROW_WIDTH
    return dataclasses.replace(sizes, uses=uses, rows=bucket(rows))


def padded_kernels(graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels, to: Sizes) -> PaddedKernels:
    """Builds the padded graph of the kernels.

    Args:
      graph: graph of single ops, padded to the numbers of ops and tensors of `problem`.
      problem: its fusion problem.
      kernels: the kernels of the fusion.
      to: sizes that differ from the graph's in uses and rows at most, with rows as `kernel_sizes` counts them. Static.
    """
    n, t, u = graph.sizes.ops, graph.sizes.tensors, graph.sizes.slots
    numbers = _numbers(graph, kernels)
    use_tensor, use_op, count = _uses(graph, problem, kernels, numbers, to.uses)
    control_source, control_target = (take(numbers.op, end) for end in (graph.control_source, graph.control_target))
    op, real = jnp.minimum(numbers.root, n - 1), numbers.root < n
    tensor, written = jnp.minimum(numbers.old_tensor, t - 1), numbers.old_tensor < t
    waits = jnp.zeros(n + 1, jnp.int32).at[use_op].add(1).at[control_target].add(1)[:n]
    new_tensor_of_slot = take(numbers.tensor, graph.slot_tensor)
    of_ops = jnp.where(real, take(new_tensor_of_slot, op), t)
    slot_tensor = jnp.append(of_ops, new_tensor_of_slot[n:])
    producer = jnp.where(written, take(numbers.op, take(graph.producer, tensor)), 0)
    buffers = kernel_buffers(graph, problem, kernels, numbers.is_written, numbers.tensor)
    num_tensors = numbers.is_written.sum(dtype=jnp.int32)

    def of_kernel(values: jax.Array) -> jax.Array:
        return jnp.where(real, take(values, op), 0)

    def of_tensor(values: jax.Array) -> jax.Array:
        return jnp.where(written, take(values, tensor), jnp.zeros((), values.dtype))

    rows = _rows(real, producer, num_tensors, slot_tensor, (use_tensor, use_op), (control_source, control_target), to)
    fused = dataclasses.replace(
        graph,
        num_ops=numbers.is_root.sum(dtype=jnp.int32),
        num_tensors=num_tensors,
        runtime=of_kernel(kernels.seconds / graph.second_unit),
        workspace=of_kernel(_workspace(graph, problem, kernels)),
        weight=of_kernel(_weights(graph, kernels, numbers.is_root, _gathers(problem))),
        producer=producer,
        tensor_bytes=of_tensor(graph.tensor_bytes),
        owned_bytes=of_tensor(buffers.owned_bytes),
        kept=of_tensor(graph.kept),
        use_tensor=use_tensor,
        use_op=use_op,
        control_source=control_source,
        control_target=control_target,
        indegree=jnp.append(jnp.where(real, waits, NEVER), jnp.full(u - n, NEVER, jnp.int32)),
        slot_tensor=slot_tensor,
        share_tensor=buffers.tensor,
        share_of=buffers.of,
        share_reuses=buffers.reuses,
        **rows,
    )
    return PaddedKernels(fused, numbers.root, numbers.old_tensor, count <= to.uses)


def _gathers(problem: PaddedFusion) -> jax.Array:
    """True for ops whose rows list the members and arguments that they gathered: `[n]` bool."""
    n = problem.alone.shape[0]
    return jnp.zeros(n + 1, jnp.bool_).at[problem.step_op].set(True)[:n]


def _numbers(graph: PaddedGraph, kernels: DeviceKernels) -> _Numbers:
    n, t = graph.sizes.ops, graph.sizes.tensors
    is_root = (jnp.arange(n, dtype=jnp.int32) < graph.num_ops) & ~kernels.inlined
    is_written = (jnp.arange(t, dtype=jnp.int32) < graph.num_tensors) & take(is_root, graph.producer)
    op, root = _renumbered(is_root)
    tensor, old_tensor = _renumbered(is_written)
    return _Numbers(is_root, op, is_written, tensor, root, old_tensor)


def _renumbered(remains: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Renumbers the items of `[x]` that remain: new numbers `[x + 1]` (x for others), and their old numbers `[x]`."""
    count = remains.shape[0]
    new = jnp.append(jnp.where(remains, jnp.cumsum(remains, dtype=jnp.int32) - 1, count), count)
    old = jnp.full(count, count, jnp.int32).at[new[:count]].set(jnp.arange(count, dtype=jnp.int32), mode="drop")
    return new, old


def _uses(
    graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels, numbers: _Numbers, room: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the uses of the kernels graph: tensor and kernel `[room]` of each use, sorted, and their count."""
    n, t = graph.sizes.ops, graph.sizes.tensors
    gathers = _gathers(problem)
    plain = take(jnp.append(~gathers, False), graph.use_op)
    tensors = jnp.where(plain, graph.use_tensor, t)
    gathered = jnp.where((gathers & numbers.is_root)[:, None], kernels.arguments, t)
    readers = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], gathered.shape)
    tensors = jnp.append(tensors, jnp.minimum(gathered.reshape(-1), t))  # external inputs are t and above
    readers = jnp.append(graph.use_op, readers.reshape(-1))
    new = take(numbers.tensor, tensors)
    place = jnp.where(new < t, jnp.cumsum(new < t, dtype=jnp.int32) - 1, room)
    use_tensor = jnp.full(room, t, jnp.int32).at[place].set(new, mode="drop")
    use_op = jnp.full(room, n, jnp.int32).at[place].set(take(numbers.op, readers), mode="drop")
    use_tensor, use_op = lax.sort((use_tensor, use_op), num_keys=2)
    return use_tensor, use_op, (new < t).sum(dtype=jnp.int32)


def _workspace(graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels) -> jax.Array:
    """Returns the workspace of each root's kernel, summed over its members: `[n]`."""
    gathered = take(jnp.append(graph.workspace, 0.0), kernels.members).sum(1)
    return jnp.where(_gathers(problem), gathered, graph.workspace)


def _weights(graph: PaddedGraph, kernels: DeviceKernels, is_root: jax.Array, gathers: jax.Array) -> jax.Array:
    """Returns the weights of each root, with those of the inlined ops that no earlier kernel computes: `[n]`."""
    n = graph.sizes.ops
    roots = jnp.where(is_root & gathers, jnp.arange(n, dtype=jnp.int32), n)
    members = kernels.members.reshape(-1)
    first = jnp.full(n + 1, n, jnp.int32).at[members].min(jnp.repeat(roots, kernels.members.shape[1]))[:n]
    first = jnp.where(is_root, jnp.arange(n, dtype=jnp.int32), first)
    return jnp.zeros(n + 1, jnp.float32).at[first].add(graph.weight)[:n]


def _rows(
    real: jax.Array,
    producer: jax.Array,
    num_tensors: jax.Array,
    slot_tensor: jax.Array,
    uses: tuple[jax.Array, jax.Array],
    controls: tuple[jax.Array, jax.Array],
    to: Sizes,
) -> dict[str, jax.Array]:
    """Returns the fields of a `PaddedGraph` that describe its rows, for ops and tensors in their new numbers.

    Args:
      real: `[n]` bool, True if the op exists.
      producer: `[t]` int32.
      num_tensors: `[]` int32, number of real tensors.
      slot_tensor: `[u]` int32.
      uses, controls: source and target of each edge, sorted; t or n for padding.
      to: padded sizes.
    """
    n, t, r, u = to.ops, to.tensors, to.rows, to.slots
    written = jnp.arange(t, dtype=jnp.int32) < num_tensors
    writer = jnp.where(written, producer, n)
    readers = jnp.zeros(t + 1, jnp.int32).at[uses[0]].add(1)[:t]
    successors = jnp.zeros(n + 1, jnp.int32).at[controls[0]].add(1)[:n]
    tensor_rows = jnp.where(written, jnp.maximum(1, -(-readers // ROW_WIDTH)), 0)
    wait_rows = -(-successors // ROW_WIDTH)
    own_rows = jnp.zeros(n + 1, jnp.int32).at[writer].add(tensor_rows)[:n]
    op_rows = jnp.where(real, jnp.maximum(1, own_rows + wait_rows), 0)
    op_row = _before(op_rows)
    first_tensor = jnp.full(n + 1, t, jnp.int32).at[writer].min(jnp.arange(t, dtype=jnp.int32))
    rows_before = jnp.append(_before(tensor_rows), 0)
    tensor_row = take(jnp.append(op_row, 0), writer) + rows_before[:t] - take(rows_before, take(first_tensor, writer))
    op_row, tensor_row = jnp.where(real, op_row, r), jnp.where(written, tensor_row, r)

    row, used = jnp.arange(r, dtype=jnp.int32), jnp.arange(r, dtype=jnp.int32) < op_rows.sum()
    owner = jnp.where(used, _last_started(op_row, r), 0)
    tensor = jnp.maximum(_last_started(tensor_row, r), 0)  # the one that started last
    has_tensor = used & (tensor_row[tensor] <= row) & (take(writer, tensor) == owner)
    slot = jnp.full(t + 1, u, jnp.int32).at[slot_tensor].set(jnp.arange(u, dtype=jnp.int32))
    ends_tensor = ~has_tensor | (row >= take(tensor_row + tensor_rows, tensor) - 1)
    first_wait = jnp.append(op_row + op_rows - wait_rows, r)
    read_place = _places(jnp.append(tensor_row, r), uses[0], readers)
    wait_place = _places(first_wait, controls[0], successors)
    entry = jnp.full(r * ROW_WIDTH, u, jnp.int32)
    kind = jnp.zeros(r * ROW_WIDTH, jnp.int8)
    for place, target, what in ((read_place, uses[1], READS), (wait_place, controls[1], WAITS)):
        entry = entry.at[place].set(target, mode="drop")
        kind = kind.at[place].set(jnp.int8(what), mode="drop")
    return {
        "row_entry": entry.reshape(r, ROW_WIDTH),
        "row_kind": kind.reshape(r, ROW_WIDTH),
        "row_owner": owner,
        "row_tensor": jnp.where(has_tensor, tensor, t),
        "row_slot": jnp.where(has_tensor, take(slot, tensor), jnp.where(used, owner, u)),
        "row_ends_op": ~used | (row == take(op_row + op_rows, owner) - 1),
        "row_ends_tensor": ends_tensor,
        "op_row": op_row,
        "op_rows": op_rows,
        "tensor_row": tensor_row,
        "tensor_rows": tensor_rows,
    }


def _before(counts: jax.Array) -> jax.Array:
    """Returns the exclusive cumulative sum of the counts."""
    return jnp.cumsum(counts, dtype=jnp.int32) - counts


def _last_started(first_row: jax.Array, rows: int) -> jax.Array:
    """Returns the last item that starts at or before each row, else -1: `[rows]` int32. `first_row` is ascending."""
    begins = jnp.zeros(rows + 1, jnp.int32).at[first_row].add(1)[:rows]
    return jnp.cumsum(begins, dtype=jnp.int32) - 1


def _places(first_row: jax.Array, source: jax.Array, counts: jax.Array) -> jax.Array:
    """Returns the position of each edge among the entries of its source's rows, which start at `first_row`.

    Padding gets a position beyond all rows.
    """
    before = jnp.append(_before(counts), 0)
    return take(first_row, source) * ROW_WIDTH + jnp.arange(source.shape[0], dtype=jnp.int32) - take(before, source)
