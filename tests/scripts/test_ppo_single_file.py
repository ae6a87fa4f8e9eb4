"""PPO in one file: it uses public names only, is short, and learns."""

import ast
from pathlib import Path

import jax
import numpy as np
import ppo_single_file
import pytest

SOURCE = Path(ppo_single_file.__file__).read_text(encoding="utf-8")


def test_it_is_short_and_uses_public_names_only() -> None:
    assert len(SOURCE.splitlines()) <= 150
    nodes = list(ast.walk(ast.parse(SOURCE)))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and "graphrl" in (node.module or "")]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in names if name.startswith("graphrl")} == {"graphrl"}


@pytest.mark.slow
def test_every_seed_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On graphs that the policies have not seen; a wrong sign, or advantages of other actions, do not pass."""
    monkeypatch.setattr(ppo_single_file, "TRAIN", "layered:20x32")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users run it
        random, trained = map(np.asarray, ppo_single_file.train(2, 60, 30))
    assert random.shape == trained.shape == (2, 32, ppo_single_file.SAMPLES)
    gain = (trained - random).mean(2)  # [seeds, graphs]
    error = gain.std(1) / np.sqrt(gain.shape[1])
    assert (gain.mean(1) > 3 * error).all()
    assert gain.mean() > 0.02
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["updates", "30", "60"]
