"""Placement and fusion of whole programs beside its opponents: the tables of docs/results/go-*.md.

The sections `table2` and `unseen` take the methods of --methods, each perhaps with its seconds: auto@10,hdp@600. There
`go` and `go+` play the policy that ships, or another: go:checkpoint=out/go; and `gdp`, GO's predecessor, that of --gdp,
else one that is not trained. `go:finetune=50` begins with 50 updates on the graph at hand, however long they take.

The section `external` needs --data, a checkout of the repository msr-fiddle/dnn-partitioning or a folder in its form:
its throughput-inputs and human-experts.

Writes to --out measured.jsonl with a line a measurement (a stopped run goes on where it was), and to --results a file a
section. --quick only looks whether everything works.

  python scripts/reproduce_go.py --sections table2 --methods expert,metis,hdp@60,auto@10
  python scripts/reproduce_go.py --sections table2 --methods go:finetune=50,go+,hdp@600 --seeds 3
  python scripts/reproduce_go.py --sections external --data ../dnn-partitioning
  python scripts/reproduce_go.py --sections table3,figure6,figure6-policies --times 3
"""

from reproduce.go import (
    ablations,
    changes,
    external,
    figure5,
    figure6,
    figure6_policies,
    fusion,
    table2,
    table3,
    unseen,
)
from reproduce.go.settings import Settings
from reproduce.launcher import Section, main

SECTIONS = {
    "table2": Section("Placement of GO's workloads", table2.table2),
    "fusion": Section("What fusion gains", fusion.fusion),
    "unseen": Section("Graphs that no policy was trained on", unseen.unseen),
    "ablations": Section("Parts of GO", ablations.ablations),
    "changes": Section("What single changes of a plan gain", changes.changes),
    "external": Section("Pipelined execution: the graphs of Tarnawski et al.", external.external),
    "table3": Section("Fusion alone", table3.table3),
    "figure5": Section("Pre-trained without a whole architecture", figure5.figure5),
    "figure6-policies": Section("Placement, order and fusion by policies", figure6_policies.figure6_policies),
    "figure6": Section("Placement, order and fusion, apart and together", figure6.figure6),
}

if __name__ == "__main__":
    main("go", __doc__, Settings, SECTIONS)
