"""Seconds of a traced gradient, by roofline: one meaning of time for all ways to keep less.

What stands for what XLA makes of a jaxpr on an accelerator:

- dead code goes, calls are inlined, and of equal equations one is computed; `jax.checkpoint` with `prevent_cse` and
  optimization barriers stand between equal ones;
- products, convolutions, gathers, scatters, sorts, windows, factorisations and collectives are kernels, which read
  their operands from memory and write their results; so are loops and branches, whose bodies count in turn, a scan's
  once a trip, of a branch's the dearest;
- all other equations are fused into those that read them. A value is written where a kernel, a loop or the caller
  reads it, and where that moves fewer bytes than computing it in each reader, or takes fewer equations by far.
  Reductions, but for those of rows, read what is fused into them and write their results;
- what a scan takes from stacks for a kernel, and what it stacks of values that its body reads too, is copied;
- reshapes, transposes and names cost nothing.

A kernel takes `graphs.roofline.runtime` of its work; a fused group that of its bytes. Operations of fused equations
count once each at the chip's peak. Copies to the host and back take the link, each way by itself, beside the kernels:
the time is at least theirs.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from graphrl.graphs.interconnects import INTERCONNECTS, Interconnect
from graphrl.graphs.readers.jaxpr.flops import bytes_moved, equation_flops
from graphrl.graphs.readers.jaxpr.loops import Work, inner_jaxprs, inner_work
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, find_chip, runtime
from graphrl.xla.checkpoint.fusing import Fusing
from graphrl.xla.checkpoint.inlined import Inlined, Op
from graphrl.xla.checkpoint.kinds import is_body, is_kernel, is_reduction

HOST_LINK = "pcie-5"


def gradient_seconds(closed: core.ClosedJaxpr, chip: str | Chip = DEFAULT_CHIP, link: str = HOST_LINK) -> float:
    """Seconds of a function, such as `jax.make_jaxpr(jax.value_and_grad(loss))(*args)`, on a chip.

    Args:
      closed: the function.
      chip: whose peak, bandwidth and launch time count.
      link: to the host, of `graphs.interconnects`.

    Raises:
      GraphrlError: unknown chip, or an array has a symbolic dimension.
    """
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _Clock(find_chip(chip), INTERCONNECTS[link]).seconds(jaxpr)


class _Clock:
    """A chip and a link, and the seconds of bodies that were there before."""

    def __init__(self, chip: Chip, link: Interconnect) -> None:
        self._chip = chip
        self._link = link
        self._bodies: dict[int, tuple[Any, float]] = {}  # with the jaxpr, so that its id stays its own

    def seconds(self, jaxpr: core.Jaxpr, carried: tuple[int, int] | None = None) -> float:
        """Seconds of one run; of the body of a scan, with how many inputs and results are not of one trip only."""
        flat = Inlined(jaxpr)
        fusion = Fusing(flat)
        flops, moved, kernels = 0, _Copies(), 0.0
        if carried is not None:
            kernels += sum(runtime(0, 2 * flat.bytes[value], self._chip) for value in fusion.copied(*carried))
        for op in flat.ops:
            if op.equation is None or moved.add(op, flat.bytes):
                fusion.write(op)
            elif is_body(op.equation):
                kernels += self._of_body(op)
                fusion.write(op)
            elif is_kernel(op.equation):
                kernels += self._of_kernel(op, flat.bytes)
                fusion.write(op)
            elif is_reduction(op.equation):
                kernels += runtime(equation_flops(op.equation), fusion.write(op), self._chip)
            else:
                flops += equation_flops(op.equation)
                kernels += sum(runtime(0, each, self._chip) for each in fusion.fuse(op))
        return max(kernels + flops / self._chip.flops_per_second, moved.most / self._link.bandwidth)

    def _of_kernel(self, op: Op, sizes: Sequence[int]) -> float:
        written = sum(sizes[value] for value in op.results)
        moved = bytes_moved(op.equation, [sizes[value] for value in op.values], written)
        return runtime(equation_flops(op.equation), moved, self._chip)

    def _of_body(self, op: Op) -> float:
        """Seconds of an equation with inner jaxprs that run."""
        params = op.equation.params
        scan = op.equation.primitive.name == "scan"
        carried = (params["num_consts"] + params["num_carry"], params["num_carry"]) if scan else None
        bodies = {key: Work(0, self._of_inner(jaxpr, carried), 0) for key, jaxpr in inner_jaxprs(params).items()}
        literals = [operand.val if isinstance(operand, core.Literal) else None for operand in op.operands]
        return inner_work(op.equation, bodies, literals).runtime

    def _of_inner(self, inner: Any, carried: tuple[int, int] | None) -> float:
        if id(inner) not in self._bodies:
            jaxpr = inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner
            self._bodies[id(inner)] = inner, self.seconds(jaxpr, carried)
        return self._bodies[id(inner)][1]


class _Copies:
    """Bytes to the host and back."""

    def __init__(self) -> None:
        self._bytes = {True: 0, False: 0}

    def add(self, op: Op, sizes: Sequence[int]) -> bool:
        """Counts an op if it is such a copy; whether it is."""
        if op.equation.primitive.name != "device_put":
            return False
        for before, after, value in zip(op.equation.invars, op.equation.outvars, op.results, strict=True):
            if _on_host(before) != _on_host(after):
                self._bytes[_on_host(after)] += sizes[value]
        return True

    @property
    def most(self) -> int:
        """Of the two ways."""
        return max(self._bytes.values())


def _on_host(atom: Any) -> bool:
    return getattr(getattr(atom.aval, "memory_space", None), "name", "") == "Host"
