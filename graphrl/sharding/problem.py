"""ShardingProblem: nodes with strategies, their costs and bytes, costs of edges, and a memory limit. All are integers.

Strategy s of node v costs `c_v(s)` and takes `u_v(s)` bytes during the node's half-open interval of time; an edge
(v, w) costs `e(s_v, s_w)`. A plan chooses a strategy for every node. It is feasible if at no time the bytes exceed the
limit, and if it has no prohibitive cost.

Files are those of the contest: `{"problem": {"name", "nodes": {"intervals", "costs", "usages"}, "edges": {"nodes",
"costs"}, "usage_limit"}}`, plain or gzipped. The costs of an edge are listed row by row: the last node's strategy
varies fastest.
"""

import dataclasses
import functools
import os
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from graphrl.compiled import late_entry
from graphrl.errors import ProblemError
from graphrl.files import content, quote_path

PROHIBITIVE = 10**18  # costs from here on are choices that are not there
UNLIMITED = 2**62  # bytes: the limit of a problem without one
_FAULTS = ("truncated", "an integer of at least 0 is expected", "above 2^63 - 1", "'[', ',' or ']' is expected")


@dataclasses.dataclass(frozen=True, eq=False)
class ShardingProblem:
    """A sharding problem of n nodes with S strategies in all, and m edges with C costs in all.

    Attributes:
      name: name of the problem.
      offset: `[n + 1] int64`, node v's strategies are at `offset[v]` to `offset[v + 1]` of the next two.
      cost: `[S] int64`, at least 0.
      usage: `[S] int64` bytes, at least 0.
      interval: `[n, 2] int64`, half-open times of the usage; empty if the end is not after the start.
      edges: `[m, 2] int64`, nodes of each edge.
      edge_offset: `[m + 1] int64`, edge e's matrix is at `edge_offset[e]` to `edge_offset[e + 1]` of the next.
      edge_cost: `[C] int64`, at least 0, each matrix row by row.
      limit: bytes.
    """

    name: str
    offset: np.ndarray
    cost: np.ndarray
    usage: np.ndarray
    interval: np.ndarray
    edges: np.ndarray
    edge_offset: np.ndarray
    edge_cost: np.ndarray
    limit: int

    @property
    def sizes(self) -> np.ndarray:
        """Number of strategies of each node, `[n] int64`."""
        return np.diff(self.offset)

    @functools.cached_property
    def times(self) -> np.ndarray:
        """Distinct times at which an interval starts or ends, `[k] int64`, ascending."""
        return np.unique(self.interval[self.lives])

    @functools.cached_property
    def lives(self) -> np.ndarray:
        """True for nodes whose interval is not empty, `[n] bool`."""
        return self.interval[:, 0] < self.interval[:, 1]

    @functools.cached_property
    def span(self) -> np.ndarray:
        """Half-open range of indices of `times` in which each node lives, `[n, 2] int64`; 0 to 0 for the others."""
        return np.where(self.lives[:, None], np.searchsorted(self.times, self.interval), 0)

    def check(self, strategies: ArrayLike) -> np.ndarray:
        """Returns a plan as `[n] int64` strategies.

        Raises:
          ProblemError: it has another length, or a node does not have its strategy.
        """
        plan = np.asarray(strategies)
        n = len(self.offset) - 1
        if plan.shape != (n,) or (n and plan.dtype.kind not in "iu"):
            raise ProblemError(f"a plan of {self.name!r} is a list of {n:,} integers, a strategy for each node")
        plan = plan.astype(np.int64)
        wrong = np.flatnonzero((plan < 0) | (plan >= self.sizes))
        if len(wrong):
            v = wrong[0]
            raise ProblemError(f"node {v} has strategies 0 to {self.sizes[v] - 1}: there is no strategy {plan[v]}")
        return plan

    def costs(self, strategies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the costs of the nodes, `[n] int64`, and of the edges, `[m] int64`, under `[n]` strategies."""
        first, last = self.edges.T
        entry = self.edge_offset[:-1] + strategies[first] * self.sizes[last] + strategies[last]
        return self.cost[self.offset[:-1] + strategies], self.edge_cost[entry]

    def total_cost(self, strategies: np.ndarray) -> int:
        """Returns the exact cost of `[n]` strategies, also above 2^63."""
        costs = np.concatenate(self.costs(strategies))
        return (int((costs >> 32).sum()) << 32) + int((costs & (2**32 - 1)).sum())

    def memory(self, strategies: np.ndarray) -> np.ndarray:
        """Returns the bytes from each of `times` to the next under `[n]` strategies, `[k] int64`; the last is 0."""
        return self.profile(self.usage[self.offset[:-1] + strategies])

    def profile(self, usage: np.ndarray) -> np.ndarray:
        """Returns the bytes from each of `times` to the next if node v takes `usage[v]` bytes, `[k] int64`."""
        change = np.zeros(len(self.times), np.int64)
        start, end = self.span[self.lives].T
        np.add.at(change, start, usage[self.lives])
        np.subtract.at(change, end, usage[self.lives])
        return np.cumsum(change)

    def peak(self, strategies: np.ndarray) -> int:
        """Returns the most bytes at any time under `[n]` strategies."""
        return int(self.memory(strategies).max(initial=0))


class _Nodes(msgspec.Struct):
    intervals: msgspec.Raw
    costs: msgspec.Raw
    usages: msgspec.Raw


class _Edges(msgspec.Struct):
    nodes: msgspec.Raw
    costs: msgspec.Raw


class _Problem(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    name: str = ""
    usage_limit: int | None = None


class _File(msgspec.Struct):
    problem: _Problem


def offsets(sizes: np.ndarray) -> np.ndarray:
    """Returns `[k + 1]` offsets of `[k]` sizes."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def owners(offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row of each element of a list of rows, and its place in the row; `[k + 1]` offsets of the rows."""
    sizes = np.diff(offset)
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(offset[-1]) - offset[row]


def read_problem(path: str | os.PathLike[str]) -> ShardingProblem:
    """Reads a problem of the contest's format, plain or gzipped.

    Raises:
      GraphrlError: the file cannot be read; one line.
      ProblemError: it is no such problem; one line that names the file and the first fault.
    """
    with content(path) as data:
        try:
            file = msgspec.json.decode(bytes(data), type=_File).problem
            problem = _problem(file, Path(path).name.partition(".")[0])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProblemError(f"{quote_path(path)} is no sharding problem: {error}") from None
        except ProblemError as error:
            raise ProblemError(f"{quote_path(path)}: {error}") from None
    return problem


def _problem(file: _Problem, name: str) -> ShardingProblem:
    interval = _pairs(file.nodes.intervals, "nodes.intervals")
    cost, sizes = _lists(file.nodes.costs, "nodes.costs")
    usage, usage_sizes = _lists(file.nodes.usages, "nodes.usages")
    edges = _pairs(file.edges.nodes, "edges.nodes")
    edge_cost, edge_sizes = _lists(file.edges.costs, "edges.costs")
    if file.usage_limit is not None and not 0 <= file.usage_limit < UNLIMITED:
        raise ProblemError(f"usage_limit is {file.usage_limit}: must be an integer from 0 to 2^62")
    limit = UNLIMITED if file.usage_limit is None else file.usage_limit
    n = len(sizes)
    for what, count in (("nodes.usages", len(usage_sizes)), ("nodes.intervals", len(interval))):
        if count != n:
            raise ProblemError(f"{what} has {count:,} items: must have one for each of {n:,} nodes in nodes.costs")
    _refuse(sizes == 0, "nodes.costs[{0}] is empty: a node has at least one strategy")
    _refuse(usage_sizes != sizes, "nodes.usages[{0}] has not as many items as nodes.costs[{0}]")
    if len(edges) != len(edge_sizes):
        raise ProblemError(f"edges.costs has {len(edge_sizes):,} items: must have one for each of {len(edges):,} edges")
    _refuse(edges.max(1, initial=0) >= n, f"edges.nodes[{{0}}] has a node that is not there: nodes are 0 to {n - 1}")
    _refuse(sizes[edges].prod(1) != edge_sizes, "edges.costs[{0}] must have a cost for each pair of strategies")
    offset = offsets(sizes)
    if n and float(np.maximum.reduceat(usage, offset[:-1]).astype(float).sum()) >= UNLIMITED:
        raise ProblemError("nodes.usages add up to more than 2^62 bytes")
    return ShardingProblem(
        file.name or name, offset, cost, usage, interval, edges, offsets(edge_sizes), edge_cost, limit
    )


def _refuse(wrong: np.ndarray, message: str) -> None:
    where = np.flatnonzero(wrong)
    if len(where):
        raise ProblemError(message.format(where[0]))


def _pairs(raw: msgspec.Raw, what: str) -> np.ndarray:
    """Reads a JSON list of pairs, as `[k, 2] int64`."""
    values, sizes = _lists(raw, what)
    _refuse(sizes != 2, f"{what}[{{0}}] must be a pair of integers")
    return values.reshape(-1, 2)


def _lists(raw: msgspec.Raw, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a JSON list of lists of integers: all integers, `[k] int64`, and the sizes of the lists, `int64`."""
    text = np.frombuffer(memoryview(raw), np.uint8)
    values, sizes = np.empty(len(text) // 2 + 1, np.int64), np.empty(len(text) // 2 + 1, np.int64)
    result = np.zeros(3, np.int64)
    _parse(text, values, sizes, result)
    fault, count, lists = result.tolist()
    if fault:
        raise ProblemError(f"{what}[{lists}] is no list of integers: {_FAULTS[fault - 1]}")
    return values[:count].copy(), sizes[:lists].copy()


@late_entry
def _parse(text: np.ndarray, values: np.ndarray, sizes: np.ndarray, result: np.ndarray) -> None:
    """Parses `[[1, 2], [], ...]`; `result` gets the fault (0 for none), the number of values, and that of lists."""
    count = lists = depth = size = 0
    fault, i, expects_value = 1, 0, True  # the end of the text is a fault unless the list is closed
    while i < len(text):
        c = text[i]
        if c == 32 or c == 9 or c == 10 or c == 13:
            i += 1
        elif c == 91:  # [
            if depth == 2 or (depth == 1 and not expects_value):
                fault = 4 if depth == 1 else 2
                break
            depth, size, expects_value, i = depth + 1, 0, True, i + 1
        elif c == 93:  # ]
            if depth == 2:
                sizes[lists] = size
                lists += 1
            depth, expects_value, i = depth - 1, False, i + 1
            if depth == 0:
                fault = 0
                break
        elif c == 44:  # ,
            expects_value, i = True, i + 1
        elif depth == 2 and 48 <= c <= 57:
            value = np.int64(0)
            while i < len(text) and 48 <= text[i] <= 57:
                digit = np.int64(text[i]) - 48
                if value > (9223372036854775807 - digit) // 10:
                    fault = 3
                    break
                value, i = value * 10 + digit, i + 1
            if fault == 3:
                break
            values[count] = value
            count, size, expects_value = count + 1, size + 1, False
            if i < len(text) and (text[i] == 46 or text[i] == 101 or text[i] == 69):  # a fraction or an exponent
                fault = 2
                break
        else:
            fault = 2
            break
    result[0], result[1], result[2] = fault, count, lists
