"""Run times of ops by the roofline model, from a chip's public figures; figures of interconnects.

`runtime = max(flops / peak, bytes / bandwidth) + launch`. The model ignores caches, fusion and tiling losses, and real
ops are rarely faster than its estimates (Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model", 2009). It ranks ops well enough to plan. Measured times, where available, should replace it in the graph.

The peak is the dense rate (no structured sparsity) of the matrix format that training commonly uses: bfloat16 with
float32 accumulation where the chip has it, else float16 (V100, T4, P100), else float32 (CPU, and chips with fp32 in
their names). One rate applies to all dtypes of a graph. Bandwidth is that of the main memory. `launch_seconds` is on no
data sheet: it is our round figure for the least time between two dependent ops: 4 us for a GPU kernel, 1 us inside a
TPU program or between CPU loops.

`Interconnect` has the latency and bandwidth of a transfer. Bandwidths are those of one direction between one pair of
devices. In a DGX-1 most pairs of GPUs that are linked at all have one NVLink. Latencies are on no data sheet: they are
rounded outputs of NVIDIA's p2pBandwidthLatencyTest (thread 230 of the repository NVIDIA/cuda-samples, four GPUs with
NVLink): 1.8 to 2.3 us from memory to memory, 11 to 20 us via the host.
"""

import dataclasses
import math
import numbers
from typing import NamedTuple

from graphrl.errors import GraphrlError, suggest

GPU_LAUNCH = 4e-6  # seconds
PROGRAM_LAUNCH = 1e-6  # seconds
MIN_RATE, MAX_RATE = 1.0, 1e30  # per second; an op of at most MAX_WORK FLOPs then takes at most MAX_WORK seconds
MAX_LAUNCH = 1e6  # seconds
MAX_WORKSPACE = 2**62  # bytes
HOPPER, BEFORE = 32 << 20, 4 << 20  # bytes of cuBLAS workspace that XLA allocates, from Hopper on and before


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """Performance figures of a device.

    Attributes:
      name: chip name.
      flops_per_second: dense peak rate, from 1 to 1e30; a multiply-add counts as two.
      bytes_per_second: bandwidth of the main memory, from 1 to 1e30.
      launch_seconds: fixed cost of every op in seconds, from 0 to 1e6.
      source: where the figures come from, as text.
      product_workspace: bytes of workspace that XLA allocates for the matrix-product library, from 0 to 2^62.

    Raises:
      GraphrlError: if a figure is out of range.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    launch_seconds: float = 0.0
    source: str = "given by the user"
    product_workspace: int = 0

    def __post_init__(self) -> None:
        self._check("flops_per_second", MIN_RATE, MAX_RATE, "a number from 1 to 1e30")
        self._check("bytes_per_second", MIN_RATE, MAX_RATE, "a number from 1 to 1e30")
        self._check("launch_seconds", 0.0, MAX_LAUNCH, "a number of seconds from 0 to 1e6")
        self._check("product_workspace", 0, MAX_WORKSPACE, "a number of bytes from 0 to 2^62")

    def _check(self, field: str, least: float, most: float, right: str) -> None:
        value = getattr(self, field)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # NaN fails both comparisons
            raise GraphrlError(f"chip {self.name!r}: {field} is {value!r:.40}: must be {right}")


def _gpu(name: str, teraflops: float, gigabytes: float, source: str, product_workspace: int = BEFORE) -> Chip:
    return Chip(name, teraflops * 1e12, gigabytes * 1e9, GPU_LAUNCH, source, product_workspace)


def _program(name: str, teraflops: float, gigabytes: float, source: str) -> Chip:
    return Chip(name, teraflops * 1e12, gigabytes * 1e9, PROGRAM_LAUNCH, source)


CHIPS: dict[str, Chip] = {
    entry.name: entry
    for entry in (
        _gpu("b200", 2250, 8000, "NVIDIA Blackwell architecture technical brief: bf16 dense, HBM3e", HOPPER),
        _gpu(
            "h200",
            989.4,
            4800,
            "NVIDIA H200 data sheet: bf16 1,979 TFLOPS with sparsity, half of it dense; HBM3e",
            HOPPER,
        ),
        _gpu(
            "h100-sxm",
            989.4,
            3350,
            "NVIDIA H100 data sheet, SXM: bf16 1,979 TFLOPS with sparsity, half dense; HBM3",
            HOPPER,
        ),
        _gpu("h100-pcie", 756, 2000, "NVIDIA H100 PCIe data sheet: bf16 1,513 TFLOPS sparse; HBM2e", HOPPER),
        _gpu("a100-80gb", 312, 2039, "NVIDIA A100 data sheet, 80 GB SXM: bf16 dense, HBM2e"),
        _gpu("a100-40gb", 312, 1555, "NVIDIA A100 data sheet, 40 GB SXM: bf16 dense, HBM2"),
        _gpu("a10", 125, 600, "NVIDIA A10 data sheet: bf16 dense, GDDR6"),
        _gpu("l40s", 362, 864, "NVIDIA L40S data sheet: bf16 dense, GDDR6"),
        _gpu("l4", 121, 300, "NVIDIA L4 data sheet: bf16 242 TFLOPS with sparsity, half of it dense; GDDR6"),
        _gpu("t4", 65, 320, "NVIDIA T4 data sheet: fp16, GDDR6"),
        _gpu("v100", 125, 900, "NVIDIA V100 data sheet, SXM2: fp16 tensor cores, HBM2"),
        _gpu("v100-fp32", 15.7, 900, "NVIDIA V100 data sheet, SXM2: fp32, HBM2"),
        _gpu("p100", 21.2, 732, "NVIDIA P100 data sheet, SXM2: fp16, HBM2"),
        _gpu("p100-fp32", 10.6, 732, "NVIDIA P100 data sheet, SXM2: fp32, HBM2"),
        _gpu("rtx-4090", 165.2, 1008, "NVIDIA Ada GPU architecture paper: bf16 dense with fp32 accumulation, GDDR6X"),
        _gpu("rtx-3090", 71, 936, "NVIDIA Ampere GA102 architecture paper: bf16 dense with fp32 accumulation, GDDR6X"),
        _gpu("mi300x", 1307.4, 5300, "AMD Instinct MI300X data sheet: bf16 dense, HBM3", 0),
        _program("tpu-v2", 46, 700, "Google Cloud TPU system architecture pages, v2, one chip: bf16, HBM"),
        _program("tpu-v3", 123, 900, "Google Cloud TPU system architecture pages, v3, one chip: bf16, HBM"),
        _program("tpu-v4", 275, 1228, "Google Cloud TPU system architecture pages, v4, one chip: bf16, HBM"),
        _program("tpu-v5e", 197, 819, "Google Cloud TPU system architecture pages, v5e, one chip: bf16, HBM"),
        _program("tpu-v5p", 459, 2765, "Google Cloud TPU system architecture pages, v5p, one chip: bf16, HBM"),
        _program("tpu-v6e", 918, 1640, "Google Cloud TPU system architecture pages, v6e, one chip: bf16, HBM"),
        _program(
            "cpu",
            5.12,
            204.8,
            "a generic server: 32 cores x 2.5 GHz x 64 fp32 operations a cycle (AVX-512); 8 x DDR4-3200",
        ),
    )
}

DEFAULT_CHIP = "a100-80gb"


def find_chip(name: str | Chip) -> Chip:
    """Looks up a chip by name (case, spaces and underscores do not matter); returns a given `Chip` unchanged.

    Raises:
      GraphrlError: the name is unknown; the message lists the nearest ones.
    """
    if isinstance(name, Chip):
        return name
    if not isinstance(name, str):
        raise GraphrlError(f"chip is {name!r}: must be a Chip or the name of one, such as {DEFAULT_CHIP}")
    figures = CHIPS.get(name.strip().lower().replace("_", "-").replace(" ", "-"))
    if figures is None:
        raise GraphrlError(f"unknown chip {name!r}: {suggest(name, CHIPS)}")
    return figures


def runtime(flops: float, bytes_moved: float, chip: str | Chip = DEFAULT_CHIP) -> float:
    """Estimates the run time of an op in seconds, from its FLOPs and the bytes that it reads and writes in memory.

    Raises:
      GraphrlError: unknown chip, or work that is negative or not finite.
    """
    figures = find_chip(chip)
    if not (math.isfinite(flops) and math.isfinite(bytes_moved)) or min(flops, bytes_moved) < 0:
        raise GraphrlError(f"roofline: {flops} FLOPs and {bytes_moved} bytes: both must be finite and at least 0")
    return max(flops / figures.flops_per_second, bytes_moved / figures.bytes_per_second) + figures.launch_seconds


class Interconnect(NamedTuple):
    """A link between two devices: latency in seconds, bandwidth in bytes per second, and the source of the figures."""

    latency: float
    bandwidth: float
    source: str


INTERCONNECTS: dict[str, Interconnect] = {
    "pcie-3": Interconnect(
        15e-6, 15.75e9, "PCI Express base specification 3.0: 16 lanes of 8 GT/s, 128b/130b; by the host"
    ),
    "pcie-5": Interconnect(
        15e-6, 63.0e9, "PCI Express base specification 5.0: 16 lanes of 32 GT/s, 128b/130b; by the host"
    ),
    "infiniband-ndr": Interconnect(5e-6, 50e9, "NVIDIA DGX H100 data sheet: one 400 Gb/s ConnectX-7 port a GPU"),
    "ici-v4": Interconnect(1e-6, 50e9, "Google Cloud TPU system architecture pages, v4: 300 GB/s a chip by six links"),
    "ici-v5e": Interconnect(1e-6, 50e9, "Google Cloud TPU system architecture pages, v5e: 1,600 Gb/s by four links"),
    "ici-v5p": Interconnect(1e-6, 100e9, "Google Cloud TPU system architecture pages, v5p: 4,800 Gb/s by six links"),
    "ici-v6e": Interconnect(1e-6, 112e9, "Google Cloud TPU system architecture pages, v6e: 3,584 Gb/s by four links"),
    "nvlink-1": Interconnect(2e-6, 20e9, "NVIDIA Tesla P100 white paper: 20 GB/s a link and direction; one link"),
    "nvlink-2": Interconnect(2e-6, 25e9, "NVIDIA Tesla V100 white paper: 25 GB/s a link and direction; one link"),
    "nvlink-3": Interconnect(2e-6, 300e9, "NVIDIA A100 data sheet: 600 GB/s a GPU both ways, through NVSwitch"),
    "nvlink-4": Interconnect(2e-6, 450e9, "NVIDIA H100 data sheet, SXM: 900 GB/s a GPU both ways, through NVSwitch"),
    "nvlink-5": Interconnect(2e-6, 900e9, "NVIDIA Blackwell architecture technical brief: 1.8 TB/s a GPU both ways"),
}

# The link between devices in one host, or one slice of TPUs; "pcie-5" for others.
LINKS: dict[str, str] = {
    "b200": "nvlink-5",
    "h200": "nvlink-4",
    "h100-sxm": "nvlink-4",
    "a100-80gb": "nvlink-3",
    "a100-40gb": "nvlink-3",
    "v100": "nvlink-2",
    "v100-fp32": "nvlink-2",
    "p100": "nvlink-1",
    "p100-fp32": "nvlink-1",
    "tpu-v4": "ici-v4",
    "tpu-v5e": "ici-v5e",
    "tpu-v5p": "ici-v5p",
    "tpu-v6e": "ici-v6e",
}


def find_link(name: str | Interconnect) -> Interconnect:
    """Looks up an interconnect by name; returns a given `Interconnect` unchanged.

    Raises:
      GraphrlError: the name is unknown; the message lists the nearest ones.
    """
    if isinstance(name, Interconnect):
        return name
    if not isinstance(name, str) or name not in INTERCONNECTS:
        raise GraphrlError(f"unknown link {name!r}: {suggest(str(name), INTERCONNECTS)}")
    return INTERCONNECTS[name]
