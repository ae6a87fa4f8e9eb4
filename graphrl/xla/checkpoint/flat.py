"""A function of anything as one of arrays alone, and what is no array among its arguments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import Partial

from graphrl.errors import ProblemError

Held = tuple[tuple[int | str, Any], ...]  # static arguments: by place or name, what was given


class Static(NamedTuple):
    """Which arguments are values of Python, not arrays: see `jax.checkpoint`.

    Attributes:
      argnums: places of arguments; negative ones count from the last.
      argnames: names of arguments that are given by name.
    """

    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    @classmethod
    def of(cls, argnums: int | Iterable[int], argnames: str | Iterable[str]) -> "Static":
        """As a user gives them.

        Raises:
          ProblemError: they are no integers, or no names.
        """
        nums = (argnums,) if isinstance(argnums, int) else _items(argnums)
        names = (argnames,) if isinstance(argnames, str) else _items(argnames)
        if nums is None or any(type(number) is not int for number in nums):
            raise ProblemError(f"static_argnums is {argnums!r}: must be an integer or integers")
        if names is None or not all(isinstance(name, str) for name in names):
            raise ProblemError(f"static_argnames is {argnames!r}: must be a name or names")
        return cls(nums, names)

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[list[Any], dict[str, Any]], Held]:
        """A call's arguments, None where one is static; and these.

        Raises:
          ProblemError: there is no argument at a place.
        """
        for number in self.argnums:
            if not -len(args) <= number < len(args):
                raise ProblemError(f"static_argnums holds {number}: the call has {len(args)} arguments by place")
        places = sorted({number % len(args) for number in self.argnums})
        names = sorted({*self.argnames} & {*kwargs})
        held: Held = (*((place, args[place]) for place in places), *((name, kwargs[name]) for name in names))
        own = [None if place in places else arg for place, arg in enumerate(args)]
        return (own, {name: arg for name, arg in kwargs.items() if name not in names}), held


def joined(args: Sequence[Any], kwargs: Mapping[str, Any], held: Held) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call that `Static.split` took apart."""
    args, kwargs = list(args), dict(kwargs)
    for key, value in held:
        if isinstance(key, int):
            args[key] = value
        else:
            kwargs[key] = value
    return args, kwargs


def flat_function(fn: Callable[..., Any], structure: Any, held: Held) -> Callable[..., Partial]:
    """A function, given what is no array among its arguments, as one of arrays.

    Args:
      fn: the function.
      structure: of `(args, kwargs)`.
      held: its static arguments.

    Returns:
      Arrays -> the results' arrays, in a `Partial` whose function makes the results of them: jax hands on what that is
      without making them of anything else, which not every class can.
    """

    def flat(*leaves: Any) -> Partial:
        args, kwargs = jax.tree.unflatten(structure, leaves)
        args, kwargs = joined(args, kwargs, held)
        results = fn(*args, **kwargs)
        whole: Any = jax.tree.structure(results)
        return Partial(whole.unflatten, *jax.tree.leaves(results))

    return flat


def _items(given: Any) -> tuple[Any, ...] | None:
    return tuple(given) if isinstance(given, Iterable) else None
