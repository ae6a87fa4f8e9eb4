"""What is asked of a workload: table 2's devices of 16 GB, tensors that move over PCIe or NVLink."""

from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets.workloads.go import MEMORY_BYTES, Workload
from graphrl.graphs.roofline import INTERCONNECTS

OVER: dict[Transfer, str] = {"link": "nvlink-1", "rendezvous": "pcie-3"}  # a key of `INTERCONNECTS` for each model


def problem(workload: Workload, transfer: Transfer, interconnect: str) -> Problem:
    """The least makespan on the workload's devices, parameters counted where their variables stand.

    Args:
      workload: which says how many devices.
      transfer: whom a transfer occupies: see `Problem`.
      interconnect: a key of `INTERCONNECTS`.
    """
    latency, bandwidth, _ = INTERCONNECTS[interconnect]
    return Problem("makespan", workload.devices, transfer, latency, bandwidth, MEMORY_BYTES, resident_weights=True)
