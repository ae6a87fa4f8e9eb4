"""Tunes BRKGA on training graphs and stores the best setting of each objective where "brkga-tuned" reads it.

python scripts/tune_brkga.py --graphs 4 --evaluations 5000
"""

import dataclasses
import datetime
import json
import sys
from pathlib import Path

from graphrl.commands.parser import Parser
from graphrl.costs.problem import Problem
from graphrl.files import write_atomically
from graphrl.graphs.datasets.regal_like import MODELS, RegalLike, regal_like
from graphrl.solvers.chromosomes import brkga_solver
from graphrl.solvers.chromosomes.brkga_solver import STORED, Grid, Setting, tune

FIRST_SEED = 10**6  # of the training graphs: far from those that methods are compared on
DEFAULT = Setting(100, 20, 20, 0.7, 1.0, 1.0)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=4, help="training graphs, the random models in turn")
    parser.add_argument("--ops", type=int, default=80, help="most ops; the least is half of it")
    parser.add_argument("--evaluations", type=int, default=5000, help="of each run")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(brkga_solver.__file__).parent / STORED)
    options = parser.parse_args()

    family = RegalLike(least_ops=options.ops // 2, most_ops=options.ops)
    graphs = [regal_like(FIRST_SEED + i, MODELS[i % len(MODELS)], parameters=family) for i in range(options.graphs)]
    settings, report = {}, {}
    for problem in (Problem("makespan", options.devices), Problem("peak_memory", options.devices)):
        scores = tune(graphs, problem, options.evaluations, Grid(), options.seed)
        best = min(scores, key=lambda setting: scores[setting])
        settings[problem.objective] = dataclasses.asdict(best)
        report[problem.objective] = {
            "settings_tried": len(scores),
            "default_over_best": round(scores[DEFAULT] / scores[best], 4),
            "worst_over_best": round(max(scores.values()) / scores[best], 4),
        }
        print(problem.objective, best, report[problem.objective])
    record = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.date.today().isoformat(),
        "seed": options.seed,
        "problem": f"{options.devices} devices, rendezvous, transfers of 0 s",
        "graphs": [graph.name for graph in graphs],
        "evaluations": options.evaluations,
        "grid": dataclasses.asdict(Grid()),
        "results": report,
        "settings": settings,
    }
    write_atomically(options.out, lambda file: file.write(json.dumps(record, indent=1) + "\n"))


if __name__ == "__main__":
    main()
