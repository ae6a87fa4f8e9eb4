"""`graphrl shard PROBLEM`: chooses a strategy for every node of a sharding problem, within a memory limit."""

import argparse
import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from graphrl.commands.common import (
    add_common,
    check_json_name,
    check_outputs,
    check_pictures,
    integer,
    print_json,
    seconds,
)
from graphrl.errors import ProblemError
from graphrl.files import quote_path
from graphrl.optimize import check_seed
from graphrl.progress import progress
from graphrl.sharding.datasets import load_problem
from graphrl.sharding.guide import Guide
from graphrl.sharding.plan import ShardingPlan, gap_text
from graphrl.sharding.problem import ShardingProblem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.search import search
from graphrl.sharding.worker import RATE, Report
from graphrl.units import format_bytes

DEFAULT_SECONDS = 60.0
WRITE_EVERY = 0.5  # least seconds between two writes of --output
REPORT_EVERY = 5.0  # seconds between two lines of progress, without a terminal

DESCRIPTION = """Choose how each op of a model is split over a mesh of devices.

A problem lists for every node the cost and the bytes of each strategy, and for every edge the cost of each pair of
strategies. The command searches for the least sum of costs with which the bytes never exceed the limit, and proves how
far from the optimum the plan can be. It reads the files of the ASPLOS / EuroSys 2025 contest on intra-operator
parallelism, plain or gzipped.

The file of --output has the best plan so far, at most a second old: the command may be killed at any moment. Ctrl-C
ends the search with its best plan."""

EXAMPLES = """examples:
  graphrl shard problem.json.gz
      search for a minute, and print cost, bound, memory and the sizes of the problem
  graphrl shard problem.json.gz --seconds 4min --output plan.json --plot plan.png
      search for four minutes; write the plan, and a picture of its memory and costs
  graphrl shard problem.json.gz --evaluations 20000 --seed 1
      the same plan each time, however fast the machine is
  graphrl shard problem.json --seconds 60 --contest
      print the contest's answer: the list of strategies
  graphrl shard sharding-layers:200@7 --seconds 10
      try it without a file: a random model of 200 nodes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "problem", metavar="PROBLEM",
        help="file of a sharding problem, .json or .json.gz; or a name: sharding-layers:200@7 is a random model of 200 "
        "nodes with seed 7, problem.json.gz:200@7 a connected part of a file",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=seconds, metavar="S",
        help="time of the search with reading the file, such as 60 or 4min (default without --evaluations: 60); it "
        "ends earlier at a proven optimum",
    )  # fmt: skip
    parser.add_argument(
        "--evaluations", type=integer, metavar="N",
        help="maximum number of passes over all nodes, some hundreds a second, on one core: the same seed gives the "
        "same plan on any machine",
    )  # fmt: skip
    parser.add_argument(
        "--guide", metavar="CHECKPOINT",
        help="start from the best labels of a policy of `graphrl train sharding`, and move most where it is least "
        "certain; --seconds includes the time that the policy needs to compile and run",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write the plan as JSON, and every better one at once")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of memory and costs: .png, .svg or .pdf")
    parser.add_argument(
        "--contest", action="store_true", help="print only the contest's answer, the list of strategies in brackets"
    )
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Searches for a plan, writes it and prints its figures; returns the exit code."""
    check_seed(args.seed)
    limit = args.seconds
    if limit is None:
        limit = DEFAULT_SECONDS if args.evaluations is None else math.inf
    if not limit > 0:
        raise ProblemError(f"--seconds {limit:g}: must be above 0")
    if args.evaluations is not None and args.evaluations < 1:
        raise ProblemError(f"--evaluations {args.evaluations}: must be at least 1")
    if args.json and args.contest:
        raise ProblemError("--json and --contest print different answers: give one of them")
    check_json_name("--output", args.output)
    check_outputs({"--output": args.output, "--plot": args.plot}, args.problem)
    check_pictures(args.plot)
    guide = None if args.guide is None else _guide(args.guide, args.seed)
    started = time.perf_counter()
    problem = load_problem(args.problem)
    expected = limit if math.isfinite(limit) else args.evaluations / RATE
    with _progress(problem, expected) as show:
        writer = _Writer(args.output)

        def report(state: Report) -> None:
            writer(state)
            show(state)

        plan, reduced = search(
            problem, limit, seed=args.seed, report=report, guide=guide, started=started, evaluations=args.evaluations
        )
    written = []
    if args.output is not None:
        plan.save(args.output)
        written.append(args.output)
    if args.plot is not None:
        from graphrl.sharding.picture import plot

        plot(problem, plan).save(args.plot)
        written.append(args.plot)
    _print(args, problem, plan, reduced, written)
    return 0


def _guide(path: str, seed: int) -> Callable[[ShardingProblem, Reduced], Guide]:
    """Loads a policy. Raises GraphrlError: the path is none's."""
    from graphrl.agents.sharding.network import Policy  # imports JAX

    return functools.partial(Policy.load(path).guide, seed=seed)


class _Writer:
    """Writes each better plan of a search, at most twice a second."""

    def __init__(self, path: str | None) -> None:
        self._path, self._written = path, -WRITE_EVERY
        self._cost: int | None = None

    def __call__(self, state: Report) -> None:
        if self._path is None or state.cost is None or state.cost == self._cost:
            return
        if state.seconds - self._written >= WRITE_EVERY:
            state.plan().save(self._path)
            self._cost, self._written = state.cost, state.seconds


@contextlib.contextmanager
def _progress(problem: ShardingProblem, limit: float) -> Iterator[Callable[[Report], None]]:
    """Context manager that gives a function that shows the state of the search: a bar, or a line every few seconds."""
    total = max(1, math.ceil(limit))
    with progress(total, text="s, reducing the problem", every=REPORT_EVERY) as show:
        # the last step would have a line each time
        yield lambda state: show(min(total - 1, int(state.seconds)), f"s, {problem.name}: {_text(state)}")


def _text(state: Report) -> str:
    if state.cost is None:
        return "no feasible plan yet"
    return f"cost {state.cost:,}, {gap_text(state.cost, state.bound)}"


def _print(
    args: argparse.Namespace, problem: ShardingProblem, plan: ShardingPlan, reduced: Reduced, written: list[str]
) -> None:
    if args.contest:
        print(plan.contest_list())
        return
    sizes = _sizes(problem, reduced)
    if args.json:
        print_json(
            {**plan.to_dict(), "gap": plan.gap if math.isfinite(plan.gap) else None, "sizes": sizes, "written": written}
        )
        return
    full, small = sizes["problem"], sizes["reduced"]
    lines = [
        f"{plan.problem}: {_counts(full)}",
        f"reduced to   {_counts(small)}; memory can bind at {small['times']:,} of {full['times']:,} times",
        f"cost         {plan.cost:,}, {gap_text(plan.cost, plan.bound)}",
        f"lower bound  {plan.bound:,}",
    ]
    share = "no limit" if plan.limit is None else f"{100 * plan.peak_bytes / max(1, plan.limit):.2f}% of the limit"
    lines.append(f"peak memory  {format_bytes(plan.peak_bytes)}, {share}")
    lines.append(f"search       {plan.method}, {plan.seconds:.1f} s, seed {plan.seed}")
    if written:
        lines.append(f"written      {', '.join(map(quote_path, written))}")
    print("\n".join(lines))


def _counts(sizes: dict[str, int]) -> str:
    """Numbers of nodes, edges and strategies in words."""
    names = (("nodes", "node"), ("edges", "edge"), ("strategies", "strategy"))
    return ", ".join(f"{sizes[many]:,} {one if sizes[many] == 1 else many}" for many, one in names)


def _sizes(problem: ShardingProblem, reduced: Reduced) -> dict[str, Any]:
    """Numbers of nodes, edges, strategies, costs of edges and times, before and after the reduction."""
    return {
        "problem": {
            "nodes": len(problem.sizes), "edges": len(problem.edges), "strategies": len(problem.cost),
            "edge_costs": len(problem.edge_cost), "times": len(problem.times),
        },
        "reduced": {
            "nodes": len(reduced.sizes), "edges": len(reduced.edges), "strategies": len(reduced.cost),
            "edge_costs": len(reduced.edge_cost), "times": len(reduced.room),
        },
    }  # fmt: skip
