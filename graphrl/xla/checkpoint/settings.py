"""What a user asks of `graphrl.checkpoint`, checked before anything is traced."""

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.roofline import CHIPS, DEFAULT_CHIP, Chip, find_chip
from graphrl.optimize import DEFAULT_SECONDS, check_seed
from graphrl.solvers.base import Budget
from graphrl.units import format_bytes, parse_bytes
from graphrl.xla.checkpoint.solvers.auto import find_solver
from graphrl.xla.checkpoint.solvers.choice import Pricing
from graphrl.xla.checkpoint.solvers.goal import Goal

SECONDS = DEFAULT_SECONDS

Compiler = Callable[..., Any]  # a function and its arguments' shapes -> a `jax.stages.Compiled`


class UnmetError(ProblemError):
    """No choice is within the limit, or none was found.

    Attributes:
      least: for a limit of the peak, that of the lowest choice found, in bytes beside arguments, results and gradients.
    """

    def __init__(self, message: str, least: float | None = None) -> None:
        super().__init__(message)
        self.least = least


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of `graphrl.checkpoint`; see there. Limits may be any real numbers, of NumPy and jax too.

    Raises:
      ProblemError: one is out of range, or there is not one limit; one line says what would be right.
    """

    budget: float | str | None = None
    slowdown: float | None = None
    chip: str | Chip | None = None
    offload: bool = False
    method: str = "auto"
    seconds: float = SECONDS
    seed: int = 0
    cache: bool = True
    verify: bool | Compiler = False

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.slowdown is None):
            raise ProblemError(
                'checkpoint needs one limit: budget=0.5 (part of what jax keeps), budget="12GiB" (the peak of the '
                "whole step) or slowdown=0.1 (of the step)"
            )
        if isinstance(self.budget, str):
            parse_bytes(self.budget)
        else:
            self._set_part("budget", 0.0, 'a part from 0 to 1, or bytes such as "12GiB"')
        self._set_part("slowdown", -1.0, "a part of the step's time, from -1 (all of it is saved) to 1")
        for name in ("offload", "cache"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemError(f"{name} is {getattr(self, name)!r}: must be True or False")
        if not isinstance(self.verify, bool) and not callable(self.verify):
            raise ProblemError(
                f"verify is {self.verify!r}: must be True, False or a function that compiles, as "
                "(function, *args) -> jax.stages.Compiled"
            )
        if self.chip is not None:
            find_chip(self.chip)
        find_solver(self.method)
        check_seed(self.seed)
        _ = Budget(None, self.seconds)

    def _set_part(self, name: str, least: float, right: str) -> None:
        """Makes an option, where it is given, a number of Python.

        Raises:
          ProblemError: it is not `right`.
        """
        value = getattr(self, name)
        if value is None:
            return
        part = _real(value)
        if part is None or not least <= part <= 1:
            raise ProblemError(f"{name} is {value!r}: must be {right}")
        object.__setattr__(self, name, part)

    @property
    def figures(self) -> Chip:
        """The chip whose times count: by default that of jax's first device where its name is known."""
        return find_chip(self.chip if self.chip is not None else _own_chip())

    @property
    def compiler(self) -> Compiler | None:
        """What compiles gradients to verify plans; None where that is not asked."""
        if isinstance(self.verify, bool):
            return compile_here if self.verify else None
        return self.verify

    @property
    def is_kept(self) -> bool:
        """Whether the plan is for the next process: what a user's own function compiles with, nobody else knows."""
        return self.cache and isinstance(self.verify, bool)

    @property
    def compiled_by(self) -> tuple[str, ...]:
        """What tells the device that plans are verified for from others; nothing where they are not."""
        device = jax.devices()[0]
        return (device.device_kind, device.client.platform_version) if self.verify is True else ()

    def goal(self, pricing: Pricing) -> Goal:
        """The limit for one gradient.

        Raises:
          UnmetError: arguments, results and gradients alone are more than the budget.
        """
        if self.slowdown is not None:
            return Goal(slowdown=self.slowdown, moves=self.offload)
        if not isinstance(self.budget, str):
            assert self.budget is not None
            return Goal(kept=self.budget * pricing.plain.kept, moves=self.offload)
        outside = pricing.gradient.argument_bytes + pricing.gradient.result_bytes
        left = parse_bytes(self.budget) - outside
        if left <= 0:
            raise UnmetError(
                f"budget is {self.budget}: arguments, results and gradients alone need {format_bytes(outside)} "
                "(a part of what jax keeps is from 0 to 1)"
            )
        return Goal(peak=left, moves=self.offload)


def compile_here(function: Callable[..., Any], *args: Any) -> Any:
    """A function compiled for jax's first device: a `jax.stages.Compiled`."""
    with jax.default_device(jax.devices()[0]):
        return jax.jit(function).lower(*args).compile()


def _own_chip() -> str:
    words = set(jax.devices()[0].device_kind.lower().replace("-", " ").split())
    return next((name for name in CHIPS if set(name.split("-")) <= words or name.split("-")[0] in words), DEFAULT_CHIP)


def _real(value: object) -> float | None:
    """A real number of any library; None if it is none, or not known while jax traces."""
    if isinstance(value, jax.Array | np.ndarray) and not isinstance(value, jax.core.Tracer) and value.ndim == 0:
        value = value.item()
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else None
