"""Runs of several seeds and settings, one after another in one process: `graphrl train --seeds` and `--sweep`.

Each run has its own folder, OUT/seed-0 or OUT/agent.learning_rate=0.01/seed-0, with the same contents as if it were
trained alone. Runs that differ only in seed and `training.*` share the loaded graphs and all compiled programs.
OUT/sweep.json stores the settings, so that an interrupted sweep can be resumed.

The seeds are not trained under one `vmap`: searches and environments fill the cores of a CPU with one seed, and the
seeds of one step draw graphs of different size buckets.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphrl.errors import GraphrlError, ProblemError
from graphrl.files import make_folder, quote_path, read_document, write_document
from graphrl.signals import stop_on_signals
from graphrl.training import devices
from graphrl.training.agent import Agent
from graphrl.training.checkpoints import Checkpoints, read_info
from graphrl.training.config import (
    RunConfig,
    as_dict,
    as_text,
    current_names,
    merged,
    parsed,
    updated,
    value_of,
)
from graphrl.training.folder import has_run
from graphrl.training.loop import TrainingError
from graphrl.training.run import Parts, continued_config, default_config, run_config, train

FILE, FORMAT, VERSION = "sweep.json", "graphrl-sweep", 1
_MAX_RUNS = 10_000
_SEED = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
_VALUE = re.compile(r"\[([^\]]*)\]|([^,\[\]]+)")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Contents of `sweep.json`.

    Attributes:
      agent: name of the agent.
      config: settings that all runs share, before those of `values` (`config.as_dict`).
      values: values of each swept setting by its name, as text: there is a run for each combination.
      seeds: seeds of each combination; without any, `config` has the only one, and runs have no folder "seed-N".
    """

    agent: str
    config: dict[str, Any]
    values: dict[str, list[str]]
    seeds: list[int]


class Run(NamedTuple):
    """One run of a sweep.

    Attributes:
      values: values of the swept settings by name, as text.
      folder: its folder.
      config: all its settings.
      started: True if the folder has a run, which is continued.
      finished: True if that run has reached its last step.
    """

    values: dict[str, str]
    folder: Path
    config: RunConfig[Any]
    started: bool = False
    finished: bool = False

    @property
    def setting(self) -> str:
        """Its swept settings, as in "agent.learning_rate=0.01,training.steps=500"; "" without any."""
        return ",".join(f"{name}={value}" for name, value in self.values.items())


def parse_seeds(text: str) -> list[int]:
    """Parses seeds such as "0-4" or "0,3,7".

    Raises:
      ProblemError: the text has another form, or has too many seeds.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        match = _SEED.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2**32 or last - first >= _MAX_RUNS:
            raise ProblemError(f"{text[:60]!r} are no seeds: write for example 0-4 or 0,3,7")
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


def parse_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses swept settings such as "agent.width=16,32" to their values by name; a list is one value in brackets, as in
    "data.train=[a,b],[c]".

    Raises:
      ProblemError: a text has another form, or names a setting that another one names.
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        key, _, given = text.partition("=")
        found = [whole or single.strip() for whole, single in _VALUE.findall(given)]
        if not key.strip() or not found:
            raise ProblemError(f"{text[:60]!r} is not KEY=VALUE,VALUE, as in agent.learning_rate=1e-2,3e-3")
        name = next(_names(parsed([f"{key}={found[0]}"])))  # its new name, if it has an old one
        if name in values:
            raise ProblemError(f"{name[:60]} is swept twice: list all its values in one --sweep")
        values[name] = found
    return values


def has_sweep(folder: Path) -> bool:
    """True if a sweep was started in the folder."""
    return (folder / FILE).is_file()


def check_folder(folder: Path, resume: bool) -> None:
    """Raises ProblemError if a sweep cannot be started, or with `resume` continued, in a folder."""
    if has_run(folder):
        raise ProblemError(f"{quote_path(folder)} has a run: choose another --out")
    if has_sweep(folder) and not resume:
        raise ProblemError(f"{quote_path(folder)} has runs: continue them (--resume), or choose another --out")


def plan_sweep(
    name: str,
    agent: Agent,
    folder: Path,
    values: Mapping[str, Any],
    *,
    swept: Mapping[str, list[str]],
    seeds: Sequence[int],
    resume: bool,
) -> tuple[Sweep, list[Run]]:
    """Returns a sweep and its runs: those of one setting together, with its seeds in the given order.

    Args:
      name, agent: name of the agent, and the agent.
      folder: folder of the sweep.
      values: settings of all runs, as a nested dict; of a resumed sweep, only `training.*` may change.
      swept: values of the swept settings, see `parse_values`; of a resumed sweep, more values of the same settings, or
        empty for all its runs.
      seeds: seeds; of a resumed sweep, also new ones, or empty for all its runs.
      resume: True continues the sweep in the folder, if there is one.

    Raises:
      ProblemError: an unknown or wrong setting, or one that a resumed run cannot change.
      GraphrlError: the settings in the folder cannot be read.
    """
    stored = _read(folder, name) if resume and has_sweep(folder) else None
    if stored is None:
        config = updated(default_config(agent), values)
    else:
        config = continued_config(agent, stored.config, values, folder)
        swept, seeds = swept or stored.values, seeds or stored.seeds
    sweep = Sweep(name, as_dict(config), dict(swept), list(seeds))
    runs = list(_runs(sweep, agent, folder, resume))
    converted = {key: list(dict.fromkeys(run.values[key] for run in runs)) for key in runs[0].values}
    sweep = dataclasses.replace(sweep, values=converted)
    return sweep if stored is None else _extended(stored, sweep, folder), runs


def _extended(stored: Sweep, sweep: Sweep, folder: Path) -> Sweep:
    """Adds the values and seeds of a resumed sweep to those stored in its folder."""
    if [*sweep.values] != [*stored.values] or bool(sweep.seeds) != bool(stored.seeds):
        before = ", ".join([*stored.values, *(["seeds"] if stored.seeds else [])])
        raise ProblemError(
            f"{quote_path(folder)} has runs for each of {before}: sweep the same, or choose another --out"
        )
    values = {key: list(dict.fromkeys([*stored.values[key], *sweep.values[key]])) for key in stored.values}
    return dataclasses.replace(sweep, values=values, seeds=list(dict.fromkeys([*stored.seeds, *sweep.seeds])))


def _read(folder: Path, name: str) -> Sweep:
    path = folder / FILE
    stored = read_document(path, Sweep, FORMAT, VERSION)
    if stored.agent != name:
        raise ProblemError(f"{quote_path(folder)} has runs of {stored.agent!r}: must be one of {name!r}")
    return dataclasses.replace(stored, config=current_names(stored.config, quote_path(path)))


def _runs(sweep: Sweep, agent: Agent, folder: Path, resume: bool) -> Iterator[Run]:
    """Yields the runs of a sweep."""
    if math.prod(map(len, sweep.values.values())) * max(1, len(sweep.seeds)) > _MAX_RUNS:
        raise ProblemError(f"the sweep has more than {_MAX_RUNS:,} runs: name fewer values or seeds")
    settings: set[str] = set()
    for combination in itertools.product(*sweep.values.values()):
        values = parsed([f"{key}={value}" for key, value in zip(sweep.values, combination, strict=True)])
        config = updated(default_config(agent), merged(sweep.config, values))
        run = Run({key: as_text(value_of(as_dict(config), key)) for key in _names(values)}, folder, config)
        if run.setting in settings:
            raise ProblemError(f"{run.setting} is swept twice: list each value once")
        settings.add(run.setting)
        if sweep.seeds and "seed" in values:
            raise ProblemError("--sweep seed and --seeds both choose seeds: leave one of them out")
        run = run._replace(folder=folder / run.setting.replace("/", "_"))
        for seed in sweep.seeds:
            seeded = run._replace(folder=run.folder / f"seed-{seed}")
            yield _completed(seeded, sweep, agent, {**values, "seed": seed}, resume)
        if not sweep.seeds:
            yield _completed(run, sweep, agent, values, resume)


def _completed(run: Run, sweep: Sweep, agent: Agent, values: Mapping[str, Any], resume: bool) -> Run:
    """Adds a run's settings, with its own `values`, and if it is resumed its state in its folder."""
    started = resume and has_run(run.folder)
    config = run_config(agent, merged(sweep.config, values), run.folder if started else None, name=sweep.agent)
    finished = started and _last_step(run.folder) >= config.training.steps
    return run._replace(config=config, started=started, finished=finished)


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the full names of the settings of a nested dict."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _last_step(folder: Path) -> int:
    """Returns the step of a run's last checkpoint, -1 without a readable one."""
    latest = Checkpoints(folder, 1).latest()
    with contextlib.suppress(GraphrlError):
        return -1 if latest is None else read_info(latest).step
    return -1


def train_sweep(agent: Agent, sweep: Sweep, runs: Sequence[Run], folder: Path) -> tuple[bool, list[Path]]:
    """Trains all unfinished runs. A run whose numbers are not finite ends alone; one line reports it.

    Returns:
      True if a signal ended it before the last run did, and the folders of the runs that failed.

    Raises:
      ProblemError, GraphrlError: as `run.train`, for any other fault of a run.
    """
    failed: list[Path] = []
    shared: tuple[Any, Parts] | None = None
    with _sweep_folder(folder, sweep, runs), stop_on_signals() as stop:
        for number, run in enumerate(runs, 1):
            if run.finished:
                continue
            if devices.any_process(stop()):
                return True, failed
            key = run.config.agent, run.config.data
            if shared is None or shared[0] != key:
                stop.work = "loading the graphs"
                shared = None  # frees the graphs of the setting before
                shared = key, Parts.create(agent, run.config)
            _print(f"run {number} of {len(runs)}: {run.folder}")
            try:
                result = train(
                    sweep.agent, agent, run.config, run.folder, resume=run.started, parts=shared[1], stop=stop
                )
            except TrainingError as error:
                failed.append(run.folder)
                _print(f"{quote_path(run.folder)}: {error}")
            except KeyboardInterrupt:  # before its first checkpoint
                return True, failed
            else:
                if result.outcome.interrupted:
                    return True, failed
    return False, failed


@contextlib.contextmanager
def _sweep_folder(folder: Path, sweep: Sweep, runs: Sequence[Run]) -> Iterator[None]:
    """Writes a sweep's settings into its folder; removes them at the end if no run has been started there."""
    if not devices.is_main():
        yield
        return
    created, is_new = not folder.exists(), not has_sweep(folder)
    make_folder(folder)
    write_document(folder / FILE, sweep, FORMAT, VERSION)
    try:
        yield
    finally:
        if is_new and not any(has_run(run.folder) for run in runs):
            with contextlib.suppress(OSError):
                (folder / FILE).unlink()
                if created:
                    folder.rmdir()


def _print(text: str) -> None:
    if devices.is_main():
        print(f"graphrl: {text}", file=sys.stderr, flush=True)
