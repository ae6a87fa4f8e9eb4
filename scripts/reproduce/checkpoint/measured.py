"""Programs, methods and measurements that the checkpoint tables share.

    program = build("Llama", batch=4)
    value, gradient = jax.value_and_grad(program.loss(jax.checkpoint))(*program.draw(seed=0))

- Programs: losses by name, at two sizes. The full size is for a GPU: activations of hundreds of MiB to some GiB,
  smaller arguments, float32. The small size runs on a CPU in about a second.
- Methods: a name and a function from a program to its gradient function, `*args -> (loss, gradient)`. The rules are all
  of `jax.checkpoint_policies` that need no names in the program, around each layer and around the whole loss.
- Measurements: memory by XLA's compiler for an H200 and estimated time, as a point of a curve.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import graphrl
from graphrl.graphs.readers.hlo.module import parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.seconds import gradient_seconds
from reproduce import launcher
from reproduce.gpu_compile import executable_for_gpu, memory_of
from reproduce.launcher import check_known, names, numbers, option
from reproduce.measurements import Figures
from reproduce.models import images, language
from reproduce.models.losses import Program, undecorated


class Kind(NamedTuple):
    """A kind of program: a loss at two sizes.

    Attributes:
      build: builds the program from its sizes, of which one is `batch`.
      full, small: arguments of `build` for either size.
    """

    build: Callable[..., Program]
    full: Mapping[str, Any]
    small: Mapping[str, Any]


_TEXT = {"batch": 8, "depth": 6, "width": 768, "heads": 12, "tokens": 512, "words": 8192}
_SMALL_TEXT = {"batch": 2, "depth": 2, "width": 16, "heads": 2, "tokens": 8, "words": 32}
_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip

PROGRAMS: dict[str, Kind] = {
    "transformer": Kind(language.transformer, {**_TEXT, "scanned": False}, {**_SMALL_TEXT, "scanned": False}),
    "transformer in a scan": Kind(language.transformer, {**_TEXT, "scanned": True}, {**_SMALL_TEXT, "scanned": True}),
    "vision transformer": Kind(
        images.vision_transformer,
        {"batch": 32, "side": 224, "patch": 16, "depth": 8, "width": 384, "heads": 6},
        {"batch": 2, "side": 8, "patch": 4, "depth": 2, "width": 16, "heads": 2},
    ),
    "mixture of experts": Kind(
        language.mixture_of_experts, {**_TEXT, "depth": 4, "width": 512, "heads": 8, "experts": 8},
        {**_SMALL_TEXT, "experts": 4},
    ),
    "diffusion U-Net": Kind(
        images.u_net, {"batch": 16, "side": 64, "widths": (64, 128, 256)}, {"batch": 2, "side": 8, "widths": (8,)}
    ),
    "ResNet": Kind(
        images.residual_network,
        {"batch": 32, "side": 224, "width": 64, "blocks": (3, 4, 6, 3)},
        {"batch": 2, "side": 16, "width": 4, "blocks": (2, 1)},
    ),
    "EfficientNet": Kind(
        images.efficient_network,
        {"batch": 32, "side": 224, "stem": 32, "stages": _STAGES, "head": 1280},
        {"batch": 2, "side": 16, "stem": 4, "stages": ((1, 4, 1, 1, 3), (2, 4, 2, 2, 5)), "head": 8},
    ),
    "LSTM": Kind(
        language.lstm, {"batch": 128, "steps": 256, "width": 512}, {"batch": 2, "steps": 5, "width": 4}
    ),
    "Mamba": Kind(
        language.mamba,
        {"batch": 2, "depth": 4, "width": 256, "states": 16, "tokens": 1024},
        {"batch": 2, "depth": 2, "width": 8, "states": 4, "tokens": 8},
    ),
    "graph network": Kind(
        language.graph_network,
        {"batch": 8, "nodes": 2048, "degree": 6, "width": 128, "rounds": 8},
        {"batch": 2, "nodes": 6, "degree": 2, "width": 8, "rounds": 2},
    ),
    "autoencoder": Kind(
        images.autoencoder,
        {"batch": 8, "side": 128, "widths": (64, 128, 256), "code": 4},
        {"batch": 2, "side": 8, "widths": (8, 16), "code": 2},
    ),
    "Llama": Kind(
        language.llama,
        {**_TEXT, "batch": 4, "depth": 4, "width": 1024, "heads": 16, "groups": 4, "hidden": 2816, "tokens": 1024},
        {**_SMALL_TEXT, "heads": 4, "groups": 2, "hidden": 24},
    ),
}  # fmt: skip

# only for planning time: some 5,000 equations in the gradient of one, and in the loss of the other
LONG: dict[str, Kind] = {
    f"transformer of {depth} layers": Kind(
        language.transformer, {**_TEXT, "depth": depth, "scanned": False}, {**_SMALL_TEXT, "scanned": False}
    )
    for depth in (30, 77)
}


def build(name: str, *, small: bool = False, batch: int | None = None) -> Program:
    """Builds a program by its name; `batch` overrides the batch of its size."""
    kind = (PROGRAMS | LONG)[name]
    sizes = dict(kind.small if small else kind.full)
    return kind.build(**sizes if batch is None else sizes | {"batch": batch})


Gradient = Callable[..., Any]
Method = Callable[[Program], Gradient]

# programs of `sharded`, which share the names of methods
SHARDED = (
    "fully sharded transformer", "fully sharded Llama", "tensor-parallel Llama", "expert-parallel mixture of experts",
    "data-parallel vision transformer", "data-parallel U-Net",
)  # fmt: skip
WHOLE = ("Optax decoder", "NNX vision transformer", "Equinox decoder")  # programs of `fit`
WHOLE_SHARDED = ("fully sharded step", "tensor-parallel step")  # programs of `fit-sharded`
CHIP = "h200"  # of predicted times
NONE = "none"
POLICIES: Mapping[str, Any] = {
    "nothing saveable": jax.checkpoint_policies.nothing_saveable,
    "dots saveable": jax.checkpoint_policies.dots_saveable,
    "dots without batch saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "dots without batch to the host": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "everything saveable": jax.checkpoint_policies.everything_saveable,
}


def plain(program: Program) -> Gradient:
    """Returns the gradient function without any checkpointing rule."""
    return jax.value_and_grad(program.loss(undecorated))


def _by_layer(policy: Any, program: Program) -> Gradient:
    return jax.value_and_grad(program.loss(functools.partial(jax.checkpoint, policy=policy)))


def _whole(policy: Any, program: Program) -> Gradient:
    return jax.value_and_grad(jax.checkpoint(program.loss(undecorated), policy=policy))


RULES: dict[str, Method] = {
    NONE: plain,
    **{f"{name}, a layer": functools.partial(_by_layer, policy) for name, policy in POLICIES.items()},
    **{f"{name}, the whole": functools.partial(_whole, policy) for name, policy in POLICIES.items()},
}


SLOWDOWNS = (0.02, 0.05, 0.1, 0.2, 0.33)
LIMITS = {f"graphrl at {limit:.0%}": limit for limit in SLOWDOWNS}
# with host memory: the method without it, and its limit
HOSTED = {
    f"graphrl with the host at {limit:.0%}": (method, limit)
    for method, limit in LIMITS.items()
    if limit in (0.05, 0.1, 0.2)
}
TIMED = ("nothing saveable, a layer", "dots saveable, a layer", "dots without batch saveable, a layer")
WAITING = {f"{rule}, with waits": rule for rule in TIMED}  # gradients wait for one another; only of SHARDED
MATCHED = {f"graphrl as slow as {rule}": rule for rule in TIMED}  # by the same estimate
# shares of jax's memory. Time limits leave small programs unchanged: their peak is the workspace of a matrix product
KEEPING = {"graphrl keeping half": 0.5, "graphrl keeping a quarter": 0.25}
PLANNED = (*LIMITS, *HOSTED, *MATCHED, *KEEPING)


def planned(method: str, program: Program) -> graphrl.CheckpointedFunction:
    """Plans a program's loss by one of `PLANNED`."""
    if method in KEEPING:
        return graphrl.checkpoint(program.loss(undecorated), budget=KEEPING[method], chip=CHIP)
    hosted = method in HOSTED
    if hosted or method in LIMITS:
        limit = HOSTED[method][1] if hosted else LIMITS[method]
    else:
        limit = slowdown_of(RULES[MATCHED[method]], program)
    return graphrl.checkpoint(program.loss(undecorated), slowdown=min(limit, 1.0), chip=CHIP, offload=hosted)


def slowdown_of(method: Method, program: Program) -> float:
    """Returns the estimated time of the traced gradient over that of the undecorated one, less 1."""
    own, without = (jax.make_jaxpr(each(program))(*program.args) for each in (method, plain))
    return gradient_seconds(own, CHIP) / gradient_seconds(without, CHIP) - 1


def _ours(method: str, program: Program) -> Gradient:
    return jax.value_and_grad(planned(method, program))


OURS: dict[str, Method] = {method: functools.partial(_ours, method) for method in (*LIMITS, *MATCHED)}
METHODS: dict[str, Method] = {**RULES, **OURS}
GRADIENTS: dict[str, Method] = {
    **METHODS,
    **{method: functools.partial(_ours, method) for method in (*HOSTED, *KEEPING)},
}
FITTED = "graphrl for the room"  # a budget in bytes, which XLA verifies
# XLA's rematerialisation, on a GPU so small that the undecorated gradient's temporaries must shrink to this share.
XLA: Mapping[str, float] = {f"XLA's own at {share:.0%}": share for share in (0.5, 0.25)}


QUICK = ("transformer in a scan", "LSTM")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/checkpoint"), "folder of measurements and pictures")
    programs: tuple[str, ...] | None = option(None, "the only ones to run", parse=names, metavar="P,...")
    methods: tuple[str, ...] | None = option(
        None, "the only ones to run; split at ';'", parse=lambda text: tuple(text.split(";")), metavar="M;..."
    )
    rooms: tuple[int, ...] = option((16, 40, 80), "GiB of memory for largest batches", parse=numbers, metavar="GIB,...")
    chip: str = option("h200", "whose figures the estimated times are of")
    device: str = option(
        "", "of which sections `device` and `values` have figures in --out, if not the one that is here", metavar="NAME"
    )

    def check(self) -> None:
        """Checks programs, methods and the chip.

        Raises:
          GraphrlError: a program, method or chip is not known.
        """
        check_known("program", self.programs or (), (*PROGRAMS, *LONG, *SHARDED, *WHOLE, *WHOLE_SHARDED))
        check_known("method", self.methods or (), (*GRADIENTS, *XLA, *WAITING, FITTED))
        find_chip(self.chip)

    @property
    def selected(self) -> tuple[str, ...]:
        """Programs to measure."""
        return tuple(self.programs or (QUICK if self.quick else PROGRAMS))

    @property
    def size(self) -> str:
        """Size of the programs, in the keys of measurements."""
        return "small" if self.quick else "full"


def covered(selected: Sequence[str], every: Sequence[str]) -> str:
    """States which of several programs a table is of, if not all."""
    if len(selected) == len(every):
        return ""
    named = ", ".join(selected)
    return f" Figures are of {len(selected)} of {len(every)} programs ({named}); the others are not measured."


# XLA leaves a fifth of a device's memory free, and of the rest a twentieth of the part that arguments do not take.
_OF_DEVICE, _OF_REST = 0.8, 0.95


def memory(settings: Settings, program: str, method: str, batch: int | None = None) -> Figures | None:
    """Returns XLA's figures for a gradient.

    These are bytes (`gpu_compile.GpuMemory`), seconds to trace and to compile, and the summed roofline time of the
    compiled module's instructions ("seconds").

    Args:
      settings: settings, whose file stores the figures.
      program: program name.
      method: a key of `GRADIENTS`, or `XLA`.
      batch: batch size in place of the program's own.
    """
    key: dict[str, Any] = {"what": "memory", "program": program, "method": method, "size": settings.size}
    if batch is not None:
        key["batch"] = batch
    if method not in XLA:
        return settings.measurements.get(key, lambda: _compiled(settings, program, method, batch))
    whole = memory(settings, program, NONE, batch)
    if whole is None:
        return None
    return settings.measurements.get(key, lambda: _compiled_in_less(settings, program, XLA[method], whole))


def slowdown(settings: Settings, program: str, method: str) -> float | None:
    """Estimates the relative slowdown of the traced gradient over the undecorated one; None if a measurement failed.

    XLA's own recomputation is in no traced function. Its slowdown is that of the compiled modules.
    """
    if method in XLA:
        return compiled_slowdown(settings, program, method)
    own, undecorated = (_seconds(settings, program, name) for name in (method, NONE))
    return own / undecorated - 1 if own and undecorated else None


def compiled_slowdown(settings: Settings, program: str, method: str) -> float | None:
    """Returns the slowdown by the instructions of the compiled modules; None if a measurement failed."""
    own, undecorated = (memory(settings, program, name) for name in (method, NONE))
    return own["seconds"] / undecorated["seconds"] - 1 if own and undecorated else None


def _seconds(settings: Settings, program: str, method: str) -> float | None:
    key = {"what": "seconds", "program": program, "method": method, "chip": settings.chip, "size": settings.size}
    figures = settings.measurements.get(key, functools.partial(_estimated, settings, program, method))
    return None if figures is None else figures["seconds"]


def _estimated(settings: Settings, name: str, method: str) -> Figures:
    program = build(name, small=settings.quick)
    return {"seconds": gradient_seconds(jax.make_jaxpr(GRADIENTS[method](program))(*program.args), settings.chip)}


def _compiled(settings: Settings, name: str, method: str, batch: int | None) -> Figures:
    program = build(name, small=settings.quick, batch=batch)
    return _of_gradient(settings, program, GRADIENTS[method](program))


def _compiled_in_less(settings: Settings, name: str, share: float, whole: Figures) -> Figures:
    """Returns figures of the undecorated gradient on a GPU with room for a share of its temporaries."""
    program = build(name, small=settings.quick)
    room = (share * whole["temporaries"] / _OF_REST + whole["arguments"]) / _OF_DEVICE
    return _of_gradient(settings, program, plain(program), device_bytes=int(room))


def _of_gradient(settings: Settings, program: Program, gradient: Gradient, **options: Any) -> Figures:
    args, started = program.args, time.perf_counter()
    equations = len(jax.make_jaxpr(gradient)(*args).jaxpr.eqns)
    traced = time.perf_counter()
    compiled = executable_for_gpu(gradient, *args, **options)
    times = {"trace": traced - started, "compile": time.perf_counter() - traced}
    seconds = _of_instructions(compiled, settings.chip)
    return {**memory_of(compiled)._asdict(), "equations": equations, **times, "seconds": seconds}


def _of_instructions(compiled: Any, chip: str) -> float:
    """Returns the summed roofline seconds of a compiled module's instructions."""
    (module,) = compiled.runtime_executable().hlo_modules()
    graph = read_hlo(parse_module(module.as_serialized_hlo_module_proto(), "XLA's module"), chip=chip).graph
    return sum(op.runtime for op in graph.ops)


class Point(NamedTuple):
    """Memory and time of a method on a program, a point of a curve.

    Attributes:
      method: method name.
      temporaries: bytes of temporaries, by XLA's compiler.
      share: `temporaries` as a share of the undecorated gradient's.
      slowdown: estimated time over the undecorated gradient's, less 1.
    """

    method: str
    temporaries: int
    share: float
    slowdown: float


def points(settings: Settings, program: str, methods: Iterable[str]) -> list[Point]:
    """Returns points of the methods that could be measured."""
    whole, measured = memory(settings, program, NONE), list[Point]()
    for method in methods:
        figures, time = memory(settings, program, method), slowdown(settings, program, method)
        if whole and figures and time is not None:
            temporaries = figures["temporaries"]
            measured.append(Point(method, temporaries, temporaries / whole["temporaries"], time))
    return measured


def least(candidates: Sequence[Point], slowdown: float) -> Point | None:
    """Returns the point with the least temporaries within a slowdown, None if there is no such point."""
    return min((point for point in candidates if point.slowdown <= slowdown), key=_by_memory, default=None)


def best(candidates: Sequence[Point]) -> Point | None:
    """Returns the point with the least temporaries (of several, the fastest); None without points."""
    return min(candidates, key=_by_memory, default=None)


def _by_memory(point: Point) -> tuple[int, float]:
    return point.temporaries, point.slowdown
