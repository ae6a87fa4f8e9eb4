"""What instructions take on a CPU, in seconds of one modest core pair.

Only ratios count: which part of a program's run time is spent again. `roofline` has all arithmetic run at one rate,
which on CPUs it does not: matrix products use the vector units fully, a transcendental function takes XLA some twenty
additions, a transposition waits for memory. The rates are round figures from a profile of EfficientNetB0's training
step on two cores of a cloud machine: 6.6 s estimated, 7.5 s measured, the loops among it 0.8 s and 0.75 s.
"""

from graphrl.graphs.readers.hlo.flops import Flops, trip_count
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.values import CONTRACTED
from graphrl.graphs.readers.hlo.work import CALLERS, bytes_moved

_LAUNCH = 2e-6  # seconds
_BYTES = 10e9  # a second
_PRODUCTS = 40e9  # FLOP/s of products and convolutions
_SIMPLE = 4e9  # other operations a second
_SLOW = 4e-9  # seconds for each element of a transcendental or a transposition

_SLOW_OPCODES = frozenset(
    str.split(
        """
        atan2 cbrt cosine divide erf exponential exponential-minus-one log log-plus-one logistic power remainder rsqrt
        sine sqrt tan tanh transpose
        """
    )
)
_PRODUCT_OPCODES = frozenset(("convolution", "custom-call", "dot"))


class RunTimes:
    """Seconds that instructions of a module take."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._flops = Flops(module)
        self._runs: dict[str, float] = {}  # by computation
        self._seconds: dict[tuple[str, str], float] = {}  # by computation and instruction

    def of(self, i: Instruction, computation: Computation | None = None) -> float:
        """Seconds of one instruction of a computation, by default of the entry."""
        computation = computation or self._module.entry
        key = computation.name, i.name
        if key not in self._seconds:
            self._seconds[key] = self._of(computation, i)
        return self._seconds[key]

    def of_moving(self, size: int) -> float:
        """Seconds of reading and writing so many bytes."""
        return _LAUNCH + 2 * size / _BYTES

    def of_computation(self, name: str) -> float:
        """Seconds of one run of a computation."""
        if name not in self._runs:
            computation = self._module.computations[name]
            instructions = (i for i in computation.instructions if i.opcode not in CONTRACTED)
            self._runs[name] = sum(self._of(computation, i) for i in instructions)
        return self._runs[name]

    def _of(self, computation: Computation, i: Instruction) -> float:
        if i.opcode in CALLERS:
            seconds = [self.of_computation(name) for name in i.called]
            if i.opcode == "conditional":
                return max(seconds)
            return sum(seconds) * (trip_count(i) if i.opcode == "while" else 1)
        slow, products = self._inside(computation, i)
        simple = 0 if products else self._flops.of(computation, i)
        moved = bytes_moved(self._module, computation, i)
        return _LAUNCH + moved / _BYTES + simple / _SIMPLE + products / _PRODUCTS + slow * _SLOW

    def _inside(self, computation: Computation, i: Instruction) -> tuple[int, int]:
        """Elements of slow operations, and FLOPs of products, with what is fused."""
        if i.opcode == "fusion":
            body = self._module.computations[i.called[0]]
            parts = [self._inside(body, inner) for inner in body.instructions]
            return sum(slow for slow, _ in parts), sum(products for _, products in parts)
        slow = i.shape.size if i.opcode in _SLOW_OPCODES else 0
        return slow, self._flops.of(computation, i) if i.opcode in _PRODUCT_OPCODES else 0
