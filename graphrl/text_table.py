"""Tables as text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, left: int = 0) -> list[str]:
    """Lines of a table's rows, all of as many cells: the first `left` columns begin at the left, the others end at the
    right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    padded = ([pad(text, width) for pad, text, width in zip(pads, row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]
