"""What loops, branches and other jaxpr equations with inner jaxprs cost, given the work of one run of each inner jaxpr.

- `scan`: the body times its length;
- `while`: condition and body times the trip count where it is known (a counter that starts at, is compared with and
  grows by literal integers), else one trip;
- `cond`: the most expensive branch, for each figure by itself;
- `shard_map`: run time and workspace of one shard, FLOPs of all;
- `pallas_call`: its own cost estimate, else the body's FLOPs times the grid;
- `custom_linear_solve`: its `solve`; any other primitive: each inner jaxpr once.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.hijax import VJPHiPrimitive
from jax.extend import core

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class Work(NamedTuple):
    """What running something once takes.

    Attributes:
      flops: operations.
      runtime: seconds.
      workspace_bytes: most bytes that it holds at once beside its inputs and results.
      step_bytes: the same with its results, as one step of a loop holds them.
    """

    flops: int
    runtime: float
    workspace_bytes: int
    step_bytes: int = 0


def inner_jaxprs(params: Mapping[str, Any]) -> dict[str, Any]:
    """All jaxprs among the parameters of an equation, by parameter name, in tuples with their place ("branches.0"). A
    high-level primitive of jax, such as `jax.checkpoint` under `jax_remat3`, is expanded to its jaxpr.
    """
    inner = {}
    for key, value in params.items():
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
            inner[key] = value
        elif isinstance(value, VJPHiPrimitive):
            inner[key] = _expanded(value)
        elif isinstance(value, tuple | list):
            names = getattr(value, "_fields", range(len(value)))
            for name, item in zip(names, value, strict=True):
                if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                    inner[f"{key}.{name}"] = item
    return inner


@functools.lru_cache(maxsize=512)
def _expanded(primitive: Any) -> core.ClosedJaxpr:
    """The jaxpr of a high-level primitive."""

    def run(*args: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, args)))

    return jax.make_jaxpr(run)(*primitive.in_avals_flat)


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many operands of a `scan` are constants, and how many are carried; of the others each step takes a slice.

    Since jax 0.11 its parameters hold trees of operands in place of these two numbers.
    """
    if "ft_in" in params:
        constants, carried, _ = params["ft_in"].unpack()
        return len(constants), len(carried)
    return params["num_consts"], params["num_carry"]


def inner_work(equation: Any, bodies: Mapping[str, Work], literals: Sequence[Any]) -> Work:
    """Work of an equation; `literals` holds the value of each operand that is a literal, else None."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _loop([(bodies["jaxpr"], params["length"])])
    if name == "while":
        trips = trip_count(equation, literals)
        checks, runs = (1, 1) if trips is None else (trips + 1, trips)
        return _loop([(bodies["cond_jaxpr"], checks), (bodies["body_jaxpr"], runs)])
    if name == "cond":
        return Work(*(max(figures) for figures in zip(*bodies.values(), strict=True)))
    if name == "custom_linear_solve":
        return bodies["jaxprs.solve"]
    if name == "shard_map":
        return bodies["jaxpr"]._replace(flops=bodies["jaxpr"].flops * params["mesh"].size)
    if name == "pallas_call":
        return _kernel(params, bodies["jaxpr"])
    return _sum([(body, 1) for body in bodies.values()])


def _sum(bodies: Sequence[tuple[Work, int]]) -> Work:
    """Bodies one after another, each so many times."""
    return Work(
        sum(body.flops * count for body, count in bodies),
        sum(body.runtime * count for body, count in bodies),
        max(body.workspace_bytes for body, _ in bodies),
    )


def _loop(bodies: Sequence[tuple[Work, int]]) -> Work:
    return _sum(bodies)._replace(workspace_bytes=max((body.step_bytes for body, count in bodies if count), default=0))


def _kernel(params: Mapping[str, Any], body: Work) -> Work:
    estimate = params.get("cost_estimate")
    grid = getattr(params.get("grid_mapping"), "grid", ())
    runs = math.prod(size for size in grid if isinstance(size, int))
    return Work(body.flops * runs if estimate is None else int(estimate.flops), body.runtime, 0)


def trip_count(equation: Any, literals: Sequence[Any]) -> int | None:
    """Iterations of a `while` whose counter starts at, is compared with and grows by known integers; else None."""
    params = equation.params
    cond, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    if len(cond.eqns) != 1 or cond.outvars[0] is not cond.eqns[0].outvars[0] or len(cond.eqns[0].invars) != 2:
        return None
    values = [*literals[:cond_consts], *literals[cond_consts + body_consts :]]
    numbers = {var: _integer(value) for var, value in zip(cond.invars, values, strict=True)}
    steps: dict[Any, int | None] = dict.fromkeys(cond.invars[:cond_consts], 0)
    carried = zip(cond.invars[cond_consts:], body.invars[body_consts:], body.outvars, strict=True)
    steps |= {var: _step(body, before, after) for var, before, after in carried}
    ends = []
    for atom in cond.eqns[0].invars:
        literal = isinstance(atom, core.Literal)
        ends.append((_integer(atom.val) if literal else numbers[atom], 0 if literal else steps[atom]))
    (left, left_step), (right, right_step) = ends
    relation = cond.eqns[0].primitive.name
    if left is None or right is None or relation not in MIRRORED:
        return None
    if left_step and right_step == 0:
        return _count(relation, left, right, left_step)
    return _count(MIRRORED[relation], right, left, right_step) if right_step and left_step == 0 else None


def _integer(value: Any) -> int | None:
    """The value if it is a known integer scalar."""
    if value is None or np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
        return None
    return int(value)


def _step(body: core.Jaxpr, before: Any, after: Any) -> int | None:
    """By how much an iteration changes a carried integer: 0 if it is passed on, None if unknown."""
    if after is before:
        return 0
    for equation in body.eqns:
        if after in equation.outvars and equation.primitive.name in ("add", "sub"):
            left, right = equation.invars
            if left is before and isinstance(right, core.Literal):
                step = _integer(right.val)
                return -step if step is not None and equation.primitive.name == "sub" else step
            if right is before and isinstance(left, core.Literal) and equation.primitive.name == "add":
                return _integer(left.val)
    return None


def _count(relation: str, start: int, stop: int, step: int) -> int | None:
    """Iterations of `while start <relation> stop: start += step`; None if it does not come nearer."""
    sign = 1 if relation in ("lt", "le") else -1
    if sign * step <= 0:
        return None
    distance = sign * (stop - start) + (relation in ("le", "ge"))
    return max(0, -(-distance // (sign * step)))
