"""Devices to compile for, present or not: XLA's compiler for CUDA needs no GPU, only the description of one.

It is in the packages of the extra `gpu-compile`. Nothing runs, so nothing is tuned: XLA chooses kernels without
measuring them, and matrix products are cuBLAS's. jax must run on the CPU (JAX_PLATFORMS=cpu in the environment):
without the variable it looks for a GPU, and leaves out its compiler if it finds none.
"""

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, Mesh

from graphrl.errors import GraphrlError
from graphrl.graphs.roofline import CHIPS
from graphrl.xla.hook import without_disk_cache

PLUGIN = "jax_plugins.xla_cuda12"
_HOPPER = """
platform_name: "CUDA" device_description_str: "NVIDIA NAME"
dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 9 }
gpu_device_info {
  cuda_compute_capability { major: 9 } core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  device_memory_size: DEVICE_BYTES memory_bandwidth: BANDWIDTH l2_cache_size: 52428800
  threads_per_block_limit: 1024 threads_per_core_limit: 2048 threads_per_warp: 32
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
}
"""
# name, bytes of memory, bytes per second
GPUS = {"h200": ("H200", 150_000_000_000, 4_800_000_000_000), "h100-sxm": ("H100", 80_000_000_000, 3_350_000_000_000)}
TPU_KINDS = {"tpu v5 lite": "tpu-v5e", "tpu v5": "tpu-v5p", "tpu v6 lite": "tpu-v6e"}  # kind of a device -> chip
# Without a GPU nothing is tuned. XLA assigns buffers before it generates code, so memory figures need no good code.
GPU_OPTIONS: dict[str, Any] = {
    "xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False, "xla_gpu_enable_cublaslt": False,
    "xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True,
}  # fmt: skip


def missing(chip: str = "h200") -> str:
    """States in one line why nothing can be compiled for a chip that is not there; "" if it can."""
    if chip not in GPUS:
        return f"cannot compile for an absent {chip}: must be one of {', '.join(sorted(GPUS))}"
    try:
        installed = importlib.util.find_spec(PLUGIN) is not None
    except ModuleNotFoundError:
        installed = False
    return "" if installed else f'compiling for {chip} needs CUDA\'s jax: pip install ".[gpu-compile]"'


@functools.cache
def absent_devices(chip: str, count: int, memory: int | None = None) -> Sequence[Any]:
    """Returns devices to compile for that are not there.

    Args:
      chip: a key of `GPUS`.
      count: number of devices, all in one host.
      memory: bytes of memory of each, by default its own.

    Raises:
      GraphrlError: XLA has no compiler for it here.
    """
    if reason := missing(chip):
        raise GraphrlError(reason)
    name, size, bandwidth = GPUS[chip]
    target = _HOPPER.replace("NAME", name).replace("DEVICE_BYTES", str(memory or size))
    target = target.replace("BANDWIDTH", str(bandwidth))
    try:
        devices = topologies.get_topology_desc("", "cuda", target_config=target, topology=f"1x1x{count}").devices
    except NotImplementedError:
        raise GraphrlError("compiling for a GPU that is not there needs JAX_PLATFORMS=cpu in the environment") from None
    except Exception as error:
        raise GraphrlError(f"compiling for {count} {chip}: {' '.join(str(error).split())[:200]}") from error
    return tuple(devices)


def chip_here() -> str | None:
    """Returns the name of jax's first device in `graphs.roofline.CHIPS`; None if its kind is not among them."""
    return chip_of(jax.devices()[0].device_kind)


def chip_of(kind: str) -> str | None:
    """Returns the name in `graphs.roofline.CHIPS` of devices of a kind; None if it is not among them."""
    kind = kind.lower()
    words = TPU_KINDS.get(kind, kind).replace("-", " ").split()
    whole = (name for name in CHIPS if {*name.split("-")} <= {*words})
    first = (name for name in CHIPS if name.split("-")[0] in words and not name.startswith("tpu"))
    return next(itertools.chain(whole, first), None)


def concrete_mesh(mesh: Mesh | AbstractMesh, chip: str | None) -> Mesh:
    """Returns a mesh of devices to compile for.

    Args:
      mesh: a mesh of devices is returned as it is. An abstract one gets jax's devices if `chip` is None or they are of
        that kind, and there are enough of them; else devices that are not there.
      chip: name of a chip.

    Raises:
      GraphrlError: XLA has no compiler for these devices here.
    """
    if isinstance(mesh, Mesh):
        return mesh
    count, here = math.prod(mesh.axis_sizes), jax.devices()
    is_here = chip is None or chip.removesuffix("-fp32") == chip_here()
    if is_here and len(here) < count:
        is_here = False
        if chip is None:
            fault = f"the mesh has {count} devices, of which {len(here)} are here: give chip=, such as 'h200'"
            raise GraphrlError(fault)
    devices = here[:count] if is_here else absent_devices(str(chip), count)
    shape = np.array(devices).reshape(mesh.axis_sizes)
    return Mesh(shape, mesh.axis_names, axis_types=mesh.axis_types)


def compile_for(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compiles a function for the devices of its arguments' shardings, present or not; returns a
    `jax.stages.Compiled`.

    Args:
      function: as `jax.jit` takes it.
      *args: `jax.ShapeDtypeStruct`s with shardings, in pytrees.
      **options: options of `jax.jit`.
    """
    device = next(iter(jax.tree.leaves(args)[0].sharding.device_set))
    traced = jax.jit(function, **options).trace(*args)
    if device in jax.devices():
        return traced.lower().compile()
    lowered = traced.lower(lowering_platforms=("cuda",))
    with without_disk_cache():  # which reads programs for devices that are here only
        return lowered.compile(compiler_options=GPU_OPTIONS)
