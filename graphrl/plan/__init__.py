"""Plans and memory maps, the results that users get: their files, traces and pictures."""

from graphrl.plan.plan import Plan
from graphrl.plan.steps import OpStep, Step, TransferStep

__all__ = ["OpStep", "Plan", "Step", "TransferStep"]
