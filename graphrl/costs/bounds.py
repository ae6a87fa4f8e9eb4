"""Lower bounds of the objectives: no plan is below them, whatever its placement and order.

Makespan, for all transfer models (transfers only ever add waiting), d devices:
- the longest path of run times through data and control edges;
- for a set J of ops, head + work(J) / d + tail (Carlier 1987): head is the least time before any op of J can start,
  tail the least time from the end of any op of J to the end of the last op. The sets tried are
  {head >= h and tail >= q} for all q and up to 256 values h; with h = q = 0 it is work / d.

Peak memory: at the comparison of op v, whatever the order, a buffer is live on some device if its producer is an
ancestor of v and one of its users is v or a descendant of v, or if it is kept; so are v's outputs and its workspace.
Call the sum of all that total(v).
- On one device the peak is at least total(v), plus all weights if they are resident.
- On d devices it is at least a d-th of that, rounded up. All devices share one order, and at v's place in it every
  such buffer is live somewhere: if its next user u (at v's place or later) is on the producer's device, there; if u
  is elsewhere, in the copy that u will read if that transfer has run, else on the producer's device, where the
  transfer is still to be counted as a use. Releases come after the comparison, and what a device holds between two
  of its entries it also held when one of them was compared. So the devices' peaks sum to total(v) or more.
- On d devices one op's inputs, outputs, workspace and own weights must still be together on its device.
- When everything has run, all kept tensors are live.

Buffers that are shared are counted once, and with the least size they can have: an alias and its source are one buffer
(on several devices it may also be a copy, with the declared bytes of any of them); an output that may take over an
input's buffer is not counted beside it at its own op, and afterwards counts as the smaller of the two. Afterwards the
two cannot be the same memory while both are live, since a buffer changes hands only after its last use.
"""

import numpy as np

from graphrl.costs.exact_memory import Buffers
from graphrl.costs.exact_routes import Routes, grouped
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import EXTERNAL, NONE, ComputationGraph

HEADS = 256  # thresholds of the makespan bound
PAIRS = 20_000**2  # (op, op) pairs of the memory bound: above 20,000 ops, only a sample of them is tried as v


def lower_bound(graph: ComputationGraph, problem: Problem) -> float:
    """A value that no plan's objective is below: bytes of the largest device peak, or seconds of makespan.

    A memory limit is not considered: the bound holds for infeasible plans too.
    """
    if problem.objective == "makespan":
        return _makespan_bound(graph, problem.devices)
    bound = _memory_bound(graph, problem)
    return float(bound) if float(bound) <= bound else float(np.nextafter(float(bound), 0))  # never rounded up


def _makespan_bound(graph: ComputationGraph, devices: int) -> float:
    runtime = graph.arrays.runtime
    heads, tails = _heads_and_tails(graph)
    path = float((heads + runtime).max())
    by_tail = np.argsort(-tails, kind="stable")
    thresholds = np.unique(heads)
    thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, HEADS).astype(int))]
    best = 0.0
    for head in thresholds:
        work = np.cumsum(np.where(heads[by_tail] >= head, runtime[by_tail], 0.0))
        best = max(best, float(np.where(work > 0, devices * (head + tails[by_tail]) + work, 0.0).max()) / devices)
    # Sums of arbitrary floats depend on their order, so that a plan's may be smaller by rounding. Sums of dyadic
    # numbers do not; nor does the path, which is added up as a plan's clock is.
    dyadic = bool((runtime * 2**20 % 1 == 0).all()) and runtime.sum() < 2**26
    return max(path, best if dyadic else best * (1 - (len(runtime) + 4) * 2**-50))


def _heads_and_tails(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
    """Longest path of run times before the start and after the end of each op, seconds: two `[n] float64`."""
    a = graph.arrays
    source, target = a.dependencies()
    predecessors, successors = grouped(target, source, a.num_ops), grouped(source, target, a.num_ops)
    runtime = a.runtime.tolist()
    heads, tails = [0.0] * a.num_ops, [0.0] * a.num_ops
    for op in a.topological.tolist():
        heads[op] = max((heads[before] + runtime[before] for before in predecessors[op]), default=0.0)
    for op in reversed(a.topological.tolist()):
        tails[op] = max((tails[after] + runtime[after] for after in successors[op]), default=0.0)
    return np.array(heads), np.array(tails)


def _memory_bound(graph: ComputationGraph, problem: Problem) -> int:
    a = graph.arrays
    devices = problem.devices
    buffers = Buffers(graph, Problem(), Routes(graph, Problem(), np.zeros(a.num_ops, int)))
    least = _least_bytes(graph, buffers, devices)
    weights = a.weight_bytes if problem.resident_weights else np.zeros(a.num_ops, np.int64)
    own = a.workspace_bytes.copy()
    np.add.at(own, a.producer, np.where((a.alias == NONE) & (a.reuses < 0), a.tensor_bytes, 0))
    users = np.unique(np.stack([buffers.of[a.use_tensor], a.use_op.astype(np.int64)], 1), axis=0)  # [u, 2] buffer, op
    single = own + weights
    np.add.at(single, users[:, 1], least[users[:, 0]])
    ops = _sample(graph, single)
    total = own[ops] + _live_bytes(graph, buffers, least, users, ops)
    shared = max(int(total.max()), int(least[buffers.pinned].sum())) + int(weights.sum())
    return max(int(single.max()), -(-shared // devices))


def _least_bytes(graph: ComputationGraph, buffers: Buffers, devices: int) -> np.ndarray:
    """The least bytes that the buffer of each tensor can have, with all its aliases: `[t] int64`, 0 for aliases."""
    a = graph.arrays
    least = np.where(a.alias == EXTERNAL, 0, a.tensor_bytes)
    rank = np.empty(a.num_ops, np.int64)
    rank[a.topological] = np.arange(a.num_ops)
    sharing = np.flatnonzero((a.alias >= 0) | (a.reuses >= 0))
    for tensor in sharing[np.argsort(rank[a.producer[sharing]], kind="stable")].tolist():
        if a.alias[tensor] >= 0 and devices == 1:  # no copies
            least[tensor] = least[a.alias[tensor]]
        else:
            least[tensor] = min(least[tensor], least[max(a.alias[tensor], a.reuses[tensor])])
    smallest = least.copy()
    np.minimum.at(smallest, buffers.of, least)
    return np.where(buffers.of == np.arange(a.num_tensors), smallest, 0)


def _sample(graph: ComputationGraph, single: np.ndarray) -> np.ndarray:
    """The ops at which live bytes are counted: all, or of a large graph the neediest and some from everywhere."""
    n = graph.arrays.num_ops
    count = max(2, PAIRS // n)
    if count >= n:
        return np.arange(n)
    neediest = np.argsort(-single, kind="stable")[: count // 2]
    spread = graph.arrays.topological[np.linspace(0, n - 1, count // 2).astype(int)]
    return np.unique(np.concatenate([neediest, spread]))


def _live_bytes(
    graph: ComputationGraph, buffers: Buffers, least: np.ndarray, users: np.ndarray, ops: np.ndarray
) -> np.ndarray:
    """Bytes of the ancestors' buffers that are live at each of `ops` in any order: `[len(ops)] int64`."""
    producer = graph.arrays.producer
    after, upto = _reachability(graph, ops)
    live_bytes = np.zeros(len(ops), np.int64)
    block = max(1, 2**22 // len(ops))

    kept = np.flatnonzero(buffers.pinned & (least > 0))  # live at all that comes after their producer
    for some in np.split(kept, range(block, len(kept), block)):
        live_bytes += _weighted_sum(least[some], after[producer[some]], len(ops))

    users = users[(least[users[:, 0]] > 0) & ~buffers.pinned[users[:, 0]]]
    used, first = np.unique(users[:, 0], return_index=True)
    ends = np.append(first, len(users))
    for begin in range(0, len(used), block):
        some = used[begin : begin + block]
        rows = users[ends[begin] : ends[begin + len(some)], 1]
        until_last_use = np.bitwise_or.reduceat(upto[rows], first[begin : begin + block] - ends[begin], axis=0)
        live_bytes += _weighted_sum(least[some], after[producer[some]] & until_last_use, len(ops))
    return live_bytes


def _weighted_sum(weights: np.ndarray, bits: np.ndarray, count: int) -> np.ndarray:
    """Sum of the weights `[b]` of the rows of `bits` `[b, count / 8]` that have each bit: `[count] int64`."""
    return weights @ np.unpackbits(bits, axis=1, count=count)


def _reachability(graph: ComputationGraph, ops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of `ops` are descendants of each op, and which are the op itself or its ancestors: two `[n, len(ops) / 8]`
    packed bits.
    """
    a = graph.arrays
    source, target = a.dependencies()
    predecessors, successors = grouped(target, source, a.num_ops), grouped(source, target, a.num_ops)
    itself = np.zeros((a.num_ops, -(-len(ops) // 8)), np.uint8)
    place = np.arange(len(ops))
    itself[ops, place // 8] = 128 >> place % 8  # the order of np.unpackbits
    after = itself.copy()
    for op in reversed(a.topological.tolist()):
        if successors[op]:
            after[op] |= np.bitwise_or.reduce(after[successors[op]], axis=0)
    upto = itself.copy()
    for op in a.topological.tolist():
        if predecessors[op]:
            upto[op] |= np.bitwise_or.reduce(upto[predecessors[op]], axis=0)
    return after & ~itself, upto
