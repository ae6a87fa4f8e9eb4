"""Lower bounds of the objectives, valid for every placement and order.

Makespan, for d devices and all transfer models (transfers only add waiting):

- the longest path of run times through data and control edges;
- for a set J of ops, head + work(J) / d + tail (Carlier 1987): head is the least time before any op of J can start,
  tail the least time from the end of any op of J to the end of the last op. The sets are {head >= h and tail >= q} for
  all q and up to 256 values h; with h = q = 0 the bound is work / d;
- if all run times and transfer times are whole seconds, so is every makespan, and the bound is rounded up.

Peak memory: on one device op v needs at least need(v), the memory of a minimum cut (bounds/cuts.py). need(v) is at
least total(v), which needs no cut: a buffer is live at v in every order if its producer is an ancestor of v, and it is
kept or one of its users is v or a descendant of v. v's outputs and its workspace are also live. Shared buffers are
counted once, with the least size they can have (`Needs`).

- On one device the peak is at least need(v), plus all weights if they are resident. Cuts are made for the ops that need
  most in some order: the caller's, ideally a good plan's. They stop when that order shows that the rest need less, or
  at the limit of cuts.
- On d devices it is at least a d-th of that, rounded up. All devices share one order, and at v's place in it every such
  buffer is live somewhere: if its next user u (at v's place or later) is on the producer's device, there; if u is
  elsewhere, in the copy that u will read if that transfer has run, else on the producer's device, where the transfer is
  still to be counted as a use. Releases come after the comparison, and the bytes that are live on a device between two
  of its entries were also live when one of them was compared. So the devices' peaks sum to need(v) or more.
- On d devices an op's inputs, outputs, workspace and own weights must still be live together on its device.
- When everything has run, all kept tensors are live.

Largest load (`load_bound`): each group of colocated ops counts as one op, and transfers are free.

- Every group takes at least its run time on the faster kind of device.
- The loads of a accelerators and c CPUs add up to the run times. Let a part of every group run on each kind: the least
  possible load is then that of a fractional knapsack, in which the groups that a CPU slows down least go to the CPUs.
"""

import math

import numpy as np

from graphrl.costs.bounds.cuts import Cuts, Needs, probed_bound, work
from graphrl.costs.problem import Pipeline, Problem
from graphrl.graphs.graph import ComputationGraph

ROUNDING = 1e-12  # relative error of sums in another order


def load_bound(graph: ComputationGraph, problem: Problem) -> float:
    """Returns a lower bound of the largest load, in seconds, without memory limits; inf if a group can run nowhere."""
    pipeline = Pipeline.of(graph, problem)
    groups = int(pipeline.colocation.max()) + 1
    accelerator, cpu = (np.bincount(pipeline.colocation, kind, minlength=groups) for kind in pipeline.runtime.T)
    if not problem.accelerators:
        accelerator[:] = np.inf
    if not problem.cpus:
        cpu[:] = np.inf
    largest = float(np.minimum(accelerator, cpu).max())
    return max(largest, _shared(accelerator, cpu, problem)) * (1 - ROUNDING) if np.isfinite(largest) else largest


def _shared(accelerator: np.ndarray, cpu: np.ndarray, problem: Problem) -> float:
    """Returns the least possible largest load, in seconds, if groups could be divided among devices."""
    if not problem.cpus or not problem.accelerators:
        return float(np.minimum(accelerator, cpu).sum()) / problem.devices
    only_fast, only_slow = np.isinf(cpu), np.isinf(accelerator)
    either = ~only_fast & ~only_slow
    fast, slow = accelerator[either], cpu[either]
    order = np.argsort(slow / np.maximum(fast, 1e-300), kind="stable")
    # After the first k of them have gone to the CPUs: loads of both kinds; the lines cross within one group.
    fast_load = float(accelerator[only_fast].sum()) + np.append(0.0, np.cumsum(fast[order][::-1]))[::-1]
    slow_load = float(cpu[only_slow].sum()) + np.append(0.0, np.cumsum(slow[order]))
    fast_load, slow_load = fast_load / problem.accelerators, slow_load / problem.cpus
    k = int(np.argmax(slow_load >= fast_load)) if (slow_load >= fast_load).any() else len(fast_load) - 1
    if k == 0 or slow_load[k] < fast_load[k]:
        return float(max(fast_load[k], slow_load[k]))
    rise, fall = slow_load[k] - slow_load[k - 1], fast_load[k - 1] - fast_load[k]
    part = (fast_load[k - 1] - slow_load[k - 1]) / (rise + fall) if rise + fall > 0 else 0.0
    return float(slow_load[k - 1] + part * rise)


HEADS = 256  # maximum number of values h in the makespan bound
PAIRS = 20_000**2  # (op, op) pairs of the memory bound: above 20,000 ops, only a sample of them is tried as v
CUTS, CUTS_UNGUIDED = 256, 16  # maximum number of minimum cuts, with a plan's order and without
CUT_WORK = 2_000_000  # limit of the estimated time of all cuts, microseconds: no cuts if a single one takes more
IDLE_WORK = 700_000  # microseconds of successive cuts without an improvement, after which the rest is skipped


def lower_bound(graph: ComputationGraph, problem: Problem, order: np.ndarray | None = None) -> float:
    """Returns a lower bound of the objective of all plans: bytes of the largest peak, or seconds of makespan or load.

    A memory limit is not considered: the bound holds for infeasible plans too.

    Args:
      graph, problem: the planning problem.
      order: `[m]` node ids of a plan (transfers are ignored). The better this order, the tighter the bound of peak
        memory. By default the graph's own order, with fewer cuts.
    """
    if problem.objective == "max_load":
        return load_bound(graph, problem)
    if problem.objective == "makespan":
        bound = _makespan_bound(graph, problem.devices)
        return float(math.ceil(bound)) if _is_whole(graph, problem) else bound
    if order is None:
        bound = _memory_bound(graph, problem, graph.arrays.topological, guided=False)
    else:
        bound = _memory_bound(graph, problem, order[order < graph.arrays.num_ops], guided=True)
    return float(bound) if float(bound) <= bound else float(np.nextafter(float(bound), 0))  # never rounded up


def _makespan_bound(graph: ComputationGraph, devices: int) -> float:
    runtime, heads, tails = graph.arrays.runtime, graph.arrays.head, graph.arrays.tail
    path = float((heads + runtime).max())
    by_tail = np.argsort(-tails, kind="stable")
    thresholds = np.unique(heads)
    thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, HEADS).astype(int))]
    best = 0.0
    for head in thresholds:
        work = np.cumsum(np.where(heads[by_tail] >= head, runtime[by_tail], 0.0))
        best = max(best, float(np.where(work > 0, devices * (head + tails[by_tail]) + work, 0.0).max()) / devices)
    # Sums of arbitrary floats depend on their order, so a plan's sum may be smaller by rounding. Sums of dyadic numbers
    # do not; nor does the path, which is summed in the same order as a plan's clock.
    dyadic = bool((runtime * 2**20 % 1 == 0).all()) and runtime.sum() < 2**26
    return max(path, best if dyadic else best * (1 - (len(runtime) + 4) * 2**-50))


def _is_whole(graph: ComputationGraph, problem: Problem) -> bool:
    """True if every plan's makespan is a whole number of seconds.

    Run times and transfer times are then whole numbers, small enough that their sums are exact.
    """
    a, copies = graph.arrays, problem.devices - 1
    transfers = [problem.transfer_seconds(num_bytes) for num_bytes in a.tensor_bytes.tolist()] if copies else []
    seconds = np.concatenate([a.runtime, transfers])
    return bool((seconds % 1 == 0).all() and a.runtime.sum() + copies * sum(transfers) < 2**53)


def _memory_bound(graph: ComputationGraph, problem: Problem, order: np.ndarray, *, guided: bool) -> int:
    a, devices = graph.arrays, problem.devices
    needs = Needs(graph, devices)
    weights = a.weight_bytes if problem.resident_weights else np.zeros(a.num_ops, np.int64)
    single = needs.own + weights
    np.add.at(single, needs.users[:, 1], needs.least[needs.users[:, 0]])
    ops = _sample(graph, single)
    total = needs.own[ops] + _live_bytes(graph, needs, ops)
    shared = max(int(total.max()), int(needs.least[needs.pinned].sum()))
    shared = _cut_bound(graph, needs, order, shared, guided=guided) + int(weights.sum())
    return max(int(single.max()), -(-shared // devices))


def _cut_bound(graph: ComputationGraph, needs: Needs, order: np.ndarray, bound: int, *, guided: bool) -> int:
    """Returns the largest need of an op, at least `bound`, by cuts for the ops that need most in an order.

    If the order is a plan's (`guided`), the result is then raised by probing.
    """
    usage = _cuts_at_most(graph, needs, order)
    candidates = np.argsort(-usage, kind="stable")
    cost = work(graph, needs)
    max_cuts = min(CUTS if guided else CUTS_UNGUIDED, CUT_WORK // max(1, cost))
    if max_cuts == 0 or usage[candidates[0]] <= bound:
        return bound
    cuts, need, idle = Cuts(graph, needs), {}, 0
    for op in candidates[:max_cuts].tolist():
        if usage[op] <= bound or idle > IDLE_WORK:
            break
        need[op] = cuts.least(op).need
        idle = 0 if need[op] > bound else idle + cost
        bound = max(bound, need[op])
    if guided and usage.max() > bound:
        by_need = sorted(need, key=lambda op: -need[op])
        bound = probed_bound(graph, cuts, cost, by_need, bound, int(usage.max()))
    return bound


def _cuts_at_most(graph: ComputationGraph, needs: Needs, order: np.ndarray) -> np.ndarray:
    """Returns the live bytes `[n]` at each op of an order, by least sizes: an upper bound of each op's minimum cut."""
    n = graph.arrays.num_ops
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    buffers = np.flatnonzero(needs.least > 0)
    first = place[graph.arrays.producer]
    last = first.copy()
    np.maximum.at(last, needs.users[:, 0], place[needs.users[:, 1]])
    last[needs.pinned] = n
    change = np.zeros(n + 2, np.int64)
    np.add.at(change, first[buffers] + 1, needs.least[buffers])  # an op's own outputs are in `own`
    np.add.at(change, last[buffers] + 1, -needs.least[buffers])
    return np.cumsum(change)[place] + needs.own


def _sample(graph: ComputationGraph, single: np.ndarray) -> np.ndarray:
    """Returns the ops at which to count live bytes: all, or in a large graph those that need most and a sample."""
    n = graph.arrays.num_ops
    count = max(2, PAIRS // n)
    if count >= n:
        return np.arange(n)
    top = np.argsort(-single, kind="stable")[: count // 2]
    spread = graph.arrays.topological[np.linspace(0, n - 1, count // 2).astype(int)]
    return np.unique(np.concatenate([top, spread]))


def _live_bytes(graph: ComputationGraph, needs: Needs, ops: np.ndarray) -> np.ndarray:
    """Returns the bytes of the ancestors' buffers that are live at each of `ops` in any order: `[len(ops)] int64`."""
    least, users = needs.least, needs.users
    producer = graph.arrays.producer
    after, until = _reachability(graph, ops)
    live_bytes = np.zeros(len(ops), np.int64)
    block = max(1, 2**22 // len(ops))

    kept = np.flatnonzero(needs.pinned & (least > 0))  # live at every op after their producer
    for part in np.split(kept, range(block, len(kept), block)):
        live_bytes += _weighted_sum(least[part], after[producer[part]], len(ops))

    users = users[(least[users[:, 0]] > 0) & ~needs.pinned[users[:, 0]]]
    used, first = np.unique(users[:, 0], return_index=True)
    ends = np.append(first, len(users))
    for begin in range(0, len(used), block):
        part = used[begin : begin + block]
        rows = users[ends[begin] : ends[begin + len(part)], 1]
        until_last_use = np.bitwise_or.reduceat(until[rows], first[begin : begin + block] - ends[begin], axis=0)
        live_bytes += _weighted_sum(least[part], after[producer[part]] & until_last_use, len(ops))
    return live_bytes


def _weighted_sum(weights: np.ndarray, bits: np.ndarray, count: int) -> np.ndarray:
    """Sums the weights `[b]` of the rows of `bits` `[b, count / 8]` in which each bit is set: `[count] int64`."""
    return weights @ np.unpackbits(bits, axis=1, count=count)


def _reachability(graph: ComputationGraph, ops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes which of `ops` each op reaches, and which reach it, as packed bits: two `[n, len(ops) / 8]`.

    The first marks those of `ops` that are descendants of the op, the second those that are the op itself or its
    ancestors.
    """
    a = graph.arrays
    itself = np.zeros((a.num_ops, -(-len(ops) // 8)), np.uint8)
    place = np.arange(len(ops))
    itself[ops, place // 8] = 128 >> place % 8  # the order of np.unpackbits
    after = itself.copy()
    for op in reversed(a.topological.tolist()):
        if a.successors[op]:
            after[op] |= np.bitwise_or.reduce(after[a.successors[op]], axis=0)
    until = itself.copy()
    for op in a.topological.tolist():
        if a.predecessors[op]:
            until[op] |= np.bitwise_or.reduce(until[a.predecessors[op]], axis=0)
    return after & ~itself, until
