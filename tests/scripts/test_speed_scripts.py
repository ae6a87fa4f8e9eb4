"""What scripts/training_speed.py and accelerator.py --compile-only compute from runs and from compiled programs."""

import jax
import jax.numpy as jnp
import pytest
import training_speed
from accelerator import main
from jax import lax
from reproduce.accelerator.compiled import figures


def test_rates_leave_out_the_first_update_of_each_bucket() -> None:
    steps = [(10.0, 64), (12.0, 64), (30.0, 96), (31.0, 64), (35.0, 96)]  # seconds so far, and padded size
    updates = [{"seconds": seconds, "bucket": bucket} for seconds, bucket in steps]
    # 2 and 1 s of 64 ops, 4 s of 96; the 18 s before the first update of 96 are compilation
    assert training_speed._rate(updates) == pytest.approx(3 / (1.5 + 1.5 + 4))


def test_an_agent_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["training_speed.py", "--agents", "go,sarsa"])
    with pytest.raises(SystemExit):
        training_speed.main()
    assert "--agents names 'sarsa': must be among make train, regal" in capsys.readouterr().err


def test_figures_of_a_compiled_program_count_its_kernels_and_those_of_loops() -> None:
    def loop(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (jnp.sort(x) * 0.5, None), x, length=7)[0]

    shape = jax.ShapeDtypeStruct((1000,), jnp.float32)
    none, looped = (figures(jax.jit(function).lower(shape).compile(), "cpu") for function in (jnp.sin, loop))
    assert (none.kernels, none.looped, none.arguments) == (1, 0, 4000)
    assert 0 < looped.looped <= looped.kernels
    assert looped.seconds > none.seconds > 0


def test_a_target_needs_compile_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["accelerator.py", "--target", "h100"])
    with pytest.raises(SystemExit):
        main()
    assert "--target goes with --compile-only" in capsys.readouterr().err
