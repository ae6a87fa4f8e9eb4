"""Random two-terminal series-parallel graphs with their least peak memory on one device.

Every edge is a tensor of its own, as in Kayaaslan, Lambert, Marchal and Ucar (TCS 707, 2018), whose algorithm this is
in the form of hill_valley.py: what runs before the minimum cut of a parallel composition frees more than it writes,
what runs after it does not, and each side is merged by Liu's rule.
"""

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import hill_valley
from graphrl.graphs.datasets.known_peak import LOG_UNIFORM, Bytes, Edges, KnownPeak, Weights, known_peak
from graphrl.graphs.datasets.seeds import check_count, generator

_MOST_BRANCHES = 4

Series = tuple["Part", int, "Part"]  # what runs before an op, the op, what runs after it
Part = None | Series | list["Part"]  # the ops between two terminals: none, in series, or branches in parallel


def series_parallel(num_ops: int, seed: int, branching: float = 0.5, sizes: Bytes = LOG_UNIFORM) -> KnownPeak:
    """A random series-parallel graph from one source to one sink.

    The ops between two terminals are, while there are two or more, with probability `branching` shared among 2 to 4
    parallel branches, and else in series: one op, drawn uniformly from the places that it can have, parts them.
    A part without ops is an edge.

    Args:
      num_ops: source and sink included, at least 2.
      seed: at least 0; graphs of different sizes and seeds are independent.
      branching: see above.
      sizes: of tensors and workspaces.

    Raises:
      ProblemError: too few ops, no probability, or a bad seed.
    """
    check_count("num_ops", num_ops, 2)
    if not 0 <= branching <= 1:
        raise ProblemError(f"branching is {branching}: must be a probability")
    rng = generator("series-parallel", seed, num_ops)
    inner = _draw(range(1, num_ops - 1), branching, rng)
    edges: Edges = []
    _add_edges(inner, 0, num_ops - 1, edges)
    weights = Weights.draw(num_ops, len(edges), sizes, rng)
    own = weights.segments(num_ops, edges)
    segments = hill_valley.series([own[0]], _solve(inner, own), [own[-1]])
    return known_peak(f"series-parallel-{num_ops}-{seed}", num_ops, edges, weights, segments)


def _draw(ops: range, branching: float, rng: np.random.Generator, in_branch: bool = False) -> Part:
    """A random part that holds `ops`, numbered in a topological order. A branch is not at once branched again."""
    if not ops:
        return None
    if len(ops) > 1 and not in_branch and rng.random() < branching:
        branches = int(rng.integers(2, min(_MOST_BRANCHES, len(ops)) + 1))
        cuts = np.sort(rng.choice(np.arange(1, len(ops)), branches - 1, replace=False)).tolist()
        return [_draw(ops[a:b], branching, rng, True) for a, b in zip([0, *cuts], [*cuts, len(ops)], strict=True)]
    middle = int(rng.integers(len(ops)))
    return _draw(ops[:middle], branching, rng), ops[middle], _draw(ops[middle + 1 :], branching, rng)


def _add_edges(part: Part, source: int, target: int, edges: Edges) -> None:
    if part is None:
        edges.append((source, target))
    elif isinstance(part, list):
        for branch in part:
            _add_edges(branch, source, target, edges)
    else:
        before, op, after = part
        _add_edges(before, source, op, edges)
        _add_edges(after, op, target, edges)


def _solve(part: Part, own: list[hill_valley.Segment]) -> list[hill_valley.Segment]:
    """The segments of a part, given those of the single ops."""
    if part is None:
        return []
    if isinstance(part, list):
        return hill_valley.parallel(_solve(branch, own) for branch in part)
    before, op, after = part
    return hill_valley.series(_solve(before, own), [own[op]], _solve(after, own))
