"""Section `offload`: device memory that host memory saves, predicted and by XLA's figures, and the effect of barriers.

Barriers are compared on a perceptron whose hidden activations are offloaded to the host, with and without graphrl's
barriers.
"""

import functools
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from graphrl.compare.report import markdown
from graphrl.xla.checkpoint.primitives import join_gradients, send_to_host, wait_for
from reproduce.checkpoint.budgets import planning_of
from reproduce.checkpoint.measured import HOSTED, Settings, memory
from reproduce.gpu_compile import compile_for_gpu
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.results import Table

LAYERS, ROWS, WIDTH, HIDDEN = 6, 8192, 1024, 4096
SMALL = 64  # divisor of sizes for a quick test
NAME = "hidden"
OFFLOADED = ("transformer", "transformer in a scan", "Llama", "vision transformer")


class Way(NamedTuple):
    """A way to store hidden activations.

    Attributes:
      policy: jax's checkpoint policy.
      awaited: True if the forward pass waits for copies to the host.
      joined: True if a barrier joins the gradients of a layer.
    """

    policy: Any
    awaited: bool
    joined: bool


_KEPT = jax.checkpoint_policies.save_only_these_names(NAME)
_MOVED = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=[NAME], offload_src="device", offload_dst="pinned_host"
)

WAYS: Mapping[str, Way] = {
    "kept on the device": Way(_KEPT, False, False),
    "moved by jax's policy": Way(_MOVED, False, False),
    "gradients of a layer together": Way(_MOVED, False, True),
    "the forward pass waits for copies": Way(_KEPT, True, False),
    "both": Way(_KEPT, True, True),
}


def offload(settings: Settings) -> Iterator[Table]:
    """Yields the table of barriers, then one with a row for each program and limit."""
    yield barriers(settings)
    lines, quotients = [], []
    for name in settings.programs or (settings.selected if settings.quick else OFFLOADED):
        for method, (plain, _) in HOSTED.items():
            if method not in settings.among(tuple(HOSTED)):
                continue
            without, own = memory(settings, name, plain), memory(settings, name, method)
            without_plan, plan = planning_of(settings, name, plain), planning_of(settings, name, method)
            if not (without and own and without_plan and plan):
                continue
            quotients.append(own["temporaries"] / without["temporaries"])
            sizes = without_plan["peak"], without["temporaries"], plan["peak"], own["temporaries"]
            cells = [*map(mebibytes, sizes), ratio(quotients[-1]), *map(mebibytes, (plan["moved"], own["on_host"]))]
            lines.append([name, method, *cells, ratio(plan["slowdown"])])
    headings = [
        "program", "method", "without: predicted, MiB", "XLA", "with: predicted", "XLA", "with / without", "moved",
        "on the host", "predicted slowdown",
    ]  # fmt: skip
    how = (
        "Temporaries on the device that graphrl predicts, and those of XLA's compiler for an H200, in MiB: without "
        "the memory of the host and with it, within the same slowdown; predicted bytes to be moved, and XLA's "
        "in the memory of the host."
    )
    if lines:
        mean = ratio(statistics.geometric_mean(quotients))
        summary = f"With the host's memory, plans need {mean} of the device memory of plans without (geometric mean)."
        table = markdown(headings, lines)
        yield settings.measurements.table("The memory of the host", how, table, summary=summary)


def barriers(settings: Settings) -> Table:
    """Returns the table of barriers, with a row for each way."""
    lines = []
    for name, way in WAYS.items():
        key = {"what": "barriers", "way": name, "size": settings.size}
        figures = settings.measurements.get(key, functools.partial(_way_compiled, way, SMALL if settings.quick else 1))
        if figures is not None:
            lines.append([name, mebibytes(figures["temporaries"]), mebibytes(figures["on_host"])])
    how = (
        "Temporaries on the device and on the host, in MiB, by XLA's compiler for an H200: gradient of "
        f"{LAYERS} residual layers of {WIDTH}, {HIDDEN} hidden, {ROWS} rows, each under `jax.checkpoint`; hidden "
        "activations are stored."
    )
    return settings.measurements.table("Barriers", how, markdown(["way", "temporaries", "on the host"], lines))


def _way_compiled(way: Way, part: int) -> Figures:
    rows, width, hidden = (size // part for size in (ROWS, WIDTH, HIDDEN))
    up, down, x = (
        jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((width, hidden), (hidden, width), (rows, width))
    )
    return compile_for_gpu(jax.value_and_grad(functools.partial(_loss, way)), [(up, down)] * LAYERS, x)._asdict()


def _loss(way: Way, weights: Any, x: jax.Array) -> jax.Array:
    for each in weights:
        x = jax.checkpoint(functools.partial(_layer, way), policy=way.policy)(*each, x)
    return (x**2).sum()


def _layer(way: Way, up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
    if way.joined:
        up, down, x = join_gradients([up, down, x])
    hidden = x @ up
    if not way.awaited:
        return x + jnp.tanh(checkpoint_name(hidden, NAME)) @ down
    hidden, copy = send_to_host(hidden, NAME)
    return x + wait_for(jnp.tanh(hidden) @ down, [copy])
