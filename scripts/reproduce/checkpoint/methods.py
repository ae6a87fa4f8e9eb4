"""How a gradient keeps what it needs: by jax's rules, and by graphrl.

A method is a name and a function from a program to its gradient function, `*args -> (loss, gradient)`. Rules are all of
`jax.checkpoint_policies` that need no names in the program, around each layer and around the whole loss.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

import graphrl
from graphrl.xla.checkpoint.seconds import gradient_seconds
from reproduce.models.losses import Program, undecorated

Gradient = Callable[..., Any]
Method = Callable[[Program], Gradient]

CHIP = "h200"  # whose times are foretold
NONE = "none"
POLICIES: Mapping[str, Any] = {
    "nothing saveable": jax.checkpoint_policies.nothing_saveable,
    "dots saveable": jax.checkpoint_policies.dots_saveable,
    "dots without batch saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "dots without batch to the host": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "everything saveable": jax.checkpoint_policies.everything_saveable,
}


def plain(program: Program) -> Gradient:
    """The gradient without any rule."""
    return jax.value_and_grad(program.loss(undecorated))


def _by_layer(policy: Any, program: Program) -> Gradient:
    return jax.value_and_grad(program.loss(functools.partial(jax.checkpoint, policy=policy)))


def _whole(policy: Any, program: Program) -> Gradient:
    return jax.value_and_grad(jax.checkpoint(program.loss(undecorated), policy=policy))


RULES: dict[str, Method] = {
    NONE: plain,
    **{f"{name}, a layer": functools.partial(_by_layer, policy) for name, policy in POLICIES.items()},
    **{f"{name}, the whole": functools.partial(_whole, policy) for name, policy in POLICIES.items()},
}


SLOWDOWNS = (0.02, 0.05, 0.1, 0.2, 0.33)
LIMITS = {f"graphrl at {limit:.0%}": limit for limit in SLOWDOWNS}
# with the memory of the host: the method without it, and its limit
HOSTED = {
    f"graphrl with the host at {limit:.0%}": (method, limit)
    for method, limit in LIMITS.items()
    if limit in (0.05, 0.1, 0.2)
}
_TIMED = ("nothing saveable, a layer", "dots saveable, a layer", "dots without batch saveable, a layer")
MATCHED = {f"graphrl as slow as {rule}": rule for rule in _TIMED}  # by the same estimate
# of what jax keeps; limits of time leave small programs as they are, whose peak is the workspace of a product
KEEPING = {"graphrl keeping half": 0.5, "graphrl keeping a quarter": 0.25}
PLANNED = (*LIMITS, *HOSTED, *MATCHED, *KEEPING)


def planned(method: str, program: Program) -> graphrl.CheckpointedFunction:
    """A program's loss under one of `PLANNED`."""
    if method in KEEPING:
        return graphrl.checkpoint(program.loss(undecorated), budget=KEEPING[method], chip=CHIP)
    hosted = method in HOSTED
    if hosted or method in LIMITS:
        limit = HOSTED[method][1] if hosted else LIMITS[method]
    else:
        limit = slowdown_of(RULES[MATCHED[method]], program)
    return graphrl.checkpoint(program.loss(undecorated), slowdown=min(limit, 1.0), chip=CHIP, offload=hosted)


def slowdown_of(method: Method, program: Program) -> float:
    """Estimated time of the traced gradient over that of the undecorated one, less 1."""
    own, without = (jax.make_jaxpr(each(program))(*program.args) for each in (method, plain))
    return gradient_seconds(own, CHIP) / gradient_seconds(without, CHIP) - 1


def _ours(method: str, program: Program) -> Gradient:
    return jax.value_and_grad(planned(method, program))


OURS: dict[str, Method] = {method: functools.partial(_ours, method) for method in (*LIMITS, *MATCHED)}
METHODS: dict[str, Method] = {**RULES, **OURS}
GRADIENTS: dict[str, Method] = {
    **METHODS,
    **{method: functools.partial(_ours, method) for method in (*HOSTED, *KEEPING)},
}
FITTED = "graphrl for the room"  # a budget in bytes, which XLA verifies
# XLA's own: a GPU with so much less memory that the undecorated gradient's temporaries must shrink to this share.
XLA: Mapping[str, float] = {f"XLA's own at {share:.0%}": share for share in (0.5, 0.25)}
