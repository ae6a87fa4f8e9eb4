"""Training data: batches by step, held-out graphs, settings from files and texts, the small parts of the loop."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from tiny_agent import TINY, TinyConfig, tiny_batch

from graphrl.agents import AGENTS, find_agent
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.padding import Sizes
from graphrl.mesh import check_shares, make_mesh, most_that_share
from graphrl.training import devices
from graphrl.training.config import (
    RENAMED,
    RunConfig,
    Schedule,
    as_dict,
    differences,
    keys_of,
    merged,
    parsed,
    read_values,
    updated,
)
from graphrl.training.data import Batch, Data, DataConfig, prefetched
from graphrl.training.run import default_config
from graphrl.units import format_end

CONFIG = DataConfig(("layered:20x6@100", "layered:40x6@100"), ("layered:20x4", "layered:30x5"), graphs=4, buckets=2)


def data(own: range = range(4), seed: int = 0, **changes: Any) -> Data:
    return Data(dataclasses.replace(CONFIG, **changes), seed, tiny_batch, own)


# Batches


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    one, other = data(), data()
    other.batch(1)
    assert one.batch(7).names == other.batch(7).names
    np.testing.assert_array_equal(one.batch(7).rows["features"], other.batch(7).rows["features"])
    assert {one.batch(step).names for step in range(1, 9)} != {data(seed=1).batch(step).names for step in range(1, 9)}


def test_each_process_makes_its_rows_of_the_same_batch() -> None:
    whole, parts = data().batch(3), [data(own).batch(3) for own in (range(2), range(2, 4))]
    assert {part.names for part in parts} == {whole.names}
    np.testing.assert_array_equal(np.concatenate([part.rows["target"] for part in parts]), whole.rows["target"])


def test_batches_have_few_sizes_and_small_graphs_come_first() -> None:
    batches = data(curriculum=6)
    assert [batches.batch(step).sizes.ops for step in (1, 2, 3)] == [batches.batch(1).sizes.ops] * 3
    sizes = {batches.batch(step).sizes for step in range(4, 30)}
    assert len(sizes) == len(sizes | {batch.sizes for batch in batches.validation()}) == 2


def test_held_out_graphs_are_the_same_each_time() -> None:
    batches = data()
    first, second = ([batch.names for batch in batches.validation()] for _ in range(2))
    assert first == second
    assert len({name for names in first for name in names}) == batches.validation_graphs == 8


def test_augmented_graphs_differ_each_time() -> None:
    batches = data(augment=True, train=("layered:20@100",), buckets=1)
    assert len(set(batches.batch(1).rows["target"].tolist())) == 4


def fresh(seed: int = 0, **changes: Any) -> Data:
    return data(seed=seed, fresh=True, train=("layered:20x6@100", "layered:40x2@100"), **changes)


def test_fresh_graphs_never_come_again_and_follow_from_seed_and_step() -> None:
    source, again = fresh(), fresh()
    batches = [source.batch(step) for step in range(1, 13)]
    known = {
        graph.name for bucket in source._buckets for graph in bucket.graphs
    }  # in place of those that are too large
    names = [name for batch in batches for name in batch.names if name not in known]
    assert 24 < len(set(names)) == len(names) <= 4 * 12
    assert {int(name.rpartition("-")[2]) for name in names} <= set(range(100, 148))
    later = again.batch(12)
    assert later.names == batches[-1].names
    np.testing.assert_array_equal(later.rows["features"], batches[-1].rows["features"])
    sizes = [batch.sizes.ops for batch in batches]
    assert 0 < sizes.count(min(sizes)) < len(sizes)


def test_a_fresh_graph_that_is_too_large_is_left_out() -> None:
    batches = fresh()
    small, large = sorted(batches._buckets, key=lambda bucket: bucket.sizes.ops)
    assert isinstance(small.sizes, Sizes)
    batches._buckets = [small._replace(sizes=dataclasses.replace(small.sizes, uses=small.sizes.uses // 2)), large]
    made = [batches.batch(step) for step in range(1, 9)]
    known = {graph.name for graph in small.graphs}
    assert {batch.sizes for batch in made} <= {bucket.sizes for bucket in batches._buckets}
    assert any(set(batch.names) <= known for batch in made)


def test_fresh_graphs_stay_apart_from_those_of_validation() -> None:
    with pytest.raises(
        ProblemError, match=r"layered:30x5@50 of data\.validation would be among the fresh graphs .* increase from 3"
    ):
        data(fresh=True, train=("layered:30x1@3",), validation=("layered:30x5@50",))
    with pytest.raises(
        ProblemError, match=r"layered:30x5@50 of data\.test would be among the fresh graphs .* increase from 9"
    ):
        data(fresh=True, train=("layered:30x1@9",), test=("layered:30x5@50",))
    with pytest.raises(ProblemError, match="workloads:bert is no file, no folder and no set of graphs"):
        data(fresh=True, train=("workloads:bert",))


def test_what_is_made_ahead_comes_in_order_and_stops_when_told() -> None:
    numbers: list[int] = []

    def make(number: int) -> int:
        numbers.append(number)
        if number == 7:
            raise ProblemError("seven")
        return 10 * number

    for ahead in (0, 1, 3):
        with prefetched(make, range(1, 6), ahead) as items:
            assert list(items) == [10, 20, 30, 40, 50]
    numbers.clear()
    with prefetched(make, range(100), 2) as items:
        assert [next(items) for _ in range(3)] == [0, 10, 20]
    assert len(numbers) <= 6
    with pytest.raises(ProblemError, match="seven"), prefetched(make, range(6, 100), 2) as items:
        list(items)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefetch": -1}, r"data\.prefetch is -1: must be at least 0"),
        ({"validation": ("layered:20x9@100",)}, "in data.train and in data.validation"),
        ({"test": ("layered:40x9@103",)}, "layered:40@103 is in data.train and in data.test"),
        ({"test": ("layered:20x9@3",)}, "layered:20@3 is in data.validation and in data.test"),
        ({"validation": ("layered:20x3",)}, "3 of validation"),
        ({"train": ("layered:20@100",)}, "1 training graphs"),
        ({"train": ("nowhere",)}, "nowhere"),
        ({"train": (), "fresh": True}, "0 training graphs and 9 of validation: must be at least 1 and"),
        ({"train": ("layered:0",)}, "layered:0: num_ops is 0"),
        ({"graphs": 0}, r"data\.graphs is 0"),
    ],
)
def test_wrong_data_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphrlError, match=message) as caught:
        data(**changes)
    assert "\n" not in str(caught.value)


# Settings


def test_settings_of_every_type() -> None:
    texts = ("agent.rate=1e-3", "agent.layers=3,2,1", "agent.kind=plain", "agent.poisoned=7", "agent.verbose=true")
    more = ("agent.problem.bandwidth=inf", "data.train=layered:20x6,zoo:hlo", "training.steps=5", "seed=3")
    config: RunConfig[TinyConfig] = updated(default_config(TINY), parsed([*texts, *more]))
    assert config.agent == TinyConfig(1e-3, kind="plain", poisoned=7, layers=(3, 2, 1), verbose=True)
    assert (config.data.train, config.training.steps, config.seed) == (("layered:20x6", "zoo:hlo"), 5, 3)
    assert updated(config, parsed(["agent.poisoned=none"])).agent.poisoned is None
    assert updated(default_config(TINY), as_dict(config)) == config
    assert next(differences(as_dict(default_config(TINY)), as_dict(config))) == "agent.kind"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("agent.rat=1", r"no setting 'agent\.rat': did you mean agent\.rate"),
        ("steps=1", r"did you mean training\.steps"),
        ("agnt.rate=1", r"no setting 'agnt\.rate': did you mean agent\.rate"),
        ("agent.rate=fast", r"agent\.rate is 'fast': must be a number"),
        ("agent.width=1.5", "must be an integer"),
        ("agent.verbose=1", "must be true or false"),
        ("agent.kind=loud", "must be one of plain, noisy"),
        ("agent.poisoned=x", "must be an integer or none"),
        ("agent.layers=1,x", "must be a list, each an integer"),
        ("agent=1", r"a group of settings: set one of them, as in agent\.rate="),
        ("training.steps=0", "steps is 0: must be at least 1"),
        ("agent.problem.devices=0", "devices is 0"),
        ("seed=-1", "seed is -1"),
        ("steps", "is not KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_one_line(setting: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        updated(default_config(TINY), parsed([setting]))
    assert "\n" not in str(caught.value)


def test_old_names_of_settings_are_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{name}={number}" for number, name in enumerate(("data.ahead", "training.ahead", "agent.start"))]
    values = parsed(names)
    config = updated(default_config(TINY), values)
    assert (config.data.prefetch, config.training.max_in_flight, config.agent.init_checkpoint) == (0, 1, "2")
    assert capsys.readouterr().err == (
        "graphrl: --set: deprecated names of settings: agent.start is now agent.init_checkpoint, "
        "data.ahead is now data.prefetch, training.ahead is now training.max_in_flight\n"
    )
    (tmp_path / "a.toml").write_text("[training]\nahead = 3\nmax_in_flight = 4\n")
    assert read_values(str(tmp_path / "a.toml")) == {"training": {"max_in_flight": 4}}
    assert "a.toml: deprecated names of settings: training.ahead is now" in capsys.readouterr().err
    assert parsed(["training.max_in_flight=1"]) == {"training": {"max_in_flight": "1"}}
    assert capsys.readouterr().err == ""


def test_every_old_name_has_a_setting_now() -> None:
    known = {key for name in AGENTS for key in keys_of(default_config(find_agent(name)))}
    assert set(RENAMED.values()) <= known
    assert not set(RENAMED) & known


def test_files_of_settings(tmp_path: Path) -> None:
    toml, json = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text("seed = 2\n[agent]\nrate = 1\nlayers = [5]\n[training]\nsteps = 9\n")
    json.write_text('{"training": {"steps": 10}}')
    values = merged(merged(read_values(str(toml)), read_values(str(json))), parsed(["agent.width=2"]))
    config = updated(default_config(TINY), values)
    assert (config.seed, config.agent.rate, config.agent.layers, config.agent.width) == (2, 1.0, (5,), 2)
    assert config.training.steps == 10
    toml.write_text("seed = ")
    with pytest.raises(GraphrlError, match=r"a\.toml: Invalid value"):
        read_values(str(toml))
    with pytest.raises(ProblemError, match=r"agent\.width is 2\.5: must be an integer"):
        updated(default_config(TINY), {"agent": {"width": 2.5}})
    assert "agent.problem.devices" in set(keys_of(config))


# Small parts


def test_when_the_loop_does_what() -> None:
    schedule = Schedule(steps=7, validate_every=3, checkpoint_every=2)
    assert [step for step in range(1, 8) if schedule.validates(step)] == [3, 6, 7]
    assert [step for step in range(1, 8) if schedule.saves(step)] == [2, 3, 4, 6, 7]
    assert [schedule.validations_after(step) for step in range(9)] == [3, 3, 3, 2, 2, 2, 1, 0, 0]
    assert Schedule(steps=6, validate_every=3).validations_after(3) == 1


def test_the_end_in_words() -> None:
    assert format_end(42) == "42 s left"
    assert format_end(600).startswith("10 min left, until ")
    assert format_end(100_000) == "27.8 h left"


def test_batches_are_spread_and_states_copied() -> None:
    mesh = make_mesh(4)
    batch: Batch = data(devices.own_rows(mesh, 4)).batch(1)
    spread = devices.shard(batch.rows, mesh, 4)
    assert mesh.size == 2
    assert spread["features"].sharding.spec == PartitionSpec("graphs")
    np.testing.assert_array_equal(np.asarray(spread["target"]), batch.rows["target"])
    key, count = devices.replicate((jax.random.key(1), np.int32(3)), mesh)
    assert key.is_fully_replicated
    assert count.is_fully_replicated
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(1)))


def test_devices_that_cannot_share_a_batch_are_refused() -> None:
    """No devices are dropped silently: 9 graphs on 8 devices would run on 3 of them."""
    with pytest.raises(ProblemError, match=r"^9 graphs a batch: must be a multiple of the 8 devices, as 8 or 16$"):
        check_shares(9, 8)
    with pytest.raises(ProblemError, match=r"^3 graphs a batch: must be a multiple of the 8 devices, as 8$"):
        check_shares(3, 8)
    with pytest.raises(ProblemError, match="3 graphs a batch: must be a multiple of the 2 devices, as 2 or 4"):
        make_mesh(3)
    assert make_mesh(3, jax.devices()[:1]).size == 1
    assert [most_that_share(graphs, 8) for graphs in (9, 8, 12, 7, 16)] == [3, 8, 6, 7, 8]


def test_other_processes_need_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ProblemError, match="JAX_NUM_PROCESSES is 'two'"):
        devices.configure(4, distributed=True)
