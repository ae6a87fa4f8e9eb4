"""`graphrl plot RUN...`: learning curves of training runs, with intervals over seeds."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from graphrl.commands.common import check_json_name, check_outputs, check_pictures
from graphrl.units import align_columns

if TYPE_CHECKING:
    from graphrl.compare.curves import Curve, Groups

DESCRIPTION = """Draw learning curves of training runs, also of runs that have not ended.

RUN is a folder of graphrl train: of one run (a line), of several seeds (--seeds: their mean and its 95% interval), or
of a sweep (--sweep: a line per setting). Several RUNs are drawn in one picture.

A metric is named as in metrics.jsonl: training metrics by their names, and those on the held-out graphs with
`validation/`. An unknown name lists them. Intervals are rliable's: percentile bootstrap over the seeds, 2,000
resamples; the IQM is the mean of the middle half of the seeds."""

EXAMPLES = """examples:
  graphrl plot out/regal
      the held-out score of one run, or of all seeds in the folder
  graphrl plot out/regal out/regal-5000 --metric validation/improvement --aggregate iqm --output curves.pdf
      compare two runs
  graphrl plot out/a out/b --names "width 16,width 64" --metric entropy --x seconds
      a training metric against time, with other names in the legend
  graphrl plot out/regal --json regal.json
      all values for marl-eval: environment -> task -> algorithm -> run -> step -> metric"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, of several seeds or of a sweep")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric to draw, such as validation/improvement (default: the held-out score of the best checkpoint)",
    )
    parser.add_argument(
        "--x",
        default="updates",
        metavar="X",
        help="horizontal axis: updates (default), seconds, or a training metric such as env_steps",
    )
    parser.add_argument(
        "--aggregate",
        choices=("mean", "iqm"),
        default="mean",
        help="aggregate over seeds: mean (default), or iqm, the interquartile mean",
    )
    parser.add_argument("--names", metavar="A,B", help="names of the lines (default: those of the folders)")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="picture: .png, .svg or .pdf (default: METRIC.png in the first RUN, such as validation-improvement.png)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the values of all runs as JSON in marl-eval's form")


def run(args: argparse.Namespace) -> int:
    """Draws the curves and prints their last values; returns the exit code."""
    from graphrl.compare import curves
    from graphrl.plan.plot import write_figure

    groups = curves.read_groups(args.runs, [name.strip() for name in (args.names or "").split(",") if name.strip()])
    metric = args.metric or curves.default_metric(groups)
    output = args.output or str(Path(args.runs[0], f"{metric.replace('/', '-')}.png"))
    check_outputs({"--output": output, "--json": args.json})
    check_pictures(output)
    check_json_name("--json", args.json)
    aggregated = curves.curves_of(groups, metric, x=args.x, aggregate=args.aggregate)
    write_figure(curves.curves_figure(aggregated, groups, metric, x=args.x, aggregate=args.aggregate), output)
    if args.json is not None:
        curves.write_marl_eval(groups, metric, args.json)
    _print(aggregated, groups, args, metric)
    print(f"picture: {output}" + (f"\nvalues: {args.json}" if args.json else ""))
    return 0


def _print(curves: "dict[str, Curve]", groups: "Groups", args: argparse.Namespace, metric: str) -> None:
    """Prints a table of the last value of each curve."""
    from graphrl.compare.curves import title_of

    rows = [(f"last {title_of(groups, metric)}", "runs", args.x, args.aggregate, "95% interval")]
    for name, (x, y) in curves.items():
        ends = f"{y.low[-1]:.4g} to {y.high[-1]:.4g}" if len(groups[name]) > 1 else "-"
        rows.append((name, str(len(groups[name])), f"{x[-1]:g}", f"{y.value[-1]:.4g}", ends))
    print("\n".join(align_columns(rows, left=1)))
