"""The script of Topoformer's tables: its arithmetic, its files, and its faults."""

from pathlib import Path

import pytest
from comparison_rows import read_rows, rows_by_seed
from launched import Launch, launch
from processes import check_fault
from reproduce.contest import Contest
from reproduce.policies import untrained
from reproduce.topoformer import ablations, tables
from reproduce.topoformer.settings import DECODERS, ENCODERS, OURS, QUICK

from graphrl.agents import find_agent
from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.network import Policy
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.datasets.zoo import select_one
from graphrl.training.config import parsed
from graphrl.training.run import run_config

__all__ = ["launch"]

GRAPHS = load_graphs(["layered:10x3"])


def test_gaps_are_means_over_graphs_that_both_have() -> None:
    values: dict[str, list[list[float | None]]] = {
        "approximate DP": [[100.0, 200.0]],  # of three graphs
        "random 100": [[110.0, 210.0, 300.0]],
        "greedy": [[104.0, 216.0, 270.0], [108.0, 208.0, 330.0]],
        "beam": [[None, 200.0, 300.0]],
    }
    rows = {label: rows_by_seed(GRAPHS, Problem(), label, some) for label, some in values.items()}
    contest = Contest(rows, [])
    greedy = tables.scores(contest)["greedy"]
    assert greedy.gap.mean == pytest.approx((0.06 + 0.06) / 2)
    assert greedy.gap.half == pytest.approx(0.0, abs=1e-9)
    assert greedy.random.mean == pytest.approx((106 / 110 + 212 / 210 + 300 / 300) / 3 - 1)
    assert (greedy.graphs, greedy.compared, greedy.failed) == (3, 2, 0)
    assert greedy.seconds.mean == 1.5
    beam = tables.scores(contest)["beam"]
    assert (beam.gap.mean, beam.gap.half, beam.compared, beam.failed) == (0.0, None, 1, 1)
    assert tables.spread(contest, "greedy") == "+6.00% to +6.00%"
    (line,) = tables.verdict(contest, "greedy", "random 100")
    assert line.startswith("greedy against random 100: ")
    assert line.endswith("on the mean of 3 graphs, lower on 33% of them")


def test_programs_that_are_tested_are_of_other_families_than_those_of_training() -> None:
    train, validation, *_ = tables.real_data(False)
    for text, name in ((train, "train"), (validation, "valid")):
        assert {select_one(program).split for program in text.partition("=")[2].split(",")} == {name}


def test_every_network_of_the_ablations_can_be_trained() -> None:
    variants = (*ENCODERS.values(), *DECODERS.values())
    configs = [run_config(find_agent("topoformer"), parsed([*words, *QUICK])).agent for words in variants]
    assert len(set(configs)) == len({*ENCODERS, *DECODERS}) == len(ablations.PAPER) + 1  # the paper has no "sequential"
    assert TopoformerConfig().encoder == OURS


@pytest.mark.slow
def test_tables_and_pictures(launch: Launch) -> None:
    untrained(Policy, TopoformerConfig(layers=1, width=8, heads=1, head_width=4)).save("policy")
    options = ["--quick", "--sections", "table1,inference", "--checkpoint", "policy"]
    options += ["--methods", "xla,depth first,greedy,sample"]
    done = launch("topoformer", *options)
    assert done.returncode == 0, done.stderr
    out = Path("out")
    texts, pictures = {"topoformer-table1.md", "topoformer-inference.md"}, {"table1-20.png", "table1-30.png"}
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", "policies", *texts, *pictures}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    table = (out / "topoformer-table1.md").read_text()
    assert table.count("| approximate DP | +0.00% |") == table.count("| random 100 | ") == 2
    assert table.count("- greedy against ") == table.count("- sample against greedy") == 2
    measured = read_rows(out / "runs.jsonl")
    assert not [row for row in measured if row.error]
    options[2] = "table1"  # the timed part needs no second run
    assert launch("topoformer", *options).returncode == 0
    assert read_rows(out / "runs.jsonl") == measured


@pytest.mark.slow
def test_ablations_train_and_the_length_of_training_is_measured(launch: Launch) -> None:
    options = ["--quick", "--seeds", "1", "--set", "training.keep=5"]
    done = launch("topoformer", *options, "--sections", "encoders,budget", "--run", "out/training/mlp-0")
    assert done.returncode == 0, done.stderr
    table = Path("out/topoformer-encoders.md").read_text()
    assert table.count("| mlp | greedy | ") == table.count("| mlp | beam | ") == 1
    budget = Path("out/topoformer-budget.md").read_text()
    assert [f"| {step} | " in budget for step in (0, 1, 2)] == [True, True, True]


def test_faults_are_one_line(launch: Launch) -> None:
    for arguments, fault in (
        ("--sections dogs", "unknown section 'dogs'"),
        ("--methods greedy,cats", "unknown method 'cats': "),
        ("--sections budget", "section budget: name a run"),
        ("--graphs 6000", "--graphs 6000: must be at most 5000"),
        ("--slow 0", "argument --slow: 0: must be at least 1"),
        ("--checkpoint nowhere", "nowhere"),
    ):
        check_fault(launch("topoformer", *arguments.split(" ")), fault)
