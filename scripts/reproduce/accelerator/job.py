"""One part of the measurements in a separate process: `python -m reproduce.accelerator.job JOB` prints rows as JSON."""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from graphrl.errors import GraphrlError

Row = dict[str, Any]  # JSON: labels and figures, or labels and a "fault"


@dataclasses.dataclass(frozen=True)
class Job:
    """A part of the measurements that runs in its own process.

    Attributes:
      section: name of its section of the page.
      part: name of the part, "" for the whole section.
      platform: gpu, tpu or cpu.
      ends: time limit, by `time.time`.
      small: True for small sizes.
      seed: seed of all random choices.
    """

    section: str
    part: str
    platform: str
    ends: float
    small: bool
    seed: int

    @property
    def left(self) -> float:
        """Returns the seconds until its limit."""
        return self.ends - time.time()


Write = Callable[[Row], None]


@contextlib.contextmanager
def faults(write: Write, **labels: Any) -> Iterator[None]:
    """Context manager that writes a row for an error and suppresses it: other parts may still work."""
    try:
        yield
    except ModuleNotFoundError as error:
        write({**labels, "fault": f"the package {error.name} is missing: --wheels", "missing": error.name})
    except GraphrlError as error:
        write({**labels, "fault": str(error)})
    except Exception as error:  # any error of an unknown machine
        traceback.print_exc()
        text = str(error).strip() or "no message"
        write({**labels, "fault": f"{type(error).__name__}: {text.splitlines()[0][:160]}"})


def main() -> None:
    """Runs the job given as argument. The system ends the process at the limit, even while XLA compiles."""
    job = Job(**json.loads(sys.argv[1]))
    signal.setitimer(signal.ITIMER_REAL, max(0.01, job.left))
    rows = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps output of libraries out of the rows

    def write(row: Row) -> None:
        print(json.dumps({"section": job.section, **row}), file=rows, flush=True)

    with faults(write, part=job.part):
        import jax

        from graphrl.bench import machine
        from graphrl.process import count_cores
        from reproduce.results import here

        # jaxlib 0.11.2 (not 0.11.1) ends the process when it compiles the decoder for several CPU devices
        machine.configure(1 if jax.__version_info__ >= (0, 11, 2) else count_cores())
        jax.config.update("jax_enable_compilation_cache", job.small)
        if jax.default_backend() != job.platform:
            write({"absent": f"jax finds no {job.platform} here, only {jax.default_backend()}"})
            return
        _, hardware, versions, _ = here()
        write({"hardware": min(hardware), "versions": min(versions)})
        measure(job, write)


def measure(job: Job, write: Write) -> None:
    """Writes the rows of a part. Its module is imported here, since it may need packages of its own."""
    module, _, function = PARTS[job.section].partition(":")
    getattr(importlib.import_module(module), function)(job, write)


PARTS = {
    "costs": "reproduce.accelerator.costs:costs",
    "rollouts": "reproduce.accelerator.rates:rollouts",
    "search": "reproduce.accelerator.rates:search",
    "training": "reproduce.accelerator.training:training",
    "cpu": "reproduce.accelerator.rates:rollouts",
}

if __name__ == "__main__":
    main()
