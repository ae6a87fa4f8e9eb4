"""`Proposal-v0`: choose the proposal distributions of a genetic algorithm, and see what it finds with them (REGAL)."""
