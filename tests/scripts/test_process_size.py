"""Resident size of processes: it rises by XLA's figure, for its own schedules and for a given one."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import wide_program
from reproduce.real_programs import process_size
from reproduce.real_programs.process_size import Recipe, digest, measure_resident, random_arguments

from graphrl.errors import GraphrlError
from graphrl.xla.hook import captured, why_unavailable
from graphrl.xla.planning.cache import places_of

pytestmark = [
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
    pytest.mark.usefixtures("users_xla"),
]

WIDE = Recipe("wide_program:wide")
NOISE = 12 * 2**20  # bytes: threads, kernels' scratch, and malloc's free memory


def test_the_rise_falls_as_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fn, args = WIDE.build()
    order = places_of(captured(jax.jit(fn).lower(*args), "memory"))
    default, memory, given, planned = (
        measure_resident(WIDE, schedule) for schedule in ("default", "memory", order, {"seconds": 0.2})
    )
    assert default.temp > wide_program.BRANCHES * wide_program.BYTES
    assert given.temp == memory.temp < 2 * wide_program.BYTES
    assert planned.temp < 2 * wide_program.BYTES
    assert default.digest == memory.digest == given.digest == planned.digest
    for less in (memory, given, planned):
        assert default.rise - less.rise == pytest.approx(default.temp - less.temp, abs=NOISE)
        assert less.samples > 2
        assert less.seconds > 0
    assert list((tmp_path / "graphrl" / "plans").glob("*.json"))


def test_freed_memory_is_returned_on_request() -> None:
    for returning, threshold in ((False, None), (True, 131072)):
        with pytest.raises(GraphrlError, match=f"failed: ValueError: {threshold}$"):
            measure_resident(Recipe("wide_program:allocator"), returning=returning)


def test_faults_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GraphrlError, match=r"'wide_program:deep': .*must be package.module:function"):
        Recipe("wide_program:deep").build()
    with pytest.raises(GraphrlError, match=r"running wide_program:broken \{\} failed: ValueError: no such luck"):
        measure_resident(Recipe("wide_program:broken"))
    with pytest.raises(GraphrlError, match="schedule is 'fast': XLA's are 'default' and 'memory'"):
        measure_resident(WIDE, "fast")  # type: ignore[arg-type]
    monkeypatch.setattr(process_size, "_STATUS", process_size._STATUS / "nowhere")
    with pytest.raises(GraphrlError, match="which only Linux has"):
        measure_resident(WIDE)


def test_random_arguments_fill_what_is_abstract() -> None:
    shape, held = jax.ShapeDtypeStruct, np.zeros(3)
    args: dict[str, Any] = {
        "kernel": shape((3, 3, 64, 8), "float32"),
        "variance": shape((5000,), "bfloat16"),
        "tokens": shape((2, 7), "int32"),
        "mask": shape((5,), "bool"),
        "keys": shape((2,), jax.random.key(0).dtype),
        "held": held,
    }
    filled = random_arguments(args, seed=1)
    for name, arg in args.items():
        assert (filled[name].shape, filled[name].dtype) == (arg.shape, arg.dtype)
    assert filled["held"] is held
    assert float(filled["kernel"].std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
    assert bool((filled["variance"] > 0).all())
    assert set(np.asarray(filled["tokens"]).ravel().tolist()) == {0, 1}
    assert digest(filled) == digest(random_arguments(args, seed=1))
    assert digest(filled) != digest(random_arguments(args, seed=2))
