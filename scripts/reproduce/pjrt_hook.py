"""The hook into the schedules of a compiler that jax has as a plugin, by the plugin's own C interface.

jax registers hooks with clients of devices (`jax.extend.xla`); a compiler without devices has no such client. The
structures are those of PJRT's extension for transformations of modules, as jaxlib 0.10.2 has them.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

from graphrl.errors import GraphrlError

_XLA_TRANSFORMS = 24  # its number among the extensions
_AFTER_SCHEDULING = 1
_EXTENSIONS = 8  # bytes into the interface: the pointer to the first

# What is given a serialized module, and gives another one or, to leave it, None.
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

_registered: list[object] = []  # what the plugin points to from now on


def register(library: Path, name: str, transform: Transform) -> None:
    """From now on a plugin's compiler shows every module that it has scheduled to `transform`, which must not raise.

    Raises:
      GraphrlError: the plugin has no such hook.
    """
    answers: list[ctypes.Array[ctypes.c_char]] = []

    @_Function
    def on_module(_: int | None, pointer: "ctypes._Pointer[_Call]") -> None:
        call = pointer.contents
        answer = transform(ctypes.string_at(call.module.data, call.module.size))
        if answer is not None:
            answers[:] = [ctypes.create_string_buffer(answer, len(answer))]  # stays until the next
            call.changed_module.data, call.changed_module.size = ctypes.addressof(answers[0]), len(answer)
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
