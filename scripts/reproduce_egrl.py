"""Memory maps of EGRL's workloads: ResNet-50, ResNet-101 and BERT, layer by layer, on a chip like Intel's NNP-I.

Every method without learning that searches for maps, at the paper's 4,000 evaluations, and annealing and CP-SAT in
time; EGRL, its parts and its settings at 4,000 evaluations. Each run has one core. Measured latencies are of our model
of the chip, not of a chip.

Writes to --out measured.jsonl with a line a run (a stopped run goes on where it was), and to --results a file a
section. With 5 seeds the methods without learning take some 20 minutes, most of them for CP-SAT, and EGRL hours;
--quick only looks whether everything works.

  python scripts/reproduce_egrl.py --workloads resnet50 --times 1,60
"""

from reproduce.egrl import learning, opponents
from reproduce.egrl.settings import Settings
from reproduce.launcher import Section, main

SECTIONS = {
    "opponents": Section("Memory maps without learning", opponents.opponents),
    "learning": Section("EGRL and its parts", learning.learning),
    "ablations": Section("EGRL with other settings", learning.ablations),
}

if __name__ == "__main__":
    main("egrl", __doc__, Settings, SECTIONS)
