"""Training in separate processes, one or several together, and its results."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from graphrl.training.checkpoints import read

ENVIRONMENT = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
}


def start(command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    """Starts Python with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-P", *command],
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_together(command: Sequence[str], count: int = 2) -> list[subprocess.Popen[str]]:
    """Starts the same in several processes of one device each, which find one another by the environment."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    shared = {"JAX_NUM_CPU_DEVICES": "1", "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    return [start(command, **shared, JAX_PROCESS_ID=str(number)) for number in range(count)]


def finish(*processes: subprocess.Popen[str]) -> str:
    """Waits for their end; returns the last line that they printed, the same in all (Gloo prints too)."""
    lines = set()
    try:
        for process in processes:
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
            lines.add(out.splitlines()[-1])
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(lines) == 1
    return lines.pop()


def final_state(folder: Path) -> dict[str, np.ndarray]:
    """The leaves of the last checkpoint by their paths."""
    last = sorted(folder.glob("step-*"))[-1]
    return {str(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(read(last).state)}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], tolerance: float = 0.0) -> None:
    """Checks that two final states are equal, to a tolerance relative and absolute."""
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name)
