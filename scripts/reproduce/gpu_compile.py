"""Compiles jax functions for an absent GPU, and reports XLA's memory figures, in XLA's order or another.

XLA's compiler for CUDA needs no GPU, only the description of one (`graphrl.xla.topology`); here of an H200.

It takes the packages of the extra `gpu-compile`, and JAX_PLATFORMS=cpu in the environment. Without the variable jax
looks for a GPU, and leaves out its compiler if it finds no GPU. If it finds a GPU, programs are compiled for that one.

Other orders reach the compiler through the plugin's C interface. jax registers hooks with clients of devices
(`jax.extend.xla`), and a compiler without devices has no such client. The structures are those of PJRT's extension for
transformations of modules, as in jaxlib 0.10.2.
"""

import contextlib
import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import topology
from graphrl.xla.callback import Orders, rescheduled
from graphrl.xla.hook import without_disk_cache
from graphrl.xla.topology import GPU_OPTIONS, GPUS, PLUGIN, absent_devices

DEVICE_BYTES = GPUS["h200"][1]
OPTIONS = GPU_OPTIONS

# Other orders for computations of a module that XLA has scheduled, or None to leave it.
Rule = Callable[[HloModule], Orders | None]


class GpuMemory(NamedTuple):
    """Memory of a program on the GPU, in bytes.

    Attributes:
      arguments, temporaries, results: bytes of each kind of buffer.
      donated: bytes of results that are stored in donated arguments.
      on_host: bytes of temporaries in the host's memory.
    """

    arguments: int
    temporaries: int
    results: int
    donated: int
    on_host: int


def missing() -> str:
    """States in one line why nothing can be compiled; "" if the packages or a GPU are there."""
    return "" if jax.default_backend() == "gpu" else topology.missing("h200")


def compile_for_gpu(function: Callable[..., Any], *args: Any, rule: Rule | None = None, **options: Any) -> GpuMemory:
    """Compiles a function and returns its memory on an H200; see `executable_for_gpu`."""
    return memory_of(executable_for_gpu(function, *args, rule=rule, **options))


def executable_for_gpu(
    function: Callable[..., Any], *args: Any, rule: Rule | None = None, device_bytes: int = DEVICE_BYTES, **options: Any
) -> Any:
    """Compiles a function for an H200, or for the GPU that jax has.

    Args:
      function: as `jax.jit` takes it.
      *args: arrays or `jax.ShapeDtypeStruct`s, in pytrees.
      rule: receives the module as XLA has scheduled it, and may return other orders.
      device_bytes: memory of the H200. Where it can, XLA recomputes values to stay within the part that it uses.
      **options: options of `jax.jit`.

    Returns:
      A `jax.stages.Compiled`, which cannot run without the GPU.

    Raises:
      GraphrlError: the packages are missing, jax has left them out, or the rule returns invalid orders.
    """
    sharding = jax.sharding.SingleDeviceSharding(gpu_device(device_bytes))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), args)

    @functools.wraps(function, updated=())
    def fresh(*args: Any) -> Any:  # jax would not compile a known function again
        return function(*args)

    lowered = jax.jit(fresh, **options).trace(*shapes).lower(lowering_platforms=("cuda",))
    hook = contextlib.nullcontext() if rule is None else _listener().applies(rule)
    with without_disk_cache(), hook:
        return lowered.compile(compiler_options=OPTIONS)


def memory_of(compiled: Any) -> GpuMemory:
    """Returns XLA's memory figures of a `jax.stages.Compiled`."""
    memory = compiled.memory_analysis()
    return GpuMemory(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.host_temp_size_in_bytes,
    )


@functools.cache
def gpu_device(memory: int = DEVICE_BYTES) -> Any:
    """Returns an H200 with this memory to compile for, or the GPU that jax has.

    Raises:
      GraphrlError: the packages are missing, or jax has left them out.
    """
    if reason := missing():
        raise GraphrlError(reason)
    if jax.default_backend() == "gpu":
        if memory != DEVICE_BYTES:
            raise GraphrlError("a GPU has the memory that it has: compile for another one with JAX_PLATFORMS=cpu")
        return jax.devices()[0]
    return absent_devices("h200", 1, memory)[0]


class Listener:
    """Applies one rule at a time to the modules that the plugin compiles."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rule: Rule | None = None
        self._called = False
        self._fault: Exception | None = None

    @contextlib.contextmanager
    def applies(self, rule: Rule) -> Iterator[None]:
        """Context manager that applies a rule. At the end, raises what the rule raised.

        Raises:
          GraphrlError: XLA showed no module.
        """
        with self._lock:
            self._rule, self._called, self._fault = rule, False, None
            try:
                yield
            finally:
                self._rule = None
            if self._fault is not None:
                raise self._fault
            if not self._called:
                raise GraphrlError("XLA did not show its module")

    def transform(self, data: bytes) -> bytes | None:
        """Transforms a serialized module, as a callback of the plugin; returns None to leave it unchanged."""
        if self._rule is None:
            return None
        self._called = True
        try:
            module = parse_module(data, "XLA's module")
            orders = self._rule(module)
            return None if orders is None else rescheduled(module, orders)
        except Exception as fault:
            self._fault = fault
            return None


@functools.cache
def _listener() -> Listener:
    listener = Listener()
    (folder,) = importlib.import_module(PLUGIN).__path__
    register(Path(folder) / "xla_cuda_plugin.so", "graphrl", listener.transform)
    return listener


_XLA_TRANSFORMS = 24  # number of this extension
_AFTER_SCHEDULING = 1
_EXTENSIONS = 8  # offset in the interface of the pointer to the first extension

# From a serialized module to another one, or None to leave it.
Transform = Callable[[bytes], bytes | None]


class _Extension(ctypes.Structure):
    pass


_Extension._fields_ = [
    ("size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.POINTER(_Extension)),
    ("register", ctypes.c_void_p),
]


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("cleanup", ctypes.c_void_p),
        ("has_error", ctypes.c_bool),
        ("code", ctypes.c_int),
        ("message", _Bytes),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("header", _Header),
        ("module", _Bytes),
        ("changed_module", _Bytes),
        ("changed", ctypes.c_bool),
    )


_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Call))


class _Callbacks(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int64), ("destroy", ctypes.c_void_p), ("transform", _Function))


class _Registration(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("stage", ctypes.c_int),
        ("callbacks", ctypes.POINTER(_Callbacks)),
    )


_Register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Registration))

_registered: list[object] = []  # objects that the plugin points to for the rest of the process


def register(library: Path, name: str, transform: Transform) -> None:
    """Passes every module that a plugin's compiler schedules to `transform` from now on. It must not raise.

    Raises:
      GraphrlError: the plugin has no such hook.
    """
    changes: list[ctypes.Array[ctypes.c_char]] = []

    @_Function
    def on_module(_: int | None, pointer: "ctypes._Pointer[_Call]") -> None:
        call = pointer.contents
        changed = transform(ctypes.string_at(call.module.data, call.module.size))
        if changed is not None:
            changes[:] = [ctypes.create_string_buffer(changed, len(changed))]  # kept until the next call
            call.changed_module.data, call.changed_module.size = ctypes.addressof(changes[0]), len(changed)
            call.changed = True

    extension, text = _extension(library), name.encode()
    callbacks = _Callbacks(1, None, on_module)
    registration = _Registration(
        ctypes.sizeof(_Registration), text, len(text), _AFTER_SCHEDULING, ctypes.pointer(callbacks)
    )
    _registered.extend((registration, callbacks, on_module))
    if _Register(extension.register)(ctypes.byref(registration)):
        raise GraphrlError(f"{library.name} refuses the hook for schedules")


def _extension(library: Path) -> _Extension:
    interface = getattr(ctypes.CDLL(str(library)), "GetPjrtApi", None)
    if interface is not None:
        interface.restype = ctypes.c_void_p
        extension = ctypes.cast(interface() + _EXTENSIONS, ctypes.POINTER(ctypes.POINTER(_Extension)))[0]
        while extension:
            if extension.contents.type == _XLA_TRANSFORMS:
                return extension.contents
            extension = extension.contents.next
    raise GraphrlError(f"{library.name} has no hook for schedules: CUDA's plugin of jax 0.10.2 has it")
