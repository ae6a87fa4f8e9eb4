"""The script of EGRL's tables: its files, resumption after a stop, and its faults."""

import json
import math
import re
import shutil
from pathlib import Path

from launched import Launch, launch
from processes import check_fault
from reproduce import launcher

import graphrl

__all__ = ["launch"]


def test_methods_have_a_line_each(launch: Launch) -> None:
    options = ("--quick", "--sections", "methods", "--methods", "compiler,benefit,anneal,cp-sat")
    done = launch("egrl", *options)
    assert done.returncode == 0, done.stderr
    text = Path("out/egrl-methods.md").read_text()
    assert "# resnet50 on nnp-i" in text
    assert "| compiler | 200 evaluations | 1 | 313.8 | 1.000 | " in text
    assert re.search(r"\| anneal \| 200 evaluations \| 2 \| .* ± .* \|", text)
    assert re.search(r"\| cp-sat \| 0.2 s \| 2 \| .* \| \d+\.\d+% \| ", text)
    assert "Best known" in text
    assert "failed:" not in text
    assert Path("out/curves-resnet50.png").read_bytes().startswith(b"\x89PNG")
    kept = Path("out/measured.jsonl")
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + 1 + 2 + 2 + 2
    values = [json.loads(line)["value"] for line in lines]
    assert all((value["bound"] or 0) <= value["latency"] <= value["compiler_latency"] * 1.01 for value in values)
    assert all(math.isclose(value["curve"][-1][1], value["latency"]) for value in values)
    again = launch("egrl", *options)
    assert "measuring" not in again.stderr
    assert kept.read_text().splitlines() == lines


def test_methods_keep_their_options() -> None:
    text = "cp-sat,egrl:encoder=unet,width=32,variant=ea,compiler"
    assert launcher.methods(text) == ("cp-sat", "egrl:encoder=unet,width=32,variant=ea", "compiler")


def test_maps_are_compared_with_the_compilers(launch: Launch) -> None:
    done = launch("egrl", "--quick", "--sections", "maps", "--methods", "compiler,anneal")
    assert done.returncode == 0, done.stderr
    text = Path("out/egrl-maps.md").read_text()
    assert "| compiler | 313.8 | 0% | - | 92% | 100% |" in text
    assert re.search(r"\| anneal \| outputs \| SRAM \| \d+ \(", text)


def test_faults_are_one_line(launch: Launch) -> None:
    for arguments, fault in (
        (("--workloads", "vgg"), "unknown workload 'vgg': "),
        (("--methods", "regal"), "unknown method 'regal': "),
        (("--sections", "maps", "--stored"), "out: nothing was measured yet: "),
    ):
        check_fault(launch("egrl", *arguments), fault)


def test_further_policies_have_rows(launch: Launch) -> None:
    policy = Path(graphrl.__file__).parent / "agents/egrl/defaults/memories.msgpack"
    Path("out").mkdir()
    shutil.copy(policy, "out/policy-resnet50-0.msgpack")  # as if trained on ResNet-50
    done = launch("egrl", "--quick", "--sections", "transfer", "--policies", str(policy))
    assert done.returncode == 0, done.stderr
    lines = Path("out/egrl-transfer.md").read_text().splitlines()
    for table in ("From one workload", "Unseen models", "Unseen models on drawn"):
        rows = lines[next(number for number, line in enumerate(lines) if line.startswith(f"## {table}")) :]
        shipped, again = (
            next(row.split("|")[2] for row in rows if row.startswith(f"| {name} |"))
            for name in ("the policy that ships", "the same training again, 1")
        )
        assert shipped == again
