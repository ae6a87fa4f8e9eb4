"""The script of REGAL's tables: its arithmetic, which policies and graphs it takes, what it writes, and its faults."""

import dataclasses
import functools
import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from comparison_rows import read_rows
from processes import check_fault, run_script
from reproduce.regal import ablation, arithmetic, tasks
from reproduce.regal.policies import Kind, Policies
from reproduce.regal.settings import Settings

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import Policy, networks, smallest
from graphrl.compare.runs import Row, make_runs, row_of
from graphrl.compare.table import best_known
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import observe
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.datasets.zoo import select_one
from graphrl.solvers.base import Budget
from graphrl.training.data import DataConfig

CONFIG = RegalConfig(hint="none", rounds=1, width=4, preference=40.0)  # untrained, it proposes the uniform only
GRAPHS = load_graphs(["regal-like:10x2"])
WAYS = ("untrained", "evolution", "reinforce")
SEEDS = (("a", 4), ("b", 6))  # policies of two seeds: names and widths


@functools.cache
def untrained(config: RegalConfig) -> Policy:
    params = jax.jit(networks(config).policy.init)(jax.random.key(0), observe(smallest(config)))
    return Policy(config, jax.tree.map(np.asarray, params))


def saved(path: Path, policy: Policy) -> Path:
    policy.save(path)
    return path


def rows(method: str, by_seed: Sequence[Sequence[float | None]]) -> list[Row]:
    """Rows with such values, by seed and graph; None failed."""
    problem = Problem("makespan", 2)
    return [
        row_of(run, value=value, excess=None if value is None else 0, bound=1.0, seconds=2.0, compile_seconds=0.5)
        for seed, values in enumerate(by_seed)
        for run, value in zip(make_runs(GRAPHS, problem, [method], [seed], Budget(10), cores=1), values, strict=True)
    ]


def test_improvements_are_arithmetic_and_gaps_geometric_means() -> None:
    base = rows("brkga", [[10.0, 20.0], [10.0, 40.0]])
    ours = rows("regal", [[9.0, 20.0], [8.0, 44.0]])
    score = arithmetic.score(ours, base, best_known([*base, *ours]))
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
    score = arithmetic.score(once, base, best_known([*base, *once]))
    assert score.improvement.mean == pytest.approx((1 / 10 - 1 / 8) / 2)
    assert score.gap.half is None
    assert (score.failed, score.runs, score.matched.mean) == (1, 2, 0.5)
    nothing = arithmetic.score(rows("random", [[None, None]]), base, best_known(base))
    assert nothing.improvement.percent() == nothing.gap.percent() == "-"


def test_unseen_graphs_are_not_those_of_training() -> None:
    names = {graph.name for graph in tasks.unseen("synthetic", 200, False)}
    assert len(names) == 200
    assert not names & {graph.name for graph in load_graphs([*DataConfig().train, *DataConfig().validation])}
    assert [graph.name for graph in load_graphs(DataConfig().test)] == [
        graph.name for graph in tasks.unseen("synthetic", 200, False)
    ]
    for which in (tasks.MAKESPAN["test"], tasks.MEMORY_TEST):
        programs = tasks._programs(which, False)
        assert {select_one(name).split for name in programs} == {"test"}
        task = "zoo-makespan" if which == tasks.MAKESPAN["test"] else "zoo-memory"
        graphs = tasks.unseen(task, len(programs) + 2, False)
        assert len({graph.name for graph in graphs}) == len(programs) + 2
    (train,) = [text for text in tasks.TASKS["zoo-makespan"].data(False) if text.startswith("data.train=")]
    assert {select_one(name).split for name in train.removeprefix("data.train=").split(",")} == {"train"}


def test_policies_are_found_by_problem_network_and_rounds(tmp_path: Path) -> None:
    plain, sequence = Kind("message-passing", "none"), Kind("recurrent", "none")
    first, config = untrained(CONFIG), dataclasses.replace(CONFIG, rounds=2)
    deeper = saved(tmp_path / "deeper", untrained(config))
    gas = saved(tmp_path / "gas", untrained(dataclasses.replace(CONFIG, encoder="recurrent")))
    given = [saved(tmp_path / "a", first), gas, deeper]
    policies = Policies(tmp_path / "out", 1, given, (), False)
    (regal,) = policies.of("synthetic", plain)
    (flat,) = policies.of("synthetic", plain, 1)
    (recurrent,) = policies.of("synthetic", sequence)
    assert (regal.policy.config.rounds, flat.policy.config.rounds) == (2, 1)
    assert recurrent.policy.config.encoder == "recurrent"
    again = Policies(tmp_path / "out", 1, [saved(tmp_path / "b", first)], (), False).of("synthetic", plain)
    assert again[0].file == flat.file  # the same policy under another name
    changed = dataclasses.replace(first, params=jax.tree.map(lambda x: 2 * x, first.params))
    other = Policies(tmp_path / "out", 1, [saved(tmp_path / "c", changed)], (), False)
    assert other.of("synthetic", plain)[0].file != flat.file
    with pytest.raises(GraphrlError, match="synthetic with message-passing, hint none: must be 2"):
        Policies(tmp_path / "out", 2, given, (), False).of("synthetic", plain)
    config = dataclasses.replace(CONFIG, problem=Problem("makespan", 2, "free"))
    wrong = saved(tmp_path / "wrong", Policy(config, first.params))
    with pytest.raises(GraphrlError, match="wrong is for another problem than synthetic, synthetic-memory"):
        Policies(tmp_path / "out", 1, [wrong], (), False)


def test_who_runs_how_often(tmp_path: Path) -> None:
    given = [saved(tmp_path / name, untrained(dataclasses.replace(CONFIG, width=width))) for name, width in SEEDS]
    some = Settings(seeds=2, evaluations=100, once=("brkga", "regal"), out=tmp_path, quick=True, checkpoints=given)
    budget = Budget(100)
    seeds = {
        label: len(some.entrant("synthetic", label, budget).methods) for label in ("brkga", "auto", "regal", "idrs")
    }
    assert seeds == {"brkga": 1, "auto": 2, "regal": 1, "idrs": 2}


def test_entropy_of_actions() -> None:
    assert ablation._entropy(np.array([3, 3, 3])) == 0
    assert ablation._entropy(np.array([0, 1, 2, 3])) == pytest.approx(math.log(4))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script("reproduce_regal", folder, "--out", "out", *arguments)


@pytest.mark.slow
def test_tables_and_pictures(tmp_path: Path) -> None:
    saved(tmp_path / "plain", untrained(CONFIG))
    (tmp_path / "out" / "training").mkdir(parents=True)
    for way in WAYS:  # else two programs of training compile, for a minute
        saved(tmp_path / "out" / "training" / f"synthetic-{way}-0.msgpack", untrained(CONFIG))
    saved(tmp_path / "hinted", untrained(dataclasses.replace(CONFIG, hint="list")))
    options = [
        "--quick",
        "--seeds",
        "1",
        "--sections",
        "synthetic,time,limits,ablation,evolved,overhead",
        "--rounds",
        "1",
    ]
    options += ["--methods", "brkga,regal,regal-hint,regal-hint untrained,list", "--checkpoints", "plain", "hinted"]
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    pictures = {"synthetic-improvements.png", "synthetic-time.png", "synthetic-limits.png"}
    pictures |= {"synthetic-training.png", "synthetic-entropy.png"}
    texts = {f"regal-{name}.md" for name in ("synthetic", "time", "limits", "ablation", "evolved", "overhead")}
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", "policies", "training", *texts, *pictures}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    table = (out / "regal-synthetic.md").read_text()
    # it is standard BRKGA
    assert "| brkga | +0.00% |" in table
    assert "| regal | +0.00% |" in table
    assert "| regal-hint | +0.00% |" not in table  # it is what is around the hint
    assert "| regal-hint untrained |" in table
    assert re.search(r"- regal matches or beats BRKGA on \d+\.\d% of the graphs \(goal: at least 87%: \w+\)", table)
    assert "| 1 | - | +0.00% |" in (out / "regal-ablation.md").read_text()  # no record of its training is at hand
    assert re.search(r"- BRKGA with .* regal-hint with 400", (out / "regal-limits.md").read_text())
    evolved = (out / "regal-evolved.md").read_text()
    assert all(f"| regal, {way} | +0.00% |" in evolved for way in WAYS)
    measured = read_rows(out / "runs.jsonl")
    assert not [row for row in measured if row.error]
    assert run(tmp_path, *options).returncode == 0
    assert read_rows(out / "runs.jsonl") == measured


def test_faults_are_one_line(tmp_path: Path) -> None:
    for arguments, fault in (
        (("--sections", "dogs"), "unknown section 'dogs'"),
        (("--methods", "regal,cats"), "unknown method 'cats': "),
        (("--checkpoints", "nowhere"), "nowhere"),
    ):
        check_fault(run(tmp_path, *arguments), fault)
