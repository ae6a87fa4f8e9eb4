"""Four classical random graphs, undirected and simple: `[m, 2]` int64 pairs of nodes 0 to n - 1.

The definitions are networkx's (gnp_random_graph, barabasi_albert_graph, watts_strogatz_graph,
stochastic_block_model), but for the random numbers.
"""

import numpy as np


def erdos_renyi(n: int, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Every pair of nodes is joined with the same probability, independently."""
    first, second = np.divmod(_chosen(n * n, probability, rng), n)
    return np.stack([first, second], 1)[first < second]


def barabasi_albert(n: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Preferential attachment: from a star of `edges` + 1 nodes on, each new node joins `edges` distinct old ones,
    each chosen in proportion to its degree.
    """
    pairs = [(0, leaf) for leaf in range(1, edges + 1)]
    ends = [node for pair in pairs for node in pair]  # every node as often as its degree
    for node in range(edges + 1, n):
        chosen: set[int] = set()
        while len(chosen) < edges:
            chosen.add(ends[int(rng.integers(len(ends)))])
        for other in sorted(chosen):
            pairs.append((other, node))
            ends += [other, node]
    return np.array(pairs, np.int64).reshape(-1, 2)


def watts_strogatz(n: int, neighbours: int, rewired: float, rng: np.random.Generator) -> np.ndarray:
    """A ring in which each node is joined to its `neighbours` nearest, then each edge's far end moves with probability
    `rewired` to a node drawn from those that would make neither a loop nor a double edge.
    """
    joined: list[set[int]] = [set() for _ in range(n)]
    ring = [(node, (node + step) % n) for step in range(1, neighbours // 2 + 1) for node in range(n)]
    for a, b in ring:
        joined[a].add(b)
        joined[b].add(a)
    for a, b in ring:
        if rng.random() >= rewired or len(joined[a]) >= n - 1:
            continue
        other = int(rng.integers(n))
        while other == a or other in joined[a]:
            other = int(rng.integers(n))
        joined[a].remove(b)
        joined[b].remove(a)
        joined[a].add(other)
        joined[other].add(a)
    return np.array([(a, b) for a in range(n) for b in sorted(joined[a]) if a < b], np.int64).reshape(-1, 2)


def stochastic_block(n: int, blocks: int, within: float, across: float, rng: np.random.Generator) -> np.ndarray:
    """Nodes in `blocks` blocks as equal as can be: pairs are joined with probability `within` or `across`."""
    pairs = []
    parts = np.array_split(np.arange(n), blocks)
    for i, part in enumerate(parts):
        first, second = np.divmod(_chosen(len(part) ** 2, within, rng), max(1, len(part)))
        pairs.append(np.stack([part[first], part[second]], 1)[first < second])
        for other in parts[i + 1 :]:
            first, second = np.divmod(_chosen(len(part) * len(other), across, rng), max(1, len(other)))
            pairs.append(np.stack([part[first], other[second]], 1))
    return np.concatenate(pairs)


def _chosen(count: int, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Which of 0 to count - 1 are chosen, each with the same probability: sorted; memory of what is chosen only."""
    return np.sort(rng.choice(count, int(rng.binomial(count, probability)), replace=False, shuffle=False))
