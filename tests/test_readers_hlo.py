"""Graphs of XLA modules: hand-written programs whose graphs one can reason out, by the names of their instructions.

`f32[256]` is a KiB.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from broken import refusal

from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import Op, Tensor
from graphrl.graphs.readers.hlo import HloProgram, read_hlo
from graphrl.graphs.roofline import Chip

KIB = 1024
CHIP = Chip("unit", 1.0, 1e30)  # the run time in seconds is the number of operations

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


def of(program: HloProgram, name: str) -> Op:
    """The op of that name."""
    return next(op for op in program.graph.ops if op.name == name)


def peak(program: HloProgram, order: Sequence[int] | None = None) -> int:
    """Exact peak of an order, by default XLA's."""
    chosen = program.schedule if order is None else np.asarray(order)
    problem = Problem(devices=1, objective="peak_memory")
    return evaluate(program.graph, problem, np.zeros(len(chosen), int), chosen).peak_memory[0]


def test_views_are_seen_through_and_results_cost_nothing() -> None:
    program = read_hlo(VIEWS, chip=CHIP)
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
    program = read_hlo(VIEWS)
    assert program.schedule.tolist() == [0, 1, 2]
    assert program.sequence([0, 2, 1]) == (
        *("p", "q", "flat", "pair", "first", "second", "square", "last", "turned", "result"),
    )


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([0, 1], "must hold each of its 3 ops once"),
        ([0, 1, 1], "must hold each of its 3 ops once"),
        ([0.0, 1.0, 2.0], "must hold each of its 3 ops once"),
        ([1, 0, 2], "the order has 'turned' before what it waits for"),
    ],
)
def test_what_is_no_order_gives_no_sequence(order: list[int], says: str) -> None:
    assert says in refusal(lambda: read_hlo(VIEWS).sequence(order))


LOOP = """
HloModule loop, is_scheduled=true

%body (s: (s32[], f32[256], f32[512])) -> (s32[], f32[256], f32[512]) {
  %s = (s32[], f32[256]{0}, f32[512]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[256]{0} get-tuple-element(%s), index=1
  %table = f32[512]{0} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %part = f32[256]{0} slice(%table), slice={[0:256]}
  %wide = f32[1024]{0} concatenate(%part, %x, %part, %x), dimensions={0}
  %narrow = f32[256]{0} slice(%wide), slice={[5:261]}
  %new = f32[256]{0} add(%narrow, %x)
  ROOT %t = (s32[], f32[256]{0}, f32[512]{0}) tuple(%next, %new, %table)
}

%condition (s.1: (s32[], f32[256], f32[512])) -> pred[] {
  %s.1 = (s32[], f32[256]{0}, f32[512]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%i.1, %ten), direction=LT
}

ENTRY %main (p: f32[256], table: f32[512]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %table.1 = f32[512]{0} parameter(1)
  %zero = s32[] constant(0)
  %count = s32[] copy(%zero)
  %start = f32[256]{0} negate(%p)
  %init = (s32[], f32[256]{0}, f32[512]{0}) tuple(%count, %start, %table.1)
  %while = (s32[], f32[256]{0}, f32[512]{0}) while(%init), condition=%condition, body=%body, CONFIG
  %x.1 = f32[256]{0} get-tuple-element(%while), index=1
  ROOT %end = f32[256]{0} negate(%x.1)
}
""".replace("CONFIG", 'backend_config={"known_trip_count":{"n":"10"}}')


def test_a_loop_works_in_place_and_its_body_is_workspace() -> None:
    loop = of(read_hlo(LOOP, chip=CHIP), "while")
    assert loop.inputs == ("count", "start", "table.1")
    assert loop.outputs == (
        Tensor("while{0}", 4, alias="count"),
        Tensor("while{1}", KIB, alias="start"),
        Tensor("while{2}", 2 * KIB, alias="table.1"),
    )
    # `wide` (4 KiB) and `part`, or `narrow`; what the body gives lies in the loop's buffers.
    assert loop.workspace_bytes == 5 * KIB
    assert loop.flops == 10 * (1 + 256 + 1)
    assert loop.runtime == 10 * (1 + 256 + 1)
    assert peak(read_hlo(LOOP)) == KIB + 4 + 5 * KIB


def test_a_loop_of_unknown_length_counts_once() -> None:
    text = LOOP.replace(', backend_config={"known_trip_count":{"n":"10"}}', "")
    assert of(read_hlo(text), "while").flops == 1 + 256 + 1


def test_a_loop_that_would_change_a_parameter_has_a_buffer_of_its_own() -> None:
    text = LOOP.replace("tuple(%count, %start, %table.1)", "tuple(%count, %p, %table.1)")
    loop = of(read_hlo(text), "while")
    assert loop.outputs[1] == Tensor("while{1}", KIB)
    assert loop.outputs[2] == Tensor("while{2}", 2 * KIB, alias="table.1")
    donated = text.replace("is_scheduled=true", "is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }")
    assert of(read_hlo(donated), "while").outputs[1] == Tensor("while{1}", KIB, alias="p")


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
    program = read_hlo(UPDATE)
    outputs = {op.name: op.outputs[0] for op in program.graph.ops}
    assert outputs["first"] == Tensor("first", KIB, alias="sine")
    assert outputs["second"] == Tensor("second", KIB, alias="first")
    # `second` is read again by the product, `other` by nobody else.
    assert outputs["sum"] == Tensor("sum", KIB, reuses="other")
    assert outputs["product"] == Tensor("product", KIB, reuses="sum")
    assert outputs["end"] == Tensor("end", 0)
    assert peak(program) == 2 * KIB


def test_a_tensor_in_the_buffer_of_a_result_costs_nothing() -> None:
    text = UPDATE.replace("  ROOT %end = f32[256]{0} reverse(%product), dimensions={0}\n", "")
    text = text.replace("  %second = ", "  ROOT %second = ")
    text = text.replace("%sum", "%unused")
    text = text[: text.index("  %product")] + "}\n"
    program = read_hlo(text)
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
    program = read_hlo(CONTROL)
    assert {op.name: op.after for op in program.graph.ops} == {
        "a": (),
        "b": ("a",),
        "c": ("b",),
        "d": ("c",),
        "sum": (),
    }
    assert program.graph.outputs == ("sum",)


BRANCH = """
HloModule branch, is_scheduled=true

%small (x: f32[256]) -> f32[256] {
  %x = f32[256]{0} parameter(0)
  ROOT %negative = f32[256]{0} negate(%x)
}

%large (y: f32[256]) -> f32[256] {
  %y = f32[256]{0} parameter(0)
  %two = f32[512]{0} concatenate(%y, %y), dimensions={0}
  %sine = f32[512]{0} sine(%two)
  ROOT %part = f32[256]{0} slice(%sine), slice={[1:257]}
}

%through (z: f32[256], w: f32[256]) -> (f32[256], f32[256]) {
  %z = f32[256]{0} parameter(0)
  %w = f32[256]{0} parameter(1)
  %cosine = f32[256]{0} cosine(%z)
  ROOT %both = (f32[256]{0}, f32[256]{0}) tuple(%w, %cosine)
}

ENTRY %main (which: pred[], p: f32[256]) -> f32[256] {
  %which = pred[] parameter(0)
  %p = f32[256]{0} parameter(1)
  %a = f32[256]{0} tan(%p)
  %choice = f32[256]{0} conditional(%which, %a, %a), true_computation=%small, false_computation=%large
  %called = (f32[256]{0}, f32[256]{0}) call(%choice, %a), to_apply=%through
  %c = f32[256]{0} get-tuple-element(%called), index=0
  %d = f32[256]{0} get-tuple-element(%called), index=1
  ROOT %end = f32[512]{0} concatenate(%c, %d), dimensions={0}
}
""".replace("-> f32[256] {\n  %which", "-> f32[512] {\n  %which")


def test_branches_and_calls() -> None:
    program = read_hlo(BRANCH, chip=CHIP)
    choice, called = of(program, "choice"), of(program, "called")
    assert choice.inputs == ("which", "a")
    assert choice.outputs[0].bytes == KIB
    assert choice.workspace_bytes == 2 * KIB  # `sine` over `two`
    assert (choice.flops, choice.runtime) == (512, 512.0)
    # What a call passes on is where it was; what it computes has a buffer of its own.
    assert called.outputs == (Tensor("called{0}", KIB, alias="a"), Tensor("called{1}", KIB))
    assert (called.workspace_bytes, called.flops) == (0, 256)


CALLED_LOOP = """
HloModule called, is_scheduled=true

%more (s: (s32[], f32[256])) -> pred[] {
  %s = (s32[], f32[256]{0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant(9)
  ROOT %less = pred[] compare(%n, %end), direction=LT
}

%step (t: (s32[], f32[256])) -> (s32[], f32[256]) {
  %t = (s32[], f32[256]{0}) parameter(0)
  %m = s32[] get-tuple-element(%t), index=0
  %v = f32[256]{0} get-tuple-element(%t), index=1
  %sine = f32[256]{0} sine(%v)
  %next = s32[] negate(%m)
  ROOT %both = (s32[], f32[256]{0}) tuple(%next, %sine)
}

%loop (u: (s32[], f32[256])) -> (s32[], f32[256]) {
  %u = (s32[], f32[256]{0}) parameter(0)
  ROOT %while = (s32[], f32[256]{0}) while(%u), condition=%more, body=%step
}

ENTRY %main (p: f32[256], i: s32[]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %i = s32[] parameter(1)
  %j = s32[] negate(%i)
  %a = f32[256]{0} cosine(%p)
  %state = (s32[], f32[256]{0}) tuple(%j, %a)
  %called = (s32[], f32[256]{0}) call(%state), to_apply=%loop
  %b = f32[256]{0} get-tuple-element(%called), index=1
  ROOT %c = f32[256]{0} tan(%b)
}
"""


def test_a_called_loop_works_in_the_buffers_of_its_operands() -> None:
    program = read_hlo(CALLED_LOOP, chip=CHIP)
    called = of(program, "called")
    assert [(tensor.bytes, tensor.alias) for tensor in called.outputs] == [(4, "j"), (KIB, "a")]


PAIR = """
HloModule pair, is_scheduled=true

ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %a = f32[256]{0} sine(%p)
  %start = (f32[256]{0}, f32[256]{0}, u32[]) copy-start(%a)
  %b = f32[256]{0} cosine(%p)
  %done = f32[256]{0} copy-done(%start)
  %sum = f32[256]{0} add(%b, %done)
  ROOT %end = f32[256]{0} reverse(%sum), dimensions={0}
}
"""


def test_an_asynchronous_operation_holds_its_operands_until_its_end() -> None:
    program = read_hlo(PAIR)
    start, done = of(program, "start"), of(program, "done")
    assert start.inputs == ("a",)
    assert start.outputs == (Tensor("start{0}", KIB), Tensor("start{2}", 4))
    assert done.inputs == ("start{0}", "a", "start{2}")
    assert done.outputs == (Tensor("done", KIB, alias="start{0}"),)
    assert of(program, "sum").inputs == ("b", "done")
    # a, its copy and b at once; then the sum over b
    assert peak(program) == 3 * KIB + 4
    early = [op.name for op in program.graph.ops]
    order = [early.index(name) for name in ("a", "start", "done", "b", "sum", "end")]
    assert peak(program, order) == 2 * KIB + 4


WRAPPED = """
HloModule wrapped, is_scheduled=true

%work (x: f32[256], y: f32[256]) -> f32[256] {
  %x = f32[256]{0} parameter(0)
  %y = f32[256]{0} parameter(1)
  %two = f32[512]{0} concatenate(%x, %y), dimensions={0}
  ROOT %part = f32[256]{0} slice(%two), slice={[1:257]}
}

ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %a = f32[256]{0} sine(%p)
  %start = ((f32[256]{0}, f32[256]{0}), f32[256]{0}) async-start(%a, %p), calls=%work
  %b = f32[256]{0} cosine(%p)
  %done = f32[256]{0} async-done(%start)
  %sum = f32[256]{0} add(%b, %done)
  ROOT %end = f32[256]{0} reverse(%sum), dimensions={0}
}
"""


def test_an_asynchronous_call() -> None:
    program = read_hlo(WRAPPED)
    start, done = of(program, "start"), of(program, "done")
    assert start.outputs == (Tensor("start{1}", KIB),)
    assert start.workspace_bytes == 2 * KIB
    assert done.inputs == ("a", "p", "start{1}")
    assert done.outputs == (Tensor("done", KIB, alias="start{1}"),)


CUSTOM = """
HloModule custom, is_scheduled=true

ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %a = f32[256]{0} sine(%p)
  %call = (f32[256]{0}, f32[8]{0}) custom-call(%p, %a), custom_call_target="solve", ALIASES
  %x = f32[256]{0} get-tuple-element(%call), index=0
  ROOT %end = f32[256]{0} reverse(%x), dimensions={0}
}
""".replace("ALIASES", "output_to_operand_aliasing={{0}: (1, {})}")


def test_custom_calls_that_write_over_an_operand() -> None:
    assert of(read_hlo(CUSTOM), "call").outputs == (Tensor("call{0}", KIB, alias="a"), Tensor("call{1}", 32))


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
    program = read_hlo(TOKENS)
    assert of(program, "in").outputs == (Tensor("in{0}", KIB), Tensor("in{1}", 0))
    assert of(program, "out").inputs == ("in{0}", "in{1}", "in.1{1}")
    assert (of(program, "end").inputs, of(program, "end").after) == (("p",), ("out",))


def test_ops_of_an_unscheduled_module_stand_in_a_topological_order() -> None:
    program = read_hlo(CONTROL.replace(", is_scheduled=true", ""))
    assert not program.module.schedule
    assert [op.name for op in program.graph.ops] == ["a", "b", "c", "d", "sum"]
    assert program.sequence(program.schedule)[-1] == "end"


def test_a_module_that_only_passes_on_has_nothing_to_plan() -> None:
    text = "HloModule idle\nENTRY %main (p: f32[4]) -> f32[4] {\n  ROOT %p = f32[4]{0} parameter(0)\n}\n"
    assert refusal(lambda: read_hlo(text)) == "HLO: graph 'idle' has no ops: there is nothing to plan"


def test_an_unknown_chip_is_refused() -> None:
    with pytest.raises(GraphrlError, match="unknown chip 'abacus'"):
        read_hlo(VIEWS, chip="abacus")
