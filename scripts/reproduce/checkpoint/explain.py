"""Section `explain`: programs with one planted cause of memory each, and what `graphrl.explain` says of them.

    planted = lost_donation(**PLANTED["lost donation"].small)
    print(graphrl.explain(planted.step, *planted.args))

The cause counts as named if it is the first in the explanation. The saving that the explanation predicts is compared
with XLA's figures, of the program and of the program with the remedy: arguments, results outside of donated arguments,
and temporaries. Fragmentation is remedied by the order that graphrl finds, which XLA's compiler is given; all other
remedies are changes of the program that users can make.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import graphrl
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla.explain.memory import CAUSES, DONATION, HOLES, KEPT, LAYOUT, ONE_HOT, Memory
from graphrl.xla.explain.remedies import Remedy, best_order
from reproduce.checkpoint.measured import Settings
from reproduce.gpu_compile import GpuMemory, executable_for_gpu, memory_of
from reproduce.measurements import Figures, mebibytes
from reproduce.models.language import transformer
from reproduce.models.losses import undecorated
from reproduce.results import Table

SECONDS = 5.0  # time of the search for an order
NEAR = 0.15  # relative error at which a predicted saving counts as right


class Mended(NamedTuple):
    """A program with a remedy applied: function, arguments and options of `jax.jit`."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = {}


class Planted(NamedTuple):
    """A program with a planted cause.

    Attributes:
      cause: the cause, a key of `graphrl.xla.explain.memory.CAUSES`.
      remedy: kind of its remedy.
      step, args: the function and its arguments.
      mend: function from the remedy to the program with it; None for another order.
    """

    cause: str
    remedy: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    mend: Callable[[Remedy], Mended] | None


class Kind(NamedTuple):
    """A planted program at two sizes: for a GPU, and for a CPU in about a second."""

    build: Callable[..., Planted]
    full: Mapping[str, Any]
    small: Mapping[str, Any]


def lost_donation(width: int, depth: int, batch: int) -> Planted:
    """Builds a step of Adam that writes new weights and moments beside the old ones."""

    def loss(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def moved(w: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return w - 0.001 * first / (jnp.sqrt(second) + 1e-8)

    def step(state: Mapping[str, Any], x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["weights"], x)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, state["second"], gradients)
        return {
            "weights": jax.tree.map(moved, state["weights"], first, second),
            "first": first,
            "second": second,
        }, value

    part = [_array(width, width)] * depth
    args = {"weights": part, "first": part, "second": part}, _array(batch, width)
    return Planted(DONATION, "donate", step, args, lambda _: Mended(step, args, {"donate_argnames": ("state",)}))


def scan_residual(width: int, depth: int, batch: int, *, is_offloaded: bool = False) -> Planted:
    """Builds the gradient of layers in a scan, which keeps values of all layers for the backward pass.

    The remedy is `graphrl.checkpoint`, or to offload the values by jax's own policy.
    """

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        x = checkpoint_name(x, "input")
        return x + jnp.sin(checkpoint_name(jnp.tanh(x @ w), "hidden")), None

    def loss(weights: jax.Array, x: jax.Array, layer: Callable[..., Any] = layer) -> jax.Array:
        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    def mend(remedy: Remedy) -> Mended:
        if is_offloaded:
            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["input", "hidden"],
                offload_src="device",
                offload_dst="pinned_host",
            )
            return Mended(jax.grad(functools.partial(loss, layer=jax.checkpoint(layer, policy=policy))), args)
        return Mended(jax.grad(graphrl.checkpoint(loss, budget=remedy.budget, seconds=SECONDS)), args)

    args = _array(depth, width, width), _array(batch, width)
    return Planted(KEPT, "offload" if is_offloaded else "recompute", jax.grad(loss), args, mend)


def transposed_copy(images: int, side: int, patch: int, width: int) -> Planted:
    """Builds an embedding of images' patches, which takes a transposed copy of all images."""

    def embed(pixels: jax.Array, w: jax.Array) -> jax.Array:
        n = side // patch
        x = pixels.reshape(images, n, patch, n, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        return embed_patches(x.reshape(images, n * n, -1), w)

    def embed_patches(patches: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(patches @ w).mean(1)

    w = _array(3 * patch * patch, width)
    patches = _array(images, (side // patch) ** 2, 3 * patch * patch)
    args = _array(images, side, side, 3), w
    return Planted(LAYOUT, "layout", embed, args, lambda _: Mended(embed_patches, (patches, w)))


def fragmentation(batch: int, unit: int) -> Planted:
    """Builds products of ten widths whose results do not fit the holes that others leave in XLA's heap."""
    widths, reads = (12, 1, 6, 7, 1, 8, 5, 10, 2, 8), ((), (0,), (1,), (0,), (2,), (1,), (3, 5), (4, 6), (5,), (6,))

    def step(x: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
        left, values = iter(weights), list[jax.Array]()
        for sources in reads:
            values.append(jnp.tanh(sum(y @ next(left) for y in [values[k] for k in sources] or [x])))
        used = {k for sources in reads for k in sources}
        return jnp.stack([jnp.sum(value) for k, value in enumerate(values) if k not in used]).sum()

    pairs = [
        (widths[j] if sources else 1, w) for w, sources in zip(widths, reads, strict=True) for j in sources or (0,)
    ]
    weights = [_array(unit * rows, unit * columns) for rows, columns in pairs]
    return Planted(HOLES, "order", step, (_array(batch, unit), weights), None)


def one_hot(tokens: int, words: int, width: int) -> Planted:
    """Builds the gradient of an embedding that is the product of a one-hot array and the table."""

    def loss(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jax.nn.one_hot(ids, words) @ table) ** 2)

    def indexed(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(table[ids]) ** 2)

    args = _array(words, width), _array(tokens, dtype=jnp.int32)
    return Planted(ONE_HOT, "one-hot", jax.grad(loss), args, lambda _: Mended(jax.grad(indexed), args))


PLANTED = {
    "lost donation": Kind(
        lost_donation, {"width": 4096, "depth": 8, "batch": 256}, {"width": 256, "depth": 4, "batch": 32}
    ),
    "residuals of a scan": Kind(
        scan_residual, {"width": 1024, "depth": 16, "batch": 8192}, {"width": 128, "depth": 12, "batch": 1024}
    ),
    "residuals of a scan, offloaded": Kind(
        functools.partial(scan_residual, is_offloaded=True),
        {"width": 1024, "depth": 16, "batch": 8192},
        {"width": 128, "depth": 12, "batch": 1024},
    ),
    "transposed copy": Kind(
        transposed_copy,
        {"images": 1024, "side": 224, "patch": 16, "width": 64},
        {"images": 8, "side": 64, "patch": 16, "width": 64},
    ),
    "fragmentation": Kind(fragmentation, {"batch": 262144, "unit": 64}, {"batch": 1024, "unit": 64}),
    "one-hot array": Kind(
        one_hot, {"tokens": 8192, "words": 32768, "width": 512}, {"tokens": 512, "words": 4096, "width": 64}
    ),
}


def explained(settings: Settings) -> Iterator[Table]:
    """Yields the table of planted causes, with a row for each program; draws the picture of a transformer."""
    lines, right = [], 0
    for name in PLANTED:
        key = {"what": "explained", "program": name, "size": settings.size}
        figures = settings.measurements.get(key, functools.partial(_explained, name, settings.quick))
        if figures is None:
            continue
        error = figures["predicted"] / max(1, figures["saved"]) - 1
        is_right = figures["named"] == PLANTED[name].build(**PLANTED[name].small).cause and abs(error) <= NEAR
        right += is_right
        sizes = [mebibytes(figures[part]) for part in ("total", "cause", "predicted", "saved")]
        lines.append([name, CAUSES[figures["named"]], figures["remedy"], *sizes, f"{error:+.1%}"])
    headings = [
        "planted cause", "cause named first", "remedy", "total, MiB", "of this cause, MiB", "predicted saving, MiB",
        "XLA's saving, MiB", "error",
    ]  # fmt: skip
    how = (
        "Programs with one planted cause each, by XLA's compiler for an H200: the first cause that `graphrl.explain` "
        "names, the saving that it predicts for its remedy, and the difference of XLA's figures (arguments, results, "
        "temporaries) without and with the remedy. Recomputation is `graphrl.checkpoint` with the budget that the "
        "explanation names; offloading is by a policy of jax's. Fragmentation is remedied by the order that graphrl "
        "found, which the compiler is given."
    )
    counted = f"{right} of {len(lines)} planted causes first"
    summary = f"`graphrl.explain` names {counted}, with a saving within {NEAR:.0%} of XLA's."
    _picture(settings)
    yield settings.measurements.table("Planted causes", how, markdown(headings, lines), summary=summary)


def _explained(name: str, small: bool) -> Figures:
    kind = PLANTED[name]
    planted = kind.build(**(kind.small if small else kind.full))
    compiled = executable_for_gpu(planted.step, *planted.args)
    explanation = graphrl.explain(compiled, seconds=SECONDS)
    cause = explanation.causes[0]
    remedy = next((each for each in explanation.remedies if each.kind == planted.remedy), None)
    if remedy is None:
        raise GraphrlError(f"{name}: no remedy of kind {planted.remedy!r}")
    if planted.mend is None:
        after = memory_of(executable_for_gpu(planted.step, *planted.args, rule=_best_order))
    else:
        mended = planted.mend(remedy)
        after = memory_of(executable_for_gpu(mended.step, *mended.args, **mended.options))
    return {
        "named": cause.key,
        "cause": cause.bytes,
        "remedy": remedy.kind,
        "predicted": remedy.saves,
        "total": _total(memory_of(compiled)),
        "saved": _total(memory_of(compiled)) - _total(after),
    }


def _best_order(module: HloModule) -> Mapping[str, Sequence[str]]:
    return best_order(Memory(module), SECONDS).schedule


def _total(memory: GpuMemory) -> int:
    return memory.arguments + memory.results - memory.donated + memory.temporaries


def _picture(settings: Settings) -> None:
    """Draws the memory of a transformer's training step."""
    sizes = {"batch": 8, "depth": 6, "width": 768, "heads": 12, "tokens": 512, "words": 8192}
    small = {"batch": 2, "depth": 2, "width": 16, "heads": 2, "tokens": 8, "words": 32}
    program = transformer(**(small if settings.quick else sizes), scanned=False)
    inputs = jax.eval_shape(program.inputs, jax.random.key(0))
    loss = program.loss(undecorated)

    def step(weights: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, *batch)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient), value

    compiled = executable_for_gpu(step, program.params, *inputs)
    graphrl.explain(compiled, seconds=SECONDS).plot(settings.out / "explain.png")


def _array(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)
