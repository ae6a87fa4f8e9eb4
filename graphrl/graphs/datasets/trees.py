"""Random trees with their least peak memory on one device, by Liu's algorithm (1987; see hill_valley.py).

An in-tree ends in its root: every other op writes one tensor, which its parent reads. An out-tree begins at its root
and writes one tensor for each child: it is an in-tree run backwards, and has the same optimum. An out-tree whose ops
write a single tensor for all children is another problem, which is not made here.
"""

import numpy as np

from graphrl.graphs.datasets import hill_valley
from graphrl.graphs.datasets.known_peak import LOG_UNIFORM, Bytes, KnownPeak, Weights, known_peak
from graphrl.graphs.datasets.seeds import check_count, generator


def in_tree(num_ops: int, seed: int, window: int | None = None, sizes: Bytes = LOG_UNIFORM) -> KnownPeak:
    """A random in-tree: the root runs last.

    Args:
      num_ops: at least 1.
      seed: at least 0; trees of different sizes and seeds are independent.
      window: each op's parent is drawn uniformly from this many ops that stand next to it on the root's side: 1 gives
        a chain, small numbers long thin trees; None draws from all of them (expected depth: log of the number).
      sizes: of tensors and workspaces.

    Raises:
      ProblemError: too few ops, a window below 1, or a bad seed.
    """
    parent, rng = _parents("in-tree", num_ops, seed, window)
    last = num_ops - 1  # op i of the recursive tree gets the number last - i, so that the root comes last
    edges = [(last - i, last - p) for i, p in enumerate(parent, start=1)]
    weights = Weights.draw(num_ops, len(edges), sizes, rng)
    own = weights.segments(num_ops, edges)
    parts: list[list[list[hill_valley.Segment]]] = [[] for _ in range(num_ops)]
    for child, target in reversed(edges):
        parts[target].append(hill_valley.series(hill_valley.parallel(parts[child]), [own[child]]))
        parts[child].clear()
    segments = hill_valley.series(hill_valley.parallel(parts[last]), [own[last]])
    return known_peak(f"in-tree-{num_ops}-{seed}", num_ops, edges, weights, segments)


def out_tree(num_ops: int, seed: int, window: int | None = None, sizes: Bytes = LOG_UNIFORM) -> KnownPeak:
    """A random out-tree: the root runs first. Arguments and errors as of `in_tree`."""
    parent, rng = _parents("out-tree", num_ops, seed, window)
    edges = list(zip(parent, range(1, num_ops), strict=True))
    weights = Weights.draw(num_ops, len(edges), sizes, rng)
    own = weights.segments(num_ops, edges)
    parts: list[list[list[hill_valley.Segment]]] = [[] for _ in range(num_ops)]
    for source, child in reversed(edges):
        parts[source].append(hill_valley.series([own[child]], hill_valley.parallel(parts[child])))
        parts[child].clear()
    segments = hill_valley.series([own[0]], hill_valley.parallel(parts[0]))
    return known_peak(f"out-tree-{num_ops}-{seed}", num_ops, edges, weights, segments)


def _parents(family: str, num_ops: int, seed: int, window: int | None) -> tuple[list[int], np.random.Generator]:
    """Parents of ops 1 to n - 1 of a random recursive tree, each a smaller number; and the generator to go on with."""
    check_count("num_ops", num_ops, 1)
    check_count("window", num_ops if window is None else window, 1)
    rng = generator(family, seed, num_ops, 0 if window is None else window)
    op = np.arange(1, num_ops)
    lowest = np.zeros_like(op) if window is None else np.maximum(0, op - window)
    return rng.integers(lowest, op).tolist(), rng
