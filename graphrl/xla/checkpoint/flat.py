"""A function of anything as one of arrays alone, and what is no array among its arguments."""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.source_info_util import register_exclusion
from jax.tree_util import Partial

from graphrl.errors import ArgumentError, ProblemError
from graphrl.xla.naming import argument_names, function_name, named_as

register_exclusion(__file__)  # its lines are none of the user's

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
        """A call's arguments, None in place of static ones; and these.

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
        return (own, {name: None if name in names else arg for name, arg in kwargs.items()}), held


def joined(args: Sequence[Any], kwargs: Mapping[str, Any], held: Held) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call that `Static.split` took apart."""
    args, kwargs = list(args), dict(kwargs)
    for key, value in held:
        if isinstance(key, int):
            args[key] = value
        else:
            kwargs[key] = value
    return args, kwargs


def traced_function(fn: Callable[..., Any], held: Held) -> Callable[..., Partial]:
    """A function to trace, that takes None in place of static arguments; jax's errors have its name, its line and the
    names of its arguments.

    Args:
      fn: the function.
      held: its static arguments.

    Returns:
      A function of the same arguments. Its result is a `Partial` with the arrays of the function's own result, and a
      function that makes the result of them: jax hands on what that is without making it of anything else, which not
      every class can.
    """

    def traced(*args: Any, **kwargs: Any) -> Partial:
        own, named = joined(args, kwargs, held)
        results = fn(*own, **named)
        _check_result(function_name(fn), results)
        whole: Any = jax.tree.structure(results)
        return Partial(whole.unflatten, *jax.tree.leaves(results))

    return named_as(fn, traced)


def check_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that jax can trace a call.

    Args:
      fn: what is called.
      args, kwargs: its arguments, None in place of static ones.

    Raises:
      ArgumentError: it cannot; one line has the name of the argument, and says what would be right.
    """
    if all(map(is_value, jax.tree.leaves((args, kwargs)))):
        return
    keys = (*range(len(args)), *kwargs)
    for name, key, value in zip(argument_names(fn, args, kwargs), keys, (*args, *kwargs.values()), strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if not is_value(leaf):
                option = "static_argnums" if isinstance(key, int) else "static_argnames"
                static = f"static, with {key!r} in {option}"
                remedy = f"must be {_remedy(leaf, 'static as an argument of its own' if path else static)}"
                place = f"{name}{jax.tree_util.keystr(path)}"
                raise ArgumentError(f"{function_name(fn)}: argument {place} is {_described(leaf)}: {remedy}")


def is_value(leaf: Any) -> bool:
    """Whether jax can compute with it: an array, a tracer or a number."""
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(leaf, jax.ShapeDtypeStruct)


def _described(leaf: Any) -> str:
    """A value that is no array, in some words."""
    if isinstance(leaf, np.ndarray):
        return f"an array of {leaf.dtype}"
    shown = f"{reprlib.repr(leaf)}, " if isinstance(leaf, str | bytes | int) else ""
    return f"{shown}of type {type(leaf).__name__}"


def _remedy(leaf: Any, static: str) -> str:
    """What would be right in place of a value that is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or hasattr(leaf, "__array__"):
        return "a jax or numpy array of numbers"
    if isinstance(leaf, int):
        return f"an array of a type that can hold it, or {static}"
    if type(leaf).__module__ == "builtins" or hasattr(leaf, "__name__"):  # functions and classes have one
        return f"an array or a number, or {static}"
    return f"a pytree, as by jax.tree_util.register_dataclass, or {static}"


def _check_result(name: str, result: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not is_value(leaf):
            place = f"result{jax.tree_util.keystr(path)}"
            raise ArgumentError(f"{name}: its {place} is {_described(leaf)}: must be an array or a number")


def _items(given: Any) -> tuple[Any, ...] | None:
    return tuple(given) if isinstance(given, Iterable) else None
