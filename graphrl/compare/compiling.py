"""Memory maps, which compiled programs take: whether this process runs short of them."""

from pathlib import Path

_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def maps_run_short(share: float = 0.5) -> bool:
    """Whether this process has more than this share of the memory maps that Linux allows it (65,530 by default).

    Every compiled program takes some, as long as it is kept; at the limit LLVM ends the process. False elsewhere.
    """
    try:
        most = int(_MOST_MAPS.read_text())
        with _MAPS.open("rb") as file:
            return sum(1 for _ in file) > share * most
    except OSError:
        return False
