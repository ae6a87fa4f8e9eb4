"""Sharding problems by name: files, random models of layers, and connected parts of files.

- `problem.json.gz`: a file, see `problem.read_problem`.
- `sharding-layers:200x64@7`: 64 random models of 200 nodes with seeds 7 to 70, see `layers`; without `x64` it is one,
  without `@7` seeds start at 0.
- `problem.json.gz:200x64@7`: 64 connected parts of 200 nodes of a file, see `part`.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Sequence

import numpy as np

from graphrl.errors import ProblemError
from graphrl.files import quote_path
from graphrl.sharding.layers import FAMILY, layers, least_bytes
from graphrl.sharding.problem import UNLIMITED, ShardingProblem, offsets, owners, read_problem
from graphrl.sharding.reduce import incidence

MAX_PROBLEMS, MAX_NODES = 100_000, 1_000_000  # of a set, and of each of its problems: more is a typing error

_SET = re.compile(r"(.+?):(\d+)(?:x(\d+))?(?:@(\d+))?")


def load_problem(name: str | os.PathLike[str]) -> ShardingProblem:
    """Loads one problem: a file, or a set that has one problem.

    Raises:
      GraphrlError: the file cannot be read.
      ProblemError: it is no sharding problem, or the name is wrong or one of several problems.
    """
    problems = load_problems([os.fspath(name)])
    if len(problems) > 1:
        raise ProblemError(f"{quote_path(name)} names {len(problems):,} problems, where one is needed")
    return problems[0]


def load_problems(names: Sequence[str]) -> list[ShardingProblem]:
    """Loads the problems of files and sets, see the module's docstring.

    Raises:
      GraphrlError: a file cannot be read.
      ProblemError: a file is no sharding problem, or a name is wrong.
    """
    return [problem for name in names for problem in _named(name)]


def _named(name: str) -> list[ShardingProblem]:
    parsed = parse_set(name)
    if parsed is None:
        return [read_problem(name)]
    source, nodes, count, first = parsed
    seeds = range(first, first + count)
    if source == FAMILY:
        return [layers(nodes, seed) for seed in seeds]
    whole = _whole(source, os.stat(source).st_mtime_ns if os.path.exists(source) else 0)
    return [part(whole, nodes, seed) for seed in seeds]


def parse_set(name: str) -> tuple[str, int, int, int] | None:
    """Parses the name of a set: the family or file, the number of nodes, that of problems, and the first seed; None for
    the name of a file.

    Raises:
      ProblemError: the name is wrong, or a number is too large.
    """
    match = None if os.path.exists(name) else _SET.fullmatch(name)
    if match is None:
        if name.partition(":")[0] == FAMILY:
            raise ProblemError(f"{quote_path(name)} is no set of problems: an example is {FAMILY}:200x64@7")
        return None
    source, nodes, count, first = match[1], int(match[2]), int(match[3] or 1), int(match[4] or 0)
    for what, number, most in (("problems", count, MAX_PROBLEMS), ("nodes", nodes, MAX_NODES)):
        if not 1 <= number <= most:
            raise ProblemError(f"{quote_path(name)} has {number} {what}: must be from 1 to {most:,}")
    return source, nodes, count, first


@functools.lru_cache(maxsize=4)
def _whole(source: str, stamp: int) -> ShardingProblem:
    """Reads a file of which parts are cut; `stamp` is the time of its last change."""
    del stamp
    return read_problem(source)


def part(problem: ShardingProblem, nodes: int, seed: int) -> ShardingProblem:
    """Cuts a connected part out of a problem: nodes in breadth-first order from a random one, neighbours at random.

    Edges to other nodes are left out. The limit is scaled by the peaks of whole and part if all nodes take their least
    bytes. A component with fewer nodes is followed by one from another random node.

    Raises:
      ProblemError: the problem has fewer nodes.
    """
    n, rng = len(problem.offset) - 1, np.random.default_rng([seed, nodes])
    if nodes > n:
        raise ProblemError(f"{problem.name!r} has {n:,} nodes: no part of it has {nodes:,}")
    chosen = np.sort(_breadth_first(problem.edges, n, nodes, rng))
    place = np.full(n, -1)
    place[chosen] = np.arange(nodes)
    kept = np.flatnonzero((place[problem.edges] >= 0).all(1))
    strategies, pairs = (
        _ranges(offset, rows) for offset, rows in ((problem.offset, chosen), (problem.edge_offset, kept))
    )
    cut = ShardingProblem(
        f"{problem.name}:{nodes}@{seed}",
        offsets(problem.sizes[chosen]),
        problem.cost[strategies],
        problem.usage[strategies],
        problem.interval[chosen],
        place[problem.edges[kept]],
        offsets(np.diff(problem.edge_offset)[kept]),
        problem.edge_cost[pairs],
        problem.limit,
    )
    least, whole = (one.peak(least_bytes(one)) for one in (cut, problem))
    if problem.limit >= UNLIMITED or whole == 0:
        return cut
    return dataclasses.replace(cut, limit=-(-problem.limit * least // whole))


def _breadth_first(edges: np.ndarray, n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    first, incident = incidence(n, edges)
    is_seen = np.zeros(n, bool)
    order: list[int] = []
    waiting = iter(rng.permutation(n))
    for place in itertools.count():
        if place == len(order):
            start = next(node for node in waiting if not is_seen[node])
            is_seen[start] = True
            order.append(int(start))
        if len(order) >= count:
            return np.array(order[:count])
        near = np.unique(edges[incident[first[order[place]] : first[order[place] + 1]]])
        near = rng.permutation(near[~is_seen[near]])
        is_seen[near] = True
        order += near.tolist()
    raise AssertionError("unreachable")


def _ranges(offset: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the indices of all elements of some rows, row by row."""
    row, place = owners(offsets(np.diff(offset)[rows]))
    return offset[rows[row]] + place
