"""Sharding problems of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism, against its public results.

The instances are not in this repository: download them (google/iopddl on GitHub) and name their folder with --data.
Searches have the contest's own time limits, with reading the file, on this machine's cores; the contest's machine had
8 cores. Compilation, once for a machine, is before them.

Writes measured.jsonl to --out (a stopped run resumes) and a file for each section to --results. A seed of the ten
instances of `contest` takes 23 minutes. --processor-time counts the processor's time of one thread, for machines that
others use at the same time; --share shortens all limits. The section `jax` needs no instances: it takes the packages of
the extra `gpu-compile`, and JAX_PLATFORMS=cpu in the environment. The section `learning` takes policies that
`graphrl train sharding --config scripts/sharding.toml --out FOLDER` has trained (--policies FOLDER,...).

  python scripts/reproduce_sharding.py --data iopddl --sections contest --seeds 3
"""

from reproduce import gpu_compile
from reproduce.launcher import Section, main
from reproduce.sharding import contest, from_jax, learning, parts
from reproduce.sharding.settings import Settings

SECTIONS = {
    "contest": Section("Shardings: the contest's instances", contest.contest),
    "parts": Section("Shardings: the gain of each part of the search", parts.parts),
    "learning": Section("Shardings: the search with and without a learned policy", learning.learning),
    "jax": Section("Shardings: steps from JAX, split by graphrl and by hand", from_jax.from_jax, gpu_compile.missing),
}

if __name__ == "__main__":
    main("sharding", __doc__, Settings, SECTIONS)
