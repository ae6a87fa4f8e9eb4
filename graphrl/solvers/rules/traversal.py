"""Depth-first post-order, which several of the rules are."""

from collections.abc import Callable, Sequence


def post_order(num_ops: int, roots: Sequence[int], waits_for: Callable[[int], Sequence[int]]) -> list[int]:
    """Ops in the order in which a recursive depth-first visit leaves them, without recursion.

    Args:
      num_ops: how many there are.
      roots: in the order of the visit; every op must be reachable from one of them.
      waits_for: what an op waits for, in the order in which it is visited; asked once for each op.
    """
    order: list[int] = []
    entered = [False] * num_ops
    stack = list(reversed(roots))
    while stack:
        op = stack.pop()
        if op < 0:
            order.append(-1 - op)
        elif not entered[op]:
            entered[op] = True
            stack.append(-1 - op)  # to be written once all that it waits for is
            stack += [before for before in reversed(waits_for(op)) if not entered[before]]
    return order
