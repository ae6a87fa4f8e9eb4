"""Memory of gradients under jax's rules and graphrl's, by XLA's compiler for an H200: docs/systems/checkpoint.md.

Writes measured.jsonl with a line for each measurement (a stopped run resumes) and pictures to --out, and a file for
each section to --results. A compilation takes 4 to 40 s of one core, all of them some hours. --programs and --methods
make it shorter; --quick only tests whether everything works.

It takes the packages of the extra `gpu-compile`, and JAX_PLATFORMS=cpu in the environment. The section `device` runs
its compiled steps on this machine's GPU, so it takes no JAX_PLATFORMS. There, --processes is the number of parallel
compilations.

  python scripts/reproduce_checkpoint.py --sections rules --programs Llama,Mamba
"""

import os

from reproduce import gpu_compile
from reproduce.checkpoint.batch import batch, values
from reproduce.checkpoint.budgets import budgets, kept, planning
from reproduce.checkpoint.device import device
from reproduce.checkpoint.explain import explained
from reproduce.checkpoint.fit import fit, fit_batch, fit_sharded
from reproduce.checkpoint.measured import Settings
from reproduce.checkpoint.offload import offload
from reproduce.checkpoint.rules import curve, rules
from reproduce.checkpoint.sharded import sharded, sharded_kept, sharded_values
from reproduce.checkpoint.waiting import waiting
from reproduce.launcher import Section, main

SECTIONS = {
    "rules": Section("Memory and time of gradients under checkpoint rules", rules, gpu_compile.missing),
    "curve": Section("Memory of gradients against estimated slowdown", curve, gpu_compile.missing),
    "budgets": Section("Predicted temporaries against XLA's", budgets, gpu_compile.missing),
    "kept": Section("Budgets in bytes, as predicted and as compiled", kept, gpu_compile.missing),
    "planning": Section("Seconds of planning", planning),
    "batch": Section("Largest batches that fit", batch, gpu_compile.missing),
    "offload": Section("Device memory that host memory saves", offload, gpu_compile.missing),
    "sharded": Section("Sharded steps: memory of a device against estimated slowdown", sharded, gpu_compile.missing),
    "sharded-kept": Section("Budgets of a device in bytes, as compiled", sharded_kept, gpu_compile.missing),
    "sharded-values": Section("Values and gradients of sharded steps", sharded_values),
    "waiting": Section("Rules a layer whose gradients wait for one another", waiting, gpu_compile.missing),
    "explain": Section("Planted causes of memory, and what explains them", explained, gpu_compile.missing),
    "fit": Section("Whole training steps within the memory of a device", fit, gpu_compile.missing),
    "fit-sharded": Section("Whole training steps that eight devices share", fit_sharded, gpu_compile.missing),
    "fit-batch": Section("Largest batches of whole training steps", fit_batch, gpu_compile.missing),
    "device": Section("Steps on a GPU: memory and time as measured", device, lambda: "it takes a GPU of its own"),
    "values": Section("Values and gradients against the undecorated ones", values),
}

if __name__ == "__main__":
    # Processes of `device` share a GPU: none may reserve most of its memory at the start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    main("checkpoint", __doc__, Settings, SECTIONS)
