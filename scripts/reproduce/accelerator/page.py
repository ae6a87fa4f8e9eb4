"""The page of the figures, and the picture of the learning curves."""

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphrl.colours import COLOURS, GRID
from graphrl.compare.report import markdown
from graphrl.files import write_atomically
from reproduce.accelerator.job import Row
from reproduce.launcher import command
from reproduce.results import Origin, Table, bullets, results_text

AIM = 2.0  # ms a graph of a BRKGA run of 5,000 evaluations
AGREEMENT = 1e-5  # relative: float32 sums of large graphs
Lines = list[list[str]]


def page_text(rows: Sequence[Row], args: argparse.Namespace, picture: str) -> str:
    """The page.

    Args:
      rows: of all parts so far.
      args: of the command line.
      picture: name of the file with the learning curves, "" if there is none.
    """
    hardware, versions = (
        frozenset(row[name] for row in rows if name in row) or frozenset(["unknown, as all was cut"])
        for name in ("hardware", "versions")
    )
    origin = Origin(frozenset([args.seed]), hardware, versions, frozenset([time.strftime("%Y-%m-%d")]))
    tables = []
    for name in dict.fromkeys(part.partition(":")[0] for part in args.parts):
        title, content = SECTIONS[name]
        own = [row for row in rows if row["section"] == name]
        parts = [*content(own, rows), f"![Learning curves]({picture})" * (name == "training" and bool(picture))]
        tables.append(Table(title, origin, [*parts, _notes(own)]))
    tables = [table for table in tables if table.text.strip()] or tables[:1]
    title = f"graphrl on {'a CPU' if args.platform == 'cpu' else 'an accelerator'}{', in small' * args.small}"
    return results_text(title, tables, command(), _summary(rows, args))


def _summary(rows: Sequence[Row], args: argparse.Namespace) -> str:
    """What a reader would quote."""
    if args.platform == "cpu":
        small = ", of small sizes, and XLA compiled with little effort" * args.small
        return (
            f"**No GPU has been measured yet.** These figures are of a CPU{small}: they say that every part of "
            "`scripts/accelerator.py` runs, and what its page looks like."
        )
    parts = []
    if differences := [row["difference"] for row in rows if "difference" in row]:
        parts.append(f"costs on the device are the exact ones to {max(differences):.1g} of their value")
    if times := [row for row in rows if "ms_a_graph" in row]:
        parts.append(f"BRKGA takes {times[0]['ms_a_graph']:.3g} ms a graph of {times[0]['n']} ops (aim: {AIM:g})")
    if rates := [row for row in rows if row["section"] == "rollouts" and "steps_per_s" in row]:
        best = max(rates, key=lambda row: row["steps_per_s"])
        parts.append(f"{best['env']} makes up to {best['steps_per_s']:,.0f} steps a second")
    hardware = [row["hardware"] for row in rows if "hardware" in row and row["section"] != "cpu"]
    return f"On {hardware[0] if hardware else 'the accelerator'}: {', '.join(parts) or 'nothing measured so far'}."


def _costs(rows: Sequence[Row], _: Sequence[Row]) -> list[str]:
    lines = [
        [
            row["what"],
            *(f"{row[name]:,}" for name in ("graphs", "decisions", "figures")),
            f"{row['difference']:.2g}",
            "yes" if row["difference"] <= AGREEMENT else "**no**",
        ]
        for row in rows
        if "difference" in row
    ]
    headings = ["figures of the device against exact ones", "graphs", "decisions", "figures", "greatest difference"]
    return _table([*headings, f"at most {AGREEMENT:g}"], lines)


def _rollouts(rows: Sequence[Row], _: Sequence[Row]) -> list[str]:
    lines = [
        [
            row["env"],
            *(f"{row[name]:,}" for name in ("n", "steps", "envs")),
            *(f"{row[name]:,.0f}" for name in ("rollouts_per_s", "steps_per_s")),
            f"{row['compile_s']:.1f}",
        ]
        for row in sorted(rows, key=lambda row: row.get("env", ""))
        if "rollouts_per_s" in row
    ]
    headings = ["environment", "ops", "steps of an episode", "at once", "rollouts / s", "steps / s", "compile s"]
    evaluations = max((row["evaluations"] for row in rows if "evaluations" in row), default=0)
    says = (
        "A rollout is a reset and random valid actions to the end of the episode. Of `Proposal-v0` reset and step are "
        f"whole BRKGA runs of {evaluations} evaluations. Rates are by the median of several timings, without compiling."
    )
    return _table(headings, lines, says)


def _search(rows: Sequence[Row], _: Sequence[Row]) -> list[str]:
    lines = [
        [
            row["work"],
            *(f"{row[name]:,}" for name in ("n", "graphs")),
            f"{row['evaluations']:,}" if "evaluations" in row else "",
            f"{row['evaluations_per_s']:,.0f}",
            f"{row['ms_a_graph']:.3g}" if "ms_a_graph" in row else "",
            f"{row['compile_s']:.1f}",
        ]
        for row in rows
        if "evaluations_per_s" in row
    ]
    headings = ["work", "ops", "graphs at once", "evaluations a graph", "evaluations / s", "ms a graph", "compile s"]
    return _table(headings, lines, f"The aim is {AIM:g} ms a graph for 5,000 evaluations on 64 graphs at once.")


def _training(rows: Sequence[Row], _: Sequence[Row]) -> list[str]:
    lines = []
    for agent in dict.fromkeys(row["agent"] for row in rows if "agent" in row):
        own = [row for row in rows if row.get("agent") == agent]
        looks, updates = ([row for row in own if ("value" in row) is is_look] for is_look in (True, False))
        last = own[-1]
        rate = next((row["updates_per_s"] for row in reversed(updates) if row["updates_per_s"]), None)
        lines.append(
            [
                agent,
                f"{last['after']:.0f}",
                f"{updates[0]['after']:.1f}" if updates else "",
                f"{max(row['step'] for row in own):,}",
                f"{rate:.3g}" if rate else "",
                looks[0]["score"] if looks else "",
                f"{looks[0]['value']:.4g}" if looks else "",
                f"{looks[-1]['value']:.4g} (update {looks[-1]['step']:,})" if len(looks) > 1 else "",
            ]
        )
    headings = ["agent", "seconds", "first update after s", "updates", "updates / s", "validation by"]
    says = "Seconds include compiling; updates a second leave out the first, and looks at the held-out graphs."
    return _table([*headings, "before training", "at the end"], lines, says)


def _cpu(rows: Sequence[Row], all_rows: Sequence[Row]) -> list[str]:
    device = {(row["env"], row["envs"]): row for row in all_rows if row["section"] == "rollouts" and "n" in row}
    lines = []
    for row in sorted((row for row in rows if "n" in row), key=lambda row: row["env"]):
        other = device.get((row["env"], row["envs"]))
        ratio = f"{other['rollouts_per_s'] / row['rollouts_per_s']:.3g}" if other else ""
        rate, compile_s = f"{row['rollouts_per_s']:,.0f}", f"{row['compile_s']:.1f}"
        lines.append([row["env"], f"{row['n']:,}", f"{row['envs']:,}", rate, ratio, compile_s])
    devices = max((row["threads"] for row in rows if "n" in row), default=1)
    says = (
        f"jax has {devices} CPU device{'s' * (devices > 1)} there, each of which takes its share of the environments."
    )
    return _table(["environment", "ops", "at once", "rollouts / s", "device / CPU", "compile s"], lines, says)


SECTIONS: dict[str, tuple[str, Callable[[Sequence[Row], Sequence[Row]], list[str]]]] = {
    "costs": ("Costs on the device against the exact ones", _costs),
    "rollouts": ("Rollouts", _rollouts),
    "search": ("Decoding and BRKGA", _search),
    "training": ("Training", _training),
    "cpu": ("The same rollouts on the CPU of this machine", _cpu),
}


def _table(headings: Sequence[str], lines: Lines, says: str = "") -> list[str]:
    return [says, markdown(headings, lines)] if lines else []


def _notes(rows: Sequence[Row]) -> str:
    """What was cut or could not be measured."""
    lines = []
    for row in rows:
        if "fault" in row or "cut" in row:
            names = [str(row[key]) for key in ("part", "what", "env", "work") if row.get(key)]
            names += [f"{row[key]:,} {what}" for key, what in (("n", "ops"), ("envs", "at once")) if key in row]
            lines.append(f"{', '.join(names) or 'this section'}: {row.get('fault') or row['cut']}")
    return bullets(lines)


def write_curves(rows: Sequence[Row], path: Path) -> bool:
    """Draws the looks at the held-out graphs, a panel an agent; says whether there is such a picture."""
    looks = [row for row in rows if "value" in row]
    agents = list(dict.fromkeys(row["agent"] for row in looks))
    if not agents:
        return False
    with contextlib.suppress(ModuleNotFoundError):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.2 * len(agents), 2.8), layout="constrained", dpi=120)
        for number, (agent, axes) in enumerate(
            zip(agents, figure.subplots(1, len(agents), squeeze=False)[0], strict=True)
        ):
            own: Any = [(row["after"], row["value"]) for row in looks if row["agent"] == agent]
            axes.plot(*zip(*own, strict=True), marker="o", markersize=4, color=COLOURS[number])
            axes.set_title(agent, loc="left")
            axes.set_xlabel("seconds")
            axes.set_ylabel(f"validation: {next(row['score'] for row in looks if row['agent'] == agent)}")
            axes.grid(color=GRID, linewidth=0.7)
        write_atomically(path, lambda file: figure.savefig(file, format="png"), binary=True)
        return True
    return False
