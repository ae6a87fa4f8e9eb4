"""Operands that an instruction may overwrite in place, on minimal modules."""

import pytest
from hlo_programs import module_of

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.graphs.readers.hlo.values import InPlace, in_place_pairs, may_share

_FUSIONS = """
add_one { p = f32[8,4]{1,0} parameter(0)  q = f32[8,4]{1,0} parameter(1)  e = f32[8,4]{1,0} exponential(p)
  ROOT r = f32[8,4]{1,0} add(e, q) }
transposed { p = f32[4,4]{1,0} parameter(0)  q = f32[4,4]{1,0} parameter(1)
  t = f32[4,4]{1,0} transpose(p), dimensions={1,0}  ROOT r = f32[4,4]{1,0} add(t, q) }
reshaped { p = f32[8,4]{1,0} parameter(0)  b = f32[32]{0} bitcast(p)  e = f32[32]{0} exponential(b)
  ROOT r = f32[8,4]{1,0} bitcast(e) }
both { p = f32[8,4]{1,0} parameter(0)  q = f32[8,4]{1,0} parameter(1)  e = f32[8,4]{1,0} exponential(p)
  m = f32[8,4]{1,0} multiply(e, q)  ROOT t = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(e, m) }
updated { p = f32[8,4]{1,0} parameter(0)  q = f32[1,4]{1,0} parameter(1)  i = s32[] parameter(2)
  n = f32[1,4]{1,0} negate(q)  z = s32[] constant(0)
  ROOT r = f32[8,4]{1,0} dynamic-update-slice(p, n, i, z) }
changed_first { p = f32[8,4]{1,0} parameter(0)  q = f32[1,4]{1,0} parameter(1)  i = s32[] parameter(2)
  n = f32[8,4]{1,0} negate(p)  z = s32[] constant(0)
  ROOT r = f32[8,4]{1,0} dynamic-update-slice(n, q, i, z) }
product { p = f32[4,4]{1,0} parameter(0)  q = f32[4,4]{1,0} parameter(1)  b = f32[4,4]{1,0} parameter(2)
  d = f32[4,4]{1,0} dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[4,4]{1,0} add(d, b) }
summed { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
smaller { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=LT }
smaller_pair { a = f32[] parameter(0)  b = f32[] parameter(1)  c = s32[] parameter(2)  d = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT }
"""

# name of the instruction, its line, which of its operands (and which parts of its result) it may overwrite
_CASES = {
    "element by element": ("x = f32[8,4]{1,0} multiply(a, b)", {(0, ()), (1, ())}),
    "same operand twice": ("x = f32[8,4]{1,0} multiply(a, a)", {(0, ()), (1, ())}),
    "other type": ("x = s32[8,4]{1,0} convert(a)", set()),
    "other layout": ("x = f32[8,4]{0,1} negate(a)", set()),
    "reduction": ("x = f32[8]{0} reduce(a, zero), dimensions={1}, to_apply=summed", set()),
    "product": ("x = f32[4,4]{1,0} dot(s, s), lhs_contracting_dims={1}, rhs_contracting_dims={0}", set()),
    "constant": ("x = f32[] negate(zero)", set()),
    "loop fusion": ("x = f32[8,4]{1,0} fusion(a, b), kind=kLoop, calls=add_one", {(0, ()), (1, ())}),
    "custom fusion": ("x = f32[8,4]{1,0} fusion(a, b), kind=kCustom, calls=add_one", {(0, ()), (1, ())}),
    "transpose inside": ("x = f32[4,4]{1,0} fusion(s, u), kind=kLoop, calls=transposed", {(1, ())}),
    "bitcast inside": ("x = f32[8,4]{1,0} fusion(a), kind=kLoop, calls=reshaped", set()),
    "two results": (
        "x = (f32[8,4]{1,0}, f32[8,4]{1,0}) fusion(a, b), kind=kLoop, calls=both",
        {(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))},
    ),
    "dot and sum": ("x = f32[4,4]{1,0} fusion(s, s, u), kind=kOutput, calls=product", {(2, ())}),
    "update": ("x = f32[8,4]{1,0} dynamic-update-slice(a, row, i, i)", {(0, ())}),
    "update in a fusion": ("x = f32[8,4]{1,0} fusion(a, row, i), kind=kLoop, calls=updated", {(0, ())}),
    "change before the update": ("x = f32[8,4]{1,0} fusion(a, row, i), kind=kLoop, calls=changed_first", {(0, ())}),
    "sort": ("x = f32[8,4]{1,0} sort(a), dimensions={1}, to_apply=smaller", {(0, ())}),
    "sort of pairs": (
        "x = (f32[8,4]{1,0}, s32[8,4]{1,0}) sort(a, k), dimensions={1}, to_apply=smaller_pair",
        {(0, (0,)), (1, (1,))},
    ),
    "slice": ("x = f32[1,4]{1,0} slice(row), slice={[0:1], [0:4]}", set()),
}


def _module(line: str) -> HloModule:
    return module_of(f"""HloModule case
{_FUSIONS}
ENTRY main {{
  a = f32[8,4]{{1,0}} parameter(0)
  b = f32[8,4]{{1,0}} parameter(1)
  s = f32[4,4]{{1,0}} parameter(2)
  u = f32[4,4]{{1,0}} parameter(3)
  row = f32[1,4]{{1,0}} parameter(4)
  i = s32[] parameter(5)
  k = s32[8,4]{{1,0}} parameter(6)
  zero = f32[] constant(0)
  ROOT {line}
}}
""")


@pytest.mark.parametrize("case", _CASES)
def test_which_operands_may_be_overwritten(case: str) -> None:
    line, expected = _CASES[case]
    module = _module(line)
    x = module.entry.root
    leaves = [index for index, _ in x.shape.leaves]
    pairs = {
        (k, leaf) for k in range(len(x.operands)) for leaf in leaves if may_share(module, module.entry, x, k, (), leaf)
    }
    assert pairs == expected


def test_a_sort_does_not_overwrite_what_others_read() -> None:
    module = module_of("""HloModule case
smaller { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=LT }
ENTRY main { a = f32[8]{0} parameter(0)  x = f32[8]{0} sort(a), dimensions={0}, to_apply=smaller
  ROOT r = f32[8]{0} add(x, a) }""")
    assert not may_share(module, module.entry, module.entry.by_name["x"], 0)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("element by element", ()),
        ("update", (InPlace(0, (), ()),)),
        ("update in a fusion", (InPlace(0, (), ()),)),
        ("change before the update", ()),
        ("two results", ()),
    ],
)
def test_what_must_be_overwritten(case: str, expected: tuple[InPlace, ...]) -> None:
    module = _module(_CASES[case][0])
    assert in_place_pairs(module, module.entry.root) == expected


def test_a_scatter_overwrites_all_of_its_arrays() -> None:
    module = module_of("""HloModule case
pick { a = f32[] parameter(0)  b = s32[] parameter(1)  c = f32[] parameter(2)  d = s32[] parameter(3)
  ROOT r = (f32[], s32[]) tuple(c, d) }
ENTRY main {
  f = f32[9]{0} parameter(0)  g = s32[9]{0} parameter(1)  at = s32[3,1]{1,0} parameter(2)
  fs = f32[3]{0} parameter(3)  gs = s32[3]{0} parameter(4)
  ROOT x = (f32[9]{0}, s32[9]{0}) scatter(f, g, at, fs, gs), to_apply=pick, update_window_dims={},
    inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1
}""")
    assert in_place_pairs(module, module.entry.root) == (InPlace(0, (), (0,)), InPlace(1, (), (1,)))
