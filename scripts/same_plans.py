"""Digests of the plans of 30 graphs by 9 or 10 methods, at fixed evaluations and seed, to detect changed plans.

python scripts/same_plans.py --out before.json
python scripts/same_plans.py --out after.json --against before.json
"""

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import graphrl
from graphrl.commands.parser import Parser
from graphrl.files import enable_compilation_cache, write_atomically
from graphrl.progress import progress

ORDERS = (
    "list", "xla", "inductor", "random-priorities", "dfs-dp", "approximate-dp:width=64", "min-cut", "anneal",
    "brkga+", "auto",
)  # fmt: skip
PLACEMENTS = ("list", "hlfet", "etf", "metis", "random", "local-search", "anneal-schedule", "brkga", "auto")
SEED, EVALUATIONS = 3, 640
MEMORY: dict[str, Any] = {"objective": "peak_memory"}
TIME: dict[str, Any] = {"objective": "makespan"}
CASES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    *((f"layered:{60 + 20 * (i % 2)}@{i}", MEMORY, ORDERS) for i in range(10)),
    *(
        (f"regal-like:@{i}", TIME | {"devices": 2, "bandwidth": 1e9, "latency": 1e-6 * i}, (*PLACEMENTS, "idrs"))
        for i in range(10)
    ),
    *(
        (f"layered:50@{i}", TIME | {"devices": 3, "transfer": "link", "bandwidth": 5.0}, PLACEMENTS)
        for i in range(20, 25)
    ),
    *((f"layered:40@{i}", MEMORY | {"devices": 2}, PLACEMENTS) for i in range(30, 35)),
]


def main() -> None:
    """Writes the digests; exits with code 1 if some differ."""
    parser = Parser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="to write the digests to")
    parser.add_argument("--against", type=Path, metavar="FILE", help="of another run, to compare with")
    parser.add_argument("--graphs", type=int, default=len(CASES), metavar="N", help="the first ones only")
    args = parser.parse_args()
    enable_compilation_cache()
    digests = {}
    cases = [(name, problem, method) for name, problem, methods in CASES[: args.graphs] for method in methods]
    with progress(len(cases), every=10) as show:
        for number, (name, problem, method) in enumerate(cases, start=1):
            key = f"{name} {sorted(problem.items())} {method}"
            digests[key] = digest(name, method, problem)
            show(number, f"{name}, {method}")
    write_atomically(args.out, lambda file: json.dump(digests, file, indent=0))
    if args.against is not None:
        before = json.loads(args.against.read_text())
        differing = [key for key in digests if key in before and digests[key] != before[key]]
        shared = len(digests.keys() & before.keys())
        print(f"{shared - len(differing)} of {shared} plans are the same")
        for key in differing:
            print(f"differs: {key}: {before[key]}, now {digests[key]}")
        sys.exit(bool(differing))


def digest(name: str, method: str, problem: dict[str, Any]) -> list[Any]:
    """Plans a graph by a method; returns a digest of placement and order, the value and the number of evaluations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = graphrl.optimize(name, method=method, evaluations=EVALUATIONS, seed=SEED, **problem)
    decisions = plan.to_dict()
    text = json.dumps([decisions["placement"], decisions["order"]])
    return [hashlib.sha256(text.encode()).hexdigest()[:16], plan.value, plan.evaluations]


if __name__ == "__main__":
    main()
