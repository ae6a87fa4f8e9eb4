"""Loops in stretches: a scan of scans, each of which is computed again in whole before it runs backward."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from graphrl.xla.checkpoint.program import checkpointed

Arrays = list[Any]
Step = Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]  # carry, slices -> carry, results


def scan_in_stretches(
    step: Step, first: Arrays, xs: Arrays, stretch: int, *, unrolled: bool, length: int, reverse: bool, unroll: int
) -> tuple[Arrays, Arrays]:
    """`jax.lax.scan`, whose steps are computed again some at a time.

    Args:
      step, first, xs, length, reverse, unroll: as `lax.scan` has them.
      stretch: steps that are computed again together, of which the last ones to run may be fewer; 1 where none are.
      unrolled: whether they stand one after the other, and are no loop.
    """

    def run(carry: Arrays, xs: Arrays, *, length: int) -> tuple[Arrays, Arrays]:
        if unrolled:
            return _steps(step, carry, xs, range(length)[:: -1 if reverse else 1])
        return jax.lax.scan(step, carry, xs, length=length, reverse=reverse, unroll=min(unroll, length))

    if stretch == 1:
        steps = None if xs else length  # jax takes a symbolic length from arrays alone
        return jax.lax.scan(step, first, xs, length=steps, reverse=reverse, unroll=unroll)
    left = length % stretch
    if not left:
        return _stretches(run, first, xs, length // stretch, stretch, reverse)
    begin, end = (left, length) if reverse else (0, length - left)  # of what runs first
    carry, ys = _stretches(run, first, _cut(xs, begin, end), length // stretch, stretch, reverse)
    rest = _cut(xs, 0, left) if reverse else _cut(xs, end, length)
    carry, last = _stretches(run, carry, rest, 1, left, reverse)
    return carry, [jax.numpy.concatenate(pair[:: -1 if reverse else 1]) for pair in zip(ys, last, strict=True)]


def _stretches(
    run: Callable[..., tuple[Arrays, Arrays]], first: Arrays, xs: Arrays, count: int, stretch: int, reverse: bool
) -> tuple[Arrays, Arrays]:
    """So many stretches, all of the same length."""
    run = functools.partial(run, length=stretch)
    if count == 1:  # in no loop of its own: compilers must not take what is computed again for what was before
        return checkpointed(run, first, xs)
    blocks = [x.reshape(count, stretch, *x.shape[1:]) for x in xs]
    body = functools.partial(checkpointed, run, prevent_cse=False)
    carry, ys = jax.lax.scan(body, first, blocks, length=count, reverse=reverse)
    return carry, [y.reshape(count * stretch, *y.shape[2:]) for y in ys]


def _steps(step: Step, carry: Arrays, xs: Arrays, order: Sequence[int]) -> tuple[Arrays, Arrays]:
    """Steps one after the other, whose results are stacked."""
    ys = {}
    for k in order:
        carry, ys[k] = step(carry, [jax.lax.index_in_dim(x, k, keepdims=False) for x in xs])
    return carry, [jax.numpy.stack(rows) for rows in zip(*(ys[k] for k in range(len(ys))), strict=True)]


def _cut(xs: Sequence[Any], begin: int, end: int) -> Arrays:
    return [jax.lax.slice_in_dim(x, begin, end) for x in xs]
