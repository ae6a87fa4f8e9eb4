"""Chips by name, with where their figures come from, and chips of files."""

import os

from graphrl.costs.maps.chip import ChipMemory, MemoryChip
from graphrl.errors import GraphrlError, ProblemError

MIB = 2**20

NNP_I = MemoryChip(
    "nnp-i",
    # Hot Chips 31 slides (Wechsler, Behar & Daga 2019): up to 92 TOPS of int8 in 12 inference engines.
    peak=92e12,
    memories=(
        # the same slides: LPDDR4x-4200 of 128 bits, 67.2 GB/s. The card has 16 GB: no limit for any model here.
        ChipMemory("DRAM", None, 67.2e9, 67.2e9, 1e-6),
        # WikiChip, "Spring Hill": 24 MiB and about 680 GB/s. We leave 8 MiB to an inference: the engines share it with
        # two host cores and with other inferences.
        ChipMemory("LLC", 8 * MIB, 680e9, 680e9, 0.2e-6),
        # WikiChip, "Spring Hill": 4 MiB of deep SRAM an engine and about 6.8 TB/s for the 12. We leave one engine's
        # 4 MiB, which every engine holds a copy of.
        ChipMemory("SRAM", 4 * MIB, 6.8e12, 6.8e12, 0.0),
    ),
    # ours: no public figure. The memories' set-up times too are ours: a DMA descriptor, and a cache's pipeline.
    launch=0.0,
)
"""An accelerator like Intel's NNP-I 1000. It is our model and no measurement: bandwidths are public and rise tenfold a
memory, the usable capacities and set-up times are our choice, made so that capacity binds for batch 1."""

CHIPS = {chip.name: chip for chip in (NNP_I,)}


def find_chip(chip: str | os.PathLike[str] | MemoryChip) -> MemoryChip:
    """A chip by its name in `CHIPS`, of a file, or the caller's own.

    Raises:
      GraphrlError: the file cannot be read.
      ProblemError: it holds no chip, or there is neither such a chip nor such a file.
    """
    if isinstance(chip, MemoryChip):
        return chip
    name = os.fspath(chip)
    if name in CHIPS:
        return CHIPS[name]
    from graphrl.costs.maps.chip_file import read_chip

    try:
        return read_chip(name)
    except ProblemError:
        raise
    except GraphrlError as error:
        raise ProblemError(f"{error}; chips by name are {', '.join(CHIPS)}") from None
