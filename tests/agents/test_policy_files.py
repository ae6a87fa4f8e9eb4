"""Policy files: invalid and foreign files are refused in one line, before anything is built."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import serialization
from tiny_agent import TinyConfig, TinyPolicy

from graphrl.agents.egrl.network import Policy as EgrlPolicy
from graphrl.agents.go.network import Policy as GoPolicy
from graphrl.agents.regal.network import Policy as RegalPolicy
from graphrl.agents.topoformer.network import Policy as TopoformerPolicy
from graphrl.errors import GraphrlError
from graphrl.training.agent import Policy

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


def policy() -> TinyPolicy:
    config = TinyConfig(width=3)
    return TinyPolicy(config, jax.tree.map(np.asarray, TinyPolicy.initial(config, jax.random.key(0))), "made here")


def test_a_file_gives_back_the_policy(tmp_path: Path) -> None:
    """A policy file's note may be missing."""
    policy().save(tmp_path / "policy")
    loaded = TinyPolicy.load(tmp_path / "policy")
    assert (loaded.config, loaded.note, loaded.digest) == (policy().config, "made here", policy().digest)
    start = TinyPolicy.load_params(str(tmp_path / "policy"), policy().config)
    jax.tree.map(np.testing.assert_array_equal, start, policy().params)
    harmed(tmp_path, without("note"))
    assert TinyPolicy.load(tmp_path / "policy").note == ""


SHIPPED: list[tuple[type[Policy[Any]], Path]] = [
    (kind, path)
    for kind in (EgrlPolicy, GoPolicy, RegalPolicy, TopoformerPolicy)
    for path in sorted(kind.defaults.rglob("*.msgpack"))
]


@pytest.mark.parametrize(
    ("kind", "path"), SHIPPED, ids=lambda one: one.stem if isinstance(one, Path) else one.agents[0]
)
def test_what_ships_fits_its_settings(kind: type[Policy[Any]], path: Path, tmp_path: Path) -> None:
    """Loads the file from another path, as shipped files are not checked at their own path."""
    (tmp_path / "policy").write_bytes(path.read_bytes())
    assert kind.load(tmp_path / "policy").digest == kind.load(path).digest


def test_files_with_old_names_of_settings_have_the_same_digest(tmp_path: Path) -> None:
    policy().save(tmp_path / "policy")
    harmed(tmp_path, lambda value: {**value, "config": value["config"].replace("init_checkpoint", "start")})
    assert TinyPolicy.load(tmp_path / "policy").digest == policy().digest


def without(field: str) -> Callable[[dict[str, Any]], Any]:
    return lambda value: {name: item for name, item in value.items() if name != field}


def changed(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value | fields


def harmed(folder: Path, harm: Callable[[Any], Any]) -> None:
    """Saves a policy with a damaged part."""
    policy().save(folder / "policy")
    value = serialization.msgpack_restore((folder / "policy").read_bytes())
    (folder / "policy").write_bytes(serialization.msgpack_serialize(harm(value)))


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (without("config"), "the policy is broken: it has no settings"),
        (without("params"), "its parameters do not fit its settings"),
        (changed(config=b"\xff\xfe"), "the policy is broken"),
        (changed(config=DEEP), "the policy is broken"),
        (changed(config='{"a": ' + "[" * 500 + "]" * 500 + "}"), "there is no setting 'agent.a'"),
        (changed(config='{"rate": 1' + "0" * 4000 + "}"), "rate is 1000"),
        (changed(config=json.dumps({"x" * 10_000: 1})), "there is no setting 'agent.xxx"),
        (changed(config='{"kind": ["plain"]}'), "must be one of plain, noisy"),
        (changed(params={"w": "text", "b": None}), "its parameters do not fit"),
        (changed(params={"w": np.zeros(4), "b": np.zeros(())}), "its parameters do not fit"),
        (changed(version=[1]), r"is 'graphrl-tiny-policy' version \[1\]: must be"),
        (changed(format="x" * 1000), "must be graphrl-tiny-policy version 1"),
        (lambda value: [value], "is not a policy"),
    ],
)
def test_a_file_that_is_no_policy_is_one_short_line(tmp_path: Path, harm: Callable[[Any], Any], fault: str) -> None:
    harmed(tmp_path, harm)
    with pytest.raises(GraphrlError, match=fault) as caught:
        TinyPolicy.load(tmp_path / "policy")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("kind", "name", "setting", "fault"),
    [
        (RegalPolicy, "makespan", {"rounds": 10**9}, "rounds is 1000000000: must be an integer from 0 to 64"),
        (TopoformerPolicy, "peak_memory", {"heads": 10**9}, "heads is 1000000000: must be an integer from 1 to 256"),
    ],
)
def test_sizes_are_checked_before_anything_is_built(
    tmp_path: Path,
    kind: type[Policy[Any]],
    name: str,
    setting: dict[str, Any],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = serialization.msgpack_restore((kind.defaults / f"{name}.msgpack").read_bytes())
    value["config"] = json.dumps(json.loads(value["config"]) | setting)
    (tmp_path / "policy").write_bytes(serialization.msgpack_serialize(value))
    monkeypatch.setattr(kind, "initial", lambda *_: pytest.fail("the network is built"))
    with pytest.raises(GraphrlError, match=fault):
        kind.load(tmp_path / "policy")


def test_the_digest_is_of_settings_and_parameters() -> None:
    one = policy()
    other = dataclasses.replace(one, params=jax.tree.map(lambda x: x + 1, one.params))
    digests = {one.digest, other.digest, TinyPolicy(TinyConfig(width=3, rate=1.0), one.params).digest}
    assert len(digests) == 3
    assert dataclasses.replace(one, note="another").digest == one.digest
