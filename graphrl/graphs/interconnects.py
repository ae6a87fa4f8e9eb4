"""What lies between devices: latency and bandwidth of a transfer, by public figures.

Bandwidths are those of one direction between one pair of devices. In a DGX-1 most pairs of GPUs that are linked at all
have one NVLink. Latencies are on no data sheet: they are what NVIDIA's p2pBandwidthLatencyTest prints, in round figures
(thread 230 of the repository NVIDIA/cuda-samples, four GPUs with NVLink): 1.8 to 2.3 us from memory to memory, 11 to
20 us by way of the host.
"""

from typing import NamedTuple


class Interconnect(NamedTuple):
    """Seconds and bytes a second of a transfer, and where the figures come from."""

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
    "nvlink-1": Interconnect(2e-6, 20e9, "NVIDIA Tesla P100 white paper: 20 GB/s a link and direction; one link"),
    "nvlink-2": Interconnect(2e-6, 25e9, "NVIDIA Tesla V100 white paper: 25 GB/s a link and direction; one link"),
}
