"""How a file of XLA's HLO begins. Not in the reader, which needs protobuf: files of every format are asked this."""

import re

_MLIR_BYTECODE = b"ML\xefR"
# How HLO comes from what jax lowers to: the end of messages.
FROM_MLIR = (
    "it is StableHLO (MLIR), which XLA has not compiled: must be HLO, as "
    "jax.jit(f).lower(...).compile().as_text() gives it"
)


def is_hlo(head: bytes) -> bool:
    """Whether a file that begins with the bytes `head` is HLO: text, a `HloModuleProto` or an `HloProto`."""
    return is_text(head) or _is_proto(head) or (head[:1] == b"\n" and _is_proto(head[1 + _varint(head[1:])[1] :]))


def is_text(head: bytes) -> bool:
    """Whether it is HLO text."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").startswith(b"HloModule")


def is_mlir(head: bytes) -> bool:
    """Whether it is StableHLO or another dialect of MLIR, text or bytecode: what comes before XLA's HLO."""
    if head.startswith(_MLIR_BYTECODE):
        return True
    lines = (line.split(b"//")[0].strip() for line in head.removeprefix(b"\xef\xbb\xbf").splitlines())
    first = next((line for line in lines if line and not line.startswith(b"#")), b"")
    return re.match(rb"(module|func\.func|builtin\.module)\s*(@|\{|attributes|private|public)", first) is not None


def _is_proto(head: bytes) -> bool:
    """Whether it begins with field 1, the module's name, and then field 2, that of its entry computation."""
    length, size = _varint(head[1:])
    return head[:1] == b"\n" and size > 0 and head[1 + size + length :][:1] == b"\x12"


def _varint(head: bytes) -> tuple[int, int]:
    """Protobuf's integer at the start of `head`, and its number of bytes; 0 bytes if there is none."""
    value = 0
    for k, byte in enumerate(head[:10]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value, k + 1
    return 0, 0
