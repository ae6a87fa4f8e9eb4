"""What plans save on real programs, by XLA's own figures and on this machine: docs/systems/programs.md.

sections:
  memory      temporaries of training steps and inference programs: XLA's default and memory schedulers, the best plain
              heuristic, graphrl at each of --times, the lower bound; the targets, met or not
  prediction  temporaries as predicted without compiling against XLA's figure
  identical   results against those of XLA's own schedule, bit by bit, and the time of a step
  resident    how much the process grows while the program runs
  planning    seconds to read, plan, predict and write schedules of large programs
  placement   makespan on 2, 4 and 8 devices; traces for ui.perfetto.dev

Writes to --out: measured.jsonl and runs.jsonl with a line a measurement (a stopped run goes on where it was), captured
modules, plans and traces, and a Markdown file a section. Everything takes many hours on two cores: --sections,
--programs and --times make it shorter, --cheap predicts temporaries instead of compiling, and --quick only looks
whether everything works (it needs neither Keras nor keras_hub, of which the zoo's programs are).

  python scripts/reproduce_real_programs.py --sections memory,prediction --programs mobilenetv2/training/b8 --times 10
"""

import argparse
from collections.abc import Callable, Iterator

from opponents.sections import make_parser, make_sections, parse_arguments, parse_times
from opponents.settings import Settings as Comparisons
from real_programs import identical, memory, placement, planning, prediction, resident
from real_programs.measurements import Measurements
from real_programs.programs import parts
from real_programs.settings import Settings

SECTIONS: dict[str, Callable[[Settings], Iterator[str]]] = {
    "memory": memory.memory,
    "prediction": prediction.prediction,
    "identical": identical.identical,
    "resident": resident.resident,
    "planning": planning.planning,
    "placement": placement.placement,
}


def main() -> None:
    """Makes the sections; bad input is one line on standard error and exit code 1."""
    make_sections(_arguments(), _settings, SECTIONS)


def _arguments() -> argparse.Namespace:
    methods = "of placement: leave out all others"
    parser = make_parser(str(__doc__), SECTIONS, "10,60", methods, "out/real_programs")
    parser.add_argument("--programs", metavar="P,...", help="as in resnet50/training/b8,resnet50/inference/b1")
    parser.add_argument("--cheap", action="store_true", help="predict temporaries instead of compiling (memory)")
    parser.add_argument("--quick", action="store_true", help="small programs, 0.2 and 0.5 s: does everything work?")
    return parse_arguments(parser, SECTIONS)


def _settings(args: argparse.Namespace) -> Settings:
    times = (0.2, 0.5) if args.quick else parse_times(args.times)
    programs = None if args.programs is None else tuple(args.programs.split(","))
    for name in programs or ():
        parts(name)
    comparisons = Comparisons(0, 0, times, args.methods, 1, 1, args.out, args.quick, args.retry, None)
    measurements = Measurements(args.out / "measured.jsonl", retry=args.retry)
    return Settings(programs, times, args.methods, args.out, args.quick, args.cheap, measurements, comparisons)


if __name__ == "__main__":
    main()
