"""Memory maps of EGRL's workloads: ResNet-50, ResNet-101 and BERT, layer by layer, on a chip like Intel's NNP-I.

Compares all methods that search for maps, EGRL and its parts among them, at the paper's 4,000 evaluations, and
annealing and CP-SAT at equal time. Further sections have EGRL's ablations and other settings, and differences between
maps and the compiler's. Each run has one core. Latencies are of our model of the chip, not of a chip.

Writes measured.jsonl with a line for each run (a stopped run resumes) and pictures to --out, and a file for each
section to --results. Without learning, all takes minutes. A run of EGRL takes about a minute for ResNet-50, more for
larger graphs, and the first one some minutes of compilation. --quick only tests whether everything works.

  python scripts/reproduce_egrl.py --workloads resnet50 --times 1,60
"""

from reproduce.egrl import methods, start, transfer
from reproduce.egrl.settings import Settings
from reproduce.launcher import Section, main

SECTIONS = {
    "methods": Section("Memory maps by every method", methods.methods),
    "ablations": Section("EGRL with parts left out", methods.ablations),
    "evolution": Section("EGRL's evolution alone", methods.evolution),
    "maps": Section("Differences of maps from the compiler's", methods.maps),
    "start": Section("Figure 4 from a trained start", start.start),
    "transfer": Section("Policies on unseen graphs", transfer.transfer),
}

if __name__ == "__main__":
    main("egrl", __doc__, Settings, SECTIONS)
