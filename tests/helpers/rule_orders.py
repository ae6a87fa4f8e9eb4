"""Orders of one device by rule, by name: what test_orders*.py ask them for."""

from collections.abc import Callable
from typing import Any

from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules import compilers, simple
from graphrl.solvers.solver import Solver

RULES: dict[str, Callable[[Flow], list[int]]] = {
    "depth-first": lambda flow: simple.depth_first(flow.waiting()),
    "breadth-first": simple.breadth_first,
    "alap": simple.as_late_as_possible,
    "xla-list": compilers.xla_list,
    "xla-dfs": compilers.xla_depth_first,
    "xla-postorder": compilers.xla_post_order,
    "xla": compilers.xla_best,
    "inductor-lpmf": compilers.inductor_lpmf,
    "inductor-bfs": compilers.inductor_bfs,
    "inductor-dfs": compilers.inductor_dfs,
    "inductor": compilers.inductor_best,
}
SOLVERS: dict[str, Solver[Any]] = {name: find_solver(name) for name in (*RULES, "random-ready", "random-priorities")}
BUDGET = Budget(evaluations=1000)


def program(text: str, *outputs: str) -> ComputationGraph:
    """A graph from "name bytes[+workspace] inputs ...; ...", control predecessors with a "!"."""
    ops = []
    for line in text.split(";"):
        name, size, *before = line.split()
        num_bytes, _, workspace = size.partition("+")
        ops.append(
            Op(
                name,
                inputs=tuple(b for b in before if not b.startswith("!")),
                outputs=(Tensor(name, int(num_bytes)),),
                after=tuple(b[1:] for b in before if b.startswith("!")),
                workspace_bytes=int(workspace or 0),
            )
        )
    return ComputationGraph("program", tuple(ops), outputs=outputs)


def names(rule: str, graph: ComputationGraph) -> str:
    return " ".join(graph.ops[op].name for op in RULES[rule](Flow(graph)))


DIAMOND = program("a 10; b 10 a; c 10 a; d 10 b; e 10 c; f 10 d e")
