"""The script of EGRL's tables: what it writes, that it goes on where it was, and its faults."""

import json
import math
import re
import subprocess
from pathlib import Path

from processes import check_fault, run_script
from reproduce import launcher


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script("reproduce_egrl", folder, "--out", "out", *arguments)


def test_methods_have_a_line_each(tmp_path: Path) -> None:
    options = ("--quick", "--sections", "methods", "--methods", "compiler,benefit,anneal,cp-sat")
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "egrl-methods.md").read_text()
    assert "# resnet50 on nnp-i" in text
    assert "| compiler | 200 evaluations | 1 | 313.8 | 1.000 | " in text
    assert re.search(r"\| anneal \| 200 evaluations \| 2 \| .* ± .* \|", text)
    assert re.search(r"\| cp-sat \| 0.2 s \| 2 \| .* \| \d+\.\d+% \| ", text)
    assert "Best known" in text
    assert "failed:" not in text
    assert (tmp_path / "out" / "curves-resnet50.png").read_bytes().startswith(b"\x89PNG")
    kept = tmp_path / "out" / "measured.jsonl"
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + 1 + 2 + 2 + 2
    values = [json.loads(line)["value"] for line in lines]
    assert all((value["bound"] or 0) <= value["latency"] <= value["compiler_latency"] * 1.01 for value in values)
    assert all(math.isclose(value["curve"][-1][1], value["latency"]) for value in values)
    again = run(tmp_path, *options)
    assert "measuring" not in again.stderr
    assert kept.read_text().splitlines() == lines


def test_methods_keep_their_options() -> None:
    text = "cp-sat,egrl:encoder=unet,width=32,variant=ea,compiler"
    assert launcher.methods(text) == ("cp-sat", "egrl:encoder=unet,width=32,variant=ea", "compiler")


def test_maps_are_compared_with_the_compilers(tmp_path: Path) -> None:
    done = run(tmp_path, "--quick", "--sections", "maps", "--methods", "compiler,anneal")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "egrl-maps.md").read_text()
    assert "| compiler | 313.8 | 0% | - | 92% | 100% |" in text
    assert re.search(r"\| anneal \| outputs \| SRAM \| \d+ \(", text)
    assert (tmp_path / "out" / "maps-resnet50.png").read_bytes().startswith(b"\x89PNG")


def test_faults_are_one_line(tmp_path: Path) -> None:
    for arguments, fault in (
        (("--workloads", "vgg"), "unknown workload 'vgg': "),
        (("--methods", "regal"), "unknown method 'regal': "),
        (("--chip", "none"), "chips by name are nnp-i"),
    ):
        check_fault(run(tmp_path, *arguments), fault)
