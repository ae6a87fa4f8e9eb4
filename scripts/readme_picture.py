"""Draws the picture of README: the schedule of one unseen graph as REGAL's policy learns.

Trains the small REGAL of `make train` with a checkpoint every ten updates, plans the first graph of its test set with
each of them, and writes docs/_static/regal.gif. The plans are those of BRKGA, a genetic algorithm, with the policy's
proposals, 5,000 evaluations and the same random numbers in every frame. Takes two minutes on a CPU core.

  python scripts/readme_picture.py
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from PIL import Image

import graphrl
from graphrl.cli import main as run_command
from graphrl.colours import COLOURS, FAINT, GREY, GRID, TEXT, WORSE
from graphrl.commands.parser import Parser
from graphrl.files import enable_compilation_cache, write_atomically
from graphrl.graphs.datasets.sets import load_graph
from graphrl.plan.plot import Picture, draw_lanes
from graphrl.units import time_unit

ROOT = Path(__file__).resolve().parents[1]
GRAPH = "regal-like:50"  # the first of data.test in scripts/train.toml
EVALUATIONS, EVERY = 5000, 10
SIZE, DPI, PALETTE = (11.6, 4.8), 85, 64  # inches; dots an inch; colours
MILLISECONDS, FIRST, LAST = 350, 1500, 4000  # of a frame


def train(folder: Path) -> list[Path]:
    """Trains, or resumes; returns the checkpoints in the order of their updates."""
    settings = f"training.checkpoint_every={EVERY}", "training.keep=100"
    options = [word for setting in settings for word in ("--set", setting)]
    config = str(ROOT / "scripts" / "train.toml")
    if run_command(["train", "regal", "--config", config, *options, "--out", str(folder), "--resume"]):
        sys.exit("training failed")
    return sorted(folder.glob("step-*"))


def schedule(method: str) -> graphrl.Plan:
    """Plans the graph with a method."""
    return graphrl.optimize(
        load_graph(GRAPH), objective="makespan", devices=2, transfer="rendezvous", method=method,
        evaluations=EVALUATIONS, seed=0,
    )  # fmt: skip


def frame(plans: Sequence[graphrl.Plan], updates: Sequence[int], last: int, rule: float) -> Image.Image:
    """Draws a frame: the schedule of plan `last` over the makespans of all plans up to it.

    Args:
      plans, updates: plan and number of updates of each checkpoint.
      last: index of the plan to draw.
      rule: makespan of list scheduling.
    """
    longest = max(plan.makespan for plan in plans)
    scale, unit = time_unit(longest)
    figure = Picture(figsize=SIZE, dpi=DPI, layout="constrained")
    lanes, curve = figure.subplots(2, 1, height_ratios=[1.5, 1.0])
    draw_lanes(lanes, plans[last].timeline(), scale)
    lanes.set_xlim(0, 1.002 * longest / scale)
    lanes.axvline(plans[last].makespan / scale, color=WORSE, linewidth=1.5, zorder=5)
    to_list, to_first = (100 * (plans[last].makespan / makespan - 1) for makespan in (rule, plans[0].makespan))
    text = f"update {updates[last]}: {plans[last].makespan / scale:,.4g} {unit}"
    against = f"{to_list:+.1f}% against list scheduling" + (f", {to_first:+.1f}% against update 0" if last else "")
    lanes.set_title(f"{text}  ({against})", loc="left", color=TEXT)
    lanes.set_title(f"{GRAPH}, {len(load_graph(GRAPH).ops)} ops", loc="right", fontsize=9, color=FAINT)
    made = [plan.makespan / scale for plan in plans[: last + 1]]
    curve.plot(updates[: last + 1], made, "o-", color=COLOURS[0], markersize=4)
    curve.plot(updates[last], made[-1], "o", color=WORSE, markersize=8)
    for level, name, va in ((rule, "list scheduling", "bottom"), (plans[0].bound or 0, "bound of any plan", "top")):
        curve.axhline(level / scale, color=GREY, linestyle="--", linewidth=1)
        curve.annotate(
            name, (1, level / scale), xycoords=("axes fraction", "data"), xytext=(-3, 2 if va == "bottom" else -2),
            textcoords="offset points", ha="right", va=va, fontsize=8.5, color=GREY,
        )  # fmt: skip
    curve.set_xlim(-2, updates[-1] + 2)
    curve.set_ylim(0.95 * (plans[0].bound or 0) / scale, 1.05 * longest / scale)
    curve.set_xlabel("updates of the policy, on other graphs", color=TEXT)
    curve.set_ylabel(f"makespan [{unit}]", color=TEXT)
    curve.grid(color=GRID, linewidth=0.7)
    for side in ("top", "right"):
        curve.spines[side].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return Image.open(buffer).convert("RGB")


def main() -> None:
    """Trains the policy, plans with each checkpoint, and writes the picture."""
    parser = Parser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("out/readme"), help="folder of the training run")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "_static" / "regal.gif", help="a .gif")
    args = parser.parse_args()
    enable_compilation_cache()
    mpl.rcParams["font.family"] = "DejaVu Sans"
    checkpoints = train(args.run)
    updates = [int(path.name.removeprefix("step-")) for path in checkpoints]
    plans = [schedule(f"regal:checkpoint={path}") for path in checkpoints]
    rule = schedule("list").makespan
    for update, plan in zip(updates, plans, strict=True):
        print(f"update {update:3}: makespan {plan.makespan:g} s")
    print(f"list scheduling: {rule:g} s; lower bound: {plans[0].bound:g} s")
    frames = [frame(plans, updates, last, rule) for last in range(len(plans))]
    palette = frames[-1].quantize(PALETTE, method=Image.Quantize.FASTOCTREE)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    lengths = [FIRST, *[MILLISECONDS] * (len(images) - 2), LAST]
    write_atomically(
        args.output,
        lambda file: images[0].save(
            file, format="GIF", save_all=True, append_images=images[1:], duration=lengths, loop=0, optimize=True
        ),
        binary=True,
    )  # fmt: skip
    print(f"{args.output}: {args.output.stat().st_size / 1000:.0f} kB, {len(images)} frames")


if __name__ == "__main__":
    main()
