"""Results page, and the picture of the learning curves."""

import argparse
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphrl.colours import COLOURS, GRID
from graphrl.compare.report import markdown
from graphrl.files import write_atomically
from reproduce.accelerator.job import Row
from reproduce.launcher import command
from reproduce.results import Origin, Table, bullets, results_text

AIM = 2.0  # ms a graph of a BRKGA run of 5,000 evaluations


class _Section(NamedTuple):
    """A table of the page.

    Attributes:
      title: heading of the section.
      key: field that only the rows of this table have.
      headings: headings of the columns.
      cells: format string of a line.
      text: format string of the text above the table, filled with the last row.
    """

    title: str
    key: str
    headings: str
    cells: str
    text: str = ""


_ROLLOUTS = (
    "environment | ops | steps of an episode | environments | rollouts / s | steps / s | compile s",
    "{env} | {n:,} | {steps:,} | {envs:,} | {rollouts_per_s:,.0f} | {steps_per_s:,.0f} | {compile_s:.1f}",
)
_SECTIONS = {
    "costs": _Section(
        "Costs on the device against the exact ones",
        "difference",
        "figures of the device against exact ones | graphs | decisions | figures | greatest difference | at most 1e-05",
        "{what} | {graphs:,} | {decisions:,} | {figures:,} | {difference:.2g} | {agrees}",
    ),
    "rollouts": _Section(
        "Rollouts",
        "rollouts_per_s",
        *_ROLLOUTS,
        "A rollout is a reset and random valid actions to the end of the episode. Of `Proposal-v0` reset and step are "
        "whole BRKGA runs of {evaluations} evaluations. Rates are by the median of several timings, without compiling.",
    ),
    "search": _Section(
        "Decoding and BRKGA",
        "evaluations_per_s",
        "work | ops | graphs in parallel | evaluations a graph | evaluations / s | ms a graph | compile s",
        "{work} | {n:,} | {graphs:,} | {evaluations:,} | {evaluations_per_s:,.0f} | {ms_a_graph:.3g} | {compile_s:.1f}",
        f"The aim is {AIM:g} ms a graph for 5,000 evaluations on 64 graphs in parallel.",
    ),
    "training": _Section(
        "Training",
        "value",
        "agent | update | seconds | of these compiling | updates / s | validation by | validation",
        "{agent} | {step:,} | {seconds:.0f} | {compile_s:.0f} | {updates_per_s:.3g} | {score} | {value:.4g}",
        "Updates a second are by the last 20 updates in which nothing was compiled.",
    ),
    "cpu": _Section(
        "The same rollouts on the CPU of this machine",
        "rollouts_per_s",
        f"{_ROLLOUTS[0]} | device / CPU",
        f"{_ROLLOUTS[1]} | {{ratio}}",
        "jax has {threads} CPU devices there, each of which takes its share of the environments.",
    ),
}


def page_text(rows: Sequence[Row], args: argparse.Namespace, picture: str) -> str:
    """Returns the text of the page.

    Args:
      rows: rows of all parts so far.
      args: parsed command line.
      picture: file name of the learning curves, "" without one.
    """
    hardware, versions = (
        frozenset(row[name] for row in rows if name in row) or frozenset(["unknown: no part finished"])
        for name in ("hardware", "versions")
    )
    origin = Origin(frozenset([args.seed]), hardware, versions, frozenset([time.strftime("%Y-%m-%d")]))
    rates = {(row["env"], row["envs"]): row["rollouts_per_s"] for row in rows if _measured(row, "rollouts")}
    tables = []
    for name in dict.fromkeys(part.partition(":")[0] for part in args.parts):
        own = [row for row in rows if row["section"] == name]
        if name == "cpu":
            own = [_with_ratio(row, rates) if _measured(row, "cpu") else row for row in own]
        parts = [*_table(_SECTIONS[name], own), f"![Learning curves]({picture})" * (name == "training" != picture)]
        tables.append(Table(_SECTIONS[name].title, origin, [*parts, _notes(own)]))
    tables = [table for table in tables if table.text.strip()] or tables[:1]
    title = f"graphrl on {'a CPU' if args.platform == 'cpu' else 'an accelerator'}{', small sizes' * args.small}"
    return results_text(title, tables, command(), _summary(rows, args))


def _measured(row: Row, name: str) -> bool:
    """True if the row is a line in the table of the section."""
    return bool(row["section"] == name and _SECTIONS[name].key in row)


def _with_ratio(row: Row, rates: Mapping[tuple[str, int], float]) -> Row:
    """Adds to a CPU's row the accelerator's rate as a multiple of its own, if there is one."""
    rate = rates.get((row["env"], row["envs"]))
    return {**row, "ratio": f"{rate / row['rollouts_per_s']:.3g}" if rate else ""}


def _table(section: _Section, rows: Sequence[Row]) -> list[str]:
    """Formats a section's text and table, sorted by the first column; empty without rows."""
    measured = [row for row in rows if section.key in row]
    lines = [section.cells.format(**row).split(" | ") for row in measured]
    lines.sort(key=lambda line: line[0])
    return [section.text.format(**measured[-1]), markdown(section.headings.split(" | "), lines)] if lines else []


def _notes(rows: Sequence[Row]) -> str:
    """Lists the parts that were cut or could not be measured."""
    lines = []
    for row in rows:
        if "fault" in row or "cut" in row:
            names = [str(row[key]) for key in ("part", "what", "env", "work") if row.get(key)]
            names += [f"{row[key]:,} {what}" for key, what in (("n", "ops"), ("envs", "environments")) if key in row]
            lines.append(f"{', '.join(names) or 'this section'}: {row.get('fault') or row['cut']}")
    return bullets(lines)


def _summary(rows: Sequence[Row], args: argparse.Namespace) -> str:
    """Formats the main results as a sentence."""
    if args.platform == "cpu":
        small = ", of small sizes, and XLA compiled with little effort" * args.small
        return (
            f"**No GPU has been measured yet.** These figures are of a CPU{small}: they show that every part of "
            "`scripts/accelerator.py` runs."
        )
    parts = []
    if differences := [row["difference"] for row in rows if "difference" in row]:
        parts.append(f"costs on the device are the exact ones to {max(differences):.1g} of their value")
    if searches := [row for row in rows if row.get("work", "").startswith("BRKGA") and "ms_a_graph" in row]:
        parts.append("BRKGA takes {ms_a_graph:.3g} ms a graph of {n} ops".format(**searches[0]) + f" (aim: {AIM:g})")
    if rates := [row for row in rows if _measured(row, "rollouts")]:
        best = max(rates, key=lambda row: row["steps_per_s"])
        parts.append("{env} makes up to {steps_per_s:,.0f} steps a second".format(**best))
    hardware = [row["hardware"] for row in rows if "hardware" in row and row["section"] != "cpu"]
    return f"On {hardware[0] if hardware else 'the accelerator'}: {', '.join(parts) or 'nothing measured so far'}."


def write_curves(rows: Sequence[Row], path: Path) -> bool:
    """Draws validation curves, a panel for each agent. Returns False without curves or without matplotlib."""
    validations = [row for row in rows if "value" in row]
    agents = list(dict.fromkeys(row["agent"] for row in validations))
    if not agents:
        return False
    with contextlib.suppress(ModuleNotFoundError):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.2 * len(agents), 2.8), layout="constrained", dpi=120)
        panels = figure.subplots(1, len(agents), squeeze=False)[0]
        for agent, axes, colour in zip(agents, panels, COLOURS, strict=False):
            own: Any = [(row["seconds"], row["value"]) for row in validations if row["agent"] == agent]
            axes.plot(*zip(*own, strict=True), marker="o", markersize=4, color=colour)
            axes.set_title(agent, loc="left")
            axes.set_xlabel("seconds")
            axes.set_ylabel(f"validation: {next(row['score'] for row in validations if row['agent'] == agent)}")
            axes.grid(color=GRID, linewidth=0.7)
        write_atomically(path, lambda file: figure.savefig(file, format="png"), binary=True)
        return True
    return False
