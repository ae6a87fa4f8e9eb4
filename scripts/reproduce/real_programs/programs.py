"""The programs that are measured, by name.

ARCHITECTURE/training/bBATCH and ARCHITECTURE/inference/bBATCH are of the zoo, with abstract arguments; `cell` is no
architecture of the zoo: a few hundred ops in plain JAX, for --quick. `UPDATES` are training steps and the like as
people publish them, small enough to be run.
"""

import functools
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from graphrl.errors import GraphrlError
from reproduce.models import agents, steps
from reproduce.models.images import residual_network, u_net, vision_transformer
from reproduce.models.language import llama, transformer
from reproduce.models.losses import Update, updated
from reproduce.models.programs import Program, inference, training_step
from reproduce.models.sequences import graph_network, lstm
from reproduce.zoo import ARCHITECTURES, build_model, make_program

_NAME = re.compile(r"(\w+)/(training|inference)/b([1-9]\d*)")


def _names(kind: str, batches: dict[int, str]) -> tuple[str, ...]:
    return tuple(f"{name}/{kind}/b{batch}" for batch, names in batches.items() for name in names.split())


TRAINING = _names(
    "training",
    {
        8: "efficientnetb0 mobilenetv2 inceptionv3 resnet50 densenet121 nasnetmobile xception mobilenetv3large "
        "mobilenet efficientnetv2b0 convnexttiny retinanet_resnet50 distilbert t5_small unet",
        2: "cspdarknet53 segformer_b0 swin_tiny vit_base bert_base gpt2 whisper_tiny sd3_vae lstm2_unrolled",
    },
)
INFERENCE = _names(
    "inference",
    {
        16: "nasnetmobile inceptionv3 efficientnetb0 densenet121 mobilenetv2 resnet50",
        1: "nasnetlarge clip_vit_b32 deberta_v3_base sd3_mmdit_2b segformer_b0 unet",
    },
)
# Small enough to be run, several times, in 16 GB.
IDENTICAL = (
    *_names(
        "training",
        {
            2: "efficientnetb0 mobilenetv2 inceptionv3 resnet50 densenet121 nasnetmobile xception mobilenetv3large "
            "mobilenet convnexttiny cspdarknet53 segformer_b0 swin_tiny vit_base distilbert t5_small whisper_tiny "
            "lstm2_unrolled unet"
        },
    ),
    *_names("inference", {16: "nasnetmobile", 1: "nasnetlarge clip_vit_b32 deberta_v3_base"}),
)
RESIDENT = (
    *_names("inference", {16: "nasnetmobile"}),
    *_names("training", {8: "efficientnetb0 mobilenetv2 resnet50 inceptionv3"}),
)
PLANNING = _names("training", {8: "efficientnetb0 densenet121 nasnetmobile nasnetlarge"})
GPU_ORDERS = (
    *_names("training", {8: "efficientnetb0 mobilenetv2 inceptionv3 nasnetmobile", 2: "vit_base bert_base"}),
    *_names("inference", {16: "nasnetmobile"}),
)
QUICK = ("cell/training/b2", "cell/inference/b2")

_TEXT = {"width": 256, "heads": 8, "words": 4096, "batch": 4}
UPDATES: dict[str, Callable[[], Update]] = {
    "eight branches in a scan": steps.eight_branches,
    "transformer in a scan": lambda: updated(
        transformer(**_TEXT, depth=6, tokens=256, scanned=True, dropped=0.0), optax.adamw(1e-4)
    ),
    "checkpointed in a scan": steps.checkpointed_model,
    "Mixer in nn.scan": lambda: steps.mixer(optax.sgd(1e-2, momentum=0.9), scanned=True),
    "LSTM": lambda: updated(lstm(batch=64, steps=64, width=256), optax.adam(1e-3)),
    "neural ODE": steps.neural_ode,
    "Hamiltonian Monte Carlo": steps.hamiltonian,
    "MAML": steps.meta_learning,
    "evolution strategies": steps.evolution,
    "diffusion sampler": steps.diffusion_sampler,
    "Mixer": lambda: steps.mixer(optax.adamw(1e-4), scanned=False),
    "vision transformer": lambda: updated(
        vision_transformer(batch=8, side=224, patch=16, depth=4, width=192, heads=6), optax.adamw(1e-4)
    ),
    "Llama": lambda: updated(llama(**_TEXT, depth=4, groups=8, hidden=704, tokens=128), optax.adam(3e-4)),
    "residual network": lambda: updated(
        residual_network(batch=16, side=128, width=16, blocks=(2, 2, 2)), optax.sgd(0.1, momentum=0.9, nesterov=True)
    ),
    "U-Net": lambda: updated(u_net(batch=4, side=64, widths=(32, 64, 128)), optax.adam(1e-4)),
    "dense block": steps.dense_network,
    "DP-SGD": steps.private,
    "graph network": lambda: updated(
        graph_network(batch=1, nodes=2048, degree=4, width=128, rounds=4), optax.adamw(1e-3)
    ),
    "SAC": agents.soft_actor_critic,
    "PPO": agents.proximal_policy,
}


def build(name: str) -> Program:
    """The program of a name, with abstract arguments.

    Raises:
      GraphrlError: as `parts`.
    """
    architecture, kind, batch = parts(name)
    if architecture == "cell":
        make = training_step if kind == "training" else inference
        return make(_cell, jax.ShapeDtypeStruct((16, 16, _CHANNELS), "float32"), batch=batch, weights=_weights())
    os.environ.setdefault("KERAS_BACKEND", "jax")
    return make_program(ARCHITECTURES[architecture], build_model(ARCHITECTURES[architecture]), kind, batch)


def parts(name: str) -> tuple[str, str, int]:
    """Architecture, "training" or "inference", and batch size of a program's name.

    Raises:
      GraphrlError: the name is wrong, or there is no such architecture.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise GraphrlError(f"program {name!r}: must be as in resnet50/training/b8 or resnet50/inference/b1")
    if match[1] not in ("cell", *ARCHITECTURES):
        raise GraphrlError(f"program {name!r}: architectures are cell, {', '.join(ARCHITECTURES)}")
    return match[1], match[2], int(match[3])


# A cell as NASNet has them: separable convolutions of earlier values, all concatenated.
_CHANNELS, _BLOCKS = 8, 6


def _weights() -> dict[str, jax.ShapeDtypeStruct]:
    sizes = {f"point{i}": (1, 1, _CHANNELS, _CHANNELS) for i in range(_BLOCKS)}
    sizes |= {f"depth{i}": (3, 3, 1, _CHANNELS) for i in range(_BLOCKS)}
    return {name: jax.ShapeDtypeStruct(size, "float32") for name, size in sizes.items()}


def _cell(weights: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    convolve = functools.partial(
        lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    values: list[Any] = [images, jnp.tanh(images)]
    for i in range(_BLOCKS):
        y = convolve(jax.nn.relu(values[-2]), weights[f"point{i}"])
        y = convolve(y, weights[f"depth{i}"], feature_group_count=_CHANNELS) + values[i]
        values.append(y - y.mean((0, 1, 2), keepdims=True))
    return jnp.concatenate(values, -1).mean((1, 2))
