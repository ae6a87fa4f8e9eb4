"""Chips and their files: refusals in one line, and round trips."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from map_problems import chips

from graphrl.costs.maps.chip import NNP_I, ChipMemory, MemoryChip, chip_from_dict, find_chip, read_chip
from graphrl.errors import GraphrlError, ProblemError

GOOD: dict[str, Any] = {
    "format": "graphrl-chip",
    "version": 1,
    "name": "micro",
    "peak": 1e9,
    "memories": [
        {"name": "flash", "capacity": None, "read": 1e8, "write": 1e6, "setup": 1e-6},
        {"name": "sram", "capacity": 262144, "read": 2e9, "write": 2e9},
    ],
}


def changed(**fields: Any) -> dict[str, Any]:
    """A valid chip with other fields; a memory's fields are `memory0_read` and so on, `...` omits one."""
    value = json.loads(json.dumps(GOOD))
    for key, field in fields.items():
        owner, name = (
            (value["memories"][int(key[6])], key[8:]) if key.startswith("memory") and "_" in key else (value, key)
        )
        if field is ...:
            del owner[name]
        else:
            owner[name] = field
    return value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([], "a chip: Expected `object`, got `array`"),
        (changed(format="graphrl-graph"), "format is 'graphrl-graph': must be 'graphrl-chip'"),
        (changed(version=2), "version is 2: must be 1"),
        (changed(speed=3), "a chip: Object contains unknown field `speed`"),
        (changed(peak=...), "a chip: Object missing required field `peak`"),
        (changed(peak="fast"), "a chip: Expected `float`, got `str` - at `$.peak`"),
        (changed(peak=float("nan")), "chip 'micro': peak is nan: must be a number from 1e-06 to 1e+30"),
        (changed(launch=-1e-6), "chip 'micro': launch is -1e-06: must be a number from 0 to 1e+06"),
        (changed(page=0), "chip 'micro': page is 0: must be an integer of bytes from 1 to 2^30"),
        (changed(page=1.5), "a chip: Expected `int`, got `float` - at `$.page`"),
        (changed(memories=[]), "chip 'micro' has 0 memories: must be from 1 to 16"),
        (changed(memory1_reed=1), "memory number 1: Object contains unknown field `reed`"),
        (changed(memory0_read=...), "memory number 0: Object missing required field `read`"),
        (changed(memory1_read=0.0), "chip 'micro', memory 'sram': read is 0.0: must be a number from 1e-15 to 1e+30"),
        (changed(memory1_capacity=-1), "memory 'sram': capacity is -1: must be an integer of bytes from 0 to 2^62"),
        (changed(memory1_setup=-1.0), "memory 'sram': setup is -1.0: must be a number from 0 to 1e+06"),
        (changed(memory1_name="flash"), "two memories of one name: flash, flash"),
        (changed(memory0_capacity=1000), "memory 'sram' is larger than 'flash' before it"),
    ],
)
def test_a_broken_chip_is_refused_in_one_line(value: object, fault: str) -> None:
    with pytest.raises(ProblemError) as error:
        chip_from_dict(value)
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


def test_defaults_and_files(tmp_path: Path) -> None:
    chip = chip_from_dict(GOOD)
    assert (chip.launch, chip.page, chip.memories[1].setup) == (0.0, 64, 0.0)
    path = tmp_path / "chip.json"
    chip.save(path)
    assert read_chip(path) == chip
    assert find_chip(path) == chip


@given(chips())
def test_a_chip_comes_back_from_its_file(chip: MemoryChip) -> None:
    assert chip_from_dict(json.loads(json.dumps(chip.to_dict()))) == chip


def test_files_that_hold_no_chip_are_named(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    for text, fault in (
        ("{", "broken or truncated JSON"),
        ('{"name": 1, "name": 2}', "appears twice"),
        ("3", "a chip:"),
    ):
        path.write_text(text)
        with pytest.raises(ProblemError, match=fault) as error:
            read_chip(path)
        assert str(error.value).startswith(str(path))
    with pytest.raises(GraphrlError, match="chips by name are nnp-i"):
        find_chip("nnp")


def test_the_default_chip_is_a_ladder_of_tens() -> None:
    assert find_chip("nnp-i") is NNP_I
    bandwidths = [memory.read for memory in NNP_I.memories]
    assert [round(b / a) for a, b in itertools.pairwise(bandwidths)] == [10, 10]
    assert find_chip(dataclasses.replace(NNP_I, name="mine")).name == "mine"
    assert isinstance(NNP_I.memories[0], ChipMemory)
