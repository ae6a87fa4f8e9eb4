"""Placements for pipelined execution: the methods of the objective `max_load`."""
