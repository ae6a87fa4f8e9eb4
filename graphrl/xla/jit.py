"""`graphrl.jit`: `jax.jit` whose programs run in the order that needs the least memory.

A program that has no decision yet is never run: its compilation ends, before XLA generates code, in an exception; then
it is planned from the module that was captured; then it is called again, and this compilation gets its schedule. So
donated arguments are intact until the planned program takes them, and a program that only fits with its plan fits.
Calls of compiled programs go through jax's own dispatch.
"""

import collections
import contextlib
import hashlib
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import jax

from graphrl.errors import GraphrlError, ProblemError
from graphrl.optimize import DEFAULT_SECONDS
from graphrl.solvers.base import Progress
from graphrl.xla import callback, hook, libraries
from graphrl.xla.callback import Unplanned
from graphrl.xla.decorated import Decorated, function_name, named_as
from graphrl.xla.libraries import Library
from graphrl.xla.planning.cache import VERSION
from graphrl.xla.planning.planner import Planner
from graphrl.xla.report import Report
from graphrl.xla.settings import Settings

try:
    from jax._src.core import trace_state_clean as _no_transformation
except ImportError:  # then the hook is missing too

    def _no_transformation() -> bool:
        return True


_ATTEMPTS = 3

_functions: collections.Counter[str] = collections.Counter()  # functions of one name and settings


class PlannedFunction(Decorated):
    """A function that `graphrl.jit` made. It has what a function of `jax.jit` has: `lower`, `trace`, `eval_shape`,
    `clear_cache`; those, and calls under a transformation, are jax's own: only top-level calls are planned.

    Pickles are without what is planned and compiled. In another process plans are found on disk.
    """

    def __init__(self, fn: Callable[..., Any], settings: Settings, jit_kwargs: dict[str, Any]) -> None:
        super().__init__(fn)
        self._options = jit_kwargs
        self._planner = Planner(settings)
        self._unplanned: tuple[Report, ...] = ()  # why it runs under plain jax.jit, if it does
        self._starting = threading.Lock()
        self._library: Library | None = None
        self._prepare(libraries.guarded(fn, jit_kwargs), jit_kwargs)

    def _prepare(self, traced: Callable[..., Any], jit_kwargs: dict[str, Any]) -> None:
        self._traced, self._kwargs = traced, jit_kwargs
        self._plain: Any = jax.jit(traced, **jit_kwargs)
        self._call: Any = self._start  # until the first call shows that there is a hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._library is None:
            try:
                return self._run(*args, **kwargs)
            except Exception:
                library = self.library_for(args, kwargs)
                if library is None:
                    raise
            with self._starting:
                if self._library is None:  # another thread may have been faster
                    self._prepare(library.pure, library.jit_kwargs)
                    self._library = library
        return self._library.call(self._run, args, kwargs)

    def library_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Library | None:
        """The function as one over arrays where an argument is a module of a library; else None."""
        library = libraries.library_of(libraries.traced(args, kwargs, self._options))
        return None if library is None else library(self._fn, self._options)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not _no_transformation():
            return self._plain(*args, **kwargs)
        try:
            return self._call(*args, **kwargs)
        except Exception as error:
            reason = callback.reason(error)
            if reason is None:
                raise
        return self._plan_and_call(reason, args, kwargs)

    # Since Python 3.12 a protocol, here `jax.stages.Wrapped`, only sees what stands in the class.
    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """As jax's: without a plan."""
        return self._plain.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As jax's: without a plan."""
        return self._plain.lower(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_plain" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._plain, name)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: the function and its settings."""
        return super().__getstate__() | {"_settings": self._planner.settings, "_options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """From what `__getstate__` gave."""
        self.__init__(self._function(state), state["_settings"], state["_options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<graphrl.jit of {self._fn!r}>"

    @property
    def reports(self) -> tuple[Report, ...]:
        """What planning gained for each program (one for each set of shapes, types and static arguments) that XLA
        compiled in this process, in that order. What JAX's cache on disk had compiled already is not among them. Where
        the function runs under plain `jax.jit`, the last one says why.
        """
        return *self._planner.reports.values(), *self._unplanned

    def clear_cache(self) -> None:
        """Forgets the compiled programs, as jax's does; the plans are kept."""
        for jitted in (self._plain, self._call):
            if jitted != self._start:
                jitted.clear_cache()

    def _start(self, *args: Any, **kwargs: Any) -> Any:
        with self._starting:
            if self._call == self._start:
                missing = hook.available(_platform(self._kwargs, (args, kwargs)))
                if missing is None:
                    self._call = self._marked()
                else:
                    self._fall_back(missing)
        return self._call(*args, **kwargs)

    def _marked(self) -> Callable[..., Any]:
        """The jitted function under a name that the callback knows: jax's caches, in memory and on disk, then tell
        its programs from those of the function itself, and from those of other settings.
        """
        fn, traced, settings = self._fn, self._traced, self._planner.settings
        name = function_name(fn)
        same = f"{VERSION} {settings.mark} {getattr(fn, '__module__', '')} {getattr(fn, '__qualname__', name)}"
        _functions[same] += 1
        unique = f"{same} {_functions[same]}" if settings.cache else secrets.token_hex(16)
        mark = hashlib.sha256(unique.encode()).hexdigest()[:16]
        callback.set_rule(mark, self._planner.rule)
        weakref.finalize(self, callback.drop_rule, mark)

        def planned(*args: Any, **kwargs: Any) -> Any:
            return traced(*args, **kwargs)

        named_as(fn, planned).__name__ = callback.marked(name, mark)
        return jax.jit(planned, **self._kwargs)

    def _plan_and_call(self, reason: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for _ in range(_ATTEMPTS):
            if isinstance(reason, Unplanned):
                try:
                    lowered = self._call.lower(*args, **kwargs)
                    self._planner.plan(lowered, reason)
                except ProblemError:  # the method is none for this program, which the user can change
                    raise
                except Exception as error:  # whatever it is, the program runs
                    self._fall_back(in_words(error))
            else:
                self._fall_back(in_words(reason))
            hook.forget_calls(self._call)
            try:
                with contextlib.nullcontext() if self._planner.settings.cache else hook.unkept():
                    return self._call(*args, **kwargs)
            except Exception as error:
                again = callback.reason(error)
                if again is None:
                    raise
                reason = again
        self._fall_back("XLA makes another module of it each time")
        return self._call(*args, **kwargs)

    def _fall_back(self, why: str) -> None:
        name = function_name(self)
        hook.warn_once(f"graphrl.jit: {why}; {name} runs under plain jax.jit")
        self._unplanned = (Report(name, False, why),)
        self._call = self._plain


def in_words(error: Exception) -> str:
    """Why there is no plan, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, GraphrlError) else f"{type(error).__name__}: {text}"


def _platform(jit_kwargs: dict[str, Any], arguments: Any) -> str:
    """Where a call runs: where jit is told to, or an argument has been put, or by default."""
    if jit_kwargs.get("backend"):
        return str(jit_kwargs["backend"])
    leaves = jax.tree.leaves((jit_kwargs.get("in_shardings"), arguments))
    shardings = [getattr(leaf, "sharding", leaf) for leaf in leaves if getattr(leaf, "committed", True)]
    placed = (min(each.device_set, key=str) for each in shardings if isinstance(each, jax.sharding.Sharding))
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = jit_kwargs.get("device") or next(placed, None) or default
    return device if isinstance(device, str) else device.platform if device else jax.default_backend()


@overload
def jit(fn: Callable[..., Any], **options: Any) -> PlannedFunction: ...


@overload
def jit(fn: None = None, **options: Any) -> Callable[[Callable[..., Any]], PlannedFunction]: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    objective: str = "peak_memory",
    seconds: float = DEFAULT_SECONDS,
    method: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    cache: bool = True,
    recompute: float = 0.0,
    **jit_kwargs: Any,
) -> Any:
    """`jax.jit`, and XLA runs each program in the order that needs the least memory.

    The first call with new shapes plans for at most `seconds` beside compiling; what it finds is kept on disk, so that
    the next process only compiles. Programs with less than a mebibyte of temporaries or with `jax.lax.rng_uniform` are
    left alone. Never worse than XLA: see `graphrl.compile`, which does the same for given arguments. Under another
    transformation (`jax.grad`, `jax.vmap`, an outer `jax.jit`, ...) it is `jax.jit`: put `graphrl.jit` outermost.

    Where an argument holds a module of Flax NNX or Equinox it is `nnx.jit` or `eqx.filter_jit`: what a function changes
    in the former stays changed, what is no array in the latter is static.

    Unlike `jax.jit`, two `graphrl.jit` of one function share no compiled programs: call it once, not in a loop.

    Args:
      fn: the function; without it, a decorator is returned.
      objective, seconds, method, seed, progress, cache, recompute: as in `graphrl.compile`.
      **jit_kwargs: all that `jax.jit` takes: static_argnums, donate_argnums, in_shardings, ...

    Returns:
      A function like that of `jax.jit`; its `reports` say what was gained.

    Raises:
      GraphrlError: an option is at fault; one line says which. From the first call: the method cannot take the program.
      Interrupted: from a call: Ctrl-C in the search.
    """
    settings = Settings(objective, seconds, method, seed, progress, cache, recompute)
    if fn is None:
        return lambda fn: PlannedFunction(fn, settings, jit_kwargs)
    if not callable(fn):
        raise ProblemError(f"fn is of type {type(fn).__name__}: must be a function")
    return PlannedFunction(fn, settings, jit_kwargs)
