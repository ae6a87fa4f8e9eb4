"""Quality against the length of training: the checkpoints of one run on unseen graphs."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.files import shown
from graphrl.training.checkpoints import read_info
from reproduce.contest import Entrant
from reproduce.results import Table, bullets, of_rows
from reproduce.topoformer.settings import DECODED, ENDS, RANDOM, Settings, played
from reproduce.topoformer.tables import Score, scores

_SHOWN = ("greedy", "sample")


def budget(settings: Settings) -> Iterator[Table]:
    """One table, a line a checkpoint.

    Raises:
      GraphrlError: there is no run.
    """
    ops = max(settings.ablation_sizes)
    checkpoints = _checkpoints(settings.run)
    entrants = [settings.reference(), Entrant(RANDOM, ["random-priorities"], ENDS)]
    for step, path in checkpoints.items():
        file = settings.kept(path)
        entrants += [Entrant(f"{decode} {step}", [played(DECODED[decode], file)], ENDS) for decode in _SHOWN]
    print(f"budget: layered graphs of {ops:,} ops", file=sys.stderr, flush=True)
    contest = settings.on_layered(ops, entrants)
    by_label = scores(contest)
    minutes = {step: read_info(path).seconds / 60 for step, path in checkpoints.items()}
    lines = [[f"{step:,}", f"{minutes[step]:.1f}", *_cells(step, by_label)] for step in checkpoints]
    columns = [f"{decode}: {what}" for decode in _SHOWN for what in ("gap from approx. DP", "against random 100")]
    how = f"{settings.graphs} unseen graphs of {ops:,} ops; approximate DP keeps K = {settings.width:,} sets."
    parts = how, markdown(["steps", "minutes", *columns], lines), bullets(contest.faults())
    yield Table("Length of training", of_rows(contest.rows), parts)


def _checkpoints(run: Path | None) -> dict[int, Path]:
    """Those of a run that it has kept, by step.

    Raises:
      GraphrlError: there are none.
    """
    if run is None:
        raise GraphrlError(
            "section budget: name a run, as in --run PATH; `graphrl train topoformer --set training.keep=100` keeps "
            "its checkpoints"
        )
    checkpoints = {read_info(path).step: path for path in sorted(run.glob("step-*")) if path.is_dir()}
    if not checkpoints:
        raise GraphrlError(f"{shown(run)} holds no checkpoints: must be a folder of `graphrl train topoformer`")
    return checkpoints


def _cells(step: int, by_label: Mapping[str, Score]) -> Iterator[str]:
    for decode in _SHOWN:
        one = by_label[f"{decode} {step}"]
        yield from (one.gap.percent(True), one.random.percent(True))
