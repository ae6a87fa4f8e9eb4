"""Factors of an equation: dimensions of its operands and results that are split over devices together.

As in Shardy's rules, each dimension of each operand and result has a factor. In `bi,ij->bj` there are three: b and j
are in operand and result, and i is summed. A dimension that shares its factor with no other cannot stay split:
`summed` factors are split into partial sums, all others are gathered first.

| equations | factors |
|---|---|
| products, convolutions | batch and free dimensions; contracted ones are summed; windows have none |
| reductions | the dimensions that remain; reduced ones are summed |
| gathers, scatters | dimensions of whole slices, and those of the indices; `scatter-add` sums the latter |
| reshapes | the outer dimension of each group that is merged or divided |
| slices, pads, sorts, concatenations, windows, cumulative sums | dimensions that they do not change |
| all others | those of the result, for operands of its shape |
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Dimension = tuple[int, int]  # number of a tensor (operands first, then results), and of a dimension of it
SUMS = frozenset({"argmax", "argmin"})  # reductions whose partial results cannot be combined, despite their names
SORTED = frozenset({"cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"})


class Factors(NamedTuple):
    """Factors of an equation.

    Attributes:
      dimensions: for each operand and then each result, the factor of each dimension.
      summed: factors over which the results are sums, or other reductions.
      shared: factors that several dimensions have, or that are summed.
      results: factors of the results.
    """

    dimensions: tuple[tuple[int, ...], ...]
    summed: frozenset[int]
    shared: frozenset[int]
    results: frozenset[int]

    @property
    def parallel(self) -> frozenset[int]:
        """Factors by which devices can split the equation's work."""
        return self.results | self.summed


class _Links:
    """Dimensions of an equation while they are linked to factors."""

    def __init__(self, shapes: Sequence[Sequence[int]], operands: int) -> None:
        self.shapes, self.operands = shapes, operands
        numbers = itertools.count()
        self._factor = {(t, dim): next(numbers) for t, shape in enumerate(shapes) for dim in range(len(shape))}
        self._summed: set[Dimension] = set()

    def link(self, *dimensions: Dimension) -> None:
        """Gives dimensions the same factor."""
        factors = {self._factor[dimension] for dimension in dimensions}
        self._factor |= {dim: min(factors) for dim, factor in self._factor.items() if factor in factors}

    def sum(self, *dimensions: Dimension) -> None:
        """Marks dimensions as summed."""
        self._summed.update(dimensions)

    def equal(self, tensors: Iterable[int], dims: Iterable[int]) -> None:
        """Links a dimension of tensors, for each number in `dims`, where their sizes are equal."""
        tensors = list(tensors)
        for dim in dims:
            for t in tensors[1:]:
                if self.shapes[t][dim] == self.shapes[tensors[0]][dim]:
                    self.link((tensors[0], dim), (t, dim))

    def factors(self) -> Factors:
        ranks = [range(len(shape)) for shape in self.shapes]
        dimensions = tuple(tuple(self._factor[t, dim] for dim in dims) for t, dims in enumerate(ranks))
        summed = frozenset(self._factor[dimension] for dimension in self._summed)
        every = list(itertools.chain(*dimensions))
        results = frozenset(itertools.chain(*dimensions[self.operands :]))
        return Factors(dimensions, summed, summed | {f for f in every if every.count(f) > 1}, results)


def factors_of(equation: Any) -> Factors:
    """Returns the factors of an equation without inner jaxprs, or whose inner jaxprs combine two elements."""
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in (*equation.invars, *equation.outvars)]
    links = _Links(shapes, len(equation.invars))
    name = equation.primitive.name
    if name.startswith("scatter"):
        _scatter(links, equation)
    elif name.startswith(("reduce", "arg")) and "axes" in equation.params:
        _reduce(links, equation)
    else:
        RULES.get(name, _elementwise)(links, equation)
    return links.factors()


def identity(tensors: int, rank: int) -> Factors:
    """Returns the factors of one operand and results that all have its dimensions."""
    links = _Links([(1,) * rank] * tensors, 1)
    links.equal(range(tensors), range(rank))
    return links.factors()


def _elementwise(links: _Links, equation: Any) -> None:
    del equation
    for rank in {len(shape) for shape in links.shapes[links.operands :]}:
        tensors = [t for t, shape in enumerate(links.shapes) if len(shape) == rank]
        for dim in range(rank):  # dimensions of size 1 are broadcast
            largest = max(links.shapes[t][dim] for t in tensors)
            links.equal([t for t in tensors if links.shapes[t][dim] == largest], [dim])


def _unchanged(links: _Links, equation: Any) -> None:
    """Links the dimensions that have the same size in all operands and results of the result's rank."""
    del equation
    rank = len(links.shapes[links.operands])
    tensors = [t for t, shape in enumerate(links.shapes) if len(shape) == rank]
    for dim in range(rank):
        if len({links.shapes[t][dim] for t in tensors}) == 1:
            links.equal(tensors, [dim])


def _except(key: str) -> Callable[[_Links, Any], None]:
    """Makes a rule that links all dimensions but the one that parameter `key` names."""

    def rule(links: _Links, equation: Any) -> None:
        rank = len(links.shapes[0])
        value = equation.params.get(key, rank - 1)
        links.equal(
            (t for t, shape in enumerate(links.shapes) if len(shape) == rank), set(range(rank)) - {value % max(rank, 1)}
        )

    return rule


def _nothing(links: _Links, equation: Any) -> None:
    del links, equation


def _product(links: _Links, equation: Any) -> None:
    contracted, batch = equation.params["dimension_numbers"]
    ranks = [len(shape) for shape in links.shapes[:2]]
    out = itertools.count()
    for left, right in zip(*batch, strict=True):
        links.link((0, left), (1, right), (2, next(out)))
    for side in (0, 1):
        for dim in range(ranks[side]):
            if dim not in (*contracted[side], *batch[side]):
                links.link((side, dim), (2, next(out)))
    for left, right in zip(*contracted, strict=True):
        links.link((0, left), (1, right))
        links.sum((0, left))


def _convolution(links: _Links, equation: Any) -> None:
    params = equation.params
    left, right, out = (getattr(params["dimension_numbers"], name) for name in ("lhs_spec", "rhs_spec", "out_spec"))
    if params["batch_group_count"] == 1:
        links.link((0, left[0]), (2, out[0]))
    if params["feature_group_count"] == params["batch_group_count"] == 1:
        links.link((1, right[0]), (2, out[1]))
        links.link((0, left[1]), (1, right[1]))
        links.sum((0, left[1]))
    elif params["feature_group_count"] == links.shapes[0][left[1]]:  # one group a channel
        links.link((0, left[1]), (1, right[0]), (2, out[1]))


def _reduce(links: _Links, equation: Any) -> None:
    axes, inputs = equation.params["axes"], links.operands
    kept = [dim for dim in range(len(links.shapes[0])) if dim not in axes]
    for t in range(min(inputs, len(links.shapes) - inputs)):
        for out, dim in enumerate(kept):
            links.link((0, dim), (t, dim), (inputs + t, out))
        if equation.primitive.name not in SUMS:
            links.sum(*((t, axis) for axis in axes))


def _broadcast(links: _Links, equation: Any) -> None:
    out = links.operands
    for dim, target in enumerate(equation.params["broadcast_dimensions"]):
        if links.shapes[0][dim] == links.shapes[out][target]:
            links.link((0, dim), (out, target))


def _transpose(links: _Links, equation: Any) -> None:
    for out, dim in enumerate(equation.params["permutation"]):
        links.link((0, dim), (1, out))


def _squeeze(links: _Links, equation: Any) -> None:
    removed = {dim % len(links.shapes[0]) for dim in equation.params["dimensions"]}
    for out, dim in enumerate(dim for dim in range(len(links.shapes[0])) if dim not in removed):
        links.link((0, dim), (1, out))


def _reshape(links: _Links, equation: Any) -> None:
    del equation
    if 0 in links.shapes[0]:
        return
    for left, right in _groups(links.shapes[0], links.shapes[links.operands]):
        links.link((0, left), (links.operands, right))


def _groups(left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the outer dimensions of the groups that a reshape merges and divides, without dimensions of size 1."""
    sides = [[dim for dim, size in enumerate(shape) if size != 1] for shape in (left, right)]
    i = j = 0
    while i < len(sides[0]) and j < len(sides[1]):
        first = sides[0][i], sides[1][j]
        sizes = left[sides[0][i]], right[sides[1][j]]
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                i += 1
                sizes = sizes[0] * left[sides[0][i]], sizes[1]
            else:
                j += 1
                sizes = sizes[0], sizes[1] * right[sides[1][j]]
        yield first
        i, j = i + 1, j + 1


def _gather(links: _Links, equation: Any) -> None:
    numbers, slices = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    batched = tuple(numbers.operand_batching_dims)
    window = [dim for dim in range(len(slices)) if dim not in (*numbers.collapsed_slice_dims, *batched)]
    for out, dim in zip(numbers.offset_dims, window, strict=True):
        if slices[dim] == links.shapes[0][dim]:
            links.link((0, dim), (2, out))
    others = [out for out in range(len(links.shapes[2])) if out not in numbers.offset_dims]
    for dim, out in enumerate(others):
        links.link((1, dim), (2, out))
    for dim, index in zip(batched, numbers.start_indices_batching_dims, strict=True):
        links.link((0, dim), (1, index))
    links.sum(*((0, dim) for dim in numbers.collapsed_slice_dims))  # each device has the rows of its part


def _scatter(links: _Links, equation: Any) -> None:
    numbers = equation.params["dimension_numbers"]
    operand, indices, updates = links.shapes[:3]
    links.equal((0, 3), range(len(operand)))
    batched = tuple(numbers.operand_batching_dims)
    window = [dim for dim in range(len(operand)) if dim not in (*numbers.inserted_window_dims, *batched)]
    for update, dim in zip(numbers.update_window_dims, window, strict=True):
        if updates[update] == operand[dim]:
            links.link((0, dim), (2, update))
    others = [dim for dim in range(len(updates)) if dim not in numbers.update_window_dims]
    for dim, update in enumerate(others[: len(indices) - 1]):
        links.link((1, dim), (2, update))
        if dim not in numbers.scatter_indices_batching_dims and equation.primitive.name.endswith("add"):
            links.sum((2, update))
    for dim, index in zip(batched, numbers.scatter_indices_batching_dims, strict=True):
        links.link((0, dim), (1, index))


RULES: Mapping[str, Callable[[_Links, Any], None]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "gather": _gather,
    "concatenate": _except("dimension"),
    "split": _except("axis"),
    "sort": _except("dimension"),
    "top_k": _except("operand"),  # its last dimension
    "rev": _unchanged,
    **dict.fromkeys(SORTED, _except("axis")),
    **dict.fromkeys(["dynamic_slice", "dynamic_update_slice", "pad", "slice"], _unchanged),
    **dict.fromkeys(
        str.split(
            "reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_scatter_add "
            "select_and_gather_add select_and_scatter"
        ),
        _unchanged,
    ),
    **dict.fromkeys(["cholesky", "eig", "eigh", "fft", "lu", "qr", "svd", "triangular_solve"], _nothing),
}
