"""Custom calls of compiled functions: XLA's interface is as in its header, and a jaxlib that differs is not called."""

import re
from pathlib import Path

import jax
import jaxlib
import pytest

from graphrl.compiled import custom_call

HEADER = (Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h").read_text("utf-8")
WORD_SIZES = {"size_t": 8, "int64_t": 8, "int": 4, "int32_t": 4, "XLA_FFI_Handler_Traits": 4}


def fields(name: str) -> dict[str, int]:
    """Offset of every field of a struct in bytes, by C's rules."""
    body = re.search(rf"struct {name} {{(.*?)\n}}[^;]*;", re.sub(r"//[^\n]*", "", HEADER), re.DOTALL)
    assert body is not None, name
    offsets, end = {}, 0
    api = re.sub(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", r"\1* \1", body[1])
    for declaration in re.findall(r"[^;]+", api):
        if found := re.match(r"\s*(?:const |struct )*(\w+)\s*(\**)\s*(\w+)\s*$", declaration):
            kind, stars, field = found.groups()
            size, align = size_of(kind, stars)
            end = -(-end // align) * align
            offsets[field] = end
            end += size
    return offsets | {"": -(-end // 8) * 8}


def size_of(kind: str, stars: str) -> tuple[int, int]:
    """Size and alignment of a field's type."""
    if stars:
        return 8, 8
    if kind in WORD_SIZES:
        return WORD_SIZES[kind], WORD_SIZES[kind]
    if re.search(rf"typedef enum {{[^}}]*}} {kind};", HEADER):
        return 4, 4
    return fields(kind)[""], 8


def test_offsets_are_those_of_the_header() -> None:
    frame, buffer, api = fields("XLA_FFI_CallFrame"), fields("XLA_FFI_Buffer"), fields("XLA_FFI_Api")
    renamed = "XLA_FFI_InternalExtension" in HEADER  # since jaxlib 0.12
    extension = fields("XLA_FFI_InternalExtension" if renamed else "XLA_FFI_Extension_Base")
    metadata = fields("XLA_FFI_Metadata")
    args, version = fields("XLA_FFI_Args"), fields("XLA_FFI_Api_Version")
    found = {
        "FRAME_EXTENSION": frame["extension_start"],
        "API": frame["api"],
        "CONTEXT": frame["ctx"],
        "STAGE": frame["stage"],
        "OPERANDS": frame["args"] + args["args"],
        "RESULTS": frame["rets"] + fields("XLA_FFI_Rets")["rets"],
        "DATA": buffer["data"],
        "RANK": buffer["rank"],
        "DIMENSIONS": buffer["dims"],
        "EXTENSION_TYPE": extension["type"],
        "METADATA": fields("XLA_FFI_Metadata_Extension")["metadata"],
        "METADATA_VERSION": metadata["api_version"] + version["major_version"],
        "SCHEDULE": api["XLA_FFI_ThreadPool_Schedule"],
        "COUNT_THREADS": api["XLA_FFI_ThreadPool_NumThreads"],
    }
    assert {name: getattr(custom_call, name) * 8 for name in found} == found
    assert version["minor_version"] == version["major_version"] + 4


def test_version_and_numbers_are_those_of_the_header() -> None:
    def number(name: str) -> int:
        found = re.search(rf"{name}\s*=?\s*(\d+)", HEADER)
        assert found is not None, name
        return int(found[1])

    major, minor = custom_call.VERSION  # XLA takes what older minor versions wrote: jaxlib 0.10 has 3, 0.12 has 5
    assert number("XLA_FFI_API_MAJOR") == major
    assert number("XLA_FFI_API_MINOR") >= minor
    assert number("XLA_FFI_Extension_Metadata") == custom_call.QUERY
    assert number("XLA_FFI_ExecutionStage_EXECUTE") == custom_call.EXECUTE


def test_a_jaxlib_that_differs_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("another version")

    custom_call.works.cache_clear()
    monkeypatch.setattr(custom_call._sum, "register", refuse)
    try:
        with pytest.warns(UserWarning, match=r"cannot call compiled functions \(RuntimeError: another version\): CPUs"):
            assert not custom_call.works()
    finally:
        custom_call.works.cache_clear()
    monkeypatch.undo()
    assert custom_call.works()


def test_programs_are_traced_again_in_pure_jax() -> None:
    @jax.jit
    def lowering() -> jax.Array:
        return jax.numpy.asarray(custom_call.is_compiled())

    before = custom_call.is_compiled()
    assert bool(lowering()) == before
    with custom_call.pure_jax():
        assert not custom_call.is_compiled()
        assert not lowering()
    assert custom_call.is_compiled() == before
    assert bool(lowering()) == before
