"""Writes the tables of all methods and of the stages of `auto` into docs/methods.md; a test checks the page.

python scripts/methods_table.py
"""

import math
from collections.abc import Iterator
from pathlib import Path

from graphrl.commands.parser import Parser
from graphrl.costs.problem import Problem
from graphrl.files import write_atomically
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined
from graphrl.methods import describe, describe_map_methods
from graphrl.solvers import auto
from graphrl.solvers.base import Budget
from graphrl.solvers.portfolio import Stage

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
HEAD = ["| `--method` | what it is | what it does | devices | options |", "|---|---|---|---|---|"]
MAP_HEAD = ["| `graphrl map --method` | what it is | what it does | options |", "|---|---|---|---|"]
AUTO_HEAD = ["| problem | ops | stages of `auto` |", "|---|---|---|"]
TIME = Budget(seconds=60.0)  # enough for every stage


def with_tables(page: str) -> str:
    """Replaces the tables of the page by current ones; returns the page."""
    plans = [
        f"| `{one.name}` | {one.kind} | {one.help} | {one.devices} | {_options(one.options)} |" for one in describe()
    ]
    maps = [f"| `{one.name}` | {one.kind} | {one.help} | {_options(one.options)} |" for one in describe_map_methods()]
    for table in ([*HEAD, *plans], [*AUTO_HEAD, *_auto_rows()], [*MAP_HEAD, *maps]):
        page = _with_table(page, table)
    return page


def _auto_rows() -> Iterator[str]:
    """Yields a row for each kind of problem and size of graph, with the stages that `auto` has for them."""
    for name, sizes, problem in _problems():
        last = ""
        for size, graph in sizes:
            stages = "; ".join(map(_stage, auto.stages(graph, problem, TIME)))
            if stages != last:
                yield f"| {name} | {size} | {stages} |"
            last = stages


def _problems() -> Iterator[tuple[str, list[tuple[str, ComputationGraph]], Problem]]:
    """Yields each problem's name, labelled graphs of every size that changes the stages, and the problem."""
    yield "peak memory, 1 device", _up_to(auto.DP_OPS), Problem("peak_memory", 1)
    yield "peak memory, several devices", _up_to(auto.PEAK_OPS), Problem("peak_memory", 2)
    yield "makespan, `rendezvous`", _up_to(auto.RENDEZVOUS_OPS), Problem("makespan", 2, "rendezvous")
    few, proved, annealed, large = auto.OPTIMUM_OPS, auto.PROOF_OPS, auto.MULTILEVEL_OPS - 1, auto.TRIAL_OPS - 1
    link = [*_up_to(few, proved, annealed, large), ("any, most of them colocated", _graph(few, grouped=True))]
    yield "makespan, `link`", link, Problem("makespan", 2, "link")
    yield "makespan, `free`", _up_to(few, proved, annealed), Problem("makespan", 2, "free")
    groups = [(size.replace("ops", "groups"), graph) for size, graph in _up_to(auto.EXACT_GROUPS)]
    yield "largest load (`max_load`)", groups, Problem("max_load", 2)


def _up_to(*limits: int) -> list[tuple[str, ComputationGraph]]:
    """Makes labelled graphs with the given numbers of ops, and one with more than the last number."""
    return [*((f"up to {ops:,}", _graph(ops)) for ops in limits), ("more", _graph(limits[-1] + 1))]


def _graph(ops: int, *, grouped: bool = False) -> ComputationGraph:
    together = Pipelined(colocation=0) if grouped else None
    return ComputationGraph("some", tuple(Op(f"op{i}", runtime=1.0, pipelined=together) for i in range(ops)))


def _stage(stage: Stage) -> str:
    """Describes a stage of `auto` in words."""
    options = ",".join(f"{key}={value}" for key, value in stage.solver.settings.items())
    share = "" if stage.share == 1.0 else f" for {stage.share:.0%}"
    limit = "" if math.isinf(stage.seconds) else f", {stage.seconds:g} s at most"
    return f"`{stage.solver.name}{':' * bool(options)}{options}`{share}{limit} {stage.condition}".rstrip()


def _with_table(page: str, lines: list[str]) -> str:
    """Replaces a table of the page, which is found by its first line and ends at an empty line."""
    before, _, rest = page.partition(lines[0])
    _, empty, after = rest.partition("\n\n")
    return before + "\n".join(lines) + empty + after


def _options(options: str) -> str:
    return ", ".join(f"`{option}`" for option in options.split(", ") if option)


def main() -> None:
    """Writes the page."""
    Parser(description=__doc__).parse_args()
    text = with_tables(PAGE.read_text(encoding="utf-8"))
    write_atomically(PAGE, lambda file: file.write(text))


if __name__ == "__main__":
    main()
