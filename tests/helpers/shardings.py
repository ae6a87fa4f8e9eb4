"""Small sharding problems, and their optimum by trying everything."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem

# Node 0 costs 5 or 1, node 1 costs 2 or 0; the edge wants equal strategies. Both cheap ones take 6 bytes at once.
TINY: dict[str, Any] = {
    "problem": {
        "name": "tiny",
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[5, 1], [2, 0]], "usages": [[1, 3], [1, 3]]},
        "edges": {"nodes": [[0, 1]], "costs": [[0, 4, 3, 0]]},
        "usage_limit": 5,
    }
}


def write(path: Path, document: Any) -> Path:
    """Writes a problem's JSON, gzipped if the name ends in .gz."""
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def random_problem(seed: int, *, nodes: int = 6, strategies: int = 3, prohibitive: float = 0.3) -> ShardingProblem:
    """A random problem: a tree and some more edges, a share of whose costs is prohibitive."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, strategies + 1, nodes)
    offset = np.append(0, np.cumsum(sizes))
    start = random.integers(0, 6, nodes)
    interval = np.stack([start, start + random.integers(0, 5, nodes)], 1)
    pairs = [(int(random.integers(v)), v) for v in range(1, nodes)]
    pairs += [tuple(random.permutation(nodes)[:2].tolist()) for _ in range(random.integers(0, 4))]
    edges = np.array([pair[:: random.choice([-1, 1])] for pair in pairs], np.int64)
    counts = sizes[edges].prod(1)
    edge_cost = random.integers(0, 30, counts.sum())
    edge_cost[random.random(len(edge_cost)) < prohibitive] = PROHIBITIVE
    usage = random.integers(0, 6, offset[-1])
    return ShardingProblem(
        f"random {seed}", offset, random.integers(0, 20, offset[-1]), usage, interval, edges,
        np.append(0, np.cumsum(counts)), edge_cost, int(random.integers(3, 14)),
    )  # fmt: skip


def brute_force(problem: ShardingProblem) -> int | None:
    """The least cost of a feasible plan; None if there is none."""
    best = None
    for plan in itertools.product(*map(range, problem.sizes.tolist())):
        strategies = np.array(plan, np.int64)
        cost = problem.total_cost(strategies)
        if cost < PROHIBITIVE and problem.peak(strategies) <= problem.limit and (best is None or cost < best):
            best = cost
    return best
