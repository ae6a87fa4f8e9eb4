"""Compile seconds of a process that finds the compilation cache filled: measured in processes of their own.

`python -m graphrl.bench.start` is such a process; it prints the seconds.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile

from graphrl.bench.cases import Case, Settings, Work
from graphrl.errors import GraphrlError


def cached_compile_seconds(work: Work) -> float:
    """Seconds that a second process takes to trace the BRKGA program of a case and to load it from the cache.

    Raises:
      GraphrlError: such a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="graphrl-bench-") as cache:
        what = (json.dumps(dataclasses.asdict(part)) for part in (work.settings, work.case))
        command = [sys.executable, "-m", "graphrl.bench.start", cache, *what]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise GraphrlError(f"measuring a process start failed: {last}")
        return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Compiles the program, with a cache, and prints the seconds."""
    import jax

    from graphrl.bench import machine
    from graphrl.bench.searches import graphrl_search

    cache, settings, case = sys.argv[1], Settings(**json.loads(sys.argv[2])), Case(**json.loads(sys.argv[3]))
    machine.configure(settings.threads)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    print(graphrl_search(Work(settings, case)).compile_s)


if __name__ == "__main__":
    main()
