"""Columns of small numbers: what a compressor makes the least of.

Networks repeat their layers, so that relative numbers (how far back an input lies, the next weight after the last one)
repeat too where absolute ones do not.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


def table(rows: Iterable[Hashable]) -> tuple[list[Any], list[int]]:
    """Distinct rows in the order of their first appearance, and the place of every row among them."""
    places: dict[Hashable, int] = {}
    column = [places.setdefault(row, len(places)) for row in rows]
    return list(places), column


def ranks(order: Sequence[int], reference: Sequence[int]) -> list[int]:
    """An order of 0..n-1 as places among what is left of `reference`, step by step: equal orders give zeros."""
    left = list(reference)
    places = []
    for item in order:
        place = left.index(item)
        places.append(place)
        del left[place]
    return places


def unrank(places: Sequence[int], reference: Sequence[int]) -> list[int]:
    """The order of which `ranks` made `places`."""
    left = list(reference)
    return [left.pop(place) for place in places]


def zigzag(number: int) -> int:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    return 2 * number if number >= 0 else -2 * number - 1


def unzigzag(code: int) -> int:
    """The number of which `zigzag` made `code`."""
    return code // 2 if code % 2 == 0 else -(code + 1) // 2


def steps(numbers: Sequence[int]) -> list[int]:
    """Each number relative to the one before, the first to 0."""
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]


def unsteps(coded: Sequence[int]) -> list[int]:
    """The numbers of which `steps` made `coded`."""
    return list(itertools.accumulate(coded))


def texts(names: Sequence[str]) -> dict[str, Any]:
    """Names as scopes (to the last slash), stems and the numbers at their ends.

    Numbers are relative to the name before (readers that count all ops) or to the last one of the same stem (XLA counts
    each kind of instruction), whichever gives fewer different ones. A leading zero stays with the stem.
    """
    split = [_split(name) for name in names]
    scopes, scope = table(scope for scope, _, _ in split)
    stems, stem = table(stem for _, stem, _ in split)
    numbers = [number for _, _, number in split]
    relative = {by: _relative(numbers, keys) for by, keys in (("row", [0] * len(stem)), ("stem", stem))}
    by = min(relative, key=lambda by: len(set(relative[by])))
    return {"scopes": scopes, "scope": scope, "stems": stems, "stem": stem, "by": by, "number": relative[by]}


def names(coded: dict[str, Any]) -> list[str]:
    """The names of which `texts` made `coded`."""
    scopes, stems = coded["scopes"], coded["stems"]
    last = [0] * max(1, len(stems))
    texts = []
    for scope, stem, code in zip(coded["scope"], coded["stem"], coded["number"], strict=True):
        digits = ""
        if code:
            key = stem if coded["by"] == "stem" else 0
            last[key] += unzigzag(code - 1)
            digits = str(last[key])
        texts.append(f"{scopes[scope]}{stems[stem]}{digits}")
    return texts


def _relative(numbers: Sequence[int | None], keys: Sequence[int]) -> list[int]:
    """Each number relative to the last one of the same key, coded from 1; 0 for none."""
    last: dict[int, int] = {}
    distances = []
    for number, key in zip(numbers, keys, strict=True):
        if number is None:
            distances.append(0)
        else:
            distances.append(zigzag(number - last.get(key, 0)) + 1)
            last[key] = number
    return distances


def _split(name: str) -> tuple[str, str, int | None]:
    """Scope with its slash, stem, number."""
    scope = name[: name.rfind("/") + 1]
    digits = name[len(name.rstrip("0123456789")) :]
    digits = digits[len(digits) - len(digits.lstrip("0")) :]
    return scope, name[len(scope) : len(name) - len(digits)], int(digits) if digits else None
