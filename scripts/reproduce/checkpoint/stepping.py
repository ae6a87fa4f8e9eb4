"""A gradient on this machine's device: compiled, and run step by step, each in a process of its own.

Compiling tries kernels out, which takes memory of the device, and its allocator forgets no peak: what is run was
compiled by another process, and nothing else runs in its own.
"""

import os
import pickle
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import serialize_executable

from graphrl.files import write_atomically
from graphrl.xla.checkpoint.seconds import gradient_seconds
from reproduce.checkpoint.methods import GRADIENTS, PLANNED, planned
from reproduce.checkpoint.programs import build
from reproduce.measurements import Figures, in_a_line

_WARM, _LEAST, _MOST, _SECONDS = 3, 5, 50, 0.7  # steps before those that are timed; of these so many, or so long
_SEED = 0


class Task(NamedTuple):
    """A program and a method.

    Attributes:
      program, method: their names.
      small: whether it is the program's small size.
      chip: whose figures the foretold times are of.
      path: of the compiled gradient.
    """

    program: str
    method: str
    small: bool
    chip: str
    path: Path


class Compiled(NamedTuple):
    """What the file of a task holds.

    Attributes:
      executable: of `serialize_executable.serialize`.
      figures: what was foretold, and what the compiler says.
    """

    executable: tuple[Any, ...]
    figures: Figures


def compile_task(task: Task) -> tuple[Task, str]:
    """Writes the task's file; returns the task, and why it could not, or ""."""
    jax.config.update("jax_enable_compilation_cache", False)  # what comes from there serializes without its code
    try:
        content = pickle.dumps(tuple(_compiled(task)))
    except Exception as fault:  # one that fails must not end the others
        return task, in_a_line(fault)
    write_atomically(task.path, lambda file: file.write(content), binary=True)
    return task, ""


def run_task(task: Task) -> Figures:
    """Figures of a task whose file is there."""
    program, file = build(task.program, small=task.small), Compiled(*pickle.loads(task.path.read_bytes()))
    args = jax.block_until_ready(jax.device_put(program.draw(_SEED)))
    step = serialize_executable.deserialize_and_load(*file.executable)
    return {**file.figures, "peak": _peak(step, args), **_times(step, args)}


def _compiled(task: Task) -> Compiled:
    program, began = build(task.program, small=task.small), time.perf_counter()
    own = planned(task.method, program) if task.method in PLANNED else None
    traced = jax.jit(GRADIENTS[task.method](program) if own is None else jax.value_and_grad(own)).trace(*program.args)
    at = time.perf_counter()
    executable = traced.lower().compile()
    memory = executable.memory_analysis()
    figures = {
        "foretold": None if own is None else own.report().planned.peak_bytes,
        "seconds": gradient_seconds(traced.jaxpr, task.chip),
        "trace": at - began,
        "compile": time.perf_counter() - at,
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "flags": os.environ.get("XLA_FLAGS", ""),
    }
    return Compiled(serialize_executable.serialize(executable), figures)


def _peak(step: Any, args: Any) -> int | None:
    """Most bytes that the device held at once, beside arguments; None where the device does not say."""
    before = _stats().get("bytes_in_use")
    jax.block_until_ready(step(*args))
    return None if before is None else _stats()["peak_bytes_in_use"] - before


def _times(step: Any, args: Any) -> Figures:
    for _ in range(_WARM):
        jax.block_until_ready(step(*args))
    times, began = list[float](), time.perf_counter()
    while len(times) < _LEAST or (len(times) < _MOST and time.perf_counter() - began < _SECONDS):
        at = time.perf_counter()
        jax.block_until_ready(step(*args))
        times.append(time.perf_counter() - at)
    return {"step": statistics.median(times), "fastest": min(times), "steps": len(times)}


def _stats() -> dict[str, int]:
    return jax.local_devices()[0].memory_stats() or {}
