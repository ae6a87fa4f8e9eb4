"""Every classical method on the same graphs at the same times: the tables and pictures of docs/systems/opponents.md.

The random DAGs are from REGAL's generator as we document it, four models in turn, under each transfer model on 2 and 4
devices. The layered graphs are Topoformer's, of 500, 1,000 and 2,000 ops.

Writes runs.jsonl with a row for each run (a stopped run resumes) and pictures to --out, and a file for each section to
--results. Everything takes days on two cores. --sections, --graphs, --times and --methods make it shorter; --quick only
tests whether everything works.

  python scripts/reproduce_opponents.py --sections layered --graphs 4 --times 1,10
"""

from reproduce.launcher import Section, main
from reproduce.opponents import annealing, optima, schedules, settings
from reproduce.opponents.settings import Settings

SECTIONS = {
    "dags": Section("Makespan of random DAGs", settings.dags),
    "layered": Section("Peak memory of layered graphs", settings.layered),
    "optima": Section("Known optima: shares found and proved", optima.optima),
    "optima-dags": Section("Random DAGs of 50 and 100 ops: auto against CP-SAT in a minute", optima.random_dags),
    "annealing": Section("Annealing against compiled code, auto against approximate DP", annealing.annealing),
    "schedules": Section("Annealing of schedules against compiled code", schedules.schedules),
    "moves": Section("Gain of each move of a schedule", schedules.moves),
    "gaps": Section("Gaps of list scheduling, auto and compiled annealing to the best", schedules.gaps),
    "scale": Section("Graphs of 1,000 to 100,000 ops read, planned and written", optima.scale),
}

if __name__ == "__main__":
    main("opponents", __doc__, Settings, SECTIONS)
