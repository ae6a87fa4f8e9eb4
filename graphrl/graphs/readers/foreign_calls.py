"""Server that runs native code that may crash or hang; `foreign.py` starts this file by its path as a process.

It imports nothing of graphrl, and of onnx only the compiled half, so that it starts fast. Requests arrive on standard
input: a frame with a function's name, a frame with its argument. Answers go to standard output: a byte that is 1 if the
function rejected its argument, a frame with its result or its reason. The process ends at the end of its input.
"""

import contextlib
import json
import os
import resource
import struct
import sys
import types
from collections.abc import Sequence
from typing import IO, Any

_LENGTH = struct.Struct(">Q")
_LONGEST = 300  # characters of a reason


def write_frame(file: IO[bytes], content: bytes) -> None:
    """Writes a frame: the length of the content, then the content."""
    file.write(_LENGTH.pack(len(content)))
    file.write(content)
    file.flush()


def read_length(file: IO[bytes]) -> int | None:
    """Reads the length of the next frame's content; None at the end of the file."""
    head = file.read(_LENGTH.size)
    return _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else None


def hlo_proto(text: bytes) -> bytes:
    """Parses HLO text in UTF-8; returns a serialized `HloModuleProto`."""
    try:
        from jaxlib._hlo import hlo_module_from_text  # type: ignore[import-not-found]
    except ImportError:
        raise ImportError("this jaxlib has no parser for HLO text: must be a serialized HloModuleProto") from None
    with _one_line_errors("broken HLO text"):
        return hlo_module_from_text(text.decode()).as_serialized_hlo_module_proto()


def infer_shapes(model: bytes) -> bytes:
    """Returns a serialized ONNX model with inferred shapes added."""
    check_type, strict_mode, data_prop = False, False, True
    with _one_line_errors("ONNX shape inference failed"):
        return _onnx().shape_inference.infer_shapes(model, check_type, strict_mode, data_prop)


def shape_faults(model: bytes) -> bytes:
    """Checks the shapes of a serialized ONNX model; returns an error message, empty if they are consistent."""
    onnx = _onnx()
    check_type, strict_mode, data_prop = False, True, True
    try:
        onnx.shape_inference.infer_shapes(model, check_type, strict_mode, data_prop)
    except onnx.shape_inference.InferenceError as error:
        return str(error).encode()
    return b""


def inline_functions(model: bytes) -> bytes:
    """Inlines the functions that a serialized ONNX model defines."""
    convert_version = False
    with _one_line_errors("the model's functions cannot be inlined"):
        return _onnx().inliner.inline_local_functions(model, convert_version)


_FUNCTIONS = {function.__name__: function for function in (hlo_proto, infer_shapes, shape_faults, inline_functions)}


@contextlib.contextmanager
def _one_line_errors(what: str) -> Any:
    try:
        yield
    except Exception as error:  # C++ code raises exceptions of any type
        raise ValueError(f"{what}: {' '.join(str(error).split())[:_LONGEST]}") from None


def _onnx() -> Any:
    """Imports the compiled half of onnx; the other half, with protobuf and NumPy, takes ten times as long to import."""
    if "onnx" not in sys.modules:
        package = types.ModuleType("onnx")
        package.__path__ = [os.path.join(folder, "onnx") for folder in sys.path]
        sys.modules["onnx"] = package
    import onnx.onnx_cpp2py_export

    return onnx.onnx_cpp2py_export


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    while (length := read_length(requests)) is not None:
        function = _FUNCTIONS[requests.read(length).decode()]
        argument = requests.read(read_length(requests) or 0)
        try:
            rejected, result = False, function(argument)
        except Exception as error:
            rejected, result = True, str(error).encode()
        answers.write(bytes((rejected,)))
        write_frame(answers, result)


def _main(path: Sequence[str], seconds: int | None) -> None:
    sys.path += path
    with contextlib.suppress(OSError, ValueError):  # the parent process may have set lower limits
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if seconds is not None:  # of CPU time: the process then ends even if its parent was killed
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of native code must not mix with answers
    _serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
