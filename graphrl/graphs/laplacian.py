"""Laplacian positional encodings of a graph (Topoformer, appendix C.5; Dwivedi and Bresson, 2020). NumPy and SciPy.

They are eigenvectors of I - D^-1/2 A D^-1/2 of the undirected graph, those of the smallest eigenvalues above 0: smooth
functions on it. Dwivedi and Bresson leave these open, or differ:

- one vector of eigenvalue 0 for each component says nothing but what component an op is in: they are left out. The
  others are found one component at a time, so that equal components do not mix;
- signs, which they draw anew at every step, are fixed: a vector rises with the ops' levels, where it neither rises
  nor falls it has the longer tail above 0, and without one its largest entry (the first such) is positive;
- a vector is over its largest absolute entry: numbers from -1 to 1 whatever the size of the graph;
- where there are fewer vectors than wanted, the rest is 0.

Vectors of equal eigenvalues are any basis of their space: they depend on the numbering of ops. So does the last sign
rule, in graphs that are symmetric.
"""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import coo_array, csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

_DENSE = 150  # up to so many ops LAPACK's whole spectrum is faster than ARPACK's end of it
_RESTARTS = 100  # of ARPACK, after which the shifted inverse is tried: long chains have tiny gaps
_SHIFT = 1.01  # just above the largest eigenvalue of D^-1/2 A D^-1/2
_TINY = 1e-6


def laplacian_encodings(source: np.ndarray, target: np.ndarray, level: np.ndarray, dimension: int = 20) -> np.ndarray:
    """`[n, dimension]` float64, from -1 to 1.

    Args:
      source, target: `[m]` ops, distinct pairs; the direction is not looked at.
      level: `[n]`, which way is up.
      dimension: how many encodings.
    """
    n = len(level)
    encodings = np.zeros((n, dimension))
    if n <= _DENSE:
        adjacency = np.zeros((n, n))
        adjacency[source, target] = adjacency[target, source] = 1.0
        values, vectors = _largest(_normalised(adjacency), dimension + 1)
        if n > 1 and values[1] < 1 - _TINY:  # one component, the usual case: no need to look for them
            encodings[:, : len(values) - 1] = _canonical(vectors[:, 1:], level)
            return encodings
    one_way = coo_array((np.ones(len(source)), (source, target)), shape=(n, n)).tocsr()
    modes = sorted(_spectrum(one_way + one_way.T, dimension), key=lambda pair: pair[0])
    for column, (_, members, vector) in zip(encodings.T, modes, strict=False):
        column[members] = _canonical(vector[:, None], level[members])[:, 0]
    return encodings


def _spectrum(adjacency: csr_array, dimension: int) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Every component's smallest eigenvalues but 0: the eigenvalue, the component's ops and the vector on them."""
    components, label = connected_components(adjacency, directed=False)
    by_label = np.argsort(label, kind="stable")
    for members in np.split(by_label, np.cumsum(np.bincount(label, minlength=components))[:-1]):
        if len(members) > 1:
            part = adjacency if components == 1 else adjacency[members][:, members]
            part = part.toarray() if len(members) <= _DENSE else part
            values, vectors = _largest(_normalised(part), min(dimension + 1, len(members)))
            for value, vector in zip(values[1:].tolist(), vectors.T[1:], strict=True):
                yield round(1 - value, 9), members, vector


def _normalised(adjacency: np.ndarray | csr_array) -> np.ndarray | csr_array:
    """D^-1/2 A D^-1/2; without edges 1 on the diagonal, so that every component has the eigenvalue 1."""
    degree = adjacency.sum(axis=1)
    scale = 1 / np.sqrt(np.maximum(degree, 1.0))
    if isinstance(adjacency, np.ndarray):
        return adjacency * scale[:, None] * scale + np.diag((degree == 0).astype(float))
    diagonal = diags_array(scale)
    return (diagonal @ adjacency @ diagonal).tocsr()


def _largest(matrix: np.ndarray | csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `count` of the largest eigenvalues, descending, and their vectors as columns."""
    if isinstance(matrix, np.ndarray):
        values, vectors = np.linalg.eigh(matrix)
    else:
        start = np.random.default_rng(0).random(matrix.shape[0])
        try:
            values, vectors = eigsh(matrix, count, which="LA", v0=start, tol=1e-9, maxiter=_RESTARTS)
        except ArpackNoConvergence:
            shifted = _SHIFT * eye_array(matrix.shape[0], format="csc") - matrix.tocsc()
            values, vectors = eigsh(shifted, count, sigma=0, which="LM", v0=start, tol=1e-9)
            values = _SHIFT - values
    best = np.argsort(-values, kind="stable")[:count]
    return values[best], vectors[:, best]


def _canonical(vectors: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The vectors `[m, k]` of norm 1 with the signs and the sizes that are said above."""
    centred = level - level.mean()
    size = np.abs(vectors)
    largest = size.max(0)
    first = np.argmax(size > (1 - _TINY) * largest, axis=0)
    rises = centred @ vectors / (np.linalg.norm(centred) + _TINY)
    tail = (vectors**3).sum(0)
    decides = np.where(
        np.abs(rises) > _TINY, rises, np.where(np.abs(tail) > _TINY, tail, vectors[first, range(len(first))])
    )
    return vectors * (np.sign(decides) / largest)
