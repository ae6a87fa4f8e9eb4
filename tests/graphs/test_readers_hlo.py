"""Compiled HLO as graphs: views, sequences, updates in place, control dependencies, orders."""

import pytest
from broken import refusal
from hlo_programs import CHIP, KIB, of, peak, program_of

from graphrl.errors import GraphrlError
from graphrl.graphs.graph import Op, Tensor

VIEWS = """
HloModule views, is_scheduled=true

%double (x: f32[256]) -> (f32[256], f32[256]) {
  %x = f32[256]{0} parameter(0)
  %sum = f32[256]{0} add(%x, %x)
  %product = f32[256]{0} multiply(%x, %x)
  ROOT %both = (f32[256]{0}, f32[256]{0}) tuple(%sum, %product)
}

ENTRY %main (p: f32[256], q: f32[16,16]) -> (f32[256], f32[16,16]) {
  %p = f32[256]{0} parameter(0)
  %q = f32[16,16]{1,0} parameter(1)
  %flat = f32[256]{0} bitcast(%q)
  %pair = (f32[256]{0}, f32[256]{0}) fusion(%p), kind=kLoop, calls=%double
  %first = f32[256]{0} get-tuple-element(%pair), index=0
  %second = f32[256]{0} get-tuple-element(%pair), index=1
  %square = f32[16,16]{1,0} bitcast(%first)
  %turned = f32[16,16]{1,0} transpose(%square), dimensions={1,0}
  %last = f32[256]{0} subtract(%second, %flat)
  ROOT %result = (f32[256]{0}, f32[16,16]{1,0}) tuple(%last, %turned)
}
"""


def test_views_are_seen_through_and_results_cost_nothing() -> None:
    program = program_of(VIEWS, chip=CHIP)
    assert program.graph.name == "views"
    assert program.graph.ops == (
        Op(
            "pair",
            "fusion",
            runtime=512.0,
            inputs=("p",),
            outputs=(Tensor("pair{0}", KIB), Tensor("pair{1}", KIB)),
            weight_bytes=KIB,
            flops=512,
        ),
        Op("turned", "transpose", 2 * KIB / 1e30, ("pair{0}",), (Tensor("turned", 0),)),
        Op(
            "last",
            "subtract",
            runtime=256.0,
            inputs=("pair{1}", "q"),
            outputs=(Tensor("last", 0),),
            weight_bytes=KIB,
            flops=256,
        ),
    )
    assert program.graph.inputs == (Tensor("p", KIB), Tensor("q", KIB))
    assert program.graph.outputs == ("last", "turned")
    assert peak(program) == 2 * KIB


def test_a_sequence_has_the_views_of_the_module_again() -> None:
    program = program_of(VIEWS)
    assert program.schedule.tolist() == [0, 1, 2]
    assert program.sequence([0, 2, 1]) == (
        *("p", "q", "flat", "pair", "first", "second", "square", "last", "turned", "result"),
    )


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        ([0, 1], "must have each of its 3 ops once"),
        ([0, 1, 1], "must have each of its 3 ops once"),
        ([0.0, 1.0, 2.0], "must have each of its 3 ops once"),
        ([1, 0, 2], "the order has 'turned' before what it waits for"),
    ],
)
def test_what_is_no_order_gives_no_sequence(order: list[int], fault: str) -> None:
    assert fault in refusal(lambda: program_of(VIEWS).sequence(order))


UPDATE = """
HloModule update, is_scheduled=true

%put (buffer: f32[256], value: f32[1], at: s32[]) -> f32[256] {
  %buffer = f32[256]{0} parameter(0)
  %value = f32[1]{0} parameter(1)
  %at = s32[] parameter(2)
  ROOT %put.1 = f32[256]{0} dynamic-update-slice(%buffer, %value, %at)
}

ENTRY %main (p: f32[256], v: f32[1], i: s32[]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %v = f32[1]{0} parameter(1)
  %i = s32[] parameter(2)
  %sine = f32[256]{0} sine(%p)
  %first = f32[256]{0} fusion(%sine, %v, %i), kind=kLoop, calls=%put
  %second = f32[256]{0} dynamic-update-slice(%first, %v, %i)
  %other = f32[256]{0} cosine(%p)
  %sum = f32[256]{0} add(%other, %second)
  %product = f32[256]{0} multiply(%sum, %second)
  ROOT %end = f32[256]{0} reverse(%product), dimensions={0}
}
"""


def test_updates_in_place_are_aliases_and_elementwise_ops_may_reuse() -> None:
    program = program_of(UPDATE)
    outputs = {op.name: op.outputs[0] for op in program.graph.ops}
    assert outputs["first"] == Tensor("first", KIB, alias="sine")
    assert outputs["second"] == Tensor("second", KIB, alias="first")
    # The product reads `second` again; nothing else reads `other`.
    assert outputs["sum"] == Tensor("sum", KIB, reuses="other")
    assert outputs["product"] == Tensor("product", KIB, reuses="sum")
    assert outputs["end"] == Tensor("end", 0)
    assert peak(program) == 2 * KIB


def test_a_tensor_in_the_buffer_of_a_result_costs_nothing() -> None:
    text = UPDATE.replace("  ROOT %end = f32[256]{0} reverse(%product), dimensions={0}\n", "")
    text = text.replace("  %second = ", "  ROOT %second = ")
    text = text.replace("%sum", "%unused")
    text = text[: text.index("  %product")] + "}\n"
    program = program_of(text)
    outputs = {op.name: op.outputs[0] for op in program.graph.ops}
    assert [outputs[name].bytes for name in ("sine", "first", "second")] == [0, 0, 0]
    assert outputs["unused"] == Tensor("unused", KIB, reuses="other")
    assert program.graph.outputs == ("second",)
    assert peak(program) == KIB


CONTROL = """
HloModule control, is_scheduled=true

ENTRY %main (p: f32[16,16]) -> f32[256] {
  %p = f32[16,16]{1,0} parameter(0)
  %a = f32[16,16]{1,0} sine(%p)
  %b = f32[16,16]{1,0} cosine(%p), control-predecessors={%a}
  %flat = f32[256]{0} bitcast(%p), control-predecessors={%b}
  %again = f32[16,16]{1,0} bitcast(%flat)
  %c = f32[16,16]{1,0} negate(%again)
  %shown = f32[256]{0} bitcast(%c)
  %d = f32[16,16]{1,0} tan(%p), control-predecessors={%shown}
  %sum = f32[16,16]{1,0} add(%d, %a)
  ROOT %end = f32[256]{0} bitcast(%sum)
}
"""


def test_control_dependencies_stay_also_through_views() -> None:
    program = program_of(CONTROL)
    assert {op.name: op.after for op in program.graph.ops} == {
        "a": (),
        "b": ("a",),
        "c": ("b",),
        "d": ("c",),
        "sum": (),
    }
    assert program.graph.outputs == ("sum",)


TOKENS = """
HloModule tokens, is_scheduled=true

ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %begin = token[] after-all()
  %in = (f32[256]{0}, token[]) infeed(%begin)
  %value = f32[256]{0} get-tuple-element(%in), index=0
  %ticket = token[] get-tuple-element(%in), index=1
  %in.1 = (f32[256]{0}, token[]) infeed(%begin)
  %ticket.1 = token[] get-tuple-element(%in.1), index=1
  %all = token[] after-all(%ticket, %ticket.1)
  %out = token[] outfeed(%value, %all), outfeed_shape=f32[256]{0}
  %late = f32[256]{0} add-dependency(%p, %out)
  ROOT %end = f32[256]{0} sine(%late)
}
"""


def test_tokens_order_ops_and_take_no_memory() -> None:
    program = program_of(TOKENS)
    assert of(program, "in").outputs == (Tensor("in{0}", KIB), Tensor("in{1}", 0))
    assert of(program, "out").inputs == ("in{0}", "in{1}", "in.1{1}")
    assert (of(program, "end").inputs, of(program, "end").after) == (("p",), ("out",))


def test_ops_of_an_unscheduled_module_stand_in_a_topological_order() -> None:
    program = program_of(CONTROL.replace(", is_scheduled=true", ""))
    assert not program.module.schedule
    assert [op.name for op in program.graph.ops] == ["a", "b", "c", "d", "sum"]
    assert program.sequence(program.schedule)[-1] == "end"


def test_a_module_that_only_passes_on_has_nothing_to_plan() -> None:
    text = "HloModule idle\nENTRY %main (p: f32[4]) -> f32[4] {\n  ROOT %p = f32[4]{0} parameter(0)\n}\n"
    assert refusal(lambda: program_of(text)) == "HLO: graph 'idle' has no ops: there is nothing to plan"


def test_an_unknown_chip_is_refused() -> None:
    with pytest.raises(GraphrlError, match="unknown chip 'abacus'"):
        program_of(VIEWS, chip="abacus")
