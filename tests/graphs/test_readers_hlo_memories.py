"""Compiled HLO with values in the host's memory or on a chip, and layouts with tiles."""

import pytest
from broken import refusal
from hlo_programs import CHIP, KIB, module_of, of, peak, program_of

from graphrl.graphs.graph import Tensor
from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.graphs.roofline import Chip

BYTE_A_SECOND = Chip("bytes", 1e30, 1.0)  # the run time in seconds is the number of bytes moved


def read(body: str, chip: Chip = CHIP) -> HloProgram:
    """The program of an entry computation, whose parameter `p` is 1 KiB on the device."""
    return program_of(
        f"HloModule m, is_scheduled=true\nENTRY e {{\n p = f32[256]{{0}} parameter(0)\n{body}\n}}", chip=chip
    )


COPIES = """
 a = f32[256]{0} sine(p)
 o = f32[256]{0:S(SPACE)} copy(a)
 n = f32[256]{0} cosine(p)
 r = f32[256]{0} reverse(n), dimensions={0}
 b = f32[256]{0} copy(o)
 ROOT y = f32[256]{0} add(r, b)
"""


@pytest.mark.parametrize(("space", "bytes", "most"), [(0, KIB, 3 * KIB), (5, 0, 2 * KIB), (1, KIB, 3 * KIB)])
def test_a_value_in_host_memory_takes_nothing_of_the_device(space: int, bytes: int, most: int) -> None:
    program = read(COPIES.replace("SPACE", str(space)))
    assert of(program, "o").outputs[0].bytes == bytes
    assert of(program, "b").outputs[0].bytes == KIB
    assert peak(program) == most


def test_a_copy_to_the_host_and_back_takes_the_time_of_its_bytes() -> None:
    program = read(COPIES.replace("SPACE", "5"), BYTE_A_SECOND)
    assert (of(program, "o").runtime, of(program, "b").runtime) == (2 * KIB, 2 * KIB)


ASYNCHRONOUS = """
 a = f32[256]{0} sine(p)
 out = (f32[256]{0:S(5)}, f32[256]{0}, u32[]) copy-start(a)
 o = f32[256]{0:S(5)} copy-done(out)
 n = f32[256]{0} cosine(p)
 back = (f32[256]{0}, f32[256]{0:S(5)}, u32[]) copy-start(o)
 b = f32[256]{0} copy-done(back)
 ROOT y = f32[256]{0} add(n, b)
"""


def test_asynchronous_copies_to_the_host_and_back() -> None:
    program = read(ASYNCHRONOUS)
    assert of(program, "out").outputs == (Tensor("out{0}", 0), Tensor("out{2}", 4))
    assert of(program, "o").outputs == (Tensor("o", 0, alias="out{0}"),)
    assert of(program, "back").outputs == (Tensor("back{0}", KIB), Tensor("back{2}", 4))
    assert of(program, "b").outputs == (Tensor("b", KIB, alias="back{0}"),)
    assert peak(program) == 2 * KIB + 4


def test_an_asynchronous_copy_reads_and_writes_each_byte_once() -> None:
    program = read(ASYNCHRONOUS, BYTE_A_SECOND)
    assert [of(program, name).runtime for name in ("out", "o", "back", "b")] == [2 * KIB + 4, 0, 2 * KIB + 4, 0]


def test_parameters_and_results_in_host_memory() -> None:
    program = program_of(
        """HloModule m, is_scheduled=true, input_output_alias={ {1}: (1, {}, must-alias) }
        ENTRY e {
          p = f32[256]{0} parameter(0)
          q = f32[256]{0:S(5)} parameter(1)
          b = f32[256]{0} copy(q)
          s = f32[256]{0} add(p, b)
          o = f32[256]{0:S(5)} copy(s)
          ROOT t = (f32[256]{0}, f32[256]{0:S(5)}) tuple(s, o)
        }""",
        count_results=True,
    )
    assert program.graph.inputs == (Tensor("p", KIB), Tensor("q", 0))
    assert [op.weight_bytes for op in program.graph.ops] == [0, KIB, 0]
    assert [op.outputs[0].bytes for op in program.graph.ops] == [KIB, KIB, 0]
    assert program.graph.outputs == ("s", "o")


LOOP = """HloModule loop, is_scheduled=true

step {
  c = (s32[], f32[256]{0}, f32[4,256]{1,0:S(5)}) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  x = f32[256]{0} get-tuple-element(c), index=1
  saved = f32[4,256]{1,0:S(5)} get-tuple-element(c), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  row = f32[1,256]{1,0} bitcast(x)
  host = f32[1,256]{1,0:S(5)} copy(row)
  save = f32[4,256]{1,0:S(5)} dynamic-update-slice(saved, host, i, zero)
  z = f32[256]{0} reverse(x), dimensions={0}
  w = f32[256]{0} sine(z)
  j = s32[] add(i, one)
  ROOT n = (s32[], f32[256]{0}, f32[4,256]{1,0:S(5)}) tuple(j, w, save)
}

more {
  c = (s32[], f32[256]{0}, f32[4,256]{1,0:S(5)}) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  four = s32[] constant(4)
  ROOT go = pred[] compare(i, four), direction=LT
}

ENTRY e {
  p = f32[256]{0} parameter(0)
  q = f32[4,256]{1,0:S(5)} parameter(1)
  zero = s32[] constant(0)
  a = f32[256]{0} sine(p)
  start = f32[4,256]{1,0:S(5)} copy(q)
  t = (s32[], f32[256]{0}, f32[4,256]{1,0:S(5)}) tuple(zero, a, start)
  loop = (s32[], f32[256]{0}, f32[4,256]{1,0:S(5)}) while(t), condition=more, body=step
  x = f32[256]{0} get-tuple-element(loop), index=1
  o = f32[4,256]{1,0:S(5)} get-tuple-element(loop), index=2
  r = f32[4,256]{1,0} copy(o)
  s = f32[1,256]{1,0} slice(r), slice={[0:1], [0:256]}
  f = f32[256]{0} bitcast(s)
  ROOT y = f32[256]{0} add(x, f)
}
"""


def test_a_loop_saves_to_the_host() -> None:
    program = program_of(LOOP, chip=CHIP)
    loop = of(program, "loop")
    outputs = {tensor.name: tensor for tensor in loop.outputs}
    assert outputs["loop{1}"] == Tensor("loop{1}", KIB, alias="a")
    assert outputs["loop{2}"] == Tensor("loop{2}", 0, alias="start")
    assert of(program, "start").outputs == (Tensor("start", 0),)
    assert loop.workspace_bytes <= KIB + 8  # a row for the next step; the four saved rows are in host memory
    assert of(program, "r").outputs[0].bytes == 4 * KIB


HOST_THREAD = """HloModule m, is_scheduled=true

work {
  x = f32[256]{0} parameter(0)
  two = f32[512]{0} concatenate(x, x), dimensions={0}
  ROOT part = f32[256]{0} slice(two), slice={[1:257]}
}, execution_thread="THREAD"

ENTRY e {
  p = f32[256]{0:S(5)} parameter(0)
  start = ((f32[256]{0:S(5)}), f32[256]{0:S(5)}, u32[]) async-start(p), async_execution_thread="THREAD", calls=work
  done = f32[256]{0:S(5)} async-done(start)
  ROOT y = f32[256]{0} copy(done)
}
"""


@pytest.mark.parametrize(("thread", "workspace"), [("host", 0), ("main", 2 * KIB)])
def test_what_runs_on_the_host_works_in_the_hosts_memory(thread: str, workspace: int) -> None:
    program = program_of(HOST_THREAD.replace("THREAD", thread))
    start = of(program, "start")
    assert start.outputs[0] == Tensor("start{1}", 0)
    assert start.workspace_bytes == workspace
    assert of(program, "done").outputs == (Tensor("done", 0, alias="start{1}"),)


TPU = """HloModule m, is_scheduled=true
ENTRY e {
  p = f32[16,128]{1,0:T(8,128)} parameter(0)
  a = f32[16,128]{1,0:T(8,128)S(1)} sine(p)
  b = f32[16,128]{1,0:T(8,128)} cosine(a)
  s = u32[]{:T(128)S(2)} custom-call(a), custom_call_target="flag"
  ROOT c = f32[16,128]{1,0:T(8,128)} add(a, b), control-predecessors={s}
}
"""


def test_on_a_tpu_other_memories_are_not_the_main_one() -> None:
    module = module_of(TPU)
    assert module.is_tpu
    program = program_of(TPU)
    sizes = {name: of(program, name).outputs[0].bytes for name in "abs"}
    assert sizes == {"a": 0, "b": 8 * KIB, "s": 0}
    assert not module_of(LOOP).is_tpu


@pytest.mark.parametrize(
    ("shape", "bytes"),
    [
        ("f32[]", 4),
        ("f32[]{:T(128)}", 512),
        ("f32[10]{0:T(128)}", 512),
        ("f32[10]{0:T(8,128)}", 8 * 128 * 4),
        ("f32[7,100]{1,0:T(8,128)}", 8 * 128 * 4),
        ("f32[7,100]{0,1:T(8,128)}", 104 * 128 * 4),
        ("f32[3,7,100]{1,0,2:T(8,128)}", 100 * 8 * 128 * 4),
        ("bf16[7,100]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("bf16[3,4]{1,0:T(2,4)(4,1)}", 2 * 4 * 4 * 2),  # the second tile is taller than the first
        ("pred[9,100]{1,0:T(32,128)(4,1)}", 32 * 128),
        ("u4[7,100]{1,0:T(8,128)E(4)}", 8 * 128 // 2),
        ("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}", 112 * 111 * 4),  # 112 x 110 in tiles of 2 x 3
        ("f32[0,100]{1,0:T(8,128)}", 0),
        ("f32[7,100]{1,0:T(8,128)S(1)}", 8 * 128 * 4),
        ("f32[5]{0:L(8)}", 32),
    ],
)
def test_tiles_are_padded(shape: str, bytes: int) -> None:
    assert module_of(f"e {{ ROOT p = {shape} parameter(0) }}").entry.root.shape.bytes == bytes


@pytest.mark.parametrize("tile", ["0", "8,0", "8,*"])
def test_a_tile_of_nothing_is_refused(tile: str) -> None:
    text = f"e {{ ROOT p = f32[7,100]{{1,0:T({tile})}} parameter(0) }}"
    assert "a layout has the tile" in refusal(lambda: module_of(text))


def test_values_of_different_tiles_share_no_buffer() -> None:
    program = program_of(
        """HloModule m, is_scheduled=true
        ENTRY e {
          p = f32[8,128]{1,0:T(8,128)} parameter(0)
          a = f32[8,128]{1,0:T(8,128)} sine(p)
          b = f32[8,128]{1,0:T(4,128)} cosine(a)
          c = f32[8,128]{1,0:T(4,128)} tan(b)
          ROOT d = f32[8,128]{1,0:T(4,128)} reverse(c), dimensions={0}
        }"""
    )
    assert [of(program, name).outputs[0].reuses for name in "abc"] == [None, None, "b"]
