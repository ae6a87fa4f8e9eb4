"""Growth of a process's resident size during a run of an executable, by schedule.

XLA's own figure is the memory that it plans to use; this module measures what the operating system sees. Each
measurement runs in a new process. It builds the program, compiles it, makes its arguments, and samples its resident
size every `INTERVAL` seconds, from before the first call until the results are there. The growth includes temporaries,
results, and the allocations of XLA's threads and kernels.

The C library keeps much of this memory after it is freed: 400 MB on EfficientNetB0's training step. On other programs
the kept memory differs by schedule, which hides the schedule's savings. glibc requests blocks above a size threshold
from the system one by one, and returns them when they are freed. It raises the threshold as blocks are freed. Below it,
block addresses depend on threads and their timing. `returning` fixes the threshold.

A `Recipe` names a program, since a function cannot be sent to another process. `random_arguments` fills in arguments of
known shape with random numbers that keep values finite. Linux only (`/proc`).
"""

import dataclasses
import hashlib
import importlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import graphrl
from graphrl.errors import GraphrlError
from graphrl.xla.hook import compile_in_order

INTERVAL = 0.002  # seconds between two samples
RETURNING = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}  # glibc's initial value, fixed by setting it (mallopt(3))
_STATUS = Path("/proc/self/status")

Schedule = Literal["default", "memory"] | Sequence[Sequence[int]] | Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a new process builds a program: the name of an importable function, and its arguments.

    Attributes:
      function: "package.module:name" of an importable function. It returns a tuple that starts with a JAX function and
        the tuple of its arguments (arrays or `jax.ShapeDtypeStruct`s), such as `programs.Program`.
      options: keyword arguments of the function, as JSON values.
    """

    function: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def build(self) -> tuple[Any, tuple[Any, ...]]:
        """Builds the function and its arguments.

        Raises:
          GraphrlError: there is no such function. Errors of the function itself pass through.
        """
        module, _, name = self.function.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise GraphrlError(f"recipe {self.function!r}: {error}: must be package.module:function") from None
        return tuple(function(**self.options)[:2])


@dataclasses.dataclass(frozen=True)
class Resident:
    """Measured memory and time of one process that runs a program.

    Attributes:
      before: resident bytes before the first call, with program and arguments in memory.
      peak: largest resident bytes until the results are there.
      temp: bytes of temporaries by XLA's own figure (`memory_analysis().temp_size_in_bytes`).
      seconds: run time of the call.
      samples: number of times that the size was read.
      digest: digest of the results' bits, hexadecimal; equal digests mean equal results.
    """

    before: int
    peak: int
    temp: int
    seconds: float
    samples: int
    digest: str

    @property
    def rise(self) -> int:
        """Bytes by which the process grew."""
        return self.peak - self.before


def measure_resident(
    recipe: Recipe, schedule: Schedule = "default", *, seed: int = 0, returning: bool = False
) -> Resident:
    """Runs a program once in a new process.

    Args:
      recipe: recipe of the program. The new process imports from this one's `sys.path`.
      schedule: XLA's "default" or "memory" scheduler; or keyword arguments of `graphrl.compile`, whose plan the new
        process reads from disk or searches for before it measures; or orders of computations as
        `hook.compile_in_order` takes them (`planning.cache.places_of`).
      seed: seed of the arguments that the recipe leaves abstract (`random_arguments`).
      returning: True if the process returns all memory that kernels free to the system immediately (glibc). It then
        runs slower, and its growth is close to XLA's figure.

    Raises:
      GraphrlError: no such schedule, no Linux, or the process fails (with its last line of standard error).
    """
    if not _STATUS.exists():
        raise GraphrlError(f"the resident size is read from {_STATUS}, which only Linux has")
    if isinstance(schedule, str) and schedule not in ("default", "memory"):
        raise GraphrlError(f"schedule is {schedule!r}: XLA's are 'default' and 'memory'")
    if isinstance(schedule, Mapping):
        written: Any = dict(schedule)
    else:
        written = schedule if isinstance(schedule, str) else [[int(place) for place in order] for order in schedule]
    task = {"recipe": [recipe.function, dict(recipe.options)], "schedule": written, "seed": seed}
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(task),
        env=os.environ | {"PYTHONPATH": paths} | (RETURNING if returning else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise GraphrlError(f"running {recipe.function} {dict(recipe.options)} failed: {last}")
    return Resident(**json.loads(done.stdout.splitlines()[-1]))


def _main() -> None:
    """Entry point of the new process: reads the task as JSON from standard input, prints the measurement as JSON."""
    task = json.load(sys.stdin)
    fn, args = Recipe(*task["recipe"]).build()
    print(json.dumps(dataclasses.asdict(_run(_compile(fn, args, task["schedule"]), args, task["seed"]))))


def _compile(fn: Any, args: tuple[Any, ...], schedule: Schedule) -> Any:
    if isinstance(schedule, Mapping):
        return graphrl.compile(fn, *args, **schedule)
    order = schedule if isinstance(schedule, str) else tuple(tuple(places) for places in schedule)
    return compile_in_order(jax.jit(fn).lower(*args), order)


def _run(compiled: Any, args: tuple[Any, ...], seed: int) -> Resident:
    """Calls a compiled program once and measures this process."""
    arguments = jax.block_until_ready(random_arguments(args, seed))
    sampler = _Sampler()
    started = time.perf_counter()
    with sampler:
        results = jax.block_until_ready(compiled(*arguments))
        seconds = time.perf_counter() - started
    temp = compiled.memory_analysis().temp_size_in_bytes
    return Resident(sampler.before, sampler.peak, temp, seconds, sampler.samples, digest(results))


class _Sampler:
    """Context manager with a thread that samples the resident size of this process.

    Attributes:
      before, peak: resident bytes at construction, and the largest sample.
      samples: number of readings.
    """

    def __init__(self) -> None:
        self.before = self.peak = _resident()
        self.samples = 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, _resident())
            self.samples += 1
            if self._stop.wait(INTERVAL):
                self.peak = max(self.peak, _resident())
                return


def _resident() -> int:
    """Reads the resident bytes of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


def digest(results: Any) -> str:
    """Hashes the bits of all arrays of a pytree, with their shapes and types: SHA-256, hexadecimal."""
    sha256 = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(results):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.ascontiguousarray(leaf)
        sha256.update(f"{array.dtype}{array.shape}".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


LEAST_SCALE = 0.02  # standard deviation of large arrays: embeddings, images


def random_arguments(args: Any, seed: int = 0) -> Any:
    """Replaces every `jax.ShapeDtypeStruct` in `args` by a random array of that shape and type; arrays stay.

    Vectors and scalars (scales, variances, biases) are 1 + 0.1 N(0, 1): variances must be positive. Larger arrays are
    normal with He's standard deviation for kernels, sqrt(2 / product of all dimensions but the last), and at least
    `LEAST_SCALE`. Integers are 0 or 1: valid as token, index, mask and key.

    Args:
      args: a pytree.
      seed: equal seeds give equal arrays.
    """
    generator = np.random.default_rng(seed)

    def fill(leaf: Any) -> Any:
        return _draw(leaf.shape, leaf.dtype, generator) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree_util.tree_map(fill, args)


def _draw(shape: tuple[int, ...], dtype: Any, generator: np.random.Generator) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(int(generator.integers(2**31)), impl=dtype._impl.name), math.prod(shape))
        return keys.reshape(shape)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(generator.integers(0, 2, shape, np.int8), dtype)
    numbers = generator.standard_normal(shape, np.float32)
    if len(shape) < 2:
        return jnp.asarray(1 + 0.1 * numbers, dtype)
    return jnp.asarray(numbers * max(LEAST_SCALE, math.sqrt(2 / max(1, math.prod(shape[:-1])))), dtype)


if __name__ == "__main__":
    _main()
