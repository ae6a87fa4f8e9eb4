"""The tables' arithmetic on rows whose answers are written beside them; the pictures; the command."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrl.bench.machine import cores
from graphrl.cli import main
from graphrl.commands.compare import _methods, _seeds
from graphrl.commands.runs_bar import runs_bar
from graphrl.compare.comparison import compare
from graphrl.compare.pictures import _edges, _mean_curve, histogram_figure, quality_figure
from graphrl.compare.report import HEADINGS, as_dict, cells, markdown, notes, percent, provenance, values_by_graph
from graphrl.compare.runs import Row, make_runs
from graphrl.compare.store import json_lines, read_rows
from graphrl.compare.table import best_known, contradictions, gap, improvements, summarise
from graphrl.costs.problem import Objective, Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.json import write_json
from graphrl.plan_plot import write_figure
from graphrl.solvers.base import Budget

MEMORY = Problem()


def row(
    graph: str,
    method: str,
    value: float | None,
    *,
    seed: int = 0,
    bound: float = 0,
    excess: int = 0,
    seconds: float = 1.0,
    compile_seconds: float = 0.0,
    objective: Objective = "peak_memory",
    curve: tuple[tuple[float, int, float], ...] | None = None,
) -> Row:
    ended = () if value is None else ((seconds, 1, value),)
    return Row(
        key=f"{graph}/{method}/{seed}",
        graph=graph,
        fingerprint=graph,
        ops=4,
        method=method,
        problem=MEMORY if objective == "peak_memory" else Problem("makespan", 2),
        seed=seed,
        budget=Budget(100),
        cores=1,
        warm_up=True,
        value=value,
        bound=None if value is None else bound,
        excess=None if value is None else excess,
        seconds=seconds,
        compile_seconds=compile_seconds,
        error="it broke" if value is None else None,
        curve=ended if curve is None else curve,
        machine="abacus",
        graphrl="1.0",
        date="2026-01-02T03:04:05+00:00",
    )


# Two graphs, two seeds. Best known: g 100 (by a), h 50 (by b); bounds: g 80, h 50.
ROWS = [
    row("g", "a", 100, bound=80, seconds=1),
    row("g", "a", 120, seed=1, bound=80, seconds=3, compile_seconds=1),
    row("g", "b", 110, bound=64, seconds=5),
    row("g", "b", 110, seed=1, bound=64, seconds=5),
    row("h", "a", 60, bound=40, seconds=2),
    row("h", "a", 70, seed=1, bound=40, seconds=2),
    row("h", "b", 50, bound=50, seconds=5),
    row("h", "b", 52, seed=1, bound=40, seconds=5),
]


def test_arithmetic() -> None:
    a, b = summarise(ROWS)
    assert (a.method, a.graphs, a.runs, a.failed) == ("a", 2, 4, 0)
    assert a.mean_gap == pytest.approx(((0 + 0.2) / 2 + (0.2 + 0.4) / 2) / 2)
    assert a.worst_gap == pytest.approx(0.4)
    assert a.bound_gap == pytest.approx(((0.25 + 0.5) / 2 + (0.2 + 0.4) / 2) / 2)
    assert a.seconds == pytest.approx((2 + 2) / 2)
    assert a.compile_share == pytest.approx(1 / 8)
    assert a.value == pytest.approx(math.sqrt(110 * 65))
    assert a.optimal == 0
    assert b.mean_gap == pytest.approx((0.1 + 0.02) / 2)
    assert b.bound_gap == pytest.approx((30 / 80 + 0.02) / 2)
    assert b.optimal == 0.25  # 50 on h is the bound
    # means over seeds: g is tied at 110, h is b's
    assert (a.won, a.won_or_tied, b.won, b.won_or_tied) == (0, 0.5, 0.5, 1.0)
    assert cells(b) == ["b", "6.00%", "10.0%", "19.8%", "25%", "50%", "100%", "5", ""]


def test_graphs_weigh_the_same_whatever_the_number_of_their_runs() -> None:
    (summary,) = summarise([row("g", "a", 10), *(row("h", "a", 10 + seed, seed=seed) for seed in range(3))])
    assert summary.mean_gap == pytest.approx((0 + (0 + 0.1 + 0.2) / 3) / 2)


def test_previous_rows_give_the_best_known_only() -> None:
    known = [row("g", "c", 90, bound=85), row("h", "c", 55, bound=45), row("elsewhere", "c", 1)]
    assert best_known([*ROWS, *known])[("g", MEMORY)] == (90, 85)
    a, _ = summarise(ROWS, known)
    assert a.mean_gap == pytest.approx(((100 / 90 + 120 / 90) / 2 - 1 + 0.3) / 2)
    assert (a.graphs, a.won_or_tied) == (2, 0.5)


def test_problems_are_apart() -> None:
    rows = [row("g", "a", 7), row("g", "a", 3.5, objective="makespan")]
    assert [best.value for best in best_known(rows).values()] == [7, 3.5]


def test_failures_and_plans_above_the_limit_count_as_neither_good_nor_won() -> None:
    rows = [
        row("g", "a", None),
        row("g", "a", 5, seed=1),
        row("g", "b", 10),
        row("g", "b", 10, seed=1),
        row("g", "c", 1, excess=3),
        row("g", "c", 1, seed=1, excess=3),
    ]
    a, b, c = summarise(rows)
    assert [summary.failed for summary in (a, b, c)] == [1, 0, 2]
    assert (a.mean_gap, b.mean_gap, c.mean_gap) == (0, 1, None)  # 5 is the best known, 1 is none
    assert [summary.won for summary in (a, b, c)] == [0, 1, 0]
    assert (a.value, c.seconds) == (None, None)
    assert b.value == pytest.approx(10)
    assert cells(c) == ["c", "-", "-", "-", "0%", "0%", "0%", "-", "2 of 2"]
    told = notes(rows, [a, b, c])
    assert told == ["a: it broke", "c: 2 plans above the memory limit"]
    assert improvements(rows, "a", "b") == []


def test_ties() -> None:
    exact = summarise([row("g", "a", 2**40), row("g", "b", 2**40 + 1), row("g", "c", 2**40)])
    assert [(one.won, one.won_or_tied) for one in exact] == [(0, 1), (0, 0), (0, 1)]
    seconds = summarise(
        [row("g", "a", 0.1 + 0.2, objective="makespan"), row("g", "b", 0.3, objective="makespan", bound=0.3)]
    )
    assert [(one.won, one.won_or_tied, one.optimal) for one in seconds] == [(0, 1, 1), (0, 1, 1)]
    alone = summarise([row("g", "a", 4)])
    assert [(one.won, one.won_or_tied) for one in alone] == [(1, 1)]


def test_gaps_of_nothing() -> None:
    assert (gap(0, 0), gap(1, 0), gap(3, 2)) == (0, math.inf, 0.5)
    summaries = summarise([row("g", "a", 0), row("g", "b", 2)])
    assert [one.mean_gap for one in summaries] == [0, math.inf]
    assert [one.value for one in summaries] == [None, pytest.approx(2)]
    assert percent(math.inf) == "inf"
    json.dumps(as_dict([row("g", "a", 0), row("g", "b", 2)]), allow_nan=False)


def test_improvements() -> None:
    assert improvements(ROWS, "b", "a") == pytest.approx([0, 1 - 51 / 65])
    assert improvements(ROWS, "a", "b") == pytest.approx([0, 1 - 65 / 51])
    assert improvements(ROWS, "a", "nobody") == []


def test_contradictions_are_told() -> None:
    rows = [row("g", "a", 10), row("g", "b", 12, bound=11)]
    assert contradictions(rows) == [("g", MEMORY)]
    assert contradictions(ROWS) == []
    assert "a value of g is below its lower bound" in notes(rows, summarise(rows))[0]
    close = [row("g", "a", 0.3, objective="makespan", bound=0.1 + 0.2)]
    assert contradictions(close) == []


def test_notes_on_compiling_and_machines() -> None:
    (summary, _) = summarise(ROWS)
    assert notes(ROWS, [summary]) == ["a: 12% of its seconds went into compiling"]
    other = read_again({**ROWS[2].to_dict(), "machine": "slide rule"})
    assert "abacus, 1 cores; slide rule, 1 cores" in notes([*ROWS, other], [])[0]


def read_again(value: dict) -> Row:
    return Row.from_dict(json.loads(json.dumps(value)))


def test_markdown() -> None:
    text = markdown(HEADINGS, [cells(summary) for summary in summarise(ROWS)])
    lines = text.splitlines()
    assert lines[0] == "| method | mean gap | worst gap | to bound | optimal | won | won or tied | seconds | failed |"
    assert lines[1] == "| --- " + "| ---: " * 8 + "|"
    assert lines[3].startswith("| b | 6.00% | 10.0% |")
    assert markdown(["x"], [["a|b"]]).splitlines()[2] == r"| a\|b |"
    assert provenance(ROWS, "graphrl compare") == (
        "`graphrl compare`; seeds 0, 1; abacus, 1 cores a run; graphrl 1.0; 2026-01-02\n"
    )


def test_values_by_graph() -> None:
    headings, lines = values_by_graph(ROWS)
    assert headings == ["graph", "ops", "a", "b", "best known", "bound"]
    assert lines == [["g", "4", "110 B", "110 B", "100 B", "80 B"], ["h", "4", "65 B", "51 B", "50 B", "50 B"]]


# Pictures


def test_the_mean_curve_starts_when_all_have_a_plan() -> None:
    rows = [
        row("g", "a", 10, seconds=100.0, curve=((1.0, 1, 20), (10.0, 2, 15), (100.0, 3, 10))),
        row("h", "a", 10, seconds=100.0, curve=((5.0, 1, 30), (100.0, 3, 10))),
    ]
    seconds, gaps = _mean_curve(rows, [10, 10])
    assert (seconds[0], seconds[-1]) == pytest.approx((5, 100))
    assert (gaps[0], gaps[-1]) == pytest.approx(((100 + 200) / 2, 0))
    assert gaps[abs(seconds - 20).argmin()] == pytest.approx((50 + 200) / 2)
    assert (gaps[1:] <= gaps[:-1]).all()


def test_bins_part_at_zero() -> None:
    for low, high in ((-12.5, 31.0), (0.0, 0.0), (0.0, 5.0), (-3.0, 0.0)):
        edges = _edges(low, high)
        assert edges[0] <= low <= high <= edges[-1]
        assert abs(edges).min() == 0
        assert len(edges) <= 30


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [row("g", "a", None)], [row("g", "a$", 0), row("g", "_b^", 3)]])
def test_pictures_of_anything(rows: list[Row], tmp_path: Path) -> None:
    budgets = [*rows, *(read_again({**one.to_dict(), "budget": {"evaluations": 9, "seconds": None}}) for one in rows)]
    for number, figure in enumerate((quality_figure(budgets), histogram_figure(rows, rows[0].method))):
        write_figure(figure, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


@given(st.floats(-1e4, 0), st.floats(0, 1e4))
def test_bins_hold_both_ends(low: float, high: float) -> None:
    edges = _edges(low, high)
    assert edges[0] <= low
    assert high <= edges[-1]
    assert len(edges) <= 29


def test_every_method_looks_different() -> None:
    rows = [row("g", f"m{i}", 4 + i) for i in range(30)]
    lines = quality_figure(rows).axes[0].get_lines()
    curves, markers = lines[::2], lines[1::2]
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 30
    assert len({(line.get_color(), line.get_marker()) for line in markers}) == 30


def test_every_panel_of_the_histogram_has_its_ticks() -> None:
    """A panel with nothing below it in its column is not the last of the grid."""
    rows = [row("g", method, 4) for method in "abcdefgh"]
    figure = histogram_figure(rows, "a")
    figure.draw_without_rendering()
    for axes in (axes for axes in figure.axes if axes.get_visible()):
        assert any(label.get_text() and label.get_visible() for label in axes.get_xticklabels())
        assert axes.get_title().endswith("100.0%, +0.0% to +0.0%")


# The command


@pytest.fixture
def model(tmp_path: Path) -> str:
    ops = (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=2, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    )
    path = tmp_path / "tiny.json"
    write_json(ComputationGraph("tiny", ops), path)
    return str(path)


def test_json_and_files(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    files = [str(out / name) for name in ("runs.jsonl", "quality.png", "hist.svg")]
    arguments = ["compare", model, "layered:20x2", "--methods", "list,given", "--seeds", "2", "--evaluations", "10"]
    arguments += ["--output", files[0], "--plot", files[1], "--histogram", files[2], "--baseline", "given", "--json"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert (data["runs"], data["done"], data["made"], data["interrupted"]) == (12, 12, 12, False)
    assert [method["method"] for method in data["methods"]] == ["list", "given"]
    assert [graph["ops"] for graph in data["graphs"]] == [4, 20, 20]
    assert data["graphs"][0] | {"fingerprint": ""} == {
        "graph": "tiny", "fingerprint": "", "ops": 4, "best": 12, "bound": data["graphs"][0]["bound"]
    }  # fmt: skip
    assert data["written"] == files
    assert len(printed.err.splitlines()) == 12
    assert printed.err.startswith("1/12 tiny, list, seed 0: 12 B in ")
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in Path(files[2]).read_bytes()
    rows = read_rows(files[0])
    assert len(rows) == 12
    assert json_lines(rows) == Path(files[0]).read_text()
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["made"] == 0
    assert again["methods"] == data["methods"]


def test_table_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--objective", "makespan", "--devices", "2", "--transfer", "free", "--seconds", "1"]
    assert main(["compare", model, "--methods", "list, given", *options, "--seeds", "4,", "--no-warm-up"]) == 0
    out, err = capsys.readouterr()
    for text in (
        "tiny",
        "best known",
        "makespan on 2 devices, free transfers",
        "1 graph, 1 seed, 1 s a run",
        *HEADINGS,
    ):
        assert text in out
    assert "seed 4: 5.00 s in" in err


def test_failures_are_told(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--objective", "makespan", "--memory-limit", "1", "--evaluations", "5"]
    assert main(["compare", model, "--methods", "list,given", *options]) == 1
    out, err = capsys.readouterr()
    assert "list: 1 plan above the memory limit" in out
    assert err.splitlines()[-1] == "graphrl: error: no run gave a plan: no plan is within the memory limit"


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["--methods", "list"], 2, "required: MODEL"),
        (["{model}"], 2, "required: --methods"),
        (["{model}", "--methods", ","], 2, "names no method"),
        (["{model}", "--methods", "list,list"], 2, "list twice"),
        (["{model}", "--methods", "magic"], 2, "unknown method 'magic'"),
        (["{model}", "--methods", "list", "--seeds", "0"], 2, "0 seeds: must be from 1"),
        (["{model}", "--methods", "list", "--seeds", "few"], 2, "not an integer"),
        (["{model}", "--methods", "list", "--seeds", ","], 2, "names no seed"),
        (["layered:20x0", "--methods", "list"], 2, "a set of no graphs"),
        (["{model}", "--methods", "list", "--seeds", "1,-2"], 2, "seed is -2"),
        (["{model}", "--methods", "list", "--seed", "4294967295", "--seeds", "2"], 2, "seed is 4294967296"),
        (["{model}", "--methods", "list", "--evaluations", "0"], 2, "evaluations is 0"),
        (["{model}", "--methods", "list", "--seconds", "0"], 2, "seconds is 0"),
        (["{model}", "--methods", "list", "--devices", "0"], 2, "devices is 0"),
        (["{model}", "--methods", "list", "--processes", "0"], 2, "processes is 0"),
        (["{model}", "--methods", "list", "--processes", "99999"], 2, "processes is 99999"),
        (["{model}", "--methods", "list", "--baseline", "given"], 2, "baseline is 'given'"),
        (["{model}", "--methods", "list", "--output", "{model}"], 2, "is the model itself"),
        (["{folder}", "--methods", "list", "--output", "{model}"], 2, "is the model itself"),
        (["{model}", "--methods", "list", "--output", "{folder}"], 1, "is a directory"),
        (["{model}", "--methods", "list", "--plot", "{folder}/no/x.png"], 1, "there is no folder"),
        (["{model}", "--methods", "list", "--plot", "{folder}/x.doc"], 1, "its ending must be one of"),
        (["{model}", "--methods", "list", "--histogram", "{folder}/x"], 1, "its ending must be one of"),
        (["{folder}/missing.json", "--methods", "list"], 1, "No such file"),
        (["layered", "--methods", "list"], 2, "no set of graphs"),
        (["graphs:x2", "--methods", "list"], 2, "no file, no folder and no set of graphs"),
        (["layered:20x2", "layered:x2", "--methods", "list"], 2, "no file, no folder and no set of graphs"),
    ],
)
def test_faults_are_one_line(
    arguments: list[str], code: int, fault: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(model).parent
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["compare", *(text.format(model=model, folder=folder) for text in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert fault in err
    assert err.count("\n") == 1
    assert err.startswith("graphrl")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_lists_of_methods_and_seeds() -> None:
    assert _methods("list, beam:width=10,ties=random,auto:a=1") == ("list", "beam:width=10,ties=random", "auto:a=1")
    assert (_seeds("3"), _seeds("0,1,5"), _seeds("7,")) == (3, (0, 1, 5), (7,))
    with pytest.raises(ProblemError):
        _methods("list,a=1,a=1")


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.skipif(cores() < 2, reason="one core"))])
def test_ctrl_c_shows_what_is_done(tmp_path: Path, processes: int) -> None:
    path = tmp_path / "runs.jsonl"
    command = [sys.executable, "-m", "graphrl", "compare", "layered:30x2000", "--methods", "list", "--json"]
    command += ["--processes", str(processes), "--output", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    data = json.loads(out)
    assert data["interrupted"] is True
    assert 3 <= data["done"] < 2000
    assert len(read_rows(path)) - data["done"] in (0, 1)  # one may have come between two steps
    assert err.splitlines()[-1] == f"graphrl: interrupted: {data['done']} of 2000 runs are done"
    assert all(line[0].isdigit() for line in err.splitlines()[:-1])  # no tracebacks


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ops = (Op("a", runtime=1, outputs=(Tensor("a0", 4),)),)
    runs = make_runs([ComputationGraph("[b]g", ops)], MEMORY, ["list"], [0, 1], Budget(5), cores=1)
    assert compare(runs, watch=lambda missing: runs_bar(missing, 1)).made == 2
    for text in ("2/2", "[b]g, list, seed 1: 4 B in"):
        assert text in shown.getvalue()
