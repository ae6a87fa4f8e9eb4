"""Parsing and formatting of bytes, seconds, rates and whole numbers; alignment of text tables."""

import datetime
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from graphrl.errors import ProblemError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_SI = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BYTE_SCALE = {prefix + "b": scale for prefix, scale in _SI.items()} | {
    prefix + "ib": 2 ** (10 * power) for power, prefix in enumerate(_SI) if prefix
}
_SECOND_SCALE = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # the micro sign
    "μs": Fraction(1, 10**6),  # the Greek letter
    "ns": Fraction(1, 10**9),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]{1,3})?|[0-9]+\.)\s*(\S*)\s*", re.IGNORECASE)
_MAX_BYTES = 2**62
_DECIMAL = re.compile(r"\s*([+-]?)(?=\.?\d)(\d*)\.?(\d*)(?:e([+-]?\d{1,4}))?\s*", re.IGNORECASE | re.ASCII)
_GROUPED = re.compile(r"(?<=\d)_(?=\d)")
_MAX_DIGITS = 100  # of a whole number with an exponent


class Fractional(float):
    """A float without fraction, read from decimal text with a fraction that the float cannot represent."""


def parse_exact_integer(text: str) -> int | None:
    """Parses the integer in decimal text such as "1e6", "1000000.0" or "9007199254740993.0", to the last digit.

    Returns None if the text has a fraction, is no decimal number, or has more than 100 digits.
    """
    match = _DECIMAL.fullmatch(_GROUPED.sub("", text))
    if match is None:
        return None
    sign, as_integer, fraction, exponent = match.groups()
    digits = (as_integer + fraction).rstrip("0")
    zeros = len(as_integer) - len(digits) + int(exponent or 0)
    if not digits.lstrip("0"):
        return 0
    if zeros < 0 or len(digits) + zeros > _MAX_DIGITS:
        return None
    return int(sign + digits + zeros * "0")


def parse_exact_number(text: str) -> int | float:
    """Parses a decimal number to a float; from 2^53 on, where floats skip integers, a whole number to an integer.

    So `as_integer` returns exactly the integer that was written; a number with a fraction stays a `Fractional`.
    """
    value = float(text)
    if not value.is_integer() or (value and abs(value) < 2**53 and len(text) <= 16):  # 15 digits are exact in a float
        return value
    integer = parse_exact_integer(text)
    if integer is None:
        return value if abs(value) >= 10**_MAX_DIGITS else Fractional(value)
    return integer if abs(integer) >= 2**53 else value


def as_integer(value: Any) -> Any:
    """Converts a float without fraction to the integer of the same value; returns anything else unchanged."""
    is_whole = isinstance(value, float) and not isinstance(value, Fractional) and value.is_integer()
    return int(value) if is_whole else value


def as_integers(value: Any) -> Any:
    """Applies `as_integer` to everything in lists and dicts, for msgspec, which accepts integers for floats."""
    if isinstance(value, Fractional):
        return float(value)
    if isinstance(value, dict):
        return {key: as_integers(item) for key, item in value.items()}
    return [as_integers(item) for item in value] if isinstance(value, list) else as_integer(value)


def parse_integer(text: str) -> int:
    """Parses an integer, also in the form "5_000" or "1e6".

    Raises:
      ProblemError: it is no integer, or has an exponent or point and is 2^53 or more, which is probably a mistake.
    """
    try:
        return int(text)
    except ValueError:
        integer = parse_exact_integer(text)
    if integer is None:
        raise ProblemError(f"{text[:40]!r} is not an integer")
    if abs(integer) >= 2**53:
        raise ProblemError(f"{text[:40]!r} is too large: write such an integer with all its digits")
    return integer


def format_bytes(value: float) -> str:
    """Formats `value` bytes in binary units with three digits or more, e.g. "12 B", "1.50 MiB"."""
    if not math.isfinite(value):
        return "inf" if value > 0 else str(value)
    power = 0
    while abs(value) >= 1024 and power < len(_BINARY) - 1:
        value, power = value / 1024, power + 1
    if power == 0:
        return f"{value:.0f} B"
    return f"{_three_digits(value)} {_BINARY[power]}"


def format_seconds(value: float) -> str:
    """Formats `value` seconds with three digits or more, e.g. "0 s", "7.00 s", "1.25 ms"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f} s"
    scale, unit = time_unit(value)
    return f"{_three_digits(value / scale)} {unit}"


def finite_or_none(value: Any) -> Any:
    """Replaces an infinite number or NaN, which JSON cannot represent, by None; returns other values unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def time_unit(value: float) -> tuple[float, str]:
    """Chooses the unit that suits `value` seconds: returns its length in seconds, and its name."""
    return next((pair for pair in _TIMES if abs(value) >= pair[0]), _TIMES[-1])


def byte_unit(value: float) -> tuple[float, str]:
    """Chooses the binary unit that suits `value` bytes: returns its size in bytes, and its name."""
    power = 0 if value < 1024 else min(int(math.log2(value) / 10), len(_BINARY) - 1)
    return 1024.0**power, _BINARY[power]


def format_objective(objective: str, value: float) -> str:
    """Formats an objective's value in its unit: bytes for "peak_memory", else seconds."""
    return format_bytes(value) if objective == "peak_memory" else format_seconds(value)


def format_end(seconds_left: float) -> str:
    """Formats remaining time: "42 s left", "12 min left, until 14:05", "11.5 h left"."""
    if seconds_left < 90:
        return f"{seconds_left:.0f} s left"
    if seconds_left >= 36_000:
        return f"{seconds_left / 3600:.1f} h left"
    end = datetime.datetime.now() + datetime.timedelta(seconds=seconds_left)
    return f"{seconds_left / 60:.0f} min left, until {end:%H:%M}"


def parse_bytes(text: str) -> int:
    """Parses bytes from text such as "4096", "16GiB" (2^30 each) or "1.5GB" (10^9 each).

    Raises:
      ProblemError: the text has another form, or its value is outside 0 to 2^62.
    """
    number, unit = _split(text, "bytes: write for example 4096, 512MiB or 16GiB")
    scale = _BYTE_SCALE.get(unit.lower() or "b")
    if scale is None:
        raise ProblemError(f"{text!r} has an unknown unit {unit!r}: use B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    value = number * scale
    if not 0 <= value <= _MAX_BYTES:
        raise ProblemError(f"{text!r} is outside 0 to 2^62 bytes")
    return round(value)


def parse_rate(text: str) -> float:
    """Parses bytes per second from text such as "1e9", "1.5GB/s" or "inf".

    Raises:
      ProblemError: the text has another form.
    """
    if text.strip().lower() in ("inf", "infinite", "infinity"):
        return math.inf
    number, unit = _split(text, "bytes per second: write for example 1e9, 1.5GB/s or inf")
    scale = _BYTE_SCALE.get(unit.lower().removesuffix("/s") or "b")
    if scale is None:
        raise ProblemError(f"{text!r} has an unknown unit {unit!r}: use B/s, MB/s, GB/s, MiB/s, GiB/s or none")
    return _float(number * scale, text)


def parse_seconds(text: str) -> float:
    """Parses seconds from text such as "0.5", "10us", "3ms" or "2min".

    Raises:
      ProblemError: the text has another form.
    """
    number, unit = _split(text, "a time: write for example 0.5, 10us, 3ms or 2min")
    scale = _SECOND_SCALE.get(unit.lower() or "s")
    if scale is None:
        raise ProblemError(f"{text!r} has an unknown unit {unit!r}: use ns, us, ms, s, min or h")
    return _float(number * scale, text)


def _split(text: str, expected: str) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ProblemError(f"{text!r} is not {expected}")
    return Fraction(match[1]), match[2]


def _float(number: Fraction, text: str) -> float:
    """Returns the nearest float: 10us is 1e-05, which 10 * 1e-6 is not."""
    try:
        return float(number)
    except OverflowError:
        raise ProblemError(f"{text!r} is too large") from None


def _three_digits(value: float) -> str:
    """Formats with at least three digits and no exponent: 9.99, 12.3, 123, 2048."""
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"


def align_columns(rows: Sequence[Sequence[str]], *, left: int = 0) -> list[str]:
    """Aligns the rows of a table, all of the same length: the first `left` columns left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    padded = ([pad(text, width) for pad, text, width in zip(pads, row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]
