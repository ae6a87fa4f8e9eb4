"""Queries of a traced function."""

from typing import Any

import jax
import jax.numpy as jnp

from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.roofline import Chip

# One second per operation or byte, whichever is more, and no launch: run times in whole seconds.
TOY = Chip("toy", flops_per_second=1.0, bytes_per_second=1.0)


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An abstract argument for tracing."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def only(graph: ComputationGraph, kind: str) -> Op:
    """The one op of that type."""
    (op,) = [op for op in graph.ops if op.type == kind]
    return op
