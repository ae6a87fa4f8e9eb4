"""Messages of errors: values in at most 200 characters, unknown names with the nearest known ones."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphrl
from graphrl.agents import find_agent
from graphrl.cli import COMMANDS, main
from graphrl.errors import MAX_REPEATED, GraphrlError, clipped, nearest, shortened, suggest
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.roofline import find_chip
from graphrl.methods import find_map_solver, find_solver
from graphrl.solvers.fusion.rules import check_rule
from graphrl.training.config import parsed
from graphrl.training.run import run_config

WORDS = " ".join(f"w{number}" for number in range(1000))  # no stretch of it occurs twice
LONG = {
    "words": WORDS,
    "one word": WORDS.replace(" ", "_"),
    "quotes": WORDS.replace(" w1", " 'w1").replace(" w2", ' "w2'),
    "brackets": WORDS.replace(" w3", " (w3").replace(" w5", "] {w5"),
    "option": f"a={WORDS}",
    "method": f"brkga:{WORDS}=1",
    "numbers": ",".join(map(str, range(10**6, 10**6 + 500))),
    "digits": "".join(map(str, range(1000))),
    "bytes": f"{WORDS}GiB",
}


def assert_short(message: str, value: str) -> None:
    """Checks that at most 200 characters of the value are in the message, in one line."""
    message = message.rstrip("\n")
    assert "\n" not in message
    pieces = [message[start : start + MAX_REPEATED + 1] for start in range(len(message) - MAX_REPEATED)]
    assert not [piece for piece in pieces if piece in value]
    assert len(message) < 1200


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("short 'values' stay", True),
        (f"it's {'so ' * 100}and that's all", True),  # not a value: graphrl's own words
        (f"{WORDS!r}: must be less", False),
        (f'"{WORDS}" and "x"', False),
        (f"keys are {list(range(500))}: must be one", False),
        (f"keys are { {key: [(1, 2)] for key in WORDS.split()} }: must be one", False),
        (f"{WORDS.replace(' ', '-')}: must be less", False),
        (f"unbalanced ( {WORDS!r} and [ {WORDS!r}", False),
    ],
)
def test_values_are_shortened_and_words_are_not(message: str, short: bool) -> None:
    assert (shortened(message) == message) == short
    assert len(shortened(message)) < 500
    assert str(GraphrlError(message)) == shortened(message) == shortened(shortened(message))


@pytest.mark.parametrize("value", ["\\'", '\\"', "('", "([", ")"])
def test_long_messages_are_shortened_quickly(value: str) -> None:
    """Takes time linear in the length, not quadratic: hours for these."""
    assert len(shortened(value * 500_000)) < 500


def test_clipped_text_keeps_its_start_and_end() -> None:
    assert clipped("x" * MAX_REPEATED) == "x" * MAX_REPEATED
    assert clipped(WORDS).startswith("w0 w1 w2")
    assert clipped(WORDS).endswith("w998 w999")
    assert len(clipped(WORDS)) < MAX_REPEATED


def test_the_nearest_names() -> None:
    names = [f"name-{letter}" for letter in "abcdefgh"]
    assert suggest("x", names) == f"known are {', '.join(names)}"
    assert suggest("Other", [*names, "another"]).startswith("the nearest of 9 known are another, ")
    assert nearest("h100", ["v100", "p100", "h200", "h100-sxm"])[0] == "h100-sxm"


@pytest.mark.parametrize("kind", ["words", "digits"])  # the others are below, from the functions that commands call
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_repeat_little_of_a_long_value(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    value = LONG[kind]
    assert main([command, "--help"]) == 0
    usage = capsys.readouterr().out.partition("\n\n")[0]
    valued = re.findall(r"(--[a-z-]+) [A-Z{]", usage)
    positional = {"convert": ["layered:9@1", "x.json"], "bench": [], "train": ["regal"]}.get(command, ["layered:9@1"])
    needed = ["--methods", "list"] if command == "compare" else []
    calls = [[*positional, *needed, f"{option}={value}"] for option in valued]
    calls += [[value, *positional[1:], *needed], [*positional, *needed, value], [*positional, *needed, f"--{value}"]]
    for arguments in calls:
        if main([command, *arguments]) != 0:  # some texts are valid: a folder's name, an objective's
            assert_short(capsys.readouterr().err.splitlines()[-1], value)
        capsys.readouterr()


@pytest.mark.parametrize("kind", LONG)
def test_settings_repeat_little_of_a_long_value(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = LONG[kind]
    for setting in (value, f"{value}=1", f"training.{value}=1", f"training.steps={value}", f"agent.problem={value}"):
        assert main(["train", "regal", "--settings", "--set", setting]) == 2
        assert_short(capsys.readouterr().err, value)


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "method": find_solver,
    "option": lambda value: find_solver(f"brkga:{value}=1"),
    "number": lambda value: find_solver(f"brkga:population=x{value}"),
    "map method": find_map_solver,
    "agent": find_agent,
    "chip": find_chip,
    "rule": check_rule,
    "environment": graphrl.make,
    "family": lambda value: sample(value, 9, 0),
    "family's option": lambda value: sample("layered", 9, 0, {value: 1}),
    "setting": lambda value: run_config(find_agent("regal"), parsed([f"agent.{value}=1"])),
    "model": lambda value: graphrl.optimize(value),
    "program": lambda value: graphrl.optimize(f"zoo:{value}"),
    "workload": lambda value: graphrl.optimize(f"workloads:{value}"),
    "objective": lambda value: graphrl.optimize("layered:9@1", objective=value),
    "seed": lambda value: graphrl.optimize("layered:9@1", seed=value),
    "list as a seed": lambda value: graphrl.optimize("layered:9@1", seed=value.split()),
    "dict as devices": lambda value: graphrl.optimize("layered:9@1", devices=dict.fromkeys(value.split(), (1, [2]))),  # type: ignore[arg-type]
    "list as seconds": lambda value: graphrl.optimize("layered:9@1", seconds=[[value]] * 3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_repeat_little_of_a_long_value(function: str) -> None:
    for value in LONG.values():
        with pytest.raises(GraphrlError) as caught:
            FUNCTIONS[function](value)
        assert_short(str(caught.value), value)


def test_an_unknown_name_gets_the_nearest_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, nearest_name in (
        (["optimize", "layered:9@1", "--method", "aneal"], "anneal"),
        (["optimize", "layered:9@1", "--chip", "h100"], "h100-sxm"),
        (["optimize", "layred:9@1"], ""),
        (["train", "regal", "--set", "agent.width=1", "--set", "agent.roundz=4"], "agent.rounds"),
        (["train", "regal", "--set", "stepz=4"], "training.steps"),
    ):
        assert main(arguments) != 0
        message = capsys.readouterr().err
        assert nearest_name in message
        assert len(message) < 400
