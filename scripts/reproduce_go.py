"""Placement and fusion of whole programs by GO and other methods: the tables of docs/results/go-*.md.

The sections `table2` and `unseen` take the methods of --methods, optionally with seconds for each: auto@10,hdp@600.
There `go` and `go+` play the policy that ships, or another: go:checkpoint=out/go. `gdp`, GO's predecessor, plays that
of --gdp, else an untrained one. `go:finetune=50` starts with 50 updates on the given graph, however long they take.

The section `external` needs --data, a checkout of the repository msr-fiddle/dnn-partitioning or a folder in its form:
its throughput-inputs and human-experts.

Writes measured.jsonl with a line for each measurement to --out (a stopped run resumes), and a file for each section to
--results. --quick only tests whether everything works.

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
    "fusion": Section("Fusion by rules and searches", fusion.fusion),
    "unseen": Section("Unseen graphs", unseen.unseen),
    "ablations": Section("Parts of GO", ablations.ablations),
    "changes": Section("Gains of single changes of a plan", changes.changes),
    "external": Section("Pipelined execution: the graphs of Tarnawski et al.", external.external),
    "table3": Section("Fusion alone", table3.table3),
    "figure5": Section("Unseen architectures, before and after updates", figure5.figure5),
    "figure6-policies": Section("Placement, order and fusion by policies", figure6_policies.figure6_policies),
    "figure6": Section("Placement, order and fusion, separate and joint", figure6.figure6),
}

if __name__ == "__main__":
    main("go", __doc__, Settings, SECTIONS)
