"""Graphs of layers: what an op does to feature maps, and models coarsened to their layers."""
