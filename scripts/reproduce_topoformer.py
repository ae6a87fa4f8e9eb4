"""Topoformer against classical methods on unseen graphs: the tables of the paper, with their pictures.

Table 1, real and inference measure --checkpoint, or the policy that ships with graphrl. The ablations (tables 3 and 4)
train with --set settings, with --seeds seeds, and are measured on graphs of --ablation-sizes; budget needs a --run.

Writes runs.jsonl with a row for each run (a stopped run resumes), pictures and runs of training to --out, and a file
for each section to --results. Everything takes days on two cores. --sections, --sizes, --graphs, --slow, --seeds and
--methods make it shorter; --quick only tests whether everything works.

  python scripts/reproduce_topoformer.py --sections table1 --sizes 500 --graphs 40 --slow 10 --width 10000
"""

from reproduce.launcher import Section, main
from reproduce.topoformer import ablations, tables
from reproduce.topoformer.settings import Settings

SECTIONS = {
    "table1": Section("Every method on unseen layered graphs (table 1)", tables.table1),
    "encoders": Section("Encoders (table 3)", ablations.encoders),
    "decoders": Section("Auto-regressive decoders against priorities (table 4)", ablations.decoders),
    "real": Section("Compiled training programs of families that no policy has seen, by size (table 2)", tables.real),
    "budget": Section("Quality against the length of training", ablations.budget),
    "inference": Section("Seconds of one graph, part by part", ablations.inference),
}

if __name__ == "__main__":
    main("topoformer", __doc__, Settings, SECTIONS)
