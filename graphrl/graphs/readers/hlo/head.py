"""Recognition of XLA's HLO by a file's first bytes; separate from the reader, which needs protobuf.

HLO text is a module, `HloModule m ...`, or computations without that header: `ENTRY e {...}`, `e {...}` or `%e (p:
f32[2]) -> f32[2] {...}`; or one instruction, `y = f32[2] exponential(f32[2] x)`. A byte-order mark, white space and
comments (`// ...`, `/* ... */`) may come first.
"""

import re

_MLIR_BYTECODE = b"ML\xefR"
# End of error messages: how to get HLO from jax's lowered modules.
FROM_MLIR = (
    "it is StableHLO (MLIR), which XLA has not compiled: must be HLO, as "
    "jax.jit(f).lower(...).compile().as_text() gives it"
)

_SKIPPED = rb"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*+"  # comments may also appear between words
_NAME = rb"%?([A-Za-z_][\w.-]*)" + _SKIPPED
_SIGNATURE = _NAME + rb"\(" + _SKIPPED + rb"(?:\)|" + _NAME + rb":)"  # of a computation: `e (p:`
_ENTRY = rb"ENTRY\b" + _SKIPPED + _NAME + rb"[({]"
_NAMED = rb"(?:ROOT\b" + _SKIPPED + rb")?" + _NAME + rb"="
_BODY = _NAME + rb"\{" + _SKIPPED + _NAMED  # protobuf text has no `=`
_SHAPE = rb"(?:" + _SKIPPED + rb"\()*+" + _SKIPPED + rb"[a-z]\w*\[[\d,]*\]"
_INSTRUCTION = rb"(?:" + _NAMED + rb")?" + _SHAPE


def _starts_with(*forms: bytes) -> re.Pattern[bytes]:
    """Compiles a pattern for text that starts with one of these forms, after white space and comments."""
    return re.compile(rb"(?:\xef\xbb\xbf)?" + _SKIPPED + rb"(?:" + rb"|".join(forms) + rb")", re.DOTALL)


_TEXT = _starts_with(rb"HloModule\b", _ENTRY, _BODY, _SIGNATURE, _INSTRUCTION)
_SIGNED = _starts_with(_SIGNATURE)
_MLIR = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s|//[^\n]*|#[^\n]*)*+(?:module|func\.func|builtin\.module)\s*(?:@|\{|attributes|private|public)"
)


def is_hlo(head: bytes) -> bool:
    """True if a file that starts with the bytes `head` is HLO: text, a `HloModuleProto` or an `HloProto`."""
    return is_text(head) or _is_proto(head) or (head[:1] == b"\n" and _is_proto(head[1 + varint(head[1:])[1] :]))


def is_text(head: bytes) -> bool:
    """True if `head` is HLO text."""
    return _TEXT.match(head) is not None


def with_header(text: bytes) -> bytes:
    """Adds the header that XLA's parser requires to HLO text that starts with a computation; keeps line numbers."""
    signed = _SIGNED.match(text)
    return text if signed is None else b"HloModule module_" + signed[1] + b" " + text


def is_mlir(head: bytes) -> bool:
    """True if `head` is StableHLO or another dialect of MLIR, text or bytecode: the stage before XLA's HLO."""
    return head.startswith(_MLIR_BYTECODE) or _MLIR.match(head) is not None


def _is_proto(head: bytes) -> bool:
    """True if `head` starts with field 1, the module's name, and then field 2, that of its entry computation."""
    length, size = varint(head[1:])
    return head[:1] == b"\n" and size > 0 and head[1 + size + length :][:1] == b"\x12"


def varint(head: bytes) -> tuple[int, int]:
    """Parses a protobuf integer at the start of `head`; returns it and its number of bytes, 0 if it is incomplete."""
    value = 0
    for k, byte in enumerate(head[:10]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value, k + 1
    return 0, 0
