"""Every notebook runs from top to bottom in a fresh kernel: an untested notebook is wrong within a month."""

from pathlib import Path

import nbclient
import nbformat
import pytest

from graphrl.xla.hook import why_unavailable

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
NEEDS_XLA = {"memory_budgets.ipynb"}  # it needs the hook for schedules, and it shows XLA's behaviour for users
# Trainings and searches are shorter here: the test covers execution, not learning results.
SHORTER = {
    "environments.ipynb": {'"evaluations": 200': '"evaluations": 80', "BATCH = 64": "BATCH = 4"},
    "train.ipynb": {
        '"steps": 120, "validate_every": 20': '"steps": 4, "validate_every": 2',
        '"rounds": 1, "learning_rate"': '"rounds": 1, "width": 8, "learning_rate"',
        "evaluations=800": "evaluations=80",
        "20x24": "20x4",
    },
    "own_agent.ipynb": {"40, 8, 16, 80": "40, 8, 16, 10", "range(100, 124)": "range(100, 104)"},
    "plan_a_model.ipynb": {"seconds=5": "seconds=1"},
    "memory_budgets.ipynb": {
        "TOKENS = 6, 512, 8, 128": "TOKENS = 3, 64, 4, 64",
        '"seconds": 1}': '"seconds": 0.1}',
        "BATCHES = (4, 8, 16, 32)": "BATCHES = (4, 8)",
        "SIZE, CHANNELS, WIDE, BATCH = 32": "SIZE, CHANNELS, WIDE, BATCH = 16",
    },
}


def test_they_are_there() -> None:
    assert set(SHORTER) == set(NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore")  # of the notebook libraries in this process; the kernel is another process
def test_notebook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name in NEEDS_XLA:
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
