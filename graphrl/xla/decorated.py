"""Functions that `graphrl.jit` and `graphrl.checkpoint` return: called, copied and pickled like ordinary functions.

`Decorated` is their base class. It is pickled by name if the function's module has it under that name, else by value.
`function_name`, `named_as` and `argument_names` provide the user's names of functions and arguments for errors and jax.
"""

import abc
import contextlib
import copy
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self


def function_name(fn: Any) -> str:
    """Returns the name of a function, of the one within a `functools.partial`, or of a callable object's class."""
    while not hasattr(fn, "__name__") and isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def named_as(fn: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a wrapper the metadata of the function that it calls, and returns it.

    jax's errors then show the function's name and line, and the names of its arguments.
    """
    functools.update_wrapper(wrapper, fn, updated=())
    wrapper.__name__ = function_name(fn)
    with contextlib.suppress(TypeError, ValueError):  # some C functions have no signature
        wrapper.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    wrapper.__wrapped__ = _written(fn)  # type: ignore[attr-defined]
    return wrapper


def _written(fn: Any) -> Any:
    """Returns the function within wrappers, partial functions and callable objects."""
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
    """Returns the names of a call's arguments: positional ones, then keywords."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [each.name for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD][: len(args)]
    rest = next((each.name for each in parameters if each.kind == each.VAR_POSITIONAL), None)
    extra = range(len(args) - len(names))
    return [*names, *(f"{rest}[{i}]" if rest else f"args[{len(names) + i}]" for i in extra), *kwargs]


MAIN = "__main__"
DOTTED = 4  # the first protocol of pickle that finds functions by dotted names


class Decorated(abc.ABC):
    """A function that wraps another one. Subclasses add their state in `__getstate__` and set it in `__setstate__`.

    A function or method that its module has under its name is pickled by name, and unpickling returns the one of the
    new process. cloudpickle pickles functions in `__main__` by value. Other functions are pickled with the function
    that they wrap, which must be picklable. Copies are the function itself, unless a deep copy copies the wrapped
    object: a method's object, or a callable object.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__dict__.setdefault("__name__", function_name(fn))
        self._fn = fn

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the wrapped function under "_fn".

        For a method that its object has replaced by something else, these are the method's function and object, since
        pickle would look the method up in the object.
        """
        fn = self._fn
        if isinstance(fn, types.MethodType):
            method = getattr(fn.__self__, fn.__name__, None)
            if not (isinstance(method, types.MethodType) and method == fn):
                return {"_fn": (fn.__func__, fn.__self__)}
        return {"_fn": fn}

    @abc.abstractmethod
    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `__getstate__`."""

    @staticmethod
    def _function(state: Mapping[str, Any]) -> Callable[..., Any]:
        """Returns the wrapped function in a state of `__getstate__`."""
        fn = state["_fn"]
        return types.MethodType(*fn) if isinstance(fn, tuple) else fn

    def __copy__(self) -> Self:
        return self  # as functions do

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        fn = self._fn if self._is_member() else copy.deepcopy(self._fn, memo)
        if fn is self._fn:
            return self
        new = type(self).__new__(type(self))
        new.__setstate__({**self.__getstate__(), "_fn": fn})
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self._is_member():
            return super().__reduce_ex__(protocol)
        if self.__module__ != MAIN or protocol < DOTTED:
            return self.__dict__["__qualname__"]
        return _restored, (type(self), self._reference), self._contents, None, None, _fill

    def _is_member(self) -> bool:
        """True if the function's module has it under its name."""
        module, name = self.__dict__.get("__module__"), self.__dict__.get("__qualname__")
        return module is not None and name is not None and _member(module, name) is self

    # In `__main__` pickle takes functions by name and cloudpickle by value, but only functions: hence these two. The
    # object is created before its contents, so that a recursive function finds it: hence two instead of one.
    @functools.cached_property
    def _reference(self) -> Callable[[], None]:
        def reference() -> None: ...

        return self._within(reference, "_reference")

    @functools.cached_property
    def _contents(self) -> Callable[[], dict[str, Any]]:
        state = self.__getstate__()

        def contents() -> dict[str, Any]:
            return state

        return self._within(contents, "_contents")

    def _within(self, function: Any, attribute: str) -> Any:
        """Gives a function the name by which pickle finds it as an attribute of this object."""
        function.__module__, function.__qualname__ = self.__module__, f"{self.__dict__['__qualname__']}.{attribute}"
        return function


def _restored(kind: type[Decorated], reference: Any) -> Decorated:
    """Returns this process's function for a pickled reference; a new one without state if it was pickled by value."""
    member = _member(reference.__module__, reference.__qualname__.rpartition(".")[0])
    is_own = isinstance(member, Decorated) and member.__dict__.get("_reference") is reference
    return member if is_own else kind.__new__(kind)


_found = _restored  # its name in pickles of 0.1


def _fill(function: Decorated, contents: Callable[[], dict[str, Any]]) -> None:
    if "_fn" not in function.__dict__:
        function.__setstate__(contents())


def _member(module: str, name: str) -> Any:
    """Returns the object with a dotted name in a module, or None."""
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return None
