"""The architectures of `graphrl.graphs.datasets.workloads.go.WORKLOADS`: each a function of `batch`."""

import functools
from collections.abc import Callable

from reproduce.workloads.amoebanet import amoebanet
from reproduce.workloads.gnmt import gnmt
from reproduce.workloads.inception import inception_v3
from reproduce.workloads.model import Model
from reproduce.workloads.rnnlm import rnnlm
from reproduce.workloads.transformer_xl import transformer_xl
from reproduce.workloads.wavenet import wavenet

STACKED: dict[str, Callable[..., Model]] = {"rnnlm": rnnlm, "gnmt": gnmt, "transformer-xl": transformer_xl}

ARCHITECTURES: dict[str, Callable[..., Model]] = {
    **{f"{name}-{layers}": functools.partial(fn, layers) for name, fn in STACKED.items() for layers in (2, 4, 8)},
    "inception": inception_v3,
    "amoebanet": amoebanet,
    "wavenet-2x18": functools.partial(wavenet, 2, 18),
    "wavenet-4x36": functools.partial(wavenet, 4, 36),
}
