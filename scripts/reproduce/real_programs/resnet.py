"""ResNet-50 in plain JAX, and its computation graphs in inference and in training form.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2015), table 1: bottleneck blocks 3-4-6-3, batch
normalisation after every convolution (section 3.4). Deviation: a block that halves the image does so in its 3x3
convolution instead of its first 1x1 one, as nearly every implementation has done since (4.1 instead of 3.8 billion
multiply-adds at 224 x 224). 25,557,032 trainable parameters with 1,000 classes.

Images are `[B, H, W, 3]`, kernels `[height, width, in, out]`. Parameters and batch statistics are nested dicts.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of the 3x3 convolutions, blocks
EXPANSION = 4  # a block's outputs over its width
EPSILON = 1e-5  # of batch normalisation
STATISTICS_DECAY = 0.9
MOMENTUM = 0.9

Tree = dict[str, Any]


def init(key: jax.Array, classes: int = 1000) -> tuple[Tree, Tree]:
    """Fresh (parameters, batch statistics): He-normal kernels, identity normalisation, zero-mean classifier."""
    keys = iter(jax.random.split(key, 128))
    params: Tree = {}
    statistics: Tree = {}
    params["stem"], statistics["stem"] = _init_layer(next(keys), 7, 3, 64)
    inputs = 64
    for name, width, _ in _blocks():
        outputs = EXPANSION * width
        layers = {"reduce": (1, inputs, width), "conv": (3, width, width), "expand": (1, width, outputs)}
        if inputs != outputs:
            layers["shortcut"] = (1, inputs, outputs)
        both = {layer: _init_layer(next(keys), *sizes) for layer, sizes in layers.items()}
        params[name] = {layer: values for layer, (values, _) in both.items()}
        statistics[name] = {layer: values for layer, (_, values) in both.items()}
        inputs = outputs
    kernel = jax.random.normal(next(keys), (inputs, classes)) * 0.01
    params["classifier"] = {"kernel": kernel, "bias": jnp.zeros(classes)}
    return params, statistics


def apply(params: Tree, statistics: Tree, images: jax.Array, *, training: bool) -> tuple[jax.Array, Tree]:
    """Logits `[B, classes]` of images `[B, H, W, 3]`, and the batch statistics: updated in training, else as given."""
    updated: Tree = {}
    with jax.named_scope("stem"):
        x, updated["stem"] = _layer(params["stem"], statistics["stem"], images, stride=2, training=training)
        x = jax.nn.relu(x)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for name, _, stride in _blocks():
        with jax.named_scope(name):
            x, updated[name] = _block(params[name], statistics[name], x, stride=stride, training=training)
    with jax.named_scope("classifier"):
        pooled = jnp.mean(x, axis=(1, 2))
        logits = pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"].reshape(1, -1)
    return logits, updated


def train_step(
    params: Tree, momentum: Tree, statistics: Tree, images: jax.Array, labels: jax.Array, rate: float = 0.1
) -> tuple[Tree, Tree, Tree, jax.Array]:
    """One step of SGD with momentum on the mean cross entropy of images `[B, H, W, 3]` and labels `[B]` int32.

    Returns:
      (parameters, momentum, batch statistics, loss before the step).
    """

    def loss_of(params: Tree) -> tuple[jax.Array, Tree]:
        logits, updated = apply(params, statistics, images, training=True)
        likelihoods = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(likelihoods, labels[:, None], axis=1)), updated

    (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    with jax.named_scope("sgd"):
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, gradients)
        params = jax.tree.map(lambda p, m: p - rate * m, params, momentum)
    return params, momentum, updated, loss


def resnet50_shapes(classes: int = 1000) -> tuple[Tree, Tree]:
    """Abstract (parameters, batch statistics): `jax.ShapeDtypeStruct`s, no memory."""
    return jax.eval_shape(lambda key: init(key, classes), jax.eval_shape(lambda: jax.random.key(0)))


def resnet50(
    training: bool = False, batch: int = 8, image: int = 224, chip: str | Chip = DEFAULT_CHIP
) -> ComputationGraph:
    """The graph of ResNet-50's inference, or of one training step (forward, backward, SGD with momentum).

    Parameters, momentum and batch statistics are weights: resident on the device of the first op that reads each.

    Raises:
      GraphrlError: batch or image below 1, or an unknown chip.
    """
    if batch < 1 or image < 1:
        raise GraphrlError(f"resnet50: batch {batch} and image {image}: both must be at least 1")
    params, statistics = resnet50_shapes()
    images = jax.ShapeDtypeStruct((batch, image, image, 3), jnp.float32)
    name = f"resnet50-{'training' if training else 'inference'}-b{batch}-{image}"
    if training:
        labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
        arguments = (params, params, statistics, images, labels)
        return from_jax(train_step, *arguments, chip=chip, name=name, weights_argnums=(0, 1, 2))
    return from_jax(_logits, params, statistics, images, chip=chip, name=name, weights_argnums=(0, 1))


def _logits(params: Tree, statistics: Tree, images: jax.Array) -> jax.Array:
    return apply(params, statistics, images, training=False)[0]


def _blocks() -> list[tuple[str, int, int]]:
    """Name, width and stride of every block, in order."""
    return [
        (f"stage{stage}_block{block}", width, 2 if stage > 1 and block == 1 else 1)
        for stage, (width, count) in enumerate(STAGES, start=1)
        for block in range(1, count + 1)
    ]


def _init_layer(key: jax.Array, size: int, inputs: int, outputs: int) -> tuple[Tree, Tree]:
    """Parameters and statistics of a convolution and the normalisation behind it."""
    deviation = (2 / (size * size * inputs)) ** 0.5
    kernel = deviation * jax.random.normal(key, (size, size, inputs, outputs))
    params = {"kernel": kernel, "scale": jnp.ones(outputs), "bias": jnp.zeros(outputs)}
    return params, {"mean": jnp.zeros(outputs), "variance": jnp.ones(outputs)}


def _block(params: Tree, statistics: Tree, x: jax.Array, *, stride: int, training: bool) -> tuple[jax.Array, Tree]:
    updated: Tree = {}

    def layer(name: str, x: jax.Array, stride: int = 1) -> jax.Array:
        with jax.named_scope(name):
            y, updated[name] = _layer(params[name], statistics[name], x, stride=stride, training=training)
        return y

    y = jax.nn.relu(layer("reduce", x))
    y = jax.nn.relu(layer("conv", y, stride))
    y = layer("expand", y)
    shortcut = layer("shortcut", x, stride) if "shortcut" in params else x
    return jax.nn.relu(y + shortcut), updated


def _layer(params: Tree, statistics: Tree, x: jax.Array, *, stride: int, training: bool) -> tuple[jax.Array, Tree]:
    """Convolution and batch normalisation."""
    kernel = params["kernel"]
    padding = [(size // 2, size // 2) for size in kernel.shape[:2]]
    x = lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    if training:
        mean = jnp.mean(x, axis=(0, 1, 2), keepdims=True)
        variance = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2), keepdims=True)
        now = {"mean": lax.stop_gradient(mean), "variance": lax.stop_gradient(variance)}
        statistics = {
            name: STATISTICS_DECAY * old + (1 - STATISTICS_DECAY) * now[name].reshape(-1)
            for name, old in statistics.items()
        }
    else:
        mean, variance = _per_channel(statistics["mean"]), _per_channel(statistics["variance"])
    scale = _per_channel(params["scale"]) * lax.rsqrt(variance + EPSILON)
    return (x - mean) * scale + _per_channel(params["bias"]), statistics


def _per_channel(values: jax.Array) -> jax.Array:
    return values.reshape(1, 1, 1, -1)
