"""Memory by address in compiled functions: words, arrays at an address, atomic sums, and calls of C functions."""

from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import npydecl
from numba.np import arrayobj

intrinsic: Any = numba.extending.intrinsic  # its type hints keep the signature, without the typing context
I64 = ir.IntType(64)


@intrinsic
def address_of(_: Any, pointer: Any) -> Any:
    """The address in a C pointer."""
    return types.int64(types.voidptr), lambda _, builder, __, values: builder.ptrtoint(values[0], I64)


def _view(of: Any, address: types.Type, dtype: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out = context.make_array(of)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(of.dtype))
        shape, strides = values[1:-1], [context.get_constant(types.intp, size)]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        pointer = builder.inttoptr(values[0], out.data.type)
        arrayobj.populate_array(out, pointer, shape, strides, strides[-1], None)
        return out._getvalue()

    return of(address, *[types.int64] * of.ndim, dtype), generate


@intrinsic
def array(_: Any, address: Any, count: Any, dtype: Any) -> Any:
    """`count` elements of a NumPy type at an address."""
    return _view(types.Array(npydecl.parse_dtype(dtype), 1, "C"), types.int64, dtype)


@intrinsic
def matrix(_: Any, address: Any, rows: Any, columns: Any, dtype: Any) -> Any:
    """A two-dimensional array of a NumPy type at an address."""
    return _view(types.Array(npydecl.parse_dtype(dtype), 2, "C"), types.int64, dtype)


@intrinsic
def pointer_to(_: Any, address: Any) -> Any:
    """An address as a C pointer."""
    return types.voidptr(types.int64), lambda _, builder, __, values: builder.inttoptr(values[0], cgutils.voidptr_t)


def _cell(builder: Any, address: Any, index: Any, bits: int) -> Any:
    """Pointer to the integer of that many bits and that index at an address."""
    pointer = builder.inttoptr(address, ir.IntType(bits).as_pointer())
    return builder.gep(pointer, [index])


@intrinsic
def load(_: Any, address: Any, index: Any) -> Any:
    """The word of that index at an address."""
    signature = types.int64(types.int64, types.int64)
    return signature, lambda _, builder, __, values: builder.load(_cell(builder, values[0], values[1], 64))


@intrinsic
def load_half(_: Any, address: Any, index: Any) -> Any:
    """The int32 of that index at an address."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.sext(builder.load(_cell(builder, values[0], values[1], 32)), I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def store(_: Any, address: Any, index: Any, value: Any) -> Any:
    """Writes a word."""

    def generate(context: Any, builder: Any, __: Any, values: Any) -> Any:
        builder.store(values[2], _cell(builder, values[0], values[1], 64))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@intrinsic
def store_half(_: Any, address: Any, index: Any, value: Any) -> Any:
    """Writes an int32."""

    def generate(context: Any, builder: Any, __: Any, values: Any) -> Any:
        value = builder.trunc(values[2], ir.IntType(32))
        builder.store(value, _cell(builder, values[0], values[1], 32))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@intrinsic
def fetch_add(_: Any, address: Any, index: Any, value: Any) -> Any:
    """Adds to a word that other threads change too; returns the value before."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", _cell(builder, values[0], values[1], 64), values[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def call_address(_: Any, function: Any, argument: Any) -> Any:
    """Calls the C function at an address with one pointer; returns its result, a pointer, as an address."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.FunctionType(I64, [I64]).as_pointer())
        return builder.call(pointer, [values[1]])

    return types.int64(types.int64, types.int64), generate


aligned_alloc: Any = types.ExternalFunction("aligned_alloc", types.int64(types.int64, types.int64))  # alignment, bytes
free: Any = types.ExternalFunction("free", types.void(types.int64))
yield_thread: Any = types.ExternalFunction("sched_yield", types.int32())
