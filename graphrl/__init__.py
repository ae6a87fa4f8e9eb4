"""Reinforcement learning for computation graphs, in JAX. This is the public API; everything else may change.

env = graphrl.make("Ordering-v0")  # reset(key, instance) and step(key, state, action, instance) are pure functions
plan = graphrl.optimize("model.onnx", objective="makespan", devices=2, transfer="link", seconds=30)
plan.save("plan.json"); plan.trace("trace.json"); plan.plot("plan.png")

train_step = graphrl.jit(train_step)  # jax.jit, in the order that needs the least memory
loss = graphrl.checkpoint(loss, budget="12GiB")  # jax.checkpoint with an automatic choice of the values to keep
print(graphrl.explain(train_step, state, batch))  # why it needs its memory, by line, and what would help
train_step = graphrl.fit(train_step, state, batch, memory="80GiB")  # the whole step within the memory, by XLA's figure
train_step = graphrl.shard(train_step, mesh, state, batch)  # jax.jit over a mesh, with automatic shardings
"""

from typing import TYPE_CHECKING, Any

from graphrl.costs.exact import Costs
from graphrl.costs.problem import Problem
from graphrl.errors import GraphError, GraphrlError, PlanError, ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.foreign import ReadLimits
from graphrl.graphs.readers.json import write_json
from graphrl.graphs.roofline import Chip

# Not lazily: importing the module `graphrl.optimize` first would bind the name to the module.
from graphrl.optimize import optimize, optimize_batch
from graphrl.plan import OpStep, Plan, TransferStep
from graphrl.solvers.base import Budget, Interrupted, Progress

if TYPE_CHECKING:
    from graphrl.envs.registry import make
    from graphrl.graphs.readers.jaxpr.reader import from_jax
    from graphrl.xla.checkpoint.fit import FitReport, FittedFunction, fit
    from graphrl.xla.checkpoint.function import CheckpointedFunction, checkpoint, checkpoint_curve
    from graphrl.xla.checkpoint.report import CheckpointCurve, CheckpointReport
    from graphrl.xla.explain import explain
    from graphrl.xla.explain.report import Explanation
    from graphrl.xla.jit import Executable, PlannedFunction, compile, jit
    from graphrl.xla.report import Report
    from graphrl.xla.shard.function import ShardableFunction, ShardedFunction, ShardReport, shard, shard_problem

__all__ = [
    "Budget",
    "CheckpointCurve",
    "CheckpointReport",
    "CheckpointedFunction",
    "Chip",
    "ComputationGraph",
    "Costs",
    "Executable",
    "Explanation",
    "FitReport",
    "FittedFunction",
    "GraphError",
    "GraphrlError",
    "Interrupted",
    "Op",
    "OpStep",
    "Plan",
    "PlanError",
    "PlannedFunction",
    "Problem",
    "ProblemError",
    "Progress",
    "ReadLimits",
    "Report",
    "ShardReport",
    "ShardableFunction",
    "ShardedFunction",
    "Tensor",
    "TransferStep",
    "checkpoint",
    "checkpoint_curve",
    "compile",
    "explain",
    "fit",
    "from_jax",
    "jit",
    "make",
    "optimize",
    "optimize_batch",
    "read_graph",
    "shard",
    "shard_problem",
    "write_json",
]

_LAZY = {  # modules that import jax, which takes a second
    "CheckpointCurve": "graphrl.xla.checkpoint.report",
    "CheckpointReport": "graphrl.xla.checkpoint.report",
    "CheckpointedFunction": "graphrl.xla.checkpoint.function",
    "Executable": "graphrl.xla.jit",
    "Explanation": "graphrl.xla.explain.report",
    "FitReport": "graphrl.xla.checkpoint.fit",
    "FittedFunction": "graphrl.xla.checkpoint.fit",
    "PlannedFunction": "graphrl.xla.jit",
    "Report": "graphrl.xla.report",
    "ShardReport": "graphrl.xla.shard.function",
    "ShardableFunction": "graphrl.xla.shard.function",
    "ShardedFunction": "graphrl.xla.shard.function",
    "checkpoint": "graphrl.xla.checkpoint.function",
    "checkpoint_curve": "graphrl.xla.checkpoint.function",
    "compile": "graphrl.xla.jit",
    "explain": "graphrl.xla.explain",
    "fit": "graphrl.xla.checkpoint.fit",
    "from_jax": "graphrl.graphs.readers.jaxpr.reader",
    "jit": "graphrl.xla.jit",
    "make": "graphrl.envs.registry",
    "shard": "graphrl.xla.shard.function",
    "shard_problem": "graphrl.xla.shard.function",
}
# Packages for users that no import above loads: `import graphrl; graphrl.envs.AutoReset` needs no further import.
_PACKAGES = ("agents", "compare", "envs", "learning", "methods", "networks", "training", "xla")


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from graphrl.process import installed_version

        return installed_version() or "unknown (not installed)"
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"graphrl.{name}")
    raise AttributeError(f"module 'graphrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_PACKAGES, "__version__"})
