"""Savings of plans on real programs, by XLA's own figures and on this machine: docs/systems/programs.md.

Temporaries are those of XLA's default and memory schedulers, the best plain heuristic, graphrl at each of --times, and
the lower bound.

Writes measured.jsonl and runs.jsonl with a line for each measurement (a stopped run resumes), captured modules and
plans to --out, and a file for each section to --results. Everything takes many hours on two cores. --sections,
--programs and --times make it shorter; --quick only tests whether everything works (it needs neither Keras nor
keras_hub, which the zoo's programs need).

  python scripts/reproduce_real_programs.py --sections memory,prediction --programs mobilenetv2/training/b8 --times 10
"""

from reproduce import gpu_compile
from reproduce.launcher import Section, main
from reproduce.real_programs import gpu_orders, memory, placement, planning, same_results, totals
from reproduce.real_programs.programs import Settings

SECTIONS = {
    "memory": Section("Temporaries of training steps and inference programs; the targets", memory.memory),
    "prediction": Section("Temporaries as predicted without compiling, against XLA's figure", memory.prediction),
    "identical": Section("Results and step times against XLA's own schedule", same_results.identical),
    "resident": Section("How much the process grows while a program runs", planning.resident),
    "planning": Section("Seconds to plan large programs", planning.planning),
    "totals": Section("Donated steps and loops: total memory", totals.totals),
    "gpu-orders": Section("Orders on a GPU, by XLA's compiler for one", gpu_orders.gpu_orders, gpu_compile.missing),
    "zoo": Section("The zoo's training steps, donated: total memory", totals.zoo_totals),
    "same-results": Section("Results and effects under graphrl.jit, against jax.jit", same_results.same_results),
    "placement": Section("Makespan on several devices", placement.placement),
}

if __name__ == "__main__":
    main("programs", __doc__, Settings, SECTIONS)
