"""The shipped package equals the repository: the wheel, the links, the lock."""

import json
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from processes import run_python

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("onnx", "cluster", "metis", "tensorboard")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with a nearly empty environment, so that no PYTHONPATH of the caller helps it."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "JAX_PLATFORMS": "cpu"} | env
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network from a copy: an earlier build's leftovers cannot get into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "graphrl", source / "graphrl", ignore=shutil.ignore_patterns("__pycache__"))
    built = run(
        *PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=source
    )
    assert built.returncode == 0, built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, installed without network and without dependencies."""
    target = tmp_path_factory.mktemp("installed")
    done = run(*PIP, "install", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    assert done.returncode == 0, done.stderr
    return target


def test_every_package_is_in_the_wheel(wheel: Path) -> None:
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "graphrl").rglob("*.py")}
    data = {"graphrl/py.typed", "graphrl/solvers/chromosomes/brkga_tuned.json"}
    for folder in (
        "graphs/datasets/zoo/data",
        "graphs/datasets/workloads/data",
        "agents/egrl/defaults",
        "agents/go/defaults",
        "agents/regal/defaults",
        "agents/topoformer/defaults",
    ):
        data |= {str(path.relative_to(ROOT)) for path in (ROOT / "graphrl" / folder).rglob("*.*")}
    assert shipped == modules | data
    folders = {path.parent for path in (ROOT / "graphrl").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    assert f"Version: {PROJECT['version']}\n" in text
    assert "License-Expression: Apache-2.0\n" in text


def test_command_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    shown = run(sys.executable, installed / "bin" / "graphrl", "--version", cwd=tmp_path, PYTHONPATH=str(installed))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert PROJECT["version"] in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_public_names_are_sorted_and_there(installed: Path, tmp_path: Path) -> None:
    code = "import graphrl as g; n = g.__all__; assert n == sorted(n), n; [getattr(g, x) for x in n]; print(g.__file__)"
    shown = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.strip() == str(installed / "graphrl" / "__init__.py")


def test_without_extras_all_else_runs_and_one_line_names_the_extra(installed: Path, tmp_path: Path, model: str) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08")  # its first bytes identify the format
    (tmp_path / "module.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}")
    extra_of = {_package(r): extra for extra in EXTRAS for r in PROJECT["optional-dependencies"][extra]}
    extra_of["distributed"] = extra_of["dask"]
    program = ROOT / "tests" / "helpers" / "without_extras.py"
    shown = run_python(Path(model).parent, str(program), json.dumps(list(extra_of)))
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout.splitlines()[-1])
    assert 'needs tensorboardX: pip install "graphrl[tensorboard]" (this run does not write it)\n' in result["training"]
    for package, (code, error) in result["failed"].items():
        assert code == 1
        assert error.count("\n") == 1
        assert error.endswith(f'pip install "graphrl[{extra_of[package]}]"\n')


@pytest.mark.parametrize("name", ["envs", "agents"])
def test_links_lead_into_the_package_and_are_no_packages(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).readlink() == Path("graphrl") / name
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = run("git", "-c", f"safe.directory={ROOT}", "ls-files", "--stage", name, cwd=ROOT)
        assert listed.stdout.startswith(f"{stat.S_IFLNK:o} "), f"git does not track the link {name}: git add {name}"
    shown = run(sys.executable, "-c", f"import {name}", cwd=ROOT)
    assert shown.returncode == 1
    assert shown.stderr.splitlines()[-1].startswith(f"ImportError: this is graphrl.{name}")


def test_lock_pins_everything_and_names_no_address() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)] == []
    assert [line for line in lines if "://" in line or "@" in line] == []


def test_lock_covers_what_the_project_asks_for() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = {_normal(line.split("==")[0]) for line in lines if "==" in line}
    extras = PROJECT["optional-dependencies"]
    asked = [
        *PROJECT["dependencies"],
        *(r for extra in ("docs", "test", "dev", "peers", *EXTRAS) for r in extras[extra]),
    ]
    required = {_normal(r) for r in asked} - {"graphrl"}
    assert required - pinned == set()


def _package(requirement: str) -> str:
    """The package's name: of `dask[distributed]>=2025.5` it is `dask`."""
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0]  # type: ignore[index]


def _normal(requirement: str) -> str:
    """The package's name as package tools compare it."""
    return re.sub(r"[-_.]+", "-", _package(requirement)).lower()
