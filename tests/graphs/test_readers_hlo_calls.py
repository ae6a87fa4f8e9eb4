"""Compiled HLO as graphs: loops, branches, calls, asynchronous and custom ones."""

from hlo_programs import CHIP, KIB, of, peak, program_of

from graphrl.graphs.graph import Tensor

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
    loop = of(program_of(LOOP, chip=CHIP), "while")
    assert loop.inputs == ("count", "start", "table.1")
    assert loop.outputs == (
        Tensor("while{0}", 4, alias="count"),
        Tensor("while{1}", KIB, alias="start"),
        Tensor("while{2}", 2 * KIB, alias="table.1"),
    )
    # `wide` (4 KiB) and `part`, or `narrow`; the body's results are in the loop's buffers.
    assert loop.workspace_bytes == 5 * KIB
    assert loop.flops == 10 * (1 + 256 + 1)
    assert loop.runtime == 10 * (1 + 256 + 1)
    assert peak(program_of(LOOP)) == KIB + 4 + 5 * KIB


def test_a_loop_of_unknown_length_counts_once() -> None:
    text = LOOP.replace(', backend_config={"known_trip_count":{"n":"10"}}', "")
    assert of(program_of(text), "while").flops == 1 + 256 + 1


def test_a_loop_that_would_change_a_parameter_has_a_buffer_of_its_own() -> None:
    text = LOOP.replace("tuple(%count, %start, %table.1)", "tuple(%count, %p, %table.1)")
    loop = of(program_of(text), "while")
    assert loop.outputs[1] == Tensor("while{1}", KIB)
    assert loop.outputs[2] == Tensor("while{2}", 2 * KIB, alias="table.1")
    donated = text.replace("is_scheduled=true", "is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }")
    assert of(program_of(donated), "while").outputs[1] == Tensor("while{1}", KIB, alias="p")


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
    program = program_of(BRANCH, chip=CHIP)
    choice, called = of(program, "choice"), of(program, "called")
    assert choice.inputs == ("which", "a")
    assert choice.outputs[0].bytes == KIB
    assert choice.workspace_bytes == 2 * KIB  # `sine` over `two`
    assert (choice.flops, choice.runtime) == (512, 512.0)
    # A value that a call passes on stays in its buffer; a value that it computes has a separate buffer.
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
    program = program_of(CALLED_LOOP, chip=CHIP)
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
    program = program_of(PAIR)
    start, done = of(program, "start"), of(program, "done")
    assert start.inputs == ("a",)
    assert start.outputs == (Tensor("start{0}", KIB), Tensor("start{2}", 4))
    assert done.inputs == ("start{0}", "a", "start{2}")
    assert done.outputs == (Tensor("done", KIB, alias="start{0}"),)
    assert of(program, "sum").inputs == ("b", "done")
    # a, its copy and b together; then the sum over b
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
    program = program_of(WRAPPED)
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
    assert of(program_of(CUSTOM), "call").outputs == (Tensor("call{0}", KIB, alias="a"), Tensor("call{1}", 32))
