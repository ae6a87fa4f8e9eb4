"""REGAL: a graph network chooses the proposal distributions of BRKGA (papers: ICLR 2020, and the workshop text)."""
