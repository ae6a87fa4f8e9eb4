"""The script of REGAL's tables: its arithmetic, its choice of graphs, its files, and its faults."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from comparison_rows import read_rows, rows_by_seed
from launched import Launch, launch
from processes import check_fault
from reproduce.policies import untrained
from reproduce.regal import settings, tables

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import Policy
from graphrl.compare.runs import Row
from graphrl.compare.table import best_known
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.datasets.zoo import select_one
from graphrl.training.data import DataConfig

__all__ = ["launch"]

CONFIG = RegalConfig(placement="independent", rounds=1, width=4, preference=40.0)  # untrained, it proposes uniformly
GRAPHS = load_graphs(["regal-like:10x2"])
WAYS = ("untrained", "evolution", "reinforce")


def rows(method: str, by_seed: Sequence[Sequence[float | None]]) -> list[Row]:
    return rows_by_seed(GRAPHS, Problem("makespan", 2), method, by_seed)


def test_improvements_are_arithmetic_and_gaps_geometric_means() -> None:
    base = rows("brkga", [[10.0, 20.0], [10.0, 40.0]])
    ours = rows("regal", [[9.0, 20.0], [8.0, 44.0]])
    score = tables.score(ours, base, best_known([*base, *ours]))
    assert score.improvement.mean == pytest.approx((0.05 + (0.2 - 0.1) / 2) / 2)
    assert score.improvement.half == pytest.approx(0.0, abs=1e-9)  # both seeds are 5% better
    gaps = [math.sqrt(9 / 8 * 20 / 20) - 1, math.sqrt(8 / 8 * 44 / 20) - 1]
    assert score.gap.mean == pytest.approx(sum(gaps) / 2)
    deviation = abs(gaps[1] - gaps[0]) / math.sqrt(2)
    assert score.gap.half == pytest.approx(12.7062047 * deviation / math.sqrt(2))
    assert score.matched.mean == 0.75
    assert [score.highest, score.lowest] == pytest.approx([0.2, -0.1])
    assert score.bound == pytest.approx((math.sqrt(9 * 20) + math.sqrt(8 * 44)) / 2 - 1)
    assert (score.seconds, score.failed, score.runs) == (1.5, 0, 4)


def test_one_seed_has_no_interval_and_meets_every_seed_of_the_baseline() -> None:
    base = rows("brkga", [[10.0, 20.0], [8.0, 20.0]])
    once = rows("list", [[9.0, None]])
    score = tables.score(once, base, best_known([*base, *once]))
    assert score.improvement.mean == pytest.approx((1 / 10 - 1 / 8) / 2)
    assert score.gap.half is None
    assert (score.failed, score.runs, score.matched.mean) == (1, 2, 0.5)
    nothing = tables.score(rows("random", [[None, None]]), base, best_known(base))
    assert nothing.improvement.percent() == nothing.gap.percent() == "-"


def test_unseen_graphs_are_not_those_of_training() -> None:
    names = {graph.name for graph in settings.unseen("synthetic", 200, False)}
    assert len(names) == 200
    assert not names & {graph.name for graph in load_graphs([*DataConfig().train, *DataConfig().validation])}
    assert [graph.name for graph in load_graphs(DataConfig().test)] == [
        graph.name for graph in settings.unseen("synthetic", 200, False)
    ]
    for which in (settings.MAKESPAN["test"], settings.MEMORY_TEST):
        programs = settings.programs(which, False)
        assert {select_one(name).split for name in programs} == {"test"}
        task = "zoo-makespan" if which == settings.MAKESPAN["test"] else "zoo-memory"
        graphs = settings.unseen(task, len(programs) + 2, False)
        assert len({graph.name for graph in graphs}) == len(programs) + 2
    (train,) = [text for text in settings.TASKS["zoo-makespan"].data(False) if text.startswith("data.train=")]
    assert {select_one(name).split for name in train.removeprefix("data.train=").split(",")} == {"train"}


@pytest.mark.slow
def test_tables_and_pictures(launch: Launch) -> None:
    out = Path("out")
    training = out / "training"
    training.mkdir(parents=True)
    for name in ("message-passing", *WAYS):  # otherwise it would be trained
        untrained(Policy, CONFIG).save(training / f"synthetic-{name}-0.msgpack")
    options = ["--quick", "--seeds", "1", "--sections", "synthetic,time,limits,evolved,overhead"]
    options += ["--methods", "brkga,regal,regal untrained,list"]
    done = launch("regal", *options)
    assert done.returncode == 0, done.stderr
    pictures = {"synthetic-improvements.png", "synthetic-time.png"}
    texts = {f"regal-{name}.md" for name in ("synthetic", "time", "limits", "evolved", "overhead")}
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", "policies", "training", *texts, *pictures}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    table = (out / "regal-synthetic.md").read_text()
    # uniform proposals are standard BRKGA
    assert "| brkga | +0.00% |" in table
    assert "| regal | +0.00% |" in table
    assert "| regal untrained | " in table
    assert re.search(r"- regal matches or beats BRKGA on \d+\.\d% of the graphs \(goal: at least 87%: \w+\)", table)
    assert re.search(r"- BRKGA with .* regal with 400", (out / "regal-limits.md").read_text())
    evolved = (out / "regal-evolved.md").read_text()
    assert all(f"| regal, {way} | +0.00% |" in evolved for way in WAYS)
    measured = read_rows(out / "runs.jsonl")
    assert not [row for row in measured if row.error]
    assert launch("regal", *options[:3], "--sections", "synthetic", *options[5:]).returncode == 0
    assert read_rows(out / "runs.jsonl") == measured


def test_faults_are_one_line(launch: Launch) -> None:
    check_fault(launch("regal", "--sections", "dogs"), "unknown section 'dogs'")
    check_fault(launch("regal", "--methods", "regal,cats"), "unknown method 'cats': ")
