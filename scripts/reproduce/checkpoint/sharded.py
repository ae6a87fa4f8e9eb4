"""Sections `sharded`, `sharded-kept` and `sharded-values`: training steps that eight devices share.

Programs are those of `measured.PROGRAMS`, larger, with arguments split over a mesh of eight devices:

- *fully sharded*: batch and weights over all devices; a product gathers its weight, and its gradient is scattered;
- *tensor parallel*: over 2 x 4 devices, the batch over 2, heads and hidden features over 4;
- *expert parallel*: batch and experts over all devices;
- *data parallel*: the batch alone.

The results of each layer are constrained to the split of the batch, as users do. Gradients are split as weights are.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import graphrl
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.xla.checkpoint import settings as checkpoint_settings
from graphrl.xla.checkpoint.collectives import one_device
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import UnmetError
from graphrl.xla.checkpoint.shards import Shards, replicated
from graphrl.xla.topology import compile_for, concrete_mesh
from reproduce.checkpoint.measured import (
    CHIP,
    LIMITS,
    MATCHED,
    NONE,
    POLICIES,
    SHARDED,
    TIMED,
    WAITING,
    WHOLE_SHARDED,
    Settings,
    covered,
)
from reproduce.gpu_compile import memory_of
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.models import images, language
from reproduce.models.losses import Program, Wrap, shaped_on, undecorated
from reproduce.results import Table

DEVICES = 8
TOLERANCE = 1e-6  # of the largest number
POLICY_OF = {f"{name}, a layer": policy for name, policy in POLICIES.items() if f"{name}, a layer" in TIMED}
METHODS = (NONE, *TIMED, *WAITING, "graphrl at 5%", *MATCHED)
SHARES = (0.6, 0.4, 0.25)  # of jax's own temporaries, as budgets
KEEPING = (0.5, 0.25)  # of what jax keeps, for values on CPUs
Split = Callable[[str, tuple[int, ...]], P]  # path and shape of a weight -> how it is split


class Kind(NamedTuple):
    """A sharded program: its sizes, its mesh, and how weights are split over it; the batch is over the first axis."""

    build: Callable[..., Program]
    full: Mapping[str, Any]
    small: Mapping[str, Any]
    mesh: Mapping[str, int]
    split: Split


def fully(path: str, shape: tuple[int, ...]) -> P:
    """Splits the first of the dimensions that are a multiple of the devices; vectors stay whole."""
    del path
    dims = [dim for dim, size in enumerate(shape) if size % DEVICES == 0] if len(shape) > 1 else []
    return P(*("data" if dim == dims[0] else None for dim in range(len(shape)))) if dims else P()


def _tensor(path: str, shape: tuple[int, ...]) -> P:
    """Splits the weights of Llama as Megatron does: hidden features of the first products, and of the last ones."""
    del shape
    name = path.split("'")[-2]
    return P("model", None) if name in ("o", "down", "embed") else P() if "norm" in name else P(None, "model")


def _experts(path: str, shape: tuple[int, ...]) -> P:
    del shape
    return P("data") if path.endswith(("['up']", "['down']")) else P()


def _stacked(split: Split) -> Split:
    """Returns how weights are split if those of all layers are stacked."""

    def of(path: str, shape: tuple[int, ...]) -> P:
        return P(None, *split(path, shape[1:])) if "'layers'" in path else split(path, shape)

    return of


_ALL, _MESH = {"data": DEVICES}, {"data": 2, "model": 4}
_TEXT = {"batch": 16, "depth": 8, "width": 2048, "heads": 16, "tokens": 1024, "words": 32768}
_SMALL_TEXT = {"batch": 8, "depth": 3, "width": 32, "heads": 4, "tokens": 8, "words": 64}
_LLAMA = {**_TEXT, "groups": 4, "hidden": 5632}, {**_SMALL_TEXT, "groups": 4, "hidden": 48}
PROGRAMS = {
    SHARDED[0]: Kind(
        language.transformer, {**_TEXT, "scanned": False}, {**_SMALL_TEXT, "scanned": False}, _ALL, fully
    ),
    SHARDED[1]: Kind(language.llama, *_LLAMA, _ALL, fully),
    SHARDED[2]: Kind(language.llama, *_LLAMA, _MESH, _tensor),
    SHARDED[3]: Kind(
        language.mixture_of_experts,
        {**_TEXT, "batch": 64, "depth": 4, "width": 1024, "tokens": 512, "words": 8192, "experts": 8},
        {**_SMALL_TEXT, "experts": 8}, _ALL, _experts,
    ),
    SHARDED[4]: Kind(
        images.vision_transformer,
        {"batch": 256, "side": 224, "patch": 16, "depth": 8, "width": 384, "heads": 6},
        {"batch": 8, "side": 8, "patch": 4, "depth": 3, "width": 16, "heads": 2}, _ALL, lambda path, shape: P(),
    ),
    SHARDED[5]: Kind(
        images.u_net, {"batch": 128, "side": 64, "widths": (64, 128, 256)}, {"batch": 8, "side": 8, "widths": (8,)},
        _ALL, lambda path, shape: P(),
    ),
    WHOLE_SHARDED[0]: Kind(
        language.transformer, {**_TEXT, "batch": 128, "scanned": True}, {**_SMALL_TEXT, "scanned": True}, _ALL,
        _stacked(fully),
    ),
    WHOLE_SHARDED[1]: Kind(
        language.llama, {**_LLAMA[0], "batch": 64, "scanned": True}, {**_LLAMA[1], "scanned": True}, _MESH,
        _stacked(_tensor),
    ),
}  # fmt: skip


def selected(settings: Settings) -> tuple[str, ...]:
    """Returns the programs to measure."""
    return tuple(
        name for name in (SHARDED[:1] if settings.quick else SHARDED) if name in (settings.programs or SHARDED)
    )


class Sharded(NamedTuple):
    """A program on a mesh.

    Attributes:
      program: the program.
      mesh: the mesh of devices.
      shardings: how its arguments are split.
      wrap: wrapper for layers, whose results are split as the batch is.
    """

    program: Program
    mesh: Mesh
    shardings: tuple[Any, ...]
    wrap: Wrap

    @property
    def args(self) -> tuple[Any, ...]:
        """Its arguments as `jax.ShapeDtypeStruct`s with shardings."""
        return shaped_on(self.program.args, self.shardings)

    def loss(self, wrap: Wrap) -> Any:
        """Returns the loss with a rule around its layers."""
        return self.program.loss(lambda layer: wrap(self.wrap(layer)))

    def own(self, loss: Any = None, **options: Any) -> graphrl.CheckpointedFunction:
        """Returns a loss, by default the undecorated one, under `graphrl.checkpoint`."""
        more = {"chip": CHIP, "mesh": self.mesh, "in_shardings": self.shardings}
        return graphrl.checkpoint(loss or self.loss(undecorated), **{**more, **options})


def build(name: str, *, small: bool, chip: str | None, **sizes: Any) -> Sharded:
    """Builds a program on eight devices of a kind that are not there, or on jax's devices (None).

    `sizes` replace sizes of the program.
    """
    kind = PROGRAMS[name]
    program = kind.build(**{**(kind.small if small else kind.full), **sizes})
    axes = tuple(kind.mesh)
    abstract = AbstractMesh(tuple(kind.mesh.values()), axes, axis_types=(AxisType.Auto,) * len(axes))
    mesh = concrete_mesh(abstract, chip)
    params, *inputs = program.args
    of_params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, kind.split(jax.tree_util.keystr(path), leaf.shape)), params
    )
    of_inputs = jax.tree.map(lambda leaf: NamedSharding(mesh, P("data") if leaf.ndim else P()), inputs)

    def constrained(value: Any) -> Any:
        is_batch = jnp.ndim(value) > 1
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P("data"))) if is_batch else value

    def wrap(layer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: jax.tree.map(constrained, layer(*args))

    return Sharded(program, mesh, (of_params, *of_inputs), wrap)


def _gradient(sharded: Sharded, method: str, slowdown: float | None) -> Any:
    """Returns the gradient function under a method; `slowdown` is the limit of graphrl's."""
    if method == NONE:
        return jax.value_and_grad(sharded.loss(undecorated))
    if method in TIMED:
        return jax.value_and_grad(ruled(sharded, method))
    if method in WAITING:
        return jax.value_and_grad(sharded.own(ruled(sharded, WAITING[method]), budget=1.0, cache=False))
    return jax.value_and_grad(sharded.own(slowdown=slowdown, cache=False))


def ruled(sharded: Sharded, rule: str) -> Any:
    """Returns the loss with a rule around each layer."""
    return sharded.loss(functools.partial(jax.checkpoint, policy=POLICY_OF[rule]))


def _figures(settings: Settings, name: str, method: str) -> Figures | None:
    """Returns XLA's bytes of a gradient on one device, and its estimated seconds with collectives."""
    key = {"what": "sharded", "program": name, "method": method, "size": settings.size}
    slowdown = LIMITS.get(method)
    if method in MATCHED:
        own, whole = (_figures(settings, name, each) for each in (MATCHED[method], NONE))
        if own is None or whole is None:
            return None
        slowdown = min(own["seconds"] / whole["seconds"] - 1, 1.0)
    return settings.measurements.get(key, functools.partial(_compiled, settings, name, method, slowdown))


def _compiled(settings: Settings, name: str, method: str, slowdown: float | None) -> Figures:
    sharded = build(name, small=settings.quick, chip=CHIP)
    return measured(sharded, _gradient(sharded, method, slowdown))


def measured(sharded: Sharded, gradient: Any) -> Figures:
    """Returns XLA's bytes of a gradient on one device, its collectives, and its estimated seconds with them."""
    started = time.perf_counter()
    compiled = _compile(sharded, gradient)
    seconds = time.perf_counter() - started
    text = compiled.as_text()
    names = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
    counts = {kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in names}
    return {**memory_of(compiled)._asdict(), "seconds": _seconds(sharded, gradient), "compile": seconds, **counts}


def _compile(sharded: Sharded, gradient: Any) -> Any:
    outputs = NamedSharding(sharded.mesh, P()), sharded.shardings[0]
    return compile_for(gradient, *sharded.args, out_shardings=outputs)


def _seconds(sharded: Sharded, gradient: Any) -> float:
    """Estimates the seconds of a gradient on one device, with all collectives."""
    closed = jax.make_jaxpr(gradient)(*sharded.args)  # types with the mesh, as under jit: for the same plan
    options = checkpoint_settings.Settings(slowdown=0.1, chip=CHIP, in_shardings=sharded.shardings, mesh=sharded.mesh)
    layout = options.layout(closed.in_avals)
    if layout is None:
        raise GraphrlError("a mesh of one device")
    specs = options.arguments(layout, jax.tree.structure((sharded.program.args, {})), closed.in_avals)
    count = len(jax.tree.leaves(sharded.program.params))
    results = [replicated(closed.out_avals[0]), *specs[:count]]
    return gradient_seconds(one_device(Shards(closed, layout, specs, results), closed), CHIP)


class Point(NamedTuple):
    """Memory and estimated slowdown of a method on a program."""

    method: str
    temporaries: float
    slowdown: float


def sharded(settings: Settings) -> Iterator[Table]:
    """Yields the table of temporaries a device against estimated slowdown, then one for each program."""
    lines, quotients, of_waiting, level, rules, details = [], [], [], 0, 0, []
    for name in selected(settings):
        points = _points(settings, name)
        whole = points[NONE].temporaries
        ours = [point for method, point in points.items() if method not in (NONE, *TIMED, *WAITING)]
        best = min((points[rule] for rule in TIMED if rule in points), key=lambda point: point.temporaries)
        cells = [name, mebibytes(whole)]
        for rule in TIMED:
            within = [point for point in ours if point.slowdown <= points[rule].slowdown + 5e-4]
            own = min((point.temporaries for point in within), default=whole)
            rules, level = rules + 1, level + (own <= points[rule].temporaries)
            waits = points.get(f"{rule}, with waits")
            cells.append(
                f"{mebibytes(points[rule].temporaries)} ({points[rule].slowdown:.1%}) / "
                f"{'not run' if waits is None else mebibytes(waits.temporaries)} / {mebibytes(own)}"
            )
            if rule == best.method:
                quotients.append(own / best.temporaries)
                of_waiting += [] if waits is None else [waits.temporaries / best.temporaries]
        lines.append(cells)
        details.append(_of_program(settings, name, points))
    mean = statistics.geometric_mean(quotients)
    how = (
        f"Temporaries a device, in MiB, of `value_and_grad` by XLA's compiler for {DEVICES} H200, which are not there. "
        "For each rule around each layer: its temporaries (its estimated slowdown) / those of the same rule whose "
        "gradients wait for one another (`graphrl.checkpoint(loss, budget=1.0)` around the loss) / the least of "
        f"graphrl's own plans that are estimated to be no slower. Estimates are by roofline of {CHIP}, with "
        "collectives over NVLink, one after another."
    )
    also = f"; the rule itself, with waits, {ratio(statistics.geometric_mean(of_waiting))}" if of_waiting else ""
    summary = (
        f"At the slowdown of each program's best rule graphrl needs {ratio(mean)} of its temporaries (geometric mean), "
        f"and at most as much as a rule in {level} of {rules} pairs{also}.{covered(selected(settings), SHARDED)}"
    )
    table = markdown(["program", NONE, *TIMED], lines)
    yield settings.measurements.table("Sharded steps", how, table, summary=summary)
    yield from details


def _points(settings: Settings, name: str) -> dict[str, Point]:
    figures = {method: _figures(settings, name, method) for method in settings.among(METHODS)}
    whole = figures[NONE]
    if whole is None:
        raise GraphrlError(f"{name}: the undecorated gradient was not measured")
    return {
        method: Point(method, each["temporaries"], each["seconds"] / whole["seconds"] - 1)
        for method, each in figures.items()
        if each is not None
    }


def _of_program(settings: Settings, name: str, points: Mapping[str, Point]) -> Table:
    lines = []
    for method, point in points.items():
        figures = _figures(settings, name, method) or {}
        counts = [str(figures[kind]) for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")]
        share = ratio(point.temporaries / points[NONE].temporaries)
        lines.append([method, mebibytes(point.temporaries), share, ratio(point.slowdown), *counts])
    first = _figures(settings, name, NONE) or {}
    how = (
        f"Arguments {mebibytes(first['arguments'])} MiB a device, results {mebibytes(first['results'])}. Collectives "
        "are those of XLA's module."
    )
    headings = ["rule", "temporaries", "/ none", "slowdown", "gathers", "reduce-scatters", "all-reduces", "all-to-alls"]
    return settings.measurements.table(name, how, markdown(headings, lines))


def sharded_kept(settings: Settings) -> Iterator[Table]:
    """Yields the table of budgets in bytes with `verify`, for eight devices that are not there."""
    lines, met, refused = [], 0, 0
    for name in selected(settings):
        plain = _figures(settings, name, NONE)
        if plain is None:
            raise GraphrlError(f"{name}: the undecorated gradient was not measured")
        for share in SHARES:
            outside = plain["arguments"] + plain["results"]
            budget = outside + int(share * plain["temporaries"])
            key = {"what": "sharded-kept", "program": name, "share": share, "size": settings.size}
            own = settings.measurements.get(key, functools.partial(_within, settings, name, outside, budget))
            if own is None:
                continue
            cells = [name, f"{share:.0%}", mebibytes(budget)]
            if own["total"] is None:
                refused += 1
                cells += [f"refused: the least is {mebibytes(own['least'])}", "-", f"{own['seconds']:.0f}"]
            else:
                met += own["total"] <= budget
                cells += [ratio(own["total"] / budget), ratio(own["slowdown"]), f"{own['seconds']:.0f}"]
            lines.append(cells)
    how = (
        "Plans for budgets of one device in bytes: arguments and results of the gradient, and a share of the "
        "undecorated gradient's temporaries. XLA's figure as a share of the budget is that of the jitted gradient, "
        "compiled afterwards."
    )
    headings = ["program", "budget for temporaries", "the step, MiB", "XLA / budget", "slowdown", "planning, s"]
    summary = (
        f"Of {len(lines)} budgets a device {met} are kept, {refused} are refused with the least that can be kept."
        f"{covered(selected(settings), SHARDED)}"
    )
    yield settings.measurements.table("Sharded budgets", how, markdown(headings, lines), summary=summary)


def _within(settings: Settings, name: str, outside: int, budget: int) -> Figures:
    """Plans for a budget; returns XLA's bytes of the step, or of the least found if the budget was refused.

    Args:
      settings: the script's options.
      name: the program.
      outside: bytes of arguments and results.
      budget: bytes of the step, arguments and results included.
    """
    sharded = build(name, small=settings.quick, chip=CHIP)
    own, started = sharded.own(budget=f"{budget}B", verify=True, cache=False), time.perf_counter()
    try:
        compiled = _compile(sharded, jax.value_and_grad(own))
    except UnmetError as error:
        return {"total": None, "least": outside + (error.least or 0), "seconds": time.perf_counter() - started}
    memory, seconds = memory_of(compiled), time.perf_counter() - started
    total = memory.arguments + memory.results + memory.temporaries
    return {"total": total, "slowdown": own.report().slowdown, "seconds": seconds}


def sharded_values(settings: Settings) -> Iterator[Table]:
    """Yields the table of values and gradients of small programs on eight devices of this machine.

    Raises:
      GraphrlError: there are fewer devices.
    """
    if jax.device_count() < DEVICES:
        raise GraphrlError(f"{jax.device_count()} devices: set JAX_NUM_CPU_DEVICES=8")
    lines, worst = [], 0.0
    for name in selected(settings):
        key = {"what": "sharded-values", "program": name}
        own = settings.measurements.get(key, functools.partial(compared, name))
        if own is not None:
            worst = max(worst, own["difference"])
            lines.append([name, str(own["plans"]), str(own["recomputed"]), f"{own['difference']:.1e}"])
    how = (
        "Small programs on eight devices of a CPU: the greatest difference of loss and gradients from the "
        "undecorated step on one device, relative to the largest number, under plans that keep half and a quarter of "
        "what jax keeps."
    )
    headings = ["program", "plans", "segments computed again", "greatest difference"]
    summary = (
        f"Values and gradients of sharded steps are those of the undecorated step to within {worst:.1e}."
        f"{covered(selected(settings), SHARDED)}"
    )
    yield settings.measurements.table("Sharded values", how, markdown(headings, lines), summary=summary)


def compared(name: str) -> Figures:
    """Compares loss and gradients of a small program on jax's devices with those on one device."""
    sharded = build(name, small=True, chip=None)
    args = sharded.program.draw(0)
    expected = jax.jit(jax.value_and_grad(sharded.program.loss(undecorated)))(*args)
    placed, difference, segments = jax.device_put(args, sharded.shardings), 0.0, 0
    for share in KEEPING:
        own = sharded.own(budget=share, seconds=1, cache=False)
        result = jax.jit(jax.value_and_grad(own))(*placed)
        segments += own.report().segments
        for one, other in zip(expected, result, strict=True):
            flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (one, other)]
            difference = max(difference, float(np.abs(flat[0] - flat[1]).max() / np.abs(flat[0]).max()))
        for leaf, sharding in zip(jax.tree.leaves(result[1]), jax.tree.leaves(sharded.shardings[0]), strict=True):
            if not leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
                raise GraphrlError(f"{name}: a gradient is split as {leaf.sharding}, its weight as {sharding}")
    return {"plans": len(KEEPING), "recomputed": segments, "difference": difference}
