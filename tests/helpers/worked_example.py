"""The worked example of `graphrl/costs`: one device needs 12 bytes, in the order a c b d; a b c d peaks at 14."""

import math

from graphrl.graphs.graph import ComputationGraph, Op, Tensor

TINY = ComputationGraph(
    "tiny",
    (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=2, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    ),
)

# makespans on two devices, c on device 1 and all else on device 0: (transfer, latency, bandwidth, seconds)
MAKESPANS = [
    ("rendezvous", 0.0, math.inf, 7.0),
    ("rendezvous", 0.5, 4.0, 10.25),
    ("free", 0.0, math.inf, 5.0),
    ("free", 0.5, 4.0, 8.25),
    ("link", 0.0, math.inf, 5.0),
    ("link", 0.5, 4.0, 8.25),
]
