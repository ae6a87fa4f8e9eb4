"""`MemoryMap-v0`: choose the memory of every weight and output (EGRL)."""
