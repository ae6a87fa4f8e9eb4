"""Compiled functions as custom calls of XLA:CPU, by its typed foreign function interface, without a C++ compiler.

XLA calls a function with the address of a **call frame**, which has the addresses and shapes of operands and results
(`xla/ffi/api/c_api.h` of jaxlib; tests/foot/test_custom_call.py compares the offsets below with it). The work is split
into **items**. The function schedules itself on threads of XLA's pool, with the address of a **job** in place of a
frame, and all threads take items until all are done (`run_items`):

    @custom_call("graphrl_double")
    def double(pointer):
        return run_items(pointer, own_address(), plan, work)

`plan(call)` and `work(call, item, memory)` are compiled functions that read `operand(call, i)` and write
`result(call, i)`. Under `jax.vmap` with `vmap_method="expand_dims"`, an operand's leading axes have the mapped size or
1; `broadcast` finds its part of an item.
"""

import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numba.extending
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils

from graphrl.compiled import (
    ENTRIES,
    TESTED,
    announced,
    cached_in,
    folder,
    inlined,
    integer,
    part,
    start_compile,
    unannounced,
)
from graphrl.compiled.pointers import (
    I64,
    address_of,
    aligned_alloc,
    array,
    call_address,
    fetch_add,
    free,
    intrinsic,
    load,
    load_half,
    pointer_to,
    store,
    store_half,
    yield_thread,
)
from graphrl.errors import GraphrlError

VERSION = (0, 3)  # of XLA's interface

# Offsets, in words of 8 bytes; `stage`, `dtype` and `type` are int32 with padding.
FRAME_EXTENSION, API, CONTEXT, STAGE, OPERANDS, RESULTS = 1, 2, 3, 4, 9, 14  # of a call frame
TYPE, DATA, RANK, DIMENSIONS = 2, 3, 4, 5  # of a buffer
BOOLEAN = 1  # type of a buffer's elements
EXTENSION_TYPE, METADATA = 1, 3  # of an extension
METADATA_VERSION = 3  # of the metadata: two int32, major and minor
CREATE_ERROR, SCHEDULE, COUNT_THREADS = 6, 17, 18  # of the table of functions
EXHAUSTED = 8  # code of an error: no memory
MANY = 1024  # threads: all that XLA has
QUERY = 1  # type of the extension that asks for metadata
EXECUTE = 3  # stage in which a call computes

# Words of a job. Its mark is in the place of a frame's size.
MARK, FRAME, ITEMS, NEXT, DONE, HOLDERS, BYTES, ARGUMENTS, SIZE = 0, 1, 2, 3, 4, 5, 6, 7, 16
LINE = 64  # bytes of a cache line
JOB = -1


@intrinsic
def own_address(_: Any) -> Any:
    """Address of the custom call, for C; only the function that `custom_call` decorates can ask for it."""

    def generate(_: Any, builder: Any, __: Any, ___: Any) -> Any:
        name = f"cfunc.{builder.function.name}"
        kind = ir.FunctionType(cgutils.voidptr_t, [cgutils.voidptr_t])
        wrapper = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.ptrtoint(wrapper, I64)

    return types.int64(), generate


@inlined
def null() -> Any:
    """The result of a custom call: no error."""
    return pointer_to(integer(0))


@inlined
def operand(frame: int, index: int) -> int:
    """Address of an operand's buffer."""
    return load(load(frame, OPERANDS), index)


@inlined
def result(frame: int, index: int) -> int:
    """Address of a result's buffer."""
    return load(load(frame, RESULTS), index)


@inlined
def data(buffer: int) -> int:
    """Address of a buffer's first element."""
    return load(buffer, DATA)


@inlined
def size(buffer: int, axis: int) -> int:
    """Size of an axis of a buffer, counted from the last: -1, -2, ..."""
    return load(load(buffer, DIMENSIONS), load(buffer, RANK) + axis)


@inlined
def count_outer(buffer: int, inner: int) -> int:
    """Number of parts of a buffer whose last `inner` axes are one part."""
    count, dimensions = 1, load(buffer, DIMENSIONS)
    for axis in range(load(buffer, RANK) - inner):
        count *= load(dimensions, axis)
    return count


@inlined
def broadcast(buffer: int, inner: int, outer: int, like: int) -> int:
    """Index of a buffer's part that belongs to part `outer` of the result `like`: axes of size 1 are repeated."""
    axes = load(buffer, RANK) - inner
    dimensions, like_dimensions = load(buffer, DIMENSIONS), load(like, DIMENSIONS)
    part, stride = 0, 1
    for axis in range(axes - 1, -1, -1):
        size, full = load(dimensions, axis), load(like_dimensions, axis)
        if size > 1:
            part += outer % full * stride
        outer //= full
        stride *= size
    return part


@inlined
def part_of(call: int, index: int, axes: int, outer: int, like: int) -> int:
    """Address of the part of an operand, its last `axes` axes, that belongs to part `outer` of the result `like`."""
    buffer = operand(call, index)
    return data(buffer) + broadcast(buffer, axes, outer, like) * _bytes_of(buffer, axes)


@inlined
def row_of(call: int, index: int, axes: int, outer: int, row: int, like: int) -> int:
    """Address of a row, along the first of the axes, of such a part."""
    return part_of(call, index, axes, outer, like) + row * _bytes_of(operand(call, index), axes - 1)


@inlined
def _bytes_of(buffer: int, axes: int) -> int:
    """Bytes of the last axes of a buffer; its elements have 4, or one if they are booleans."""
    total = integer(1 if load_half(buffer, 2 * TYPE) == BOOLEAN else 4)
    for axis in range(-axes, 0):
        total *= size(buffer, axis)
    return total


@inlined
def run_items(pointer: Any, own: int, plan: Any, work: Any) -> Any:
    """Runs a custom call, on the thread that XLA calls and on others that it schedules.

    Args:
      pointer: argument of the custom call: the address of a call frame or, on a scheduled thread, of a job.
      own: `own_address()`.
      plan: function (call frame) -> number of items, largest number of threads, bytes of scratch memory of a thread.
      work: function (call frame, item, memory) that computes an item. The first word of a thread's memory is -1 at its
        first item.

    Returns:
      The result of the custom call: null, or an error if there is no memory.
    """
    job = address_of(pointer)
    is_first = load(job, MARK) != JOB
    if is_first:
        if not _asks_for_results(job):
            return null()
        items, threads, num_bytes = plan(job)
        job = _new_job(job, items, num_bytes)
    memory = aligned_alloc(LINE, (load(job, BYTES) + LINE) // LINE * LINE)
    if memory == 0:
        call = load(job, FRAME)
        _release(job)
        return _out_of_memory(call) if is_first else null()
    if is_first:
        _schedule(job, threads, own)
    store(memory, 0, -1)
    item = fetch_add(job, NEXT, 1)
    while item < load(job, ITEMS):
        work(load(job, FRAME), item, memory)
        fetch_add(job, DONE, 1)
        item = fetch_add(job, NEXT, 1)
    free(memory)
    if is_first:
        while fetch_add(job, DONE, 0) < load(job, ITEMS):
            yield_thread()
    _release(job)
    return null()


@inlined
def _asks_for_results(call: int) -> bool:
    """Returns True in the stage that computes; answers a question for the version of the interface."""
    extension = load(call, FRAME_EXTENSION)
    if extension != 0 and load_half(extension, 2 * EXTENSION_TYPE) == QUERY:
        numbers = load(extension, METADATA) + 8 * METADATA_VERSION
        store_half(numbers, 0, VERSION[0])
        store_half(numbers, 1, VERSION[1])
        return False
    return load_half(call, 2 * STAGE) == EXECUTE


@inlined
def _new_job(call: int, items: int, num_bytes: int) -> int:
    job = aligned_alloc(LINE, 8 * SIZE)
    store(job, MARK, JOB)
    store(job, FRAME, call)
    store(job, ITEMS, items)
    store(job, BYTES, num_bytes)
    store(job, NEXT, 0)
    store(job, DONE, 0)
    store(job, HOLDERS, 1)
    return job


@inlined
def _schedule(job: int, threads: int, own: int) -> None:
    """Schedules up to `threads` - 1 more threads of XLA's pool, at most one an item."""
    call = load(job, FRAME)
    api, arguments = load(call, API), job + 8 * ARGUMENTS
    store(arguments, 0, 8 * 4)
    store(arguments, 1, 0)
    store(arguments, 2, load(call, CONTEXT))
    store(arguments, 3, arguments + 8 * 4)
    store(arguments, 4, 1)
    if threads > 1:
        has_pool = call_address(load(api, COUNT_THREADS), arguments) == 0
        threads = min(min(threads, load(job, ITEMS)), load(arguments, 4)) if has_pool else 1
    store(arguments, 0, 8 * 5)
    store(arguments, 3, own)
    store(arguments, 4, job)
    for _ in range(1, threads):
        fetch_add(job, HOLDERS, 1)
        if call_address(load(api, SCHEDULE), arguments) != 0:  # no pool: the thread works alone
            fetch_add(job, HOLDERS, -1)
            break


@inlined
def _release(job: int) -> None:
    """Frees a job when its last thread leaves it."""
    if fetch_add(job, HOLDERS, -1) == 1:
        free(job)


@intrinsic
def _message(_: Any) -> Any:
    """Address of the text of the error."""

    def generate(context: Any, builder: Any, __: Any, ___: Any) -> Any:
        text = context.insert_const_string(builder.module, "graphrl: out of memory: take a smaller batch")
        return builder.ptrtoint(text, I64)

    return types.int64(), generate


@inlined
def _out_of_memory(call: int) -> Any:
    arguments = aligned_alloc(LINE, LINE)
    if arguments == 0:
        return null()
    store(arguments, 0, 8 * 4)
    store(arguments, 1, 0)
    store(arguments, 2, _message())
    store(arguments, 3, EXHAUSTED)
    error = call_address(load(load(call, API), CREATE_ERROR), arguments)
    free(arguments)
    return pointer_to(error)


def typed(dtype: Any, shape: tuple[int, ...], *values: Any) -> list[jax.Array]:
    """Casts operands, without gradients: compiled code reads memory as of this type and shape.

    Raises:
      ValueError: a value has another shape.
    """
    for value in values:
        if np.shape(value) != shape:
            raise ValueError(f"an operand of compiled code has shape {np.shape(value)}: must be {shape}")
    return [jax.lax.stop_gradient(jnp.asarray(value, dtype)) for value in values]


class CustomCall:
    """A compiled function as a function of JAX, for programs on CPUs.

    Args:
      function: function of a C pointer, see the module.
      name: name under which XLA finds it.
      what: name in the line that announces its compilation; empty for no line.
      seconds: approximate time of the compilation.
    """

    def __init__(self, function: Callable[..., Any], name: str, what: str = "", seconds: int = 10) -> None:
        self.function, self.name, self.what, self.seconds = function, name, what, seconds
        self._compiled: Any = None
        self._lock = threading.Lock()  # while one thread compiles, others may start to compile other functions

    def register(self) -> None:
        """Compiles the function, or loads it from disk, and registers it with XLA; does nothing the second time."""
        with self._lock:
            if self._compiled is None:
                with announced(self.function, self.what, self.seconds) if self.what else unannounced():
                    self._compiled = self._compile()
                target = jax.ffi.pycapsule(self._compiled.address)
                jax.ffi.register_ffi_target(self.name, target, platform="cpu")

    def start(self) -> None:
        """Starts to compile the function in another process, if CPUs call it and that saves time (`start_compile`)."""
        if self._compiled is None and self.what and is_chosen():
            module, name = self.function.__module__, self.function.__name__
            start_compile(self.function, self.what, f"from {module} import {name}; {name}.register()")

    def _compile(self) -> Any:
        with cached_in(folder(self.function)) as is_cached:
            return cfunc(types.voidptr(types.voidptr), cache=is_cached, **ENTRIES)(self.function)

    def __call__(self, results: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[jax.Array]:
        """Calls it on operands, see `typed`; under `jax.vmap` all have leading axes of the mapped size or 1."""
        self.start()
        first, *others = operands
        call = jax.ffi.ffi_call(self.name, tuple(results), vmap_method="expand_dims")
        return list(call(_registered.bind(jnp.asarray(first), call=self), *others))


def _register_and_pass(array: Any, *, call: CustomCall) -> Any:
    call.register()
    return array


# Identity of the first operand of a custom call. XLA must find the function when it compiles, not before: tracing goes
# on while another process compiles it, and a program for another platform never needs it.
_registered = Primitive("graphrl_registered")
_registered.def_impl(_register_and_pass)
_registered.def_abstract_eval(lambda array, *, call: array)
batching.defvectorized(_registered)
mlir.register_lowering(_registered, lambda _, array, *, call: [_register_and_pass(array, call=call)])


def custom_call(name: str, what: str = "", seconds: int = 10) -> Callable[[Callable[..., Any]], CustomCall]:
    """Decorates a function of a C pointer: see `CustomCall`."""
    return lambda function: CustomCall(function, name, what, seconds)


@inlined
def _plan_sum(call: int) -> tuple[int, int, int]:
    return 2, 2, 0  # also tries XLA's threads


@part
def _compute_sum(call: int, item: int, memory: int) -> None:
    numbers = array(data(operand(call, 0)), size(operand(call, 0), -1), np.float32)
    total = np.float32(0)
    for i in range(len(numbers)):
        total += numbers[i]
    array(data(result(call, 0)), integer(2), np.float32)[item] = total


@custom_call("graphrl_sum")
def _sum(pointer: Any) -> Any:
    """The sum of ten float32, twice, to find out whether calls work with this jaxlib."""
    return run_items(pointer, own_address(), _plan_sum, _compute_sum)


_pure = jax.make_user_context(default_value=False)  # part of the keys of jax's caches of traces


@contextlib.contextmanager
def pure_jax() -> Iterator[None]:
    """Context manager in which programs are traced in pure JAX, as under `GRAPHRL_LOWERING=jax`; for one thread."""
    with _pure(True):
        yield


def is_compiled() -> bool:
    """Returns True if programs for CPUs call compiled functions.

    They do not if `GRAPHRL_LOWERING` is jax, in `pure_jax`, if jaxlib or numba differ from the tested ones, or where
    jax computes on another device by default: tracing would compile them for nothing.

    Raises:
      GraphrlError: `GRAPHRL_LOWERING` is another value.
    """
    return not _pure.value and is_chosen() and works()


def is_chosen() -> bool:
    """Returns True if the setting and jax's default device are such that programs can call compiled functions.

    Raises:
      GraphrlError: `GRAPHRL_LOWERING` is neither auto nor jax.
    """
    setting = os.environ.get("GRAPHRL_LOWERING", "auto")
    if setting not in ("auto", "jax"):
        raise GraphrlError(f"GRAPHRL_LOWERING is {setting!r}: must be auto or jax")
    return setting == "auto" and jax.default_backend() == "cpu"


@functools.cache
def works() -> bool:
    """True if a first call returns what it should; if not, it warns once, in one line."""
    try:
        if not numba.__version__.startswith(TESTED):  # its names of C functions may differ
            raise RuntimeError(f"numba {numba.__version__} is not tested")
        with jax.ensure_compile_time_eval():
            total = _sum([jax.ShapeDtypeStruct((2,), np.float32)], np.arange(10, dtype=np.float32))[0].tolist()
    except Exception as error:  # numba's and XLA's internals may fail in any way
        total, reason = None, f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        reason = f"the sums of 0 to 9 are {total}"
    if total != [45, 45]:
        warnings.warn(
            f"jaxlib {version('jaxlib')} cannot call compiled functions ({reason}): CPUs run pure JAX", stacklevel=2
        )
    return total == [45, 45]
