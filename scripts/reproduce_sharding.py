"""Sharding problems: docs/systems/sharding.md.

Writes measured.jsonl with a line for each measurement (a stopped run resumes) to --out, and a file for each section to
--results. The section `jax` takes the packages of the extra `gpu-compile`, and JAX_PLATFORMS=cpu in the environment.

  JAX_PLATFORMS=cpu python scripts/reproduce_sharding.py --sections jax
"""

from reproduce import gpu_compile
from reproduce.launcher import Section, Settings, main
from reproduce.sharding.from_jax import from_jax

SECTIONS = {
    "jax": Section("Steps from JAX on eight devices, split by graphrl and by hand", from_jax, gpu_compile.missing),
}

if __name__ == "__main__":
    main("sharding", __doc__, Settings, SECTIONS)
