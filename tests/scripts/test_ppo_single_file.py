"""PPO in one file, for episodes of one step and of many: it uses public names only, is short, and learns."""

import ast
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import ppo_multi_step
import ppo_single_file
import pytest


@pytest.mark.parametrize("script", [ppo_single_file, ppo_multi_step], ids=lambda script: script.__name__)
def test_it_is_short_and_uses_public_names_only(script: ModuleType) -> None:
    source = Path(str(script.__file__)).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    nodes = list(ast.walk(ast.parse(source)))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and "graphrl" in (node.module or "")]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in names if name.startswith("graphrl")} == {"graphrl"}


def test_advantages_of_an_episode_that_ends_and_of_one_that_goes_on() -> None:
    """By hand, with the discount 1 and lambda 0.95: the first episode ends at the first step, the last never."""
    steps = {
        "reward": jnp.array([[-2.0], [0.0], [0.0]]),
        "value": jnp.array([[-1.0], [-3.0], [-2.0]]),
        "done": jnp.array([[True], [False], [False]]),
    }
    with jax.numpy_dtype_promotion("standard"):
        advantages = np.asarray(ppo_multi_step.advantages(steps, jnp.array([-5.0])))
    np.testing.assert_allclose(advantages[:, 0], [-2 + 1, (-2 + 3) + 0.95 * (-5 + 2), -5 + 2], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "settings", "updates", "least"),
    [
        (ppo_single_file, {"TRAIN": "layered:20x32"}, 60, 0.02),
        # noisier, two episodes of a graph instead of 16, and small graphs, which leave less to gain, for time
        (ppo_multi_step, {"TRAIN": "layered:10x32", "HELD_OUT": "layered:10x1024@1000", "STEPS": 20}, 40, 0.01),
    ],
    ids=["single_file", "multi_step"],
)
def test_every_seed_learns(
    script: ModuleType,
    settings: dict[str, object],
    updates: int,
    least: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On graphs that the policies have not seen; a wrong sign, or advantages of other actions, do not pass."""
    for name, value in settings.items():
        monkeypatch.setattr(script, name, value)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users run it
        random, trained = map(np.asarray, script.train(2, updates, updates // 2))
    assert random.shape == trained.shape
    gain = (trained - random).reshape(*random.shape[:2], -1).mean(2)  # [seeds, graphs]
    error = np.sqrt((gain.var(1) / gain.shape[1]).mean() / len(gain))  # of the mean over graphs and seeds
    assert (gain.mean(1) > 0).all()
    assert gain.mean() > max(4 * error, least)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["updates", str(updates // 2), str(updates)]
