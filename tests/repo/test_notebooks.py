"""Every notebook runs from top to bottom in a fresh kernel: an untested notebook is wrong within a month."""

from pathlib import Path

import nbclient
import nbformat
import pytest

from graphrl.xla.hook import why_unavailable

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
OF_XLA = {"bigger_batch.ipynb"}  # it needs the hook for schedules, and it shows XLA's behaviour for users
# Cells that take minutes run for seconds here: the test covers execution, not learning results.
SHORTER = {
    "bigger_batch.ipynb": {
        "STAGES = ((16, 1), (24, 2), (40, 2), (80, 2))": "STAGES = ((16, 1), (24, 2))",
        "train_step, seconds=4": "train_step, seconds=1",
    },
    "checkpoint.ipynb": {
        "TOKENS, BATCH = 6, 512, 8, 128, 4": "TOKENS, BATCH = 3, 64, 4, 64, 2",
        '"seconds": 1}': '"seconds": 0.1}',
    },
    "go.ipynb": {
        '"erdos-renyi:120@1"': '"erdos-renyi:24@1"',
        "training.steps=60": "training.steps=2",
        "training.validate_every=15": "training.validate_every=1",
        "data.train=erdos-renyi:60x24@10000,layered:60x24@10000": "data.train=erdos-renyi:24x4@10000",
        "data.validation=erdos-renyi:60x8@5000,layered:60x8@5000": "data.validation=erdos-renyi:24x4@5000",
        "agent.devices=2,4 --set agent.ppo.environments=16": "agent.devices=4 --set agent.ppo.environments=4",
        "agent.network.width=16": "agent.network.width=8 --set agent.network.layers=0 --set agent.network.heads=1 "
        "--set agent.network.superposition=none --set agent.network.coupling=none",
        "go:finetune=20": "go:rounds=1",  # tested with GO's training, and long to compile
        "2_000),": "200),",
        "57_700": "2_000",
    },
    "memory_maps.ipynb": {
        "EVALUATIONS = 4_000": "EVALUATIONS = 200",
        '"egrl:variant=ea"': '"egrl:variant=ea,width=8,depth=0,population=6"',
        "None, seconds=10)": "None, seconds=1)",
    },
    "regal.ipynb": {
        "training.steps=120": "training.steps=4",
        "training.validate_every=20": "training.validate_every=2",
        "agent.learning_rate=0.006": "agent.learning_rate=0.006 --set agent.width=8",
        "data.train=regal-like:50x100@": "data.train=regal-like:15x16@",
        "data.validation=regal-like:50x16@": "data.validation=regal-like:15x8@",
        'load_graphs(["regal-like:50x48"])': 'load_graphs(["regal-like:15x8"])',
        "Parameters(), 1_000, proposals": "Parameters(), 160, proposals",
    },
    "topoformer.ipynb": {
        "training.steps=300": "training.steps=4",
        "training.validate_every=50": "training.validate_every=2",
        "agent.learning_rate=0.002": "agent.learning_rate=0.002 --set agent.layers=1 --set agent.width=8 "
        "--set agent.heads=1 --set agent.head_width=4",
        "data.train=layered:40x64@": "data.train=layered:40x16@",
        "data.validation=layered:40x32@": "data.validation=layered:40x8@",
        '("sample", 200)': '("sample", 16)',
        "width=20000": "width=500",
        "layered:60x24": "layered:60x1@1",  # the graph that is decoded before: the same programs
    },
}


def test_they_are_there() -> None:
    assert set(SHORTER) | {"quickstart.ipynb"} <= set(NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore")  # of the notebook libraries in this process; the kernel is another process
def test_notebook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name in OF_XLA:
        if why_unavailable() is not None:
            pytest.skip(str(why_unavailable()))
        request.getfixturevalue("users_xla")
        # A program from an earlier run in jax's cache on disk would have no report.
        monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(FOLDER / name, as_version=4)
    for long, short in SHORTER.get(name, {}).items():
        (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and long in cell.source)
        cell.source = cell.source.replace(long, short)
    (tmp_path / "work").mkdir()
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path / "work")}})
    client.execute()  # raises CellExecutionError, which prints the cell, where one fails
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert ran
    assert all(cell.execution_count for cell in ran)
