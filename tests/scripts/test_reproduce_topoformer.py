"""The script of Topoformer's tables: its arithmetic, what it writes, and its faults."""

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
import reproduce_topoformer
from comparison_rows import read_rows
from processes import run_script
from reproduce import launcher
from reproduce.contest import Contest, Entrant, _sizes, run_contest
from reproduce.topoformer import ablations, figures, tables
from reproduce.topoformer.settings import DECODERS, ENCODERS, OURS, QUICK, Settings

from graphrl.agents import find_agent
from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.network import Policy
from graphrl.compare.runs import Row, make_runs, row_of
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.datasets.zoo import select_one
from graphrl.solvers.base import Budget
from graphrl.training.config import parsed
from graphrl.training.run import run_config

GRAPHS = load_graphs(["layered:10x3"])


def rows(label: str, by_seed: Sequence[Sequence[float | None]]) -> list[Row]:
    """Rows with such values, by seed and graph; None failed."""
    return [
        dataclasses.replace(
            row_of(run, value=value, excess=None if value is None else 0, seconds=2.0, compile_seconds=0.5), seed=seed
        )
        for seed, values in enumerate(by_seed)
        for run, value in zip(
            make_runs(GRAPHS[: len(values)], Problem(), [label], [seed], Budget(10), cores=1), values, strict=True
        )
    ]


def test_gaps_are_means_over_graphs_that_both_have() -> None:
    values: dict[str, list[list[float | None]]] = {
        "approximate DP": [[100.0, 200.0]],  # of three graphs
        "random 100": [[110.0, 210.0, 300.0]],
        "greedy": [[104.0, 216.0, 270.0], [108.0, 208.0, 330.0]],
        "beam": [[None, 200.0, 300.0]],
    }
    contest = Contest({label: labelled(label, some) for label, some in values.items()}, [])
    greedy = figures.scores(contest)["greedy"]
    assert greedy.gap.mean == pytest.approx((0.06 + 0.06) / 2)
    assert greedy.gap.half == pytest.approx(0.0, abs=1e-9)
    assert greedy.random.mean == pytest.approx((106 / 110 + 212 / 210 + 300 / 300) / 3 - 1)
    assert (greedy.graphs, greedy.compared, greedy.failed) == (3, 2, 0)
    assert greedy.seconds.mean == 1.5
    beam = figures.scores(contest)["beam"]
    assert (beam.gap.mean, beam.gap.half, beam.compared, beam.failed) == (0.0, None, 1, 1)
    assert figures.spread(contest, "greedy") == "+6.00% to +6.00%"
    (line,) = figures.verdict(contest, "greedy", "random 100")
    assert line.startswith("greedy against random 100: ")
    assert line.endswith("on the mean of 3 graphs, lower on 33% of them")


def labelled(label: str, by_seed: Sequence[Sequence[float | None]]) -> list[Row]:
    return [dataclasses.replace(row, method=label) for row in rows("list", by_seed)]


def test_programs_that_are_tested_are_of_other_families_than_those_of_training() -> None:
    train, validation, *_ = tables.real_data(False)
    for text, name in ((train, "train"), (validation, "valid")):
        assert {select_one(program).split for program in text.partition("=")[2].split(",")} == {name}


def test_every_network_of_the_ablations_can_be_trained() -> None:
    variants = (*ENCODERS.values(), *DECODERS.values())
    configs = [run_config(find_agent("topoformer"), parsed([*words, *QUICK])).agent for words in variants]
    assert len(set(configs)) == len({*ENCODERS, *DECODERS}) == len(ablations.PAPER)
    assert TopoformerConfig().encoder == OURS


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script("reproduce_topoformer", folder, "--out", "out", *arguments)


@functools.cache
def untrained() -> Policy:
    config = TopoformerConfig(layers=1, width=8, heads=1, head_width=4)
    return Policy(config, jax.tree.map(np.asarray, jax.jit(lambda key: Policy.initial(config, key))(jax.random.key(0))))


@pytest.mark.slow
def test_tables_and_pictures(tmp_path: Path) -> None:
    untrained().save(tmp_path / "policy")
    options = ["--quick", "--sections", "table1,inference", "--checkpoint", "policy"]
    options += ["--methods", "xla,depth first,greedy,sample"]
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    texts = {"topoformer-table1.md", "topoformer-inference.md"}
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", "policies", "table1.png", *texts}
    assert (out / "table1.png").read_bytes().startswith(b"\x89PNG")
    table = (out / "topoformer-table1.md").read_text()
    assert table.count("| approximate DP | +0.00% |") == table.count("| random 100 | ") == 2
    assert table.count("- greedy against ") == table.count("- sample against greedy") == 2
    measured = read_rows(out / "runs.jsonl")
    assert not [row for row in measured if row.error]
    options[2] = "table1"  # what is timed anew needs no second run
    assert run(tmp_path, *options).returncode == 0
    assert read_rows(out / "runs.jsonl") == measured


@pytest.mark.slow
def test_ablations_train_and_the_length_of_training_is_measured(tmp_path: Path) -> None:
    options = ["--quick", "--seeds", "1", "--networks", "mlp", "--set", "training.keep=5"]
    options += ["--sections", "encoders,budget", "--run", "out/training/mlp-0"]
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    written = {"topoformer-encoders.md", "encoders-training.png", "topoformer-budget.md", "budget.png"}
    assert written <= {path.name for path in out.iterdir()}
    table = (out / "topoformer-encoders.md").read_text()
    assert table.count("| mlp | greedy | ") == table.count("| mlp | beam | ") == 1
    budget = (out / "topoformer-budget.md").read_text()
    assert [f"| {step} | " in budget for step in (0, 1, 2)] == [True, True, True]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--sections dogs", "unknown section 'dogs'"),
        ("--methods greedy,cats", "unknown method 'cats': "),
        ("--networks mlp,cats", "unknown network 'cats': "),
        ("--sections budget", "section budget: name a run"),
        ("--first 4900", "--first 4900: with 300 graphs seeds must stay below 5000"),
        ("--slow 0", "argument --slow: 0: must be at least 1"),
        ("--checkpoint nowhere", "nowhere"),
    ],
)
def test_faults_are_one_line(
    arguments: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launcher, "keep_compiled", lambda: None)  # it sets what the whole process has
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["reproduce_topoformer.py", *arguments.split(" ")])
    with pytest.raises(SystemExit) as exit:
        launcher.main("topoformer", "", Settings, reproduce_topoformer.SECTIONS)
    line = str(exit.value.code) if isinstance(exit.value.code, str) else capsys.readouterr().err.splitlines()[-1]
    assert exit.value.code != 0
    assert fault in line
    assert "\n" not in line


def test_who_gets_which_graphs_padded_to_what_and_rows_are_not_made_twice(tmp_path: Path) -> None:
    some = [
        Entrant("two seeds", ["random-priorities", "random-priorities"], Budget(10)),
        Entrant("slow", ["depth-first"], Budget(None, 1.0), 1),
    ]
    contest = run_contest(GRAPHS, Problem(), some, tmp_path)
    assert [(row.method, row.seed) for row in contest.by_label["two seeds"]] == [("two seeds", 0), ("two seeds", 1)] * 3
    assert [row.fingerprint for row in contest.by_label["slow"]] == [contest.by_label["two seeds"][0].fingerprint]
    assert not [row.error for row in contest.rows if row.error]
    (run, *_) = make_runs(GRAPHS, Problem(), ["list"], [0], Budget(10), cores=1)
    assert [_sizes(run, one) for one in some] == [run.sizes, None]
    assert run.sizes is not None
    again = run_contest(GRAPHS, Problem(), some[:1], tmp_path)
    assert again.by_label["two seeds"] == contest.by_label["two seeds"]
    assert len(again.others) == 1
