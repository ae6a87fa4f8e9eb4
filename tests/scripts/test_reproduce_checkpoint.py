"""The script of the tables on checkpoints: its programs, its search for batches, its files, and its faults."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import Launch, launch
from processes import check_fault
from reproduce.checkpoint import fit
from reproduce.checkpoint.batch import values
from reproduce.checkpoint.device import device
from reproduce.checkpoint.measured import NONE, PROGRAMS, RULES, WHOLE, Settings, build, plain
from reproduce.checkpoint.rules import curve, tables
from xla_programs import loose_numerics

from graphrl.errors import GraphrlError
from graphrl.xla.checkpoint.largest import largest_size
from graphrl.xla.checkpoint.settings import Static
from graphrl.xla.checkpoint.steps import Rules, Step

__all__ = ["launch", "loose_numerics"]

WHERE = {"machine": "m", "graphrl": "0", "jax": "0", "date": "2026-01-01T00:00:00"}
REST: dict[str, Any] = {"predicted": None, "peak": None, "results": 0, "flags": ""}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rules_go_around_the_layers_of_every_program(name: str) -> None:
    program = build(name, small=True)
    value, gradient = jax.eval_shape(plain(program), *program.args)
    jaxpr = jax.make_jaxpr(RULES["nothing saveable, a layer"](program))(*program.args)
    again = jax.make_jaxpr(plain(program))(*program.args)
    assert value.shape == ()
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), gradient) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), program.params
    )
    assert "remat2" in str(jaxpr)
    assert "remat2" not in str(again)


def test_a_program_takes_another_batch() -> None:
    for name in ("Llama", "LSTM", "graph network"):
        sizes = [sum(leaf.size for leaf in jax.tree.leaves(build(name, small=True, batch=b).args[1:])) for b in (2, 4)]
        assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.05), name


@given(fits=st.integers(0, 300), start=st.integers(1, 1000))
def test_the_largest_batch_is_found_from_any_start(fits: int, start: int) -> None:
    tried: list[int] = []

    def needed(size: int) -> float:
        tried.append(size)
        return 0.0 if size <= fits else float("inf")

    size = largest_size(needed, 1.0, start, 0.02)
    assert size <= fits < size + max(1, int(size * 0.02))
    assert len(tried) <= 22
    assert len(tried) <= 5 or not 0.98 * start <= fits < 1.02 * start


@given(st.integers(1, 10_000), st.floats(0, 0.5), st.floats(0.7, 1.4), st.integers(0, 2))
def test_few_batches_are_tried_where_bytes_are_nearly_linear(fits: int, fixed: float, off: float, seed: int) -> None:
    tried: list[int] = []

    def needed(size: int) -> float:
        tried.append(size)
        noise = 1 + 0.002 * math.sin(seed * size)
        return 1000 * (fixed + (1 - fixed) * size / fits * noise)

    size = largest_size(needed, 1000.0, max(1, int(off * fits)), 0.02)
    assert needed(size) <= 1000 < needed(size + max(1, int(size * 0.02)))
    assert len({*tried}) <= 6


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.usefixtures("loose_numerics")
def test_whole_steps_by_hand_have_rules_and_microbatches(name: str) -> None:
    step, results = fit.build(Settings(quick=True), name), set()
    for rule, wrap in fit.RULES.items():
        for count in (1, 2):
            traced = Step(step.step(wrap, count), {}, Static(), step.batch_axis).trace(Rules(), step.args, {})
            assert len(traced.losses) == 1
            assert len(traced.donated) > len(traced.closed.in_avals) // 2
            assert ("remat2" in str(traced.closed)) == (rule != NONE)
            results.add(str(traced.closed.out_avals))
    assert len(results) == 1


def test_values_are_compared_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def settings(**options: Any) -> Settings:
        return Settings(out=tmp_path, quick=True, programs=("LSTM",), methods=("nothing saveable, a layer",), **options)

    (table,) = values(settings())
    assert "failed:" not in table.text
    assert " is over " not in table.text
    assert "| LSTM | 1 |" in table.text
    assert "measuring" in capsys.readouterr().err
    assert next(values(settings())).text == table.text
    assert "measuring" not in capsys.readouterr().err
    with pytest.raises(GraphrlError, match="no figures of a device 'abacus'"):
        next(values(settings(device="abacus")))


def test_steps_are_compiled_and_run_once(launch: Launch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rule = "nothing saveable, a layer"
    options = ("--sections", "device", "--quick", "--programs", "LSTM", "--methods", f"{NONE};{rule}")
    done = launch("checkpoint", *options)
    assert done.returncode == 0, done.stderr
    assert f"compiled: LSTM {rule}" in done.stderr
    text = (tmp_path / "out" / "checkpoint-device.md").read_text()
    assert "failed:" not in text
    figures = [json.loads(line)["value"] for line in (tmp_path / "out" / "measured.jsonl").read_text().splitlines()]
    whole, leaner = figures
    assert f"| {rule} | 1 | {100 * leaner['temporaries'] / whole['temporaries']:.1f}% |" in text
    milliseconds = [1e3 * leaner[which] for which in ("step", "seconds")]
    assert "| {:.2f} | {:.2f} | {:.1f}% |".format(*milliseconds, 100 * (leaner["step"] / whole["step"] - 1)) in text
    capfd.readouterr()
    settings = Settings(out=tmp_path / "out", quick=True, programs=("LSTM",), methods=(NONE, rule))
    assert next(device(settings)).text in text
    assert capfd.readouterr().err == ""  # nothing is compiled or measured again
    faults: dict[str, dict[str, Any]] = {
        "no figures of a device 'abacus'": {"device": "abacus"},
        "section device has none of these methods: it has none": {"methods": ("XLA's own at 50%",)},
    }
    for fault, changed in faults.items():
        with pytest.raises(GraphrlError, match=fault):
            next(device(dataclasses.replace(settings, **changed)))


def test_steps_of_another_machine_are_shown(tmp_path: Path) -> None:
    rule, ours, mib = "nothing saveable, a layer", "graphrl at 20%", 2**20
    lines = []
    for method, predicted, temporaries, step, seconds in (
        (NONE, None, 100, 0.1, 0.1),
        (rule, None, 30, 0.12, 0.13),
        (ours, 26, 25, 0.118, 0.12),
        ("graphrl at 33%", 20, 24, 0.14, 0.13),
    ):
        figures: dict[str, Any] = {"predicted": predicted and predicted * mib, "temporaries": temporaries * mib}
        figures |= {"peak": (temporaries + 7) * mib, "results": 5 * mib, "step": step, "seconds": seconds, "flags": ""}
        key = {"program": "LSTM", "method": method, "size": "full", "chip": "h200", "device": "abacus"}
        where = {"error": None, **WHERE, "machine": "abacus"}
        lines.append(json.dumps({"key": {"what": "device", **key}, "value": figures, **where}) + "\n")
    (tmp_path / "measured.jsonl").write_text("".join(lines))
    means, program = device(Settings(out=tmp_path, programs=("LSTM", "Mamba"), device="abacus"))
    assert f"| {ours} | 1 | 25.0% | 18.0% | 20.0% |" in means.text
    assert "temporaries are within 10% of the prediction: 1 of 2" in means.text
    assert "differ from predicted ones by 10.0 points by the median, 10.0 at most" in means.text
    assert "ours needs no more than a rule at its slowdown: 1 of 1" in means.text
    assert means.summary == (
        "At the slowdown of jax's best rule graphrl needs 83.3% of its temporaries (geometric mean of 1 programs)."
    )
    assert f"| {ours} | 26.0 | 25.0 | 27.0 | 118.00 | 120.00 | 18.0% | 20.0% |" in program.text
    assert (tmp_path / "device.png").stat().st_size > 1000


def test_tables_and_picture_are_made_of_what_is_measured(tmp_path: Path) -> None:
    rule, slow = "nothing saveable, a layer", "dots saveable, the whole"
    where = {"error": None, **WHERE}
    lines = []
    for method, temporaries, seconds in ((NONE, 100 * 2**20, 1.0), (rule, 25 * 2**20, 1.25), (slow, 50 * 2**20, 1.5)):
        key = {"program": "LSTM", "method": method, "size": "full"}
        memory = {"arguments": 2**20, "results": 0, "temporaries": temporaries, "on_host": 0, "seconds": 2 * seconds**2}
        lines.append({"key": {"what": "memory", **key}, "value": memory, **where})
        lines.append({"key": {"what": "seconds", **key, "chip": "h200"}, "value": {"seconds": seconds}, **where})
    (tmp_path / "measured.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = Settings(out=tmp_path, programs=("LSTM",), methods=(NONE, rule, slow))
    (curves,) = curve(settings)
    assert f"| LSTM | {rule} | 25.0% | 25.0% | - | 100.0% / - / - |" in curves.text
    assert curves.text.count("| 25.0% / - / - |") == 1  # at 33%
    assert (tmp_path / "curve.png").stat().st_size > 1000
    means, program = tables(settings)
    assert f"| {rule} | 1 | 25.0% | 25.0% | 56.2% |" in means.text
    assert f"| {slow} | 50.0 | 0.0 | 50.0% | 50.0% | 125.0% |" in program.text


def test_faults_are_one_line(launch: Launch) -> None:
    check_fault(launch("checkpoint", "--programs", "GPT-9", "--sections", "values"), "unknown program 'GPT-9'")
    for options, fault in (({"methods": ("magic",)}, "unknown method 'magic'"), ({"chip": "abacus"}, "unknown chip")):
        with pytest.raises(GraphrlError, match=fault):
            Settings(**options).check()
