"""Every notebook runs from top to bottom in a fresh kernel: a notebook that no job runs is wrong within a month."""

from pathlib import Path

import nbclient
import nbformat
import pytest

from graphrl.xla.hook import available

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
NEED_THE_HOOK = {"bigger_batch.ipynb"}  # for schedules, in jax and jaxlib from 0.10.2
# What takes minutes of a notebook is done for seconds here: that it runs is what is tested, not what is learned.
SHORTER = {
    "regal.ipynb": {
        "training.steps=120": "training.steps=12",
        "training.validate_every=20": "training.validate_every=4",
    },
    "topoformer.ipynb": {
        "training.steps=300": "training.steps=15",
        "training.validate_every=50": "training.validate_every=5",
        "width=20000": "width=500",
    },
}


def test_they_are_there() -> None:
    assert {"quickstart.ipynb", "bigger_batch.ipynb", "regal.ipynb", "topoformer.ipynb"} <= set(NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore")  # of the notebook machinery in this process; the kernel is another one
def test_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEED_THE_HOOK and available() is not None:
        pytest.skip(str(available()))
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
