"""The losses that are measured, by name, at two sizes.

    program = build("Llama", batch=4)
    value, gradient = jax.value_and_grad(program.loss(jax.checkpoint))(*program.draw(seed=0))

The full size is for a GPU of many GiB: activations of hundreds of MiB to some GiB, arguments of less; float32, as is
jax's default. The small one runs on a CPU in about a second.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reproduce.models import images, language, sequences
from reproduce.models.losses import Program


class Kind(NamedTuple):
    """A loss.

    Attributes:
      build: the program of its sizes, of which one is `batch`.
      full, small: its sizes.
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
        sequences.lstm, {"batch": 128, "steps": 256, "width": 512}, {"batch": 2, "steps": 5, "width": 4}
    ),
    "Mamba": Kind(
        sequences.mamba,
        {"batch": 2, "depth": 4, "width": 256, "states": 16, "tokens": 1024},
        {"batch": 2, "depth": 2, "width": 8, "states": 4, "tokens": 8},
    ),
    "graph network": Kind(
        sequences.graph_network,
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

# only for the time that planning takes: some 5,000 equations in the gradient of one, and in the loss of the other
LONG: dict[str, Kind] = {
    f"transformer of {depth} layers": Kind(
        language.transformer, {**_TEXT, "depth": depth, "scanned": False}, {**_SMALL_TEXT, "scanned": False}
    )
    for depth in (30, 77)
}


def build(name: str, *, small: bool = False, batch: int | None = None) -> Program:
    """A program by its name; `batch` instead of that of its size."""
    kind = (PROGRAMS | LONG)[name]
    sizes = dict(kind.small if small else kind.full)
    return kind.build(**sizes if batch is None else sizes | {"batch": batch})
