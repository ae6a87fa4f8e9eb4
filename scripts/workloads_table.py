"""Writes statistics of GO's workloads into docs/results/go-workloads.md.

Statistics are ops, edges, groups, work, memory, and the plans of the rule `list` on table 2's devices. A test checks
the counts against the files.

  python scripts/workloads_table.py
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from reproduce.results import Table, here, results_text
from reproduce.workloads import OVER, problem

from graphrl.commands.parser import Parser
from graphrl.compare.report import markdown
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem, Transfer
from graphrl.files import write_atomically
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.roofline import CHIPS, INTERCONNECTS
from graphrl.optimize import optimize
from graphrl.progress import progress

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "go-workloads.md"
MODELS: dict[str, Transfer] = {"link, NVLink": "link", "rendezvous, PCIe": "rendezvous"}
HEAD = (
    "workload", "devices", "ops", "edges", "control edges", "groups", "parameters, millions", "Tflop",
    "one P100, s", "one V100, s", "longest path, s", "one device, GiB",
)  # fmt: skip
SIZES = (
    "A training step in float32. A group shares a device: a variable with its update, an op of the backward pass "
    "with the op of the forward pass that it differentiates. Run times by roofline; the longest path is that of the "
    "P100, without transfers; GiB is the peak of the ops in the program's order on one device, parameters included."
)
SUMMARY = "GO's workloads here are training steps of six architectures in plain JAX, on 2 to 8 devices."
PLANS = (
    "One pass of the rule `list` on the workload's devices of 16 GiB each, P100, seconds; groups are ignored. In "
    "brackets: a plan that does not fit, and the GiB of its fullest device."
)


def sizes(workload: go.Workload) -> list[str]:
    """Formats a workload's row of the first table, its sizes."""
    graph, a = workload.graph, workload.graph.arrays
    alone = Problem("makespan", resident_weights=True)
    costs = evaluate(graph, alone, np.zeros(a.num_ops, int), np.arange(a.num_ops))
    faster = go.load(workload.name, "v100-fp32").graph.arrays
    return [
        workload.name,
        str(workload.devices),
        f"{a.num_ops:,}",
        f"{len(a.use_op):,}",
        f"{len(a.control_source):,}",
        f"{workload.colocation.max() + 1:,}",
        f"{a.weight_bytes.sum() / 4e6:.1f}",
        f"{a.flops.sum() / 1e12:.2f}",
        f"{a.runtime.sum():.3f}",
        f"{faster.runtime.sum():.3f}",
        f"{(a.head + a.runtime).max():.3f}",
        f"{max(costs.peak_memory) / 2**30:.1f}",
    ]


def plans(workload: go.Workload) -> list[str]:
    """Plans a workload by list scheduling; formats its row of the second table."""
    cells = [workload.name, str(workload.devices)]
    for transfer in MODELS.values():
        setting = problem(workload, transfer, OVER[transfer])
        plan = optimize(workload.graph, method="list", **dataclasses.asdict(setting))
        fullest = max(plan.peak_memory)
        seconds = f"{plan.makespan:.3f}"
        cells.append(seconds if fullest <= go.MEMORY_BYTES else f"({seconds}; {fullest / 2**30:.1f} GiB)")
    return cells


def figures() -> str:
    """Formats the table of the chips and their interconnects, with sources."""
    rows: list[Sequence[str]] = []
    for name in (go.CHIP, "v100-fp32"):
        chip = CHIPS[name]
        speed = f"{chip.flops_per_second / 1e12:g} Tflop/s, {chip.bytes_per_second / 1e9:g} GB/s"
        rows.append((name, speed, f"{chip.launch_seconds * 1e6:g} us an op", chip.source))
    for name, (latency, bandwidth, source) in INTERCONNECTS.items():
        rows.append((name, f"{bandwidth / 1e9:g} GB/s", f"{latency * 1e6:g} us a transfer", source))
    return markdown(("", "peak", "fixed cost", "source"), rows)


def main() -> None:
    """Computes the tables and writes the page."""
    Parser(description=__doc__).parse_args()
    rows, planned = [], []
    with progress(len(go.WORKLOADS), text="workloads") as show:
        for number, name in enumerate(go.WORKLOADS, start=1):
            workload = go.load(name)
            rows.append(sizes(workload))
            planned.append(plans(workload))
            show(number, name)
    tables = [
        Table("Sizes", here(), (SIZES, markdown(HEAD, rows)), SUMMARY),
        Table("Plans of one rule", here(), (PLANS, markdown(("workload", "devices", *MODELS), planned))),
        Table("Chips and interconnects", here(), (figures(),)),
    ]
    text = results_text("GO's workloads", tables, "python scripts/workloads_table.py")
    write_atomically(PAGE, lambda file: file.write(text))


if __name__ == "__main__":
    main()
