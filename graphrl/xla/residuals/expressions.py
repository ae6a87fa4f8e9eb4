"""Which values of a computation are the same: numbered by what computes them, across the fusions that do.

XLA fuses one expression into many places. A **reference** (fusion, instruction) is an instruction inside of a fusion,
or ("", instruction) one of the computation itself; those of one **number** have the same bits (value numbering, Alpern,
Wegman and Zadeck 1988). LLVM may contract a product and a sum to one operation with one rounding, and whether it does
depends on what else is in the fusion: such a sum is only the same as itself.
"""

from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.xla.recompute.candidates import CHEAP

Reference = tuple[str, str]

# What says where an instruction stands, and not what it computes.
_PLACE = str.split(
    "name metadata id operand_ids control_predecessor_ids called_computation_ids frontend_attributes statistics_viz "
    "original_value"
)
_KNOWN = CHEAP | {"bitcast", "constant"}
# Products, and what XLA makes of them ends in one. By a power of two, too: one too small or too large for a normal
# number is another inside of a contracted sum.
_PRODUCTS = frozenset(("multiply", "erf", "power"))
# These hand on a product as it is, so that it may be contracted with a sum behind them.
_MOVING = frozenset(
    str.split(
        "bitcast broadcast concatenate convert copy dynamic-slice negate pad reshape reverse select slice transpose"
    )
)
# These round what they are given, whatever it is made of.
_ROUNDING = frozenset(str.split("abs clamp compare divide maximum minimum multiply sign")) | _MOVING


class Expressions:
    """The numbers of a computation's values.

    Attributes:
      number: by reference.
      contracted: references of what may be contracted with a product, and is like nothing else.
      products: references inside of fusions of what may be contracted with a sum.
    """

    def __init__(self, module: HloModule, computation: Computation) -> None:
        self.module, self.computation = module, computation
        self.number: dict[Reference, int] = {}
        self.contracted: set[Reference] = set()
        self.products: set[Reference] = set()
        self._numbers: dict[object, int] = {}
        for i in computation.instructions:
            if i.opcode == "fusion" and i.attributes.fusion_kind == "kLoop":
                self._add_fusion(i)
                self.number["", i.name] = self.number[i.name, self.inside(i.name).root.name]
            else:
                known = i.opcode in _KNOWN or i.opcode == "get-tuple-element"
                self.number["", i.name] = self._of(i, "") if known else self._new(("", i.name))

    def inside(self, fusion: str) -> Computation:
        """What a fusion computes."""
        return self.module.computations[self.computation.by_name[fusion].called[0]]

    def instruction(self, reference: Reference) -> Instruction:
        """What a reference refers to."""
        scope, name = reference
        return (self.inside(scope) if scope else self.computation).by_name[name]

    def origin(self, reference: Reference) -> Reference:
        """The same value where it is computed: behind parameters of fusions, and inside of a fusion."""
        while True:
            scope, name = reference
            i = self.instruction(reference)
            if scope and i.opcode == "parameter":
                reference = "", self.computation.by_name[scope].operands[i.attributes.parameter_number]
            elif not scope and i.opcode == "fusion" and i.attributes.fusion_kind == "kLoop":
                reference = name, self.inside(name).root.name
            else:
                return reference

    def operands(self, reference: Reference) -> list[Reference]:
        """What an instruction reads."""
        return [(reference[0], name) for name in self.instruction(reference).operands]

    def is_parameter(self, reference: Reference) -> bool:
        """Whether it is a parameter of a fusion."""
        return bool(reference[0]) and self.instruction(reference).opcode == "parameter"

    def _add_fusion(self, fusion: Instruction) -> None:
        for i in self.module.computations[fusion.called[0]].instructions:
            own = fusion.name, i.name
            if i.opcode == "parameter":
                self.number[own] = self.number["", fusion.operands[i.attributes.parameter_number]]
                continue
            of_product = any((fusion.name, name) in self.products for name in i.operands)
            if i.opcode in _PRODUCTS or (of_product and i.opcode in _MOVING):
                self.products.add(own)
            if i.opcode not in _KNOWN or (of_product and i.opcode not in _ROUNDING):
                self.contracted.add(own)
                self.number[own] = self._new(own)
            else:
                self.number[own] = self._of(i, fusion.name)

    def _of(self, i: Instruction, scope: str) -> int:
        kept = type(i.attributes)()
        kept.CopyFrom(i.attributes)
        for field in _PLACE:
            kept.ClearField(field)
        operands = tuple(self.number[scope, name] for name in i.operands)
        return self._new((kept.SerializeToString(deterministic=True), operands))

    def _new(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
