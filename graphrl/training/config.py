"""Settings of a run: nested frozen dataclasses, filled from files (TOML, JSON) and `key=value` texts, checked by type.

- `RunConfig`: all settings of a run; `Schedule`: the steps at which the loop validates and saves.
- `read_values`, `parsed`, `merged`, `updated`: convert files and texts to a dataclass; `as_dict`: back to JSON.
- `value_of`, `as_text`, `descriptions`: the value of a setting, as it is typed, and the meaning of each setting.
- `RENAMED`: old names of settings, and `renamed`, which converts them.

Tyro is not used: it prints multi-line errors and needs control of the command line. Here argparse parses it, with
errors of one line.
"""

import dataclasses
import functools
import inspect
import json
import math
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from graphrl.errors import GraphrlError, ProblemError, nearest
from graphrl.files import content, quote_path
from graphrl.training.data import DataConfig
from graphrl.units import as_integers


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Number of training steps, and the intervals between validations and checkpoints.

    Attributes:
      steps: total number of parameter updates.
      validate_every: number of steps between two validations; the first takes place before any training.
      checkpoint_every: number of steps between two checkpoints, in addition to those at every validation.
      max_in_flight: number of updates that are dispatched before the loop waits for the metrics of the first, so that
        the device is never idle. A metric that is not finite ends the run up to this many steps later, but before the
        next checkpoint.
      keep: number of latest checkpoints to keep; the best by validation is kept in addition.

    Raises:
      ProblemError: a value is out of range.
    """

    steps: int = 300
    validate_every: int = 25
    checkpoint_every: int = 10
    max_in_flight: int = 2
    keep: int = 2

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_in_flight" else 1
            if not least <= value < 2**31:
                raise ProblemError(f"{field.name} is {value!r}: must be at least {least}")

    def validates(self, step: int) -> bool:
        """True if the loop validates after this step."""
        return step % self.validate_every == 0 or step >= self.steps

    def validations_after(self, step: int) -> int:
        """Counts the validations after this step until the end of the run."""
        every = self.validate_every
        return self.steps // every - step // every + (self.steps % every > 0) if step < self.steps else 0

    def saves(self, step: int) -> bool:
        """True if the loop writes a checkpoint after this step."""
        return step % self.checkpoint_every == 0 or self.validates(step)


C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class RunConfig(Generic[C]):
    """Every setting of a training run, as stored in its checkpoints; `--resume` continues with them.

    Attributes:
      agent: the agent's own settings.
      data: settings of the graphs.
      training: settings of the loop.
      seed: seed of all random numbers.
    """

    agent: C
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    training: Schedule = dataclasses.field(default_factory=Schedule)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ProblemError(f"seed is {self.seed!r}: must be an integer from 0 to 2^32 - 1")


# old -> new names of settings; version 0.2 still reads the old ones
RENAMED = {
    "agent.baseline_error": "agent.value_coefficient",
    "agent.entropy": "agent.entropy_coefficient",
    "agent.gradient_norm": "agent.max_grad_norm",
    "agent.network.played": "agent.network.plan_features",
    "agent.ppo.clip": "agent.ppo.clip_epsilon",
    "agent.ppo.entropy": "agent.ppo.entropy_coefficient",
    "agent.ppo.gradient_norm": "agent.ppo.max_grad_norm",
    "agent.ppo.normalised": "agent.ppo.normalize_advantage",
    "agent.ppo.rate": "agent.ppo.learning_rate",
    "agent.ppo.trace": "agent.ppo.gae_lambda",
    "agent.ppo.value": "agent.ppo.value_coefficient",
    "agent.slowness": "agent.communication_ratios",
    "agent.start": "agent.init_checkpoint",
    "data.ahead": "data.prefetch",
    "training.ahead": "training.max_in_flight",
}
REMOVED = ("agent.hint",)  # settings of version 0.2 that an agent lost; others may have one of that name


def renamed(values: Mapping[str, Any], prefix: str = "", names: Mapping[str, str] = RENAMED) -> dict[str, Any]:
    """Renames settings with old names in a nested dict; full names start with `prefix`. If a setting is given by both
    names, the new one's value counts.
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        new = names.get(key, key).removeprefix(prefix)
        if new == name or new not in values:
            is_group = isinstance(value, Mapping) and any(old.startswith(f"{key}.") for old in names)
            result[new] = renamed(value, f"{key}.", names) if is_group else value
    return result


def current_names(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Renames settings with old names; one line on standard error lists these, with their origin `where`."""
    result = renamed(values)
    if old := [name for name in differences(values, result) if name in RENAMED]:
        new = ", ".join(f"{name} is now {RENAMED[name]}" for name in old)
        print(f"graphrl: {where}: deprecated names of settings: {new}", file=sys.stderr, flush=True)
    return result


class Text(str):
    """A value from the command line, parsed according to the setting's type."""


def updated(config: C, values: Mapping[str, Any], prefix: str = "") -> C:
    """Returns a copy of a dataclass with some values changed, also in nested dataclasses.

    Fields may be int, float, bool, str, Literal, X | None, tuple[X, ...] and dataclasses. A float also accepts an
    integer and the text "inf"; a tuple accepts a list.

    Args:
      config: a frozen dataclass.
      values: new values by name; for a nested dataclass, a mapping.
      prefix: prefix of the names in messages.

    Raises:
      ProblemError: an unknown name (the message lists the nearest known ones), a wrong type, or a value that the
        dataclass rejects.
    """
    hints = typing.get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            while isinstance(value, Mapping) and value:  # an unknown group: its first setting makes the message clearer
                name, value = f"{name}.{next(iter(value))}", next(iter(value.values()))
            raise ProblemError(_unknown(f"{prefix}{name}"[:100], config, prefix))
        old = getattr(config, name)
        if dataclasses.is_dataclass(old):
            if not isinstance(value, Mapping):
                example = next(keys_of(old, f"{prefix}{name}."))
                raise ProblemError(f"{prefix}{name} is a group of settings: set one of them, as in {example}=...")
            changes[name] = updated(old, value, f"{prefix}{name}.")
        else:
            changes[name] = _converted(f"{prefix}{name}", value, hints[name])
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def as_dict(config: Any) -> dict[str, Any]:
    """Converts settings to JSON values: tuples to lists, infinity to "inf"; `updated` accepts the result."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, float) and math.isinf(value) else value

    values: dict[str, Any] = plain(config)
    return values


def value_of(values: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a setting such as "agent.problem.devices" in a nested dict."""
    return functools.reduce(lambda group, part: group[part], name.split("."), values)


def as_text(value: Any) -> str:
    """Formats a value of `as_dict` as it is typed in KEY=VALUE."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def descriptions(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns the description of every setting by name: its entry under "Attributes:" in its dataclass's docstring.

    Settings without an entry have "".
    """
    result: dict[str, str] = {}
    entries = _attribute_entries(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            result |= descriptions(value, f"{name}.")
        else:
            result[name] = entries.get(field.name, "")
    return result


def _attribute_entries(cls: type) -> dict[str, str]:
    """Parses the sections "Attributes:" of a class and its bases; an entry may have several names, as "a, b: text"."""
    entries: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        doc = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)*)", doc, re.MULTILINE)
        body = inspect.cleandoc("\n" + section[1]) if section else ""
        for entry in re.split(r"\n(?=\S)", body):  # lines that continue an entry are indented
            names, colon, text = entry.partition(": ")
            if colon:
                entries |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return entries


def keys_of(config: Any, prefix: str = "") -> Iterator[str]:
    """Yields the names of all settings, as in "agent.problem.devices"."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from keys_of(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def read_values(path: str) -> dict[str, Any]:
    """Reads the settings of a TOML file, or of a JSON file if its name ends in .json, as nested dicts
    (`current_names`).

    Raises:
      GraphrlError: the file cannot be read, or its contents are not settings in that format.
    """
    with content(path) as data:
        text = bytes(data)
    try:
        values = json.loads(text) if path.endswith(".json") else tomllib.loads(text.decode())
    except RecursionError:
        raise GraphrlError(f"{quote_path(path)}: nested too deeply") from None
    except ValueError as error:
        raise GraphrlError(f"{quote_path(path)}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise GraphrlError(f"{quote_path(path)}: must have settings by name, as in {{'agent': {{...}}}}")
    return current_names(values, quote_path(path))


def parsed(settings: Sequence[str]) -> dict[str, Any]:
    """Parses texts such as "agent.rounds=4" into a nested dict (`current_names`).

    Raises:
      ProblemError: a text is not key=value, or a name is both a value and a group.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        *groups, name = key.strip().split(".")
        if not equals or not name or not all(groups):
            raise ProblemError(f"{setting[:60]!r} is not KEY=VALUE, as in training.steps=100")
        place = values
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise ProblemError(f"{group} in {setting[:60]!r} is set to a value and to a group of settings")
        place[name] = Text(text)
    return current_names(values, "--set")


def merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two nested dicts; `others` takes precedence."""
    both = dict(values)
    for key, value in others.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[str]:
    """Yields the names of the settings in which two results of `as_dict` differ."""
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and a is not b:
            yield from differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}"


def _unknown(name: str, config: Any, prefix: str) -> str:
    if name in REMOVED:
        return f"there is no setting {name!r} any more: train without it"
    keys = list(keys_of(config, prefix))
    last = name.rpartition(".")[2]
    alike = [key for key in keys if key.rpartition(".")[2] == last] or nearest(name, keys)
    meant = " or ".join(alike[:3])
    return f"there is no setting {name!r}: did you mean {meant}? (graphrl train AGENT --settings lists all)"


def _converted(name: str, value: Any, hint: Any) -> Any:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    try:
        return msgspec.convert(_plain(value, kinds), hint, strict=hint is bool or not isinstance(value, Text))
    except (msgspec.ValidationError, OverflowError):
        words = " or ".join(_kind_name(kind) for kind in kinds)
        given = repr(str(value)) if isinstance(value, str) else str(value)
        raise ProblemError(f"{name} is {given[:60]}: must be {words}") from None


def _plain(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Converts a text of the command line, or a value of a file, to one that `msgspec.convert` accepts for the
    types.
    """
    if not isinstance(value, str):
        return as_integers(value)
    if value in ("inf", "-inf") and float in kinds:
        return float(value)
    if not isinstance(value, Text):
        return value
    lists = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    if lists and (len(kinds) == 1 or "," in value):
        items = typing.get_args(lists[0])[:1]
        return [_plain(Text(part.strip()), items) for part in value.split(",") if part.strip()]
    if types.NoneType in kinds and value.lower() == "none":
        return None
    if bool in kinds:
        return {"true": True, "false": False}.get(value.lower(), value)
    return value.replace("_", "") if {int, float} & {*kinds} else str(value)


def _kind_name(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_kind_name(typing.get_args(kind)[0])}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text", types.NoneType: "none"}
    return names[kind]
