"""XLA modules as objects: text, protos and live modules; shapes; fingerprints; refusals in one line."""

import functools
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from broken import refusal
from hlo_programs import module_of, proto
from hypothesis import given
from hypothesis import strategies as st

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.hlo.head import is_hlo
from graphrl.graphs.readers.hlo.module import HloModule, OutputAlias, parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo

TEXT = """\
HloModule tiny, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias) }

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (p: bf16[8,4], q: (pred[3], s32[])) -> (bf16[8,4], f32[8]) {
  %p = bf16[8,4]{0,1} parameter(0)
  %q = (pred[3]{0}, s32[]) parameter(1)
  %zero = f32[] constant(0)
  %negative = bf16[8,4]{0,1} negate(%p), metadata={op_name="jit(f)/neg" source_file="a.py" source_line=7}
  %wide = f32[8,4]{0,1} convert(%p), control-predecessors={%negative}
  %sums = f32[8]{0} reduce(%wide, %zero), dimensions={1}, to_apply=%add
  ROOT %both = (bf16[8,4]{0,1}, f32[8]{0}) tuple(%negative, %sums)
}
"""

CONFIGS = ('{"a":1,"b":{"c":[2],"d":3}}', '{"b":{"d":3,"c":[2]},"a":1}')


def test_a_module_is_read_as_it_is_written() -> None:
    module = parse_module(TEXT)
    assert (module.name, module.entry.name, list(module.computations)) == ("tiny", "main", ["add", "main"])
    assert module.order(module.entry) == ("p", "q", "zero", "negative", "wide", "sums", "both")
    assert module.input_output_aliases == (OutputAlias((0,), 0, (), is_required=True),)
    assert [p.name for p in module.entry.parameters] == ["p", "q"]
    wide, sums = module.entry.by_name["wide"], module.entry.by_name["sums"]
    assert (wide.opcode, wide.operands, wide.control_predecessors) == ("convert", ("p",), ("negative",))
    assert (sums.called, list(sums.attributes.dimensions)) == (("add",), [1])
    assert module.entry.root.name == "both"
    assert [i.name for i in module.entry.users["p"]] == ["negative", "wide"]


FRAMES = """HloModule framed

FileNames
1 "/home/me/train.py"
2 "/usr/lib/python3/site-packages/flax/linear.py"

FunctionNames
1 "step"
2 "Dense.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=8 end_column=38}
2 {file_name_id=2 function_name_id=2 line=270 end_line=270 column=8 end_column=31}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY e {
  x = f32[4]{0} parameter(0)
  y = f32[4]{0} negate(x), metadata={op_name="jit(step)/neg" stack_frame_id=2}
  z = f32[4]{0} negate(y), metadata={op_name="jit(step)/neg" stack_frame_id=1}
  ROOT w = f32[4]{0} negate(z)
}
"""


def test_an_instruction_comes_from_a_line_of_the_users_code() -> None:
    written = parse_module(TEXT)
    negative = written.entry.by_name["negative"].attributes.metadata
    assert written.sources[negative] == ("jit(f)/neg", "a.py", 7, "")
    framed = parse_module(FRAMES)
    sources = [framed.sources[i.attributes.metadata] for i in framed.entry.instructions]
    mine = ("jit(step)/neg", "/home/me/train.py", 9, "step")  # of the library's line, too
    assert sources == [("", "", 0, ""), mine, mine, ("", "", 0, "")]


def test_shapes() -> None:
    entry = module_of(TEXT).entry
    p, q, both = (entry.by_name[name].shape for name in ("p", "q", "both"))
    assert (p.dtype, p.dims, p.bytes, p.size, p.layout) == ("bf16", (8, 4), 64, 32, (0, 1))
    assert p.leaves == (((), p),)
    assert (q.is_tuple, q.bytes, q.leaf_bytes) == (True, 16, 3 + 4)
    assert [(index, leaf.dtype) for index, leaf in q.leaves] == [((0,), "pred"), ((1,), "s32")]
    assert both.at((1,)).bytes == 32
    nested = module_of("HloModule n\nENTRY e {\n  ROOT p = ((f64[2], c64[]), token[], u4[3]) parameter(0)\n}").entry
    leaves = nested.root.shape.leaves
    assert [(i, leaf.dtype, leaf.bytes) for i, leaf in leaves] == [
        ((0, 0), "f64", 16),
        ((0, 1), "c64", 8),
        ((1,), "token", 0),
        ((2,), "u4", 3),
    ]


def test_all_forms_give_one_module() -> None:
    compiled = jax.jit(lambda x: (x @ x).sum()).lower(jax.ShapeDtypeStruct((8, 8), "float32")).compile()
    loaded = compiled.runtime_executable()
    assert loaded is not None
    live = loaded.hlo_modules()[0]
    data = live.as_serialized_hlo_module_proto()
    wrapped = b"\n" + bytes((len(data) & 127 | 128, len(data) >> 7 & 127 | 128, len(data) >> 14)) + data  # HloProto
    text = compiled.as_text()
    assert text is not None
    modules = [parse_module(form) for form in (compiled, live, data, memoryview(data), wrapped, text, text.encode())]
    assert len({module.fingerprint for module in modules}) == 1
    assert len({module.order(module.entry) for module in modules}) == 1


def test_reading_text_writes_no_log(tmp_path: Path) -> None:
    (tmp_path / "tiny.hlo").write_text(TEXT)
    code = "import graphrl, sys; graphrl.read_graph(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "tiny.hlo"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_a_fingerprint_is_of_the_program_only() -> None:
    original = module_of(TEXT)
    assert len(original.fingerprint) == 64
    swapped = TEXT.split("\n")
    place = swapped.index("  %p = bf16[8,4]{0,1} parameter(0)")
    swapped[place : place + 2] = swapped[place + 1], swapped[place]  # another schedule
    renamed = TEXT.replace("negative", "minus").replace("tiny", "other").replace("%main", "%start")
    moved = TEXT.replace("a.py", "b.py").replace("constant(0)", "constant(1)")
    unscheduled = TEXT.replace(", is_scheduled=true", "")
    for text in ("\n".join(swapped), renamed, moved, unscheduled):
        assert module_of(text).fingerprint == original.fingerprint
    changes = {
        "negate(": "abs(",
        "{0,1}": "{1,0}",
        "add(%x, %y)": "add(%x, %x)",
        "control-predecessors={%negative}": "control-predecessors={%zero}",
        "must-alias": "may-alias",
        "dimensions={1}, to": 'dimensions={1}, backend_config={"a":1}, to',
    }
    for old, new in changes.items():
        assert module_of(TEXT.replace(old, new)).fingerprint != original.fingerprint, new
    configs = (f"dimensions={{1}}, backend_config={config}, to" for config in CONFIGS)  # keys in another order
    assert len({module_of(TEXT.replace("dimensions={1}, to", config)).fingerprint for config in configs}) == 1


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "m: broken or truncated HLO: must be a whole HloModuleProto or HloProto"),
        (b"\x89PNG\r\n\x1a\n", "m: broken or truncated HLO"),
        (proto(TEXT)[:-20], "m: broken or truncated HLO"),
        (proto(TEXT)[: len(proto(TEXT)) // 2], "m: broken or truncated HLO"),
        ("once upon a time", "m: broken HLO text: "),
        (TEXT[:400], "m: broken HLO text: "),
        (TEXT.replace("%wide, %zero", "%wade, %zero"), "m: broken HLO text: "),
        (b"HloModule \xff\xfe", "m: broken HLO text: it is not UTF-8"),
        ("module @f {\n}\n", "m: it is StableHLO (MLIR)"),
        (b"// a comment\n\nmodule attributes {} {\n}\n", "m: it is StableHLO (MLIR)"),
        (b"ML\xefR\x03", "m: it is StableHLO (MLIR)"),
        (3, "m: int: must be HLO text"),
        (7.5, "m: float: must be HLO text, a serialized HloModuleProto or a module"),
    ],
)
def test_what_is_no_module_is_refused_in_one_line(data: object, fault: str) -> None:
    message = refusal(lambda: parse_module(data, "m"))
    assert message.startswith(fault)
    assert "\n" not in message


def test_what_is_lowered_must_be_compiled() -> None:
    lowered = jax.jit(abs).lower(1.0)
    assert refusal(lambda: parse_module(lowered, "m")) == "m: Lowered: must be compiled, as lowered.compile() does"
    for module in (lowered.compiler_ir(), lowered.as_text(), lowered.as_text(debug_info=True)):
        assert "lower(...).compile().as_text()" in refusal(functools.partial(parse_module, module))
    assert parse_module(lowered.compiler_ir("hlo")).name == "jit_abs"


def _changed(change: str) -> bytes:
    """The tiny module as a proto with one fault."""
    message = module_of(TEXT).message
    main = message.computations[1]
    named = {i.name: i for i in main.instructions}
    if change == "no entry":
        message.entry_computation_id = 99
        message.entry_computation_name = "nowhere"
    elif change == "operand":
        named["wide"].operand_ids[0] = 77
    elif change == "operand after user":
        named["wide"].operand_ids[0] = named["sums"].id
    elif change == "called":
        named["sums"].called_computation_ids[0] = message.computations[1].id
    elif change == "root":
        main.root_id = 1234
    elif change == "twice":
        named["wide"].name = "p"
    elif change == "schedule":
        del message.schedule.sequences[0].value.instruction_ids[:]
    elif change == "schedule order":
        ids = next(s.value.instruction_ids for s in message.schedule.sequences if s.key == main.id)
        ids[:] = list(ids)[::-1]
    elif change == "type":
        named["wide"].shape = b"\x10\x63"
    elif change == "operands":
        del named["both"].operand_ids[:]
        named["both"].opcode = "bitcast"
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("no entry", "broken HLO: the entry computation 'nowhere' is missing"),
        ("operand", "broken HLO: computation 'main': 'wide' refers to the id 77, which does not precede it"),
        ("operand after user", "broken HLO: computation 'main': 'wide' refers to the id "),
        ("called", "broken HLO: computation 'main': 'sums' calls a computation that does not precede it"),
        ("root", "broken HLO: computation 'main': its root is missing"),
        ("twice", "broken HLO: computation 'main': two of its instructions have one name or id"),
        ("schedule", "is not an order of its instructions"),
        ("schedule order", "broken HLO: the schedule of 'main' has "),
        ("type", "broken HLO: a shape has the unknown element type 99"),
        ("operands", "broken HLO: an instruction that cannot be of its kind"),
    ],
)
def test_broken_modules_are_refused_in_one_line(change: str, fault: str) -> None:
    message = refusal(lambda: read_hlo(_changed(change), source="m"))
    assert message.startswith("m: ")
    assert fault in message
    assert "\n" not in message


DATA = proto(TEXT)


@given(st.integers(0, len(DATA) - 1), st.integers(0, 255), st.booleans())
def test_bytes_that_are_changed_or_cut_raise_nothing_else(place: int, byte: int, cut: bool) -> None:
    data = DATA[:place] if cut else DATA[:place] + bytes((byte,)) + DATA[place + 1 :]
    message = refusal(lambda: read_hlo(data))
    assert "\n" not in message


def test_text_needs_the_parser_of_jaxlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(lambda: parse_module(TEXT, "m")).startswith("m: this jaxlib has no parser for HLO text")


def test_files_are_recognised(tmp_path: Path) -> None:
    assert is_hlo(DATA[:200])
    assert is_hlo(TEXT.encode())
    for other in (
        *(b"", b" \n\n", b'\n{"format": 1}', b"\x08\x07\x12\x04", b"\n" + b"\xff" * 9, b"// HloModule m"),
        *(b"/* HloModule m", b"node { name: 'a' }", b"e { p: 3 }", b"f(x) = 3", b'{"a": [1]}', b"1 2 3\n"),
    ):
        assert not is_hlo(other), other
    graphs = []
    for name, content in (("a.hlo", TEXT.encode()), ("b", b"\n" + TEXT.encode()), ("c.pb", DATA), ("d", DATA)):
        (tmp_path / name).write_bytes(content)
        graphs.append(read_graph(tmp_path / name))
    assert all(isinstance(graph, ComputationGraph) and graph == graphs[0] for graph in graphs)
    (tmp_path / "e.pb").write_bytes(b"nothing")
    assert refusal(lambda: read_graph(tmp_path / "e.pb")).endswith("must be a whole HloModuleProto or HloProto")


BODY = """{
  p = f32[8]{0} parameter(0)
  ROOT y = f32[8]{0} exponential(p)
}
"""
SIGNATURE = "(p: f32[8]) -> f32[8] "
LICENCE = f"// {'x' * 77}\n" * 1000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/* a comment\n of two lines */ HloModule m\n\nENTRY e " + BODY, "m"),
        ("\ufeff\r\n\t// a comment\n/**/\n\nHloModule m\nENTRY e " + BODY, "m"),
        (LICENCE + "e " + BODY, "module_e"),
        ("ENTRY /* main */ %e.1 // this\n" + SIGNATURE + BODY, "module_e.1"),
        ("// a comment\r\n\r\nENTRY e " + BODY.replace("\n", "\r\n"), "module_e"),
        ("%e-1 // a comment\n" + BODY, "module_e-1"),
        ("%comp " + SIGNATURE + BODY, "module_comp"),
        ("\ufeff/* a comment */ comp" + SIGNATURE + BODY, "module_comp"),
        ("%f " + SIGNATURE + BODY.replace("y", "x") + "\nENTRY %e " + SIGNATURE + BODY, "module_f"),
        ("y = f32[8]{0} exponential(f32[8]{0} x)", "_"),
        ('// a comment\nROOT %y = (f32[8]{0}, s32[]) custom-call(f32[8]{0} %x), custom_call_target="f"', "_"),
        ("f32[8]{0} exponential(f32[8]{0} x)", "_"),
    ],
)
def test_text_without_header_or_behind_comments(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(text.encode())
    graph = read_graph(tmp_path / "dump")
    assert graph.name == name
    assert len(graph.ops) == 1
    assert [tensor.bytes for tensor in graph.inputs] == [32]


def test_faults_are_in_the_lines_of_the_file() -> None:
    text = "\n\n%comp " + SIGNATURE + BODY.replace("exponential", "exponentia")
    assert "was parsing 5:" in refusal(lambda: parse_module(text))


def test_a_read_module_is_read_again() -> None:
    module = parse_module(TEXT)
    assert isinstance(module, HloModule)
    assert read_hlo(module).module is module
