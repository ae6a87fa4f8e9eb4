"""Compile seconds of a process that finds the compilation cache filled: measured in processes of their own.

`python -m graphrl.bench.start` is such a process; it prints one JSON object.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

from graphrl.errors import GraphrlError


def cached_compile_seconds(num_ops: int, graphs: int, threads: int, evaluations: int, seed: int) -> float:
    """Seconds that a second process takes to trace the BRKGA program for peak memory and to load it from the cache.

    Raises:
      GraphrlError: such a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="graphrl-bench-") as cache:
        numbers = map(str, (num_ops, graphs, threads, evaluations, seed))
        command = [sys.executable, "-m", "graphrl.bench.start", cache, *numbers]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise GraphrlError(f"measuring a process start failed: {last}")
        return float(json.loads(done.stdout.splitlines()[-1])["compile_s"])


def main() -> None:
    """Compiles the program, with a cache, and prints the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cache")
    for name in ("num_ops", "graphs", "threads", "evaluations", "seed"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    print(json.dumps(_measure(**vars(args))))


def _measure(cache: str, num_ops: int, graphs: int, threads: int, evaluations: int, seed: int) -> dict[str, Any]:
    import jax

    from graphrl.bench import machine
    from graphrl.bench.cases import PARAMETERS, problem
    from graphrl.bench.graphs import random_graphs
    from graphrl.bench.searches import graphrl_search

    machine.configure(threads)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    batch = random_graphs(num_ops, graphs, seed)
    mesh = machine.make_mesh(threads, graphs)
    task = problem("peak_memory", "free")
    return {"compile_s": graphrl_search(batch, task, PARAMETERS, evaluations, mesh, seed).compile_s}


if __name__ == "__main__":
    main()
