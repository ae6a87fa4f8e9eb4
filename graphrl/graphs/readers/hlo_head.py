"""How a file of XLA's HLO begins. Not in the reader, which needs protobuf: files of every format are asked this."""


def is_hlo(head: bytes) -> bool:
    """Whether a file that begins with the bytes `head` is HLO: text, a `HloModuleProto` or an `HloProto`."""
    return is_text(head) or _is_proto(head) or (head[:1] == b"\n" and _is_proto(head[1 + _varint(head[1:])[1] :]))


def is_text(head: bytes) -> bool:
    """Whether it is HLO text."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").startswith(b"HloModule")


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
