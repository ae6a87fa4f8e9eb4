"""`graphrl.checkpoint`: a function whose gradient keeps what a budget allows, and computes the rest again."""

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import GraphrlError
from graphrl.graphs.roofline import Chip
from graphrl.xla import libraries
from graphrl.xla.checkpoint.derivative import differentiable
from graphrl.xla.checkpoint.planner import Planned, fingerprint_of, planned
from graphrl.xla.checkpoint.program import Program, opened, program_of
from graphrl.xla.checkpoint.report import CheckpointReport
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.settings import SECONDS, Settings
from graphrl.xla.libraries import Library

DIFFERENTIATED = frozenset({"JVPTracer", "LinearizeTracer"})  # jax's names for what a gradient is taken by
NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)  # that jax makes arrays of, of types that it has


class CheckpointedFunction:
    """A function that `graphrl.checkpoint` made."""

    def __init__(self, fn: Callable[..., Any], settings: Settings) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._settings = fn, settings
        self._libraries: dict[type[Library], Library] = {}
        self._planned: dict[str, Planned] = {}  # by fingerprint, the last one last

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = libraries.library_of((args, kwargs))
        if kind is None:
            return self._run(self._fn, args, kwargs)
        library = self._libraries.setdefault(kind, kind(self._fn, {}))
        return library.call(lambda *args, **kwargs: self._run(library.pure, args, kwargs), args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<graphrl.checkpoint of {self._fn!r}>"

    def report(self, *args: Any, **kwargs: Any) -> CheckpointReport:
        """What was decided for such arguments, arrays or `jax.ShapeDtypeStruct`s; without any, for those of the last
        call.

        Raises:
          GraphrlError: there was no call yet; or as the call itself.
        """
        if args or kwargs:
            jax.eval_shape(self, *args, **kwargs)
        if not self._planned:
            raise GraphrlError("there is no report before the first call: give the arguments of one")
        return list(self._planned.values())[-1].report

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given, structure = jax.tree.flatten((tuple(args), dict(kwargs)))
        leaves = [jnp.asarray(leaf) if isinstance(leaf, NUMBERS) else leaf for leaf in given]
        structures: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            args, kwargs = jax.tree.unflatten(structure, leaves)
            results, of = jax.tree.flatten(fn(*args, **kwargs))
            structures.append(of)
            return results

        closed, held = opened(jax.make_jaxpr(flat)(*leaves))
        leaves, program = [*held, *leaves], program_of(closed)
        found = self._plan_of(program, _wanted(leaves))
        return jax.tree.unflatten(structures[0], evaluate(program, found.plan, leaves))

    def _plan_of(self, program: Program, wanted: tuple[bool, ...]) -> Planned:
        key = fingerprint_of(program, wanted, self._settings)
        found = self._planned.get(key)
        if found is None:
            found = planned(getattr(self, "__name__", "function"), key, program, wanted, self._settings)
        self._planned.pop(key, None)
        self._planned[key] = found  # the last one, now
        return found


def _wanted(leaves: Sequence[Any]) -> tuple[bool, ...]:
    """Of each argument, whether a gradient is taken by it: where jax does not show any, by all that have one."""
    smooth = [differentiable(jax.typeof(leaf)) for leaf in leaves]
    shown = [
        is_smooth and type(leaf).__name__ in DIFFERENTIATED for is_smooth, leaf in zip(smooth, leaves, strict=True)
    ]
    return tuple(shown if any(shown) else smooth)


def checkpoint(
    fn: Callable[..., Any] | None = None,
    *,
    budget: float | str | None = None,
    slowdown: float | None = None,
    chip: str | Chip | None = None,
    offload: bool = False,
    method: str = "auto",
    seconds: float = SECONDS,
    seed: int = 0,
    cache: bool = True,
) -> Any:
    """`jax.checkpoint` that chooses by itself what the gradient keeps, what it computes again, and what it moves to the
    host.

    Used as `jax.checkpoint` is: under `jax.grad`, `jax.vjp`, `jax.jit`, `jax.vmap`, with modules of Flax NNX and
    Equinox. Values and gradients are those of the function. The function is traced and its gradient searched for at
    most `seconds` at its first call with new shapes; the plan is kept on disk for the next process.

    The choice is a model's: memory by the liveness of what XLA is expected to leave unfused, time by roofline.
    Arguments by which no gradient is taken are recognised where jax shows them (directly under `jax.grad`, `jax.vjp`).

    Args:
      fn: a function of arrays, mostly a loss; without it, a decorator is returned.
      budget: what the backward pass may find in memory: a part, 0 to 1, of what jax keeps by itself, at the least time;
        or the peak of the whole step, such as "12GiB", with arguments, results and gradients.
      slowdown: part of the step's estimated time that may be added, for the least memory. One of the two.
      chip: whose times count, a name of `graphrl.graphs.roofline.CHIPS` or a `graphrl.Chip`; by default that of jax's
        first device, or an A100 where that is unknown.
      offload: whether values may wait in the memory of the host, over PCIe 5.
      method: of search: "auto", "anneal", "greedy", "knapsack", "min-cut", or for small functions "cp-sat".
      seconds: of search.
      seed: of its random numbers.
      cache: whether plans are looked for, and kept, on disk.

    Returns:
      A function like `fn`; its `report()` says what was chosen.

    Raises:
      ProblemError: an option is at fault. From the first call: the budget cannot be met, and the least that can.
    """
    settings = Settings(budget, slowdown, chip, offload, method, seconds, seed, cache)
    if fn is None:
        return lambda function: CheckpointedFunction(function, settings)
    if not callable(fn):
        raise GraphrlError(f"checkpoint takes a function: this is of type {type(fn).__name__}")
    return CheckpointedFunction(fn, settings)
