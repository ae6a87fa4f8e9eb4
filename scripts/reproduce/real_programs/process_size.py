"""Measured rise of a process's resident size while an executable runs, by the schedule that it was compiled with.

XLA's own figure says what it plans to hold; this is what the operating system sees. Each measurement is a process of
its own, which builds the program, compiles it, makes its arguments, and then samples its resident size every
`INTERVAL` seconds from before the first call until its results are there. So the rise holds the temporaries, the
results, and what XLA's threads and kernels allocate beside them. The C library keeps much of that when it is freed:
glibc raises the size from which it asks the system for memory of its own, and gives it back, as blocks are freed, and
below that size the blocks' places depend on threads and their timing. On EfficientNetB0's training step that is 400
MB, and on others it differs by schedule, so that it hides what a schedule saves. `returning` fixes that size.

A `Recipe` names a program, since a function cannot travel to another process. `random_arguments` makes arguments of
which only the shapes are known: random numbers that keep values finite. Linux only (`/proc`).
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
RETURNING = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}  # glibc's first value, which naming it fixes (mallopt(3))
_STATUS = Path("/proc/self/status")

Schedule = Literal["default", "memory"] | Sequence[Sequence[int]] | Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Where a new process finds a program.

    Attributes:
      function: "package.module:name" of a function that can be imported; it returns a tuple that begins with a JAX
        function and the tuple of its arguments (arrays or `jax.ShapeDtypeStruct`s), such as `programs.Program`.
      options: its keyword arguments, as JSON can hold them.
    """

    function: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def build(self) -> tuple[Any, tuple[Any, ...]]:
        """The function and its arguments.

        Raises:
          GraphrlError: there is no such function. What it raises itself passes through.
        """
        module, _, name = self.function.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise GraphrlError(f"recipe {self.function!r}: {error}: must be package.module:function") from None
        return tuple(function(**self.options)[:2])


@dataclasses.dataclass(frozen=True)
class Resident:
    """What a run of one process showed.

    Attributes:
      before: resident bytes before the first call, with program and arguments in place.
      peak: most resident bytes until its results were there.
      temp: bytes of temporaries by XLA's own figure (`memory_analysis().temp_size_in_bytes`).
      seconds: of the call.
      samples: how often the size was read.
      digest: of the results' bits, hexadecimal: equal digests are equal results.
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
      recipe: of the program. The new process imports from this one's `sys.path`.
      schedule: XLA's "default" or "memory" scheduler; or keyword arguments of `graphrl.compile`, whose plan the new
        process reads from the disk or, before it measures, searches for; or orders of computations as
        `hook.compile_in_order` takes them (`planning.cache.places_of`).
      seed: of the arguments that the recipe leaves abstract (`random_arguments`).
      returning: whether the process gives all that kernels free back to the system at once (glibc). It then runs
        slower, and what is left is close to XLA's figure.

    Raises:
      GraphrlError: no such schedule, no Linux, or the process fails: its last words.
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
    """The new process: the task comes as JSON on standard input, the measurement goes as a line of JSON."""
    task = json.load(sys.stdin)
    fn, args = Recipe(*task["recipe"]).build()
    print(json.dumps(dataclasses.asdict(_run(_compile(fn, args, task["schedule"]), args, task["seed"]))))


def _compile(fn: Any, args: tuple[Any, ...], schedule: Schedule) -> Any:
    if isinstance(schedule, Mapping):
        return graphrl.compile(fn, *args, **schedule)
    order = schedule if isinstance(schedule, str) else tuple(tuple(places) for places in schedule)
    return compile_in_order(jax.jit(fn).lower(*args), order)


def _run(compiled: Any, args: tuple[Any, ...], seed: int) -> Resident:
    """One call under the sampler's eyes."""
    given = jax.block_until_ready(random_arguments(args, seed))
    sampler = _Sampler()
    started = time.perf_counter()
    with sampler:
        results = jax.block_until_ready(compiled(*given))
        seconds = time.perf_counter() - started
    temp = compiled.memory_analysis().temp_size_in_bytes
    return Resident(sampler.before, sampler.peak, temp, seconds, sampler.samples, digest(results))


class _Sampler:
    """A thread that reads the resident size of this process for the length of a `with`.

    Attributes:
      before, peak: bytes, when it was made and at most.
      samples: how often it has read.
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
    """Resident bytes of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


def digest(results: Any) -> str:
    """SHA-256 of the bits of all arrays of a pytree, with their shapes and types, hexadecimal."""
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
    """`args` with every `jax.ShapeDtypeStruct` replaced by an array of that shape and type; arrays stay.

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
