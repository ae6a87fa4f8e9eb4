"""Protobuf's text format as nested fields, without a schema: names, values and the lines where they stand.

Read: messages in {} or <>, lists in [], optional colons and separators, comments, strings in either quotes with C
escapes, adjacent strings joined. Not read: extensions and Any (names in []), as no format here has any.
"""

import re
from typing import NamedTuple

from graphrl.errors import GraphError

_TOKEN = re.compile(
    r"(?P<space>(?:[\s,;]|#[^\n]*)+)|(?P<mark>[{}<>\[\]:])|(?P<word>[-+]?[\w.][\w.+-]*)"
    r"|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
)
_CLOSING = {"{": "}", "<": ">"}
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Field(NamedTuple):
    """One field of a message; repeated fields stand there several times."""

    name: str
    value: "str | list[Field]"  # a number, identifier or string as text; or a message's fields
    line: int

    def text(self) -> str:
        """The value of a scalar field.

        Raises:
          GraphError: it is a message.
        """
        if isinstance(self.value, list):
            raise GraphError(f"line {self.line}: {self.name} is a message: must be a single value")
        return self.value

    def fields(self) -> "list[Field]":
        """The fields of a message.

        Raises:
          GraphError: it is a single value.
        """
        if not isinstance(self.value, list):
            raise GraphError(f"line {self.line}: {self.name} is {self.value[:30]!a}: must be a message in {{}}")
        return self.value

    def integer(self) -> int:
        """The value as an integer of 64 bits.

        Raises:
          GraphError: it is none.
        """
        text = self.text()
        if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not -(2**63) <= int(text) < 2**63:
            raise GraphError(f"line {self.line}: {self.name} is {text[:30]!a}: must be an integer of 64 bits")
        return int(text)


class _Token(NamedTuple):
    kind: str  # "mark", "word" or "text"
    text: str
    line: int


def parse(text: str) -> list[Field]:
    """The fields of the message that `text` holds.

    Raises:
      GraphError: broken text, one line that begins with the number of the line.
    """
    tokens = _tokens(text)
    end = len(tokens)
    tokens.append(_Token("end", "the end of the file", tokens[-1].line if tokens else 1))
    top: list[Field] = []
    open_messages: list[tuple[list[Field], str]] = []  # what surrounds the message being read, and its closing mark
    message, i = top, 0
    while i < end:
        token = tokens[i]
        if open_messages and token.text == open_messages[-1][1] and token.kind == "mark":
            message, i = open_messages.pop()[0], i + 1
            continue
        if token.kind != "word":
            raise _error(token, "a field's name" + (f" or {open_messages[-1][1]!r}" if open_messages else ""))
        i += 1
        colon = tokens[i].text == ":" and tokens[i].kind == "mark"
        i += colon
        if tokens[i].kind == "mark" and tokens[i].text in _CLOSING:
            fields: list[Field] = []
            message.append(Field(token.text, fields, token.line))
            open_messages.append((message, _CLOSING[tokens[i].text]))
            message, i = fields, i + 1
        elif not colon:
            raise _error(tokens[i], f"':' or '{{' after {token.text}")
        else:
            values, i = _scalars(tokens, i)
            message += [Field(token.text, value, token.line) for value in values]
    if open_messages:
        raise _error(tokens[end], f"{open_messages[-1][1]!r}")
    return top


def _tokens(text: str) -> list[_Token]:
    tokens, line, place = [], 1, 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise GraphError(f"line {line}: {text[place : place + 20]!a}: is no protobuf text")
        if match.lastgroup == "space":
            line += match.group().count("\n")
        else:
            tokens.append(_Token(match.lastgroup, match.group(), line))
        place = match.end()
    return tokens


def _scalars(tokens: list[_Token], i: int) -> tuple[list[str], int]:
    """The value, or the values of a list, that begin at token i; and the token after them."""
    if tokens[i].text != "[" or tokens[i].kind != "mark":
        value, i = _scalar(tokens, i)
        return [value], i
    i += 1
    values = []
    while tokens[i].text != "]" or tokens[i].kind != "mark":
        value, i = _scalar(tokens, i)
        values.append(value)
    return values, i + 1


def _scalar(tokens: list[_Token], i: int) -> tuple[str, int]:
    token = tokens[i]
    if token.kind == "word":
        return token.text, i + 1
    if token.kind != "text":
        raise _error(token, "a value")
    parts = []
    while tokens[i].kind == "text":
        parts.append(tokens[i].text[1:-1].encode())
        i += 1
    try:
        return _ESCAPE.sub(_unescaped, b"".join(parts)).decode(), i
    except UnicodeDecodeError:
        raise GraphError(f"line {token.line}: a string is not UTF-8 text") from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code[:1] in b"01234567":
        return bytes([int(code, 8) & 255])
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _LETTERS.get(code, code)


def _error(token: _Token, wanted: str) -> GraphError:
    shown = token.text if token.kind == "end" else ascii(token.text[:30])
    return GraphError(f"line {token.line}: {shown}: expected {wanted}")
