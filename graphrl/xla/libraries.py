"""Modules of Flax NNX and Equinox as arguments, with the semantics of `nnx.jit` and `eqx.filter_jit`.

Under plain `jax.jit`, a function's changes to a module of NNX are lost silently. A module of Equinox may contain
functions, which are not arrays, and numbers that must not be traced. So arguments with such modules are encoded as
arrays and static data before the jitted function and decoded inside of it; results are encoded inside and decoded
after it.

No library is imported here: a program that has its objects has imported it.
"""

import abc
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from graphrl.xla.decorated import named_as

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)
_ARRAY = object()  # marks the place of an array among static leaves


class Library(abc.ABC):
    """Wraps a function whose arguments contain modules of a library (NNX or Equinox) as a function of arrays.

    Attributes:
      pure: the function to jit: encoded arguments -> encoded result. Called with modules it raises `LibraryNeeded`.
      jit_kwargs: options of `jax.jit` for `pure`.
    """

    def __init__(self, fn: Callable[..., Any], jit_kwargs: Mapping[str, Any]) -> None:
        def pure(*args: Any, **kwargs: Any) -> Any:
            return self._inside(args, kwargs)

        self._fn, self.pure, self.jit_kwargs = fn, named_as(fn, pure), dict(jit_kwargs)

    def call(self, jitted: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Encodes the arguments of a call, calls the jitted `pure` with them, and returns the decoded result."""
        with self.encoded(args, kwargs) as (encoded_args, encoded_kwargs):
            return self._decoded(jitted(*encoded_args, **encoded_kwargs))

    def lowered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> jax.stages.Lowered:
        """Lowers `pure` for the arguments of a call."""
        with self.encoded(args, kwargs) as (encoded_args, encoded_kwargs):
            return jax.jit(self.pure, **self.jit_kwargs).lower(*encoded_args, **encoded_kwargs)

    @abc.abstractmethod
    def encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> contextlib.AbstractContextManager[Arguments]:
        """Returns a context manager that yields the encoded arguments of a call."""

    @abc.abstractmethod
    def _inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs inside the trace: decodes the arguments, calls the original function, and encodes its result."""

    @abc.abstractmethod
    def _decoded(self, result: Any) -> Any:
        """Decodes an encoded result."""


def library_of(arguments: Any) -> type[Library] | None:
    """Returns the `Library` for the modules in a pytree of arguments: that of NNX first; None without modules."""
    for name, library in (("flax.nnx", _Nnx), ("equinox", _Equinox)):
        module = sys.modules.get(name)
        if module is not None and _holds(arguments, _kinds(module)):
            return library
    return None


def guarded(fn: Callable[..., Any], jit_kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Wraps a function for `jax.jit`: it raises `LibraryNeeded` if it is traced with modules."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        if library_of(traced(args, kwargs, jit_kwargs)) is not None:
            raise LibraryNeeded
        return fn(*args, **kwargs)

    return named_as(fn, plain)


def traced(args: Sequence[Any], kwargs: Mapping[str, Any], jit_kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments of a call that are not declared static."""
    numbers, names = (jit_kwargs.get(key) for key in ("static_argnums", "static_argnames"))
    places = (numbers,) if isinstance(numbers, int) else numbers or ()
    static = {n if n >= 0 else n + len(args) for n in places}
    named = {names} if isinstance(names, str) else {*(names or ())}
    return [
        *(arg for place, arg in enumerate(args) if place not in static),
        *(arg for name, arg in kwargs.items() if name not in named),
    ]


class _Nnx(Library):
    """Acts as `nnx.jit`: the function's changes to its arguments, including shared and new parts, are applied to them.

    The four steps are those of `nnx.update_context`.
    """

    def __init__(self, fn: Callable[..., Any], jit_kwargs: Mapping[str, Any]) -> None:
        super().__init__(fn, jit_kwargs)
        if jit_kwargs.get("out_shardings") is not None:
            self.jit_kwargs["out_shardings"] = (None, None, jit_kwargs["out_shardings"])
        self._nnx, self._tag = sys.modules["flax.nnx"], object()
        self._kinds = _kinds(self._nnx)

    @contextlib.contextmanager
    def encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Arguments]:
        with self._nnx.update_context(self._tag):
            yield self._split((tuple(args), dict(kwargs)))

    def _inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if library_of((args, kwargs)) is not None:
            raise LibraryNeeded
        args, kwargs = self._merged((args, kwargs), inner=True)
        result = self._fn(*args, **kwargs)
        modules = _map_leaves(lambda leaf: leaf if isinstance(leaf, self._kinds) else None, (args, kwargs), self._kinds)
        return self._split((*modules, result))

    def _decoded(self, result: Any) -> Any:
        return self._merged(result, inner=False)[2]

    def _split(self, tree: Any) -> Any:
        with self._nnx.split_context(self._tag) as context:

            def split(leaf: Any) -> Any:
                return _Split(*context.flatten(leaf, with_paths=False)) if isinstance(leaf, self._kinds) else leaf

            return _map_leaves(split, tree, self._kinds)

    def _merged(self, tree: Any, *, inner: bool) -> Any:
        with self._nnx.merge_context(self._tag, inner=inner) as context:
            return jax.tree.map(
                lambda leaf: context.unflatten(*leaf) if isinstance(leaf, _Split) else leaf,
                tree,
                is_leaf=lambda leaf: isinstance(leaf, _Split),
            )


class _Equinox(Library):
    """Acts as `eqx.filter_jit`: in arguments and results, arrays are traced and other leaves are static."""

    def __init__(self, fn: Callable[..., Any], jit_kwargs: Mapping[str, Any]) -> None:
        super().__init__(fn, {key: value for key, value in jit_kwargs.items() if not key.startswith("static_")})

    @contextlib.contextmanager
    def encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Arguments]:
        yield tuple(map(_Filtered.of, args)), {name: _Filtered.of(value) for name, value in kwargs.items()}

    def _inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not all(isinstance(value, _Filtered) for value in (*args, *kwargs.values())):
            raise LibraryNeeded
        return _Filtered.of(self._fn(*(a.tree for a in args), **{name: value.tree for name, value in kwargs.items()}))

    def _decoded(self, result: Any) -> Any:
        return result.tree


def _holds(arguments: Any, kinds: tuple[type, ...]) -> bool:
    return any(jax.tree.leaves(_map_leaves(lambda leaf: isinstance(leaf, kinds), arguments, kinds)))


def _kinds(library: ModuleType) -> tuple[type, ...]:
    """Returns the classes whose objects the library's jit encodes."""
    names = ("Pytree", "Object", "Variable") if library.__name__ == "flax.nnx" else ("Module",)
    return tuple(getattr(library, name) for name in names if hasattr(library, name))


class LibraryNeeded(TypeError):
    """Raised if modules of a library are traced as plain pytrees."""

    def __init__(self) -> None:
        super().__init__(
            "modules of Flax NNX and Equinox are for calls and graphrl.compile: lower, trace and eval_shape take arrays"
        )


def _map_leaves(change: Callable[[Any], Any], tree: Any, kinds: tuple[type, ...]) -> Any:
    """Runs `jax.tree.map` with objects of the classes `kinds`, and states of NNX, which are plain data, as leaves."""
    state = getattr(sys.modules.get("flax.nnx"), "State", None)
    whole = kinds if state is None else (*kinds, state)
    return jax.tree.map(change, tree, is_leaf=lambda leaf: isinstance(leaf, whole))


class _Split(NamedTuple):
    """A module of NNX, split into its structure and its arrays."""

    graphdef: Any
    values: list[Any]


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class _Filtered:
    """A tree whose arrays are children for JAX, and whose other leaves are part of its structure."""

    arrays: tuple[Any, ...]
    others: tuple[Any, ...]  # for each leaf, its type (1 == 1.0 == True) and value; `_ARRAY` for an array
    structure: jax.tree_util.PyTreeDef

    @classmethod
    def of(cls, tree: Any) -> "_Filtered":
        leaves, structure = jax.tree.flatten(tree)
        arrays = tuple(leaf for leaf in leaves if isinstance(leaf, _ARRAYS))
        others = tuple(_ARRAY if isinstance(leaf, _ARRAYS) else (type(leaf), leaf) for leaf in leaves)
        return cls(arrays, others, structure)

    @property
    def tree(self) -> Any:
        arrays = iter(self.arrays)
        return jax.tree.unflatten(self.structure, [next(arrays) if each is _ARRAY else each[1] for each in self.others])

    def tree_flatten(self) -> tuple[Any, Any]:
        return self.arrays, (self.others, self.structure)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Flattens as `tree_flatten`, with the arrays' paths in the tree, for jax's errors."""
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(self.tree)]
        own = [path for path, other in zip(paths, self.others, strict=True) if other is _ARRAY]
        return tuple(zip(own, self.arrays, strict=True)), (self.others, self.structure)

    @classmethod
    def tree_unflatten(cls, static: Any, arrays: Any) -> "_Filtered":
        return cls(tuple(arrays), *static)
