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
- an array of one number is not written for the scatters that update it: each fills a result of its own;
- what a scan takes from stacks for a kernel, and what it stacks of values that its body reads too, is copied;
- reshapes, transposes and names cost nothing.

A kernel takes `graphs.roofline.runtime` of its work; a fused group that of its bytes. Operations of fused equations
count once each at the chip's peak. Copies to the host and back take the link, each way by itself, beside the kernels,
one after another: out once the value is computed, back in the order in which copies are read, from the barrier on
behind which they are. What reads a copy before it is there waits, a barrier too, as does the end.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from graphrl.graphs.readers.jaxpr.work import bytes_moved, equation_flops, inner_jaxprs, inner_work, scan_operands
from graphrl.graphs.readers.work import Work
from graphrl.graphs.roofline import DEFAULT_CHIP, INTERCONNECTS, Chip, Interconnect, find_chip, runtime
from graphrl.xla.checkpoint.fusion import Fusing, Inlined, Op, Value, is_body, is_fused, is_kernel, is_reduction
from graphrl.xla.checkpoint.primitives import HOST_LINK


def gradient_seconds(closed: core.ClosedJaxpr, chip: str | Chip = DEFAULT_CHIP, link: str = HOST_LINK) -> float:
    """Seconds of a function, such as `jax.make_jaxpr(jax.value_and_grad(loss))(*args)`, on a chip.

    Args:
      closed: the function.
      chip: whose peak, bandwidth and launch time count.
      link: to the host, of `graphs.roofline`.

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
        copies = _Copies(self._link)
        if carried is not None:
            copies.now += sum(runtime(0, 2 * flat.bytes[value], self._chip) for value in fusion.copied(*carried))
        for op in flat.ops:
            if op.equation is None or not is_fused(op.equation) or is_reduction(op.equation):
                copies.wait(op)
            if op.equation is None or copies.begin(op, flat.bytes):
                fusion.write(op)
            elif is_body(op.equation):
                copies.now += self._of_body(op)
                fusion.write(op)
            elif is_kernel(op.equation):
                copies.now += self._of_kernel(op, flat.bytes)
                fusion.write(op)
            elif is_reduction(op.equation):
                copies.now += runtime(equation_flops(op.equation), fusion.write(op), self._chip)
            else:
                copies.now += equation_flops(op.equation) / self._chip.flops_per_second
                copies.fuse(op, bool(written := fusion.fuse(op)))
                copies.now += runtime(0, sum(written), self._chip) if written else 0.0
        return copies.end

    def _of_kernel(self, op: Op, sizes: Sequence[int]) -> float:
        written = sum(sizes[value] for value in op.results)
        moved = bytes_moved(op.equation, [sizes[value] for value in op.values], written)
        return runtime(equation_flops(op.equation), moved, self._chip)

    def _of_body(self, op: Op) -> float:
        """Seconds of an equation with inner jaxprs that run."""
        params = op.equation.params
        carried = None
        if op.equation.primitive.name == "scan":
            constants, carries = scan_operands(params)
            carried = (constants + carries, carries)
        bodies = {key: Work(0, self._of_inner(jaxpr, carried), 0) for key, jaxpr in inner_jaxprs(params).items()}
        literals = [operand.val if isinstance(operand, core.Literal) else None for operand in op.operands]
        return inner_work(op.equation, bodies, literals).runtime

    def _of_inner(self, inner: Any, carried: tuple[int, int] | None) -> float:
        if id(inner) not in self._bodies:
            jaxpr = inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner
            self._bodies[id(inner)] = inner, self.seconds(jaxpr, carried)
        return self._bodies[id(inner)][1]


class _Copies:
    """Copies to the host and back, beside what else runs.

    Attributes:
      now: seconds that have passed.
    """

    def __init__(self, link: Interconnect) -> None:
        self._link = link
        self.now = 0.0
        self._free = {True: 0.0, False: 0.0}  # when each way is: to the host, and back
        self._there: dict[Value, float] = {}  # when copies are
        self._asked: dict[Value, float] = {}  # when barriers let pass what is on the host
        self._back: dict[Value, tuple[float, int]] = {}  # copies that nothing has read yet: when asked for, and bytes
        self._behind: dict[Value, frozenset[Value]] = {}  # copies that are read on the way to a value

    @property
    def end(self) -> float:
        """When all is done."""
        return max(self.now, *self._free.values())

    def wait(self, op: Op) -> None:
        """Until what an op reads is there, but for what only copies it, which does so beside all else."""
        if op.equation is not None and _is_copy(op.equation):
            return
        for copy in dict.fromkeys(copy for value in op.values for copy in self._behind.get(value, (value,))):
            if copy in self._back:
                self._there[copy] = self._sent(False, *self._back.pop(copy))
            self.now = max(self.now, self._there.get(copy, 0.0))
        if op.equation is None:
            self._asked |= dict.fromkeys(op.results, self.now)

    def fuse(self, op: Op, is_written: bool) -> None:
        """Of an op that is fused into its readers: it waits only where it is written, else they do."""
        if is_written:
            self.wait(op)
        else:
            copies = frozenset(copy for value in op.values for copy in self._behind.get(value, (value,)))
            self._behind |= dict.fromkeys(op.results, copies & self._back.keys())

    def begin(self, op: Op, sizes: Sequence[int]) -> bool:
        """Begins the copies of an op if it is one; whether it is."""
        if not _is_copy(op.equation):
            return False
        places = zip(op.equation.invars, op.equation.outvars, op.operands, op.results, strict=True)
        for before, after, operand, value in places:
            if _on_host(after) and not _on_host(before):
                self._there[value] = self._sent(True, self.now, sizes[value])
            elif _on_host(before) and not _on_host(after) and isinstance(operand, Value):
                asked = max(self._asked.get(operand, 0.0), self._there.get(operand, 0.0))
                self._back[value] = asked, sizes[value]
        return True

    def _sent(self, out: bool, asked: float, size: int) -> float:
        """When a copy is there."""
        self._free[out] = max(self._free[out], asked) + size / self._link.bandwidth
        return self._free[out]


def _is_copy(equation: Any) -> bool:
    return equation.primitive.name == "device_put"


def _on_host(atom: Any) -> bool:
    return getattr(getattr(atom.aval, "memory_space", None), "name", "") == "Host"
