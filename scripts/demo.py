"""Optimises three programs of ResNet-50 for three problems each and prints the results: `make demo`.

Models: ONNX inference (the `onnx` package's light model, batch 1), and the zoo's inference and training step, traced
from JAX. Problems: least peak memory on one device, shortest makespan on 2 and 4. Each row compares the best plan with
the order in which the model is given (on one device), with list scheduling (the classical one-pass method) and with a
lower bound that no plan can beat. Plans, pictures and traces (for ui.perfetto.dev) are written to out/demo.
"""

import argparse
import re
import time
from pathlib import Path
from typing import Any

import onnx
from reproduce import results
from reproduce.launcher import command
from rich.console import Console
from rich.table import Table

import graphrl
from graphrl.commands.parser import Parser
from graphrl.commands.progress import progress_bar
from graphrl.compare.report import markdown
from graphrl.files import enable_compilation_cache, write_atomically
from graphrl.graphs.datasets import zoo
from graphrl.units import format_bytes, format_objective, format_seconds

LIGHT_RESNET50 = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
ZOO = ("resnet50/inference/b16/jaxpr", "resnet50/training/b8/jaxpr")
COLUMNS = ("given", "list", "graphrl", "to list", "bound", "gap", "evals")
# A transfer between GPUs of one machine: NVLink 3 gives an A100 300 GB/s in each direction.
LINK: dict[str, Any] = {"latency": 5e-6, "bandwidth": 300e9}
PROBLEMS: tuple[dict[str, Any], ...] = (
    {"objective": "peak_memory", "devices": 1},
    {"objective": "makespan", "devices": 2, **LINK},
    {"objective": "makespan", "devices": 4, **LINK},
)


def main() -> None:
    """Solves all problems, prints the table, and writes plans, pictures and traces."""
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="search time of each of the nine plans (default: 12)"
    )
    parser.add_argument("--evaluations", type=int, help="limit by evaluations instead: results then repeat exactly")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transfer", choices=("rendezvous", "free", "link"), default="link")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder to write to (default: out/demo)")
    parser.add_argument("--page", type=Path, help="file to write the table to, as Markdown")
    args = parser.parse_args()
    enable_compilation_cache()
    args.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    started = time.perf_counter()
    table, rows = _table(args.transfer), []
    for graph in (graphrl.read_graph(LIGHT_RESNET50), *(zoo.load(name).graph for name in ZOO)):
        console.print(f"[bold]{graph.name}[/]: {_size(graph)}", soft_wrap=True)
        table.add_row(f"[bold]{graph.name}[/]")
        for options in PROBLEMS:
            row = _row(graph, options, args, console)
            table.add_row(*row, end_section=options is PROBLEMS[-1])
            rows.append([f"{graph.name}, {graph.arrays.num_ops:,} ops", *map(str.strip, row)])
    console.print(table)
    if args.page is not None:
        how = f"{_title(args.transfer)}; at most {args.seconds:g} s a plan. Run times by roofline on an A100."
        parts = [how, markdown(["graph", "problem", *COLUMNS], rows)]
        gaps = [float(row[-2].rstrip("%")) for row in rows if row[-2]]
        summary = f"Plans of ResNet-50 are within {max(gaps, default=0.0):g}% of the lower bound."
        text = results.results_text(
            "", [results.Table("ResNet-50 by `make demo`", results.here(), parts, summary)], command()
        )
        write_atomically(args.page, lambda file: file.write(text))
    seconds = time.perf_counter() - started
    console.print(
        f"{seconds:.0f} s in all. Plans, pictures and traces (for ui.perfetto.dev) are in {args.out}/", soft_wrap=True
    )


def _row(
    graph: graphrl.ComputationGraph, options: dict[str, Any], args: argparse.Namespace, console: Console
) -> list[str]:
    """Solves one problem in three ways, writes the best plan and returns its row of the table."""
    problem = graphrl.Problem(transfer=args.transfer, **options)
    budget = graphrl.Budget(args.evaluations, None if args.evaluations else args.seconds)
    given, by_list = (
        graphrl.optimize(graph, method=method, transfer=args.transfer, **options) for method in ("given", "list")
    )
    with progress_bar(f"{problem.objective} on {problem.devices}", problem.objective, budget) as progress:
        best = graphrl.optimize(
            graph,
            transfer=args.transfer,
            seed=args.seed,
            evaluations=budget.evaluations,
            seconds=budget.seconds,
            progress=progress,
            **options,
        )
    best.check(graph)
    stem = args.out / re.sub(r"\W+", "-", f"{graph.name}-{problem.objective}-{problem.devices}")
    best.save(f"{stem}.plan.json")
    best.plot(f"{stem}.png")
    best.trace(f"{stem}.trace.json")
    console.print(f"  {stem}.png", soft_wrap=True)
    values = [format_objective(problem.objective, plan.value) for plan in (given, by_list, best)]
    to_list = f"{100 * (best.value / by_list.value - 1):+.1f}%"
    gap = "" if best.gap is None else f"{100 * best.gap:.{1 if best.gap < 0.0995 else 0}f}%"
    where = f"  {problem.objective.replace('_', ' ')} on {problem.devices}"
    evaluations = f"{best.evaluations}" if best.evaluations < 1000 else f"{best.evaluations / 1000:.0f}k"
    return [where, *values, to_list, format_objective(problem.objective, best.bound or 0), gap, evaluations]


def _table(transfer: str) -> Table:
    table = Table(title=_title(transfer), title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("devices", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _title(transfer: str) -> str:
    link = f"{format_seconds(LINK['latency'])} + bytes / ({LINK['bandwidth'] / 1e9:.0f} GB/s)"
    return f"ResNet-50, exact costs; transfers: {transfer}, {link}"


def _size(graph: graphrl.ComputationGraph) -> str:
    a = graph.arrays
    work, tensors = format_seconds(float(a.runtime.sum())), format_bytes(float(a.tensor_bytes.sum()))
    weights = format_bytes(float(a.weight_bytes.sum()))
    return f"{a.num_ops:,} ops, {work} of work, {tensors} of tensors, {weights} of weights"


if __name__ == "__main__":
    main()
