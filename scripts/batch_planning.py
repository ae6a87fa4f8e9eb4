"""Measures plans of many graphs at once, by `graphrl.optimize_batch`: docs/results/batch-planning.md.

For each set of graphs and problem: CPU time a graph, plans a second, and the mean gap to the best plan of all rows.
Then the same, without searches, for a large set. Small eigenproblems, which Topoformer's features need, are faster in
one thread:

  OPENBLAS_NUM_THREADS=1 python scripts/batch_planning.py
  OPENBLAS_NUM_THREADS=1 python scripts/batch_planning.py --graphs 20 --large 0 --checkpoint out/regal --output out.md
"""

import gc
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reproduce.launcher import command, whole_number
from reproduce.results import Table, here, markdown, results_text

import graphrl
from graphrl.commands.optimize import GC_THRESHOLDS
from graphrl.commands.parser import Parser
from graphrl.files import enable_compilation_cache, write_atomically
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "batch-planning.md"
TITLE = "Plans of many graphs at once"
KINDS = "kinds:100", "series-parallel:100"
PROBLEMS: dict[str, dict[str, Any]] = {
    "makespan, two devices, rendezvous": {"objective": "makespan", "devices": 2},
    "peak memory, one device": {"objective": "peak_memory"},
}
LIST = "list", "list:quick=true"
DRAWS = 1, 4, 16, 64, 512  # the last only in the small set
SECONDS = 1e-3, 1e-2, 1e-1  # of auto for each graph
SETTING = (
    "All graphs in one call of `graphrl.optimize_batch`, without compiling; reading the graphs is not timed, exact "
    "costs of all plans are. CPU time is that of all threads. Gap: mean distance to the best plan of all rows of the "
    "table. `kinds` is the curriculum on which the policy of `regal` is trained (other seeds), `series-parallel` a "
    "kind that no policy saw. `auto` plans one graph after another; in addition to its time (1, 10 and 100 ms) it "
    "makes the first list schedule and the bound. `regal-once` takes the best of that many draws. The large sets have "
    "no rows of searches, so their gaps are to the best of fewer plans."
)


class Row(NamedTuple):
    """A method on a set of graphs."""

    method: str
    values: np.ndarray  # [graphs]
    wall: float  # seconds
    cpu: float  # seconds


def methods(objective: str, checkpoint: str, *, searches: bool) -> list[tuple[str, str, float | None]]:
    """Lists the rows of a table: name, method, and seconds for each graph (None without a limit)."""
    rows: list[tuple[str, str, float | None]] = [(method, method, None) for method in LIST]
    if objective == "makespan":
        option = f",checkpoint={checkpoint}" if checkpoint else ""
        draws = DRAWS if searches else DRAWS[:3]
        rows += [(f"regal-once:samples={k}", f"regal-once:samples={k}{option}", None) for k in draws]
    else:
        rows.append(("topoformer", "topoformer", None))
        if searches:
            rows.append(("topoformer, 64 samples", "topoformer:decode=sample,samples=64", None))
    if searches:
        rows += [(f"auto, {1e3 * seconds:g} ms", "auto", seconds) for seconds in SECONDS]
    return rows


def measured(name: str, graphs: Sequence[ComputationGraph], method: str, **options: Any) -> Row:
    """Plans the graphs twice, and times the second call: the first compiles the programs of all sizes.

    Both plan copies: graphs and ops cache what methods compute of them.
    """
    for _ in range(2):
        copies = pickle.loads(pickle.dumps(graphs))
        gc.collect()
        gc.freeze()
        wall, cpu = time.perf_counter(), time.process_time()
        plans = graphrl.optimize_batch(copies, method=method, **options)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Row(name, np.array([plan.value for plan in plans], float), wall, cpu)


def table(graphs: Sequence[ComputationGraph], problem: dict[str, Any], checkpoint: str, *, searches: bool) -> list[Row]:
    """Measures all methods on the graphs."""
    rows = []
    for name, method, seconds in methods(problem["objective"], checkpoint, searches=searches):
        rows.append(measured(name, graphs, method, seconds=seconds, **problem))
        print(f"{name}: {1e3 * rows[-1].cpu / len(graphs):.2f} ms a graph", flush=True)
    return rows


def gaps(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Computes each method's gap to the best plan of all rows, by graph: `[graphs]`."""
    best = np.min([row.values for row in rows], 0)
    return {row.method: row.values / best - 1 for row in rows}


def text(rows: Sequence[Row]) -> str:
    """Formats a table."""
    lines, by_method = [], gaps(rows)
    for row in rows:
        gap, count = by_method[row.method], len(row.values)
        error = 1.96 * gap.std() / np.sqrt(count)
        figures = f"{1e3 * row.cpu / count:,.2f}", f"{count / row.wall:,.0f}", f"{row.wall:,.1f}"
        lines.append([f"`{row.method}`", *figures, f"{100 * gap.mean():.2f}% ± {100 * error:.2f}"])
    return markdown(["method", "CPU ms a graph", "plans a second", "seconds", "gap"], lines)


def summary(tables: dict[tuple[str, str, int], list[Row]]) -> str:
    """Returns the sentence to quote, about the makespan on the kinds that the policy knows."""
    count = min(count for _, _, count in tables)
    most, makespan = max(count for _, _, count in tables), next(iter(PROBLEMS))
    rows = {row.method: row for row in tables[KINDS[0], makespan, count]}
    by_method = gaps(list(rows.values()))
    seconds = [f"{row.wall:,.0f} s by `{row.method}`" for row in tables[KINDS[0], makespan, most]][:: len(LIST)]
    at = [
        f"`{name}` {100 * by_method[name].mean():.1f}% ({1e3 * rows[name].cpu / count:.1f} ms)"
        for name in ("list", "regal-once:samples=16", "regal-once:samples=64", "auto, 10 ms")
    ]
    return (
        f"Plans of {most:,} graphs of 100 ops for two devices take {', '.join(seconds)}; mean gaps of {count:,} of "
        f"them, at this CPU time a graph: {', '.join(at)}."
    )


def main() -> None:
    """Measures and writes the page."""
    parser = Parser(description=__doc__)
    parser.add_argument("--graphs", type=whole_number, default=100, metavar="N", help="graphs of a set (default: 100)")
    parser.add_argument(
        "--large",
        type=lambda text: whole_number(text, 0),
        default=10_000,
        metavar="N",
        help="graphs of a large set, planned without searches; 0 for none (default: 10,000)",
    )
    parser.add_argument("--checkpoint", default="", metavar="PATH", help="policy of regal (default: the shipped one)")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE.md", help="(default: the page in docs)")
    args = parser.parse_args()
    enable_compilation_cache()
    gc.set_threshold(*GC_THRESHOLDS)  # as the command does
    tables: dict[tuple[str, str, int], list[Row]] = {}
    for count, searches in ((args.graphs, True), (args.large, False)):
        for kinds in KINDS if count else ():
            graphs = load_graphs([f"{kinds}x{count}"])
            for name, problem in PROBLEMS.items():
                print(f"{kinds}x{count}, {name}", flush=True)
                tables[kinds, name, count] = table(graphs, problem, args.checkpoint, searches=searches)
    parts = [Table(f"{kinds}x{count}: {name}", here(), (text(rows),)) for (kinds, name, count), rows in tables.items()]
    parts[0] = parts[0]._replace(parts=(SETTING, *parts[0].parts))
    page = results_text(TITLE, parts, command(), summary(tables))
    write_atomically(args.output, lambda file: file.write(page))


if __name__ == "__main__":
    main()
