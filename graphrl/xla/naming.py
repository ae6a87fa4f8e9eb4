"""Names of functions and of their arguments, for errors and for jax."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def function_name(fn: Any) -> str:
    """The name of a function, of the one within a `functools.partial`, or of the class of an object that is called."""
    while not hasattr(fn, "__name__") and isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def named_as(fn: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes the arguments of another one and calls it, so that jax's errors have the name and the line
    of the latter, and the names of its arguments.
    """
    functools.update_wrapper(wrapper, fn, updated=())
    wrapper.__name__ = function_name(fn)
    with contextlib.suppress(TypeError, ValueError):  # some of what is written in C has none
        wrapper.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    wrapper.__wrapped__ = _written(fn)  # type: ignore[attr-defined]
    return wrapper


def _written(fn: Any) -> Any:
    """The function within wrappers, partial functions and objects that are called."""
    while True:
        inner = inspect.unwrap(fn)
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif not hasattr(inner, "__code__") and hasattr(type(inner).__call__, "__code__"):
            inner = type(inner).__call__
        if inner is fn:
            return fn
        fn = inner


def argument_names(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The names of a call's arguments: those by place, then those by name."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [each.name for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD][: len(args)]
    rest = next((each.name for each in parameters if each.kind == each.VAR_POSITIONAL), None)
    extra = range(len(args) - len(names))
    return [*names, *(f"{rest}[{i}]" if rest else f"args[{len(names) + i}]" for i in extra), *kwargs]
