"""`graphrl.fit`: a whole training step within a limit of memory, by XLA's own figure.

`fit_search.py` finds how; here are the public function, the function and report that it returns, and what is stored.
"""

import dataclasses
import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import cache_folder, read_document, write_document
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, Interconnect, find_chip
from graphrl.process import installed_version
from graphrl.units import align_columns, format_bytes, format_seconds
from graphrl.xla.checkpoint.fit_search import FitTry, Found, StepCall, find_fastest, numbers_of_microbatches
from graphrl.xla.checkpoint.largest import find_largest
from graphrl.xla.checkpoint.microbatches import Loss
from graphrl.xla.checkpoint.plans import VERSION, program_text
from graphrl.xla.checkpoint.program import CheckpointPlan
from graphrl.xla.checkpoint.settings import SECONDS, Settings, Static, UnmetError
from graphrl.xla.checkpoint.step_shards import StepShards
from graphrl.xla.checkpoint.steps import Rules, Step, jax_context
from graphrl.xla.decorated import Decorated, function_name

FORMAT = "graphrl-fit"
CPU = "cpu"  # the chip whose memory is the host's


def fit(
    step: Callable[..., Any],
    *args: Any,
    memory: str,
    batch_axis: Mapping[str, int] | None = None,
    largest_batch: bool = False,
    chip: str | Chip | None = None,
    link: str | Interconnect | Mapping[str, str | Interconnect] | None = None,
    offload: bool | None = None,
    method: str = "auto",
    seconds: float = SECONDS,
    seed: int = 0,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    **kwargs: Any,
) -> "FittedFunction":
    """Returns a training step that fits into a limit of memory, by XLA's own figure for the whole step.

    A step takes a gradient by `jax.grad` or `jax.value_and_grad` (or those of NNX and Equinox) and updates weights. If
    it fits as it is, it stays as it is. Otherwise its gradient gets a plan, as by `graphrl.checkpoint`: values are
    computed again or moved to the host, and loops run in stretches. If `batch_axis` is given, the batch may also be
    split into microbatches, whose gradients are averaged. Of all that fit, the fastest by estimate is taken.

        step = jax.jit(step, donate_argnums=(0, 1))
        step = graphrl.fit(step, params, state, batch, memory="80GiB", batch_axis={"batch": 0})
        print(step.report())
        params, state, loss = step(params, state, batch)

    Several devices may share the step: by `NamedSharding`s of its arguments or of its `jax.jit`, or by explicit mesh
    axes. Bytes, limit and seconds are then those of one device, and seconds include collectives. Each microbatch has an
    equal share of the examples of each device, and is split as the batch is; so are gradients as their weights.

    Microbatches give the results of the step if its loss is a mean over the batch, and if the batch is the outermost of
    the axes that the step flattens before the loss; neither is checked. Statistics over the batch, as in batch
    normalisation, become those of a microbatch. Auxiliary results of the loss are averaged, or joined if they have the
    batch axis. Typed random keys differ in each microbatch.

    With other shapes, dtypes or static values the returned function follows the same plan where it applies; it is not
    verified for these. Microbatches sum gradients in the dtype of the weights.

    Args:
      step: a function of arrays and pytrees, or the result of `jax.jit`, `nnx.jit` or `eqx.filter_jit`.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s: it is traced, not run. On several devices, those without
        a sharding are whole on each.
      memory: limit such as "80GiB": arguments, results and temporaries, less results in donated arguments.
      batch_axis: for each argument of the step that has the batch, by name, the batch axis of its arrays. The loss must
        be a mean over the batch.
      largest_batch: whether to search for the largest batch, to 2%, that fits without microbatches; `batch` of the
        result states it. The shapes of the arguments in `batch_axis` are scaled.
      chip: the chip, as in `checkpoint`. If it is not here (an H100 or H200), XLA compiles for it by the extra
        `gpu-compile`, on several devices for the number in the shardings; by default jax's devices, or those of
        the shardings.
      link: the link between devices, as in `checkpoint`.
      offload: whether values may be moved to host memory; by default, only if nothing fits otherwise, and not for the
        largest batch.
      method, seed, cache: as in `checkpoint`; largest batches are not stored.
      seconds: time of each search for a plan, in seconds; there are some for each number of microbatches.
      progress: called with a line about each way of running the step that XLA has compiled, such as `print`.
      donate_argnums: as in `jax.jit`, if the step is not jitted yet; so are `static_argnums` and `static_argnames`.
      static_argnums, static_argnames: static arguments; of a jitted step, those that it was jitted with.
      **kwargs: the step's keyword arguments.

    Returns:
      A function like `step`; its `report()` is a table of what was tried.

    Raises:
      ProblemError: an option is at fault; nothing found fits (one line states the least); or the loss cannot run in
        microbatches.
      GraphrlError: XLA has no compiler for the chip here, or reports no memory.
    """
    if not callable(step):
        raise ProblemError(f"step is of type {type(step).__name__}: must be a function")
    if batch_axis is not None and not isinstance(batch_axis, Mapping):
        raise ProblemError(f'batch_axis is {batch_axis!r}: must name arguments, such as {{"batch": 0}}')
    if largest_batch and not batch_axis:
        raise ProblemError('largest_batch needs batch_axis, such as {"batch": 0}')
    if progress is not None and not callable(progress):
        raise ProblemError(f"progress is {progress!r}: must be a function of a line, such as print")
    if not isinstance(memory, str):
        raise ProblemError(f'memory is {memory!r}: must be bytes such as "80GiB"')
    of_checkpoint = [name for name in ("in_shardings", "mesh") if name in kwargs]
    if of_checkpoint and of_checkpoint[0] not in inspect.signature(step).parameters:
        raise ProblemError(f"fit takes no {of_checkpoint[0]}: give NamedShardings to the step's arguments or jax.jit")
    may_offload = False if offload is None else offload
    settings = Settings(memory, None, chip, may_offload, method, seconds, seed, cache, verify=True, link=link)
    is_last = offload is None and settings.resolved_chip.name != CPU  # the host is tried last
    static = Static.of(static_argnums, static_argnames)
    options = {
        name: value
        for name, value in (
            ("donate_argnums", donate_argnums),
            ("static_argnums", static.argnums),
            ("static_argnames", static.argnames),
        )
        if value != ()
    }
    whole = Step(step, options, static, dict(batch_axis or {}))
    call = StepCall(whole, function_name(step), args, kwargs, settings, progress)
    fitting = _fitting(find_largest(call)) if largest_batch else _stored(call, is_last)
    return FittedFunction(step, whole, fitting, call.plain.shared and call.plain.shared.on_any_devices())


@dataclasses.dataclass(frozen=True)
class FitReport:
    """What `graphrl.fit` tried, and what it chose. `str()` of it is a table.

    Attributes:
      function: name of the step.
      chip: name of the chip for which run times are estimated.
      limit: limit of memory in bytes.
      outside_bytes: bytes of arguments and results, less those of results in donated arguments.
      batch: the batch size; None if no argument was named.
      chosen: index of the way chosen.
      tries: all ways: the step as it is first; at the end those that need less than the one chosen, by estimate.
      search_seconds: seconds that fitting took, now or in an earlier process.
      from_cache: whether the result was read from disk.
      devices: number of devices that share the step; bytes and seconds are those of one.
    """

    function: str
    chip: str
    limit: int
    outside_bytes: int
    batch: int | None
    chosen: int
    tries: tuple[FitTry, ...]
    search_seconds: float
    from_cache: bool = False
    devices: int = 1

    @property
    def fitted(self) -> FitTry:
        """The way chosen."""
        return self.tries[self.chosen]

    @property
    def slowdown(self) -> float:
        """Estimated time that it adds, as a share of the time of the step as it is."""
        return self._slowdown(self.fitted)

    def to_dict(self) -> dict[str, Any]:
        """Converts the report to a dictionary for `json.dump`, with the attributes and `slowdown`."""
        return {**dataclasses.asdict(self), "slowdown": self.slowdown}

    def __str__(self) -> str:
        rows = [(self.function, "microbatches", "memory", "by", "fits", "step", "slowdown", "")]
        for number, each in enumerate(self.tries):
            by = "XLA" if each.is_compiled else "estimate"
            times = format_seconds(each.seconds), f"{self._slowdown(each):+.1%}"
            fits, mark = "yes" if each.bytes <= self.limit else "no", "chosen" if number == self.chosen else ""
            rows.append((each.plan, str(each.microbatches), format_bytes(each.bytes), by, fits, *times, mark))
        where = "read from the plan cache" if self.from_cache else "in a new search"
        batch = "" if self.batch is None else f" at a batch of {self.batch}"
        return "\n".join(
            [
                *align_columns(rows, left=1),
                *([f"shared by {self.devices} devices: all figures are one device's"] if self.devices > 1 else []),
                f"limit {format_bytes(self.limit)}{batch}, of which arguments and results take "
                f"{format_bytes(self.outside_bytes)}",
                f"times estimated by roofline of {self.chip}; fitted in {format_seconds(self.search_seconds)}, {where}",
            ]
        )

    def _slowdown(self, each: FitTry) -> float:
        plain = self.tries[0].seconds
        return each.seconds / plain - 1.0 if plain else 0.0


@dataclasses.dataclass(frozen=True)
class Fitting:
    """How a step fits, as stored on disk.

    Attributes:
      count: number of microbatches.
      microbatch: examples in each; None if the batch is unknown.
      plans: plans for the functions of its gradients; none if the step stays as it is.
      report: report of the tried plans.
    """

    count: int
    microbatch: int | None
    plans: tuple[CheckpointPlan, ...]
    report: FitReport


class FittedFunction(Decorated):
    """The function that `graphrl.fit` returns. A pickle by value contains the plans, but nothing compiled."""

    def __init__(self, fn: Callable[..., Any], step: Step, fitting: Fitting, shared: StepShards | None) -> None:
        super().__init__(fn)
        self._step, self._fitting, self._shared = step, fitting, shared
        self._rules: dict[Any, Rules] = {}  # keys: all for which jax traces the step again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._step.call(self._rules_for(args, kwargs), args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for copies and pickles."""
        state = {"_options": self._step.options, "_fitting": self._fitting, "_shared": self._shared}
        return super().__getstate__() | state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `__getstate__`."""
        fn = self._function(state)
        self.__init__(fn, Step(fn, *state["_options"]), state["_fitting"], state["_shared"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<graphrl.fit of {self._fn!r}>"

    @property
    def batch(self) -> int | None:
        """The batch size for which the step fits; None without `batch_axis`."""
        return self._fitting.report.batch

    def report(self) -> FitReport:
        """Returns the report: a table of the tried plans, with memory and time."""
        return self._fitting.report

    def _rules_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rules | None:
        """Returns the rules for a call; None for a step that stays as it is."""
        plans, microbatch = self._fitting.plans, self._fitting.microbatch
        if not plans:
            return None
        leaves, structure = jax.tree.flatten((args, kwargs))
        key = *map(_type_of, leaves), structure, *self._step.static_values(args, kwargs), jax_context()
        if key not in self._rules:
            shared, parts, count, small = self._shared, 1, 1, tuple[Loss, ...]()
            if shared is not None:
                plain = self._step.trace(Rules(), args, kwargs)
                if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                    plain = plain.with_shards(find_chip(DEFAULT_CHIP), None)
                    shared = plain.shared
                elif len(plain.closed.in_avals) != len(shared.arguments):
                    shared = None  # the step has other arguments: tracers do not have their shardings
                parts = plain._replace(shared=shared).parts
            if self._fitting.count > 1 and microbatch is not None:
                size = self._step.batch(args, kwargs)
                counts = numbers_of_microbatches(size, parts) or [1]
                count = next((k for k in counts if size // k <= microbatch), counts[-1])
                if count > 1:
                    small = self._step.trace(Rules(shared=shared), args, kwargs, batch=size // count).losses
            self._rules[key] = Rules(plans, count, small, shared)
        return self._rules[key]


def _type_of(leaf: Any) -> Any:
    """Returns what a trace reads of an argument: its type and sharding, or the value if that can only be static."""
    if hasattr(leaf, "shape"):
        sharding = getattr(leaf, "sharding", None)
        types = leaf.shape, getattr(leaf, "dtype", None), getattr(leaf, "weak_type", False)
        return *types, sharding if isinstance(sharding, NamedSharding) else isinstance(leaf, jax.core.Tracer)
    is_number = isinstance(leaf, int | float | complex) and not isinstance(leaf, bool)
    return leaf if isinstance(leaf, Hashable) and not is_number else type(leaf)


def _stored(call: StepCall, host_is_last: bool) -> Fitting:
    """Returns how a step fits: as found before, or by a new search, and another with the host if nothing fits."""
    path = cache_folder("fits") / f"{_fingerprint(call, (VERSION, host_is_last))}.json"
    if call.settings.cache:
        try:
            fitting = read_document(path, Fitting, FORMAT, VERSION)
            return dataclasses.replace(fitting, report=dataclasses.replace(fitting.report, from_cache=True))
        except (GraphrlError, ValueError):
            pass
    try:
        found = find_fastest(call, call.counts())
    except UnmetError:
        if not host_is_last:
            raise
        found = find_fastest(call, call.counts(), moves=True)
    fitting = _fitting(found)
    if call.settings.cache:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_document(path, fitting, FORMAT, VERSION)
        except (OSError, GraphrlError) as error:
            warnings.warn(f"graphrl: the plan cannot be stored for the next process: {error}", stacklevel=3)
    return fitting


def _fingerprint(call: StepCall, extra: Any) -> str:
    """Hashes the step, the options, what else decides (`extra`), and the versions of graphrl and jax."""
    settings, traced = call.settings, call.plain
    shared, device = traced.shared, traced.mesh(call.chip_name).devices.flat[0]
    kind = device.device_kind, device.client.platform_version
    versions = installed_version(), jax.__version__, kind
    if shared is not None:
        layout = shared.layout
        extra = extra, layout.sizes, layout.links, layout.is_automatic, shared.arguments, shared.results
    options = settings.budget, settings.offload, settings.method, float(settings.seconds), settings.seed, extra
    shapes = [aval.str_short() for aval in traced.closed.in_avals]
    text = program_text(traced.closed), shapes, traced.donated, sorted(call.step.batch_axis.items()), call.size
    fields = repr((versions, options, text, dataclasses.astuple(settings.resolved_chip)))
    return hashlib.sha256(fields.encode()).hexdigest()[:32]


def _fitting(found: Found) -> Fitting:
    """Converts the result of a search."""
    call = found.call
    report = FitReport(
        function=call.name,
        chip=call.settings.resolved_chip.name,
        limit=call.limit,
        outside_bytes=call.outside,
        batch=call.size,
        chosen=found.chosen,
        tries=found.tries,
        search_seconds=found.seconds,
        devices=1 if call.plain.shared is None else math.prod(call.plain.shared.layout.sizes.values()),
    )
    microbatch = None if call.size is None else call.size // found.count
    return Fitting(found.count, microbatch, found.plans, report)
