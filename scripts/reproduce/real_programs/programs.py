"""Programs by name, and the settings of their tables.

ARCHITECTURE/training/bBATCH and ARCHITECTURE/inference/bBATCH are programs of the zoo, with abstract arguments. `cell`
is a few hundred ops in plain JAX, for --quick. `UPDATES` are training steps in their published form, small enough to
run.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from graphrl.errors import GraphrlError
from graphrl.files import write_atomically
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.callback import Scheduler
from graphrl.xla.hook import captured, compile_in_order
from graphrl.xla.planning.cache import Places, named_orders, places_of
from reproduce import launcher
from reproduce.launcher import names, option, seconds
from reproduce.models import steps
from reproduce.models.images import residual_network, u_net, vision_transformer
from reproduce.models.language import graph_network, llama, lstm, transformer
from reproduce.models.losses import Update, updated
from reproduce.models.programs import Program, inference, training_step
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

_TEXT: Any = {"width": 256, "heads": 8, "words": 4096, "batch": 4}
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
    "SAC": steps.soft_actor_critic,
    "PPO": steps.proximal_policy,
}


def build(name: str) -> Program:
    """Builds the program of a name, with abstract arguments.

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
    """Splits a program's name into architecture, "training" or "inference", and batch size.

    Raises:
      GraphrlError: the name is wrong, or there is no such architecture.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise GraphrlError(f"program {name!r}: must be as in resnet50/training/b8 or resnet50/inference/b1")
    if match[1] not in ("cell", *ARCHITECTURES):
        raise GraphrlError(f"program {name!r}: architectures are cell, {', '.join(ARCHITECTURES)}")
    return match[1], match[2], int(match[3])


# A cell in NASNet's style: separable convolutions of earlier values, all concatenated.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/real_programs"), "folder of everything but the tables")
    times: tuple[float, ...] = option((10.0, 60.0), "seconds of a plan", quick=(0.2, 0.5), parse=seconds)
    methods: tuple[str, ...] | None = option(None, "of placement: the only ones to run", parse=names, metavar="M,...")
    programs: tuple[str, ...] | None = option(
        None, "as in resnet50/training/b8,resnet50/inference/b1", parse=names, metavar="P,..."
    )

    def check(self) -> None:
        """Checks the names of programs.

        Raises:
          GraphrlError: a program's name is wrong.
        """
        for name in self.programs or ():
            if name not in UPDATES:
                parts(name)

    def names_of(self, own: Sequence[str]) -> Sequence[str]:
        """Returns programs of a section: those of --programs, else the small ones with --quick, else its own."""
        return self.programs or (QUICK if self.quick else own)

    def subjects(self, own: Sequence[str]) -> "Iterator[Subject]":
        """Yields subjects of `names_of`, one after another: each takes much memory."""
        return (Subject(name, self.out) for name in self.names_of(own))


class Subject:
    """A program by name: lowered, captured and planned once for all sections.

    Captured modules and orders are kept in files of `out`, since they cost minutes. An order covers all computations,
    by positions (`planning.cache.Places`): positions are the same in every process, while names may differ.
    """

    def __init__(self, name: str, out: Path) -> None:
        self.name = name
        self._out = out
        self._modules: dict[str, HloModule] = {}

    @functools.cached_property
    def program(self) -> Program:
        """The function and its abstract arguments."""
        return build(self.name)

    @functools.cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The program, lowered by jax."""
        return jax.jit(self.program.fn).lower(*self.program.args)

    @functools.cached_property
    def hlo(self) -> HloProgram:
        """The module of XLA's default scheduler as a graph."""
        return read_hlo(self.module("default"), chip=DEFAULT_CHIP)

    @functools.cached_property
    def predict(self) -> TempPredictor:
        """Predicts temporaries of a sequence of the default scheduler's module."""
        return TempPredictor(self.module("default"))

    def module(self, scheduler: Scheduler) -> HloModule:
        """Returns the module in the order of one of XLA's schedulers."""
        if scheduler not in self._modules:
            path = self._file("hlo", f"{scheduler}.pb")
            if not path.exists():
                data = captured(self.lowered, scheduler).message.SerializeToString()
                write_atomically(path, lambda file: file.write(data), binary=True)
            self._modules[scheduler] = parse_module(path.read_bytes(), str(path))
        return self._modules[scheduler]

    def order(self, scheduler: Scheduler) -> Places:
        """Returns the orders of one of XLA's schedulers."""
        return places_of(self.module(scheduler))

    def predicted(self, order: Places) -> int:
        """Returns predicted temporaries of orders of the default scheduler's module."""
        module = self.module("default")
        orders = named_orders(module, order)
        return self.predict(orders[module.entry.name], orders)

    def compiled(self, schedule: Scheduler | Places, *, quick: bool = False) -> Any:
        """Returns the executable of one of XLA's schedulers or of orders; `quick`: as `hook.compile_in_order`."""
        return compile_in_order(self.lowered, schedule, quick=quick)

    def keep_order(self, what: str, order: Places) -> None:
        """Stores an order for `kept_order` in a file, also for later processes."""
        write_atomically(self._file("orders", f"{what}.json"), lambda file: json.dump(list(order), file))

    def kept_order(self, what: str) -> Places:
        """Loads the order that `keep_order` stored under this name."""
        orders = json.loads(self._file("orders", f"{what}.json").read_text(encoding="utf-8"))
        return tuple(tuple(order) for order in orders)

    def _file(self, folder: str, ending: str) -> Path:
        path = self._out / folder / f"{self.name.replace('/', '-')}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
