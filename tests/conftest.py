"""Settings of every test run: strict numerics, two CPU devices, headless pictures, quick compiling and a shared cache.

They are set here, before the first JAX call, so that pytest run by hand and `make test` see the same library.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")  # also for the processes that tests start
os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).resolve().parents[1] / ".cache/numba")  # read by numba's import

import hypothesis
import jax
import pytest

from graphrl.process import near_mmap_limit

CACHE = Path(os.environ["NUMBA_CACHE_DIR"]).parent

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)
# Compilation takes nearly all of the time, here and in processes that tests start. Programs compiled with less effort
# (no optimisation by LLVM, one plain loop a kernel, all in one piece) compute the same. `users_xla` is for tests of
# programs as users get them.
QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # since then there is no other way
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"
USERS_FLAGS = os.environ.get("XLA_FLAGS", "").replace(QUICK_FLAGS, "").strip()  # xdist's workers inherit them
os.environ["XLA_FLAGS"] = f"{USERS_FLAGS} {QUICK_FLAGS}".strip()
# The workers of one run, the processes that tests start, and the next run share compiled programs.
SHARED = {"jax_compilation_cache_dir": str(CACHE / "jax"), "jax_persistent_cache_min_compile_time_secs": 0.1}
for name, value in SHARED.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)

# Compilation makes first examples slow: no deadline. CI draws the same examples every time; by hand they differ, and a
# failing one is kept for the next run.
IN_CI = "CI" in os.environ
hypothesis.settings.register_profile(
    "graphrl",
    deadline=None,
    derandomize=IN_CI,
    database=None if IN_CI else hypothesis.database.DirectoryBasedExampleDatabase(CACHE / "hypothesis"),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("graphrl")


@pytest.fixture(autouse=True, scope="module")
def few_mappings() -> Iterator[None]:
    """Frees compiled programs between files once they occupy many memory mappings: the kernel allows a process some
    65,000, and XLA crashes where it gets no more.
    """
    yield
    if near_mmap_limit(share=0.25):
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def users_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles as for users in the processes that the test starts."""
    monkeypatch.setenv("XLA_FLAGS", USERS_FLAGS)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Enables Ctrl-C, here and in started processes, even if the caller of the tests ignores it (nohup)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of the worked example's file."""
    from worked_example import TINY

    from graphrl.graphs.readers.json import write_json

    path = tmp_path / "tiny.json"
    write_json(TINY, path)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for outputs."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"
