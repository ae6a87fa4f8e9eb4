"""REGAL against classical methods on unseen graphs: the tables of the paper, with their pictures.

Policies are trained here with --seeds seeds, each into a file in --out/training, unless that file exists. A policy with
a recurrent encoder is GAS. Sections that end with shipped take the policies of the package, and train nothing.

Writes runs.jsonl with a row for each run (a stopped run resumes), pictures and policies to --out, and a file for each
section to --results. Everything takes days on two cores. --sections, --graphs, --seeds and --methods make it shorter;
--quick only tests whether everything works.

  python scripts/reproduce_regal.py --sections synthetic-shipped --graphs 20 --seeds 1 --methods brkga,regal,list
"""

from functools import partial

from reproduce.launcher import Section, main
from reproduce.regal import kinds, sweeps, tables
from reproduce.regal.settings import TASKS, Settings
from reproduce.regal.sweeps import evolved, overhead

from graphrl.compare.report import problem_line

SECTIONS = {
    **{name: Section(f"{task.title} on 2 devices", partial(tables.table, task=name)) for name, task in TASKS.items()},
    **{
        f"{name}-shipped": Section(
            f"{task.title}: the policies that ship", partial(tables.table, task=name, shipped=True)
        )
        for name, task in TASKS.items()
    },
    **{
        name: Section(f"Many kinds of graphs: {problem_line(problem)}", partial(kinds.table, task=name))
        for name, problem in kinds.PROBLEMS.items()
    },
    "time": Section("Some methods at equal time", sweeps.timed),
    "limits": Section("Quality against the evaluation limit", sweeps.limits),
    "evolved": Section("REGAL's policy evolved", evolved),
    "overhead": Section("Seconds of REGAL against BRKGA's", overhead),
}

if __name__ == "__main__":
    main("regal", __doc__, Settings, SECTIONS)
