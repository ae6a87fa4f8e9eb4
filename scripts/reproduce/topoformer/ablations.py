"""What encoder and decoder are worth (tables 3 and 4): each trained alike, with several seeds, on graphs of two sizes.

Training is on graphs of one size, as `graphrl train` has it by default or --set says; the larger of the sizes that are
measured then tells how a policy carries over. Settings are the same for all, so that an encoder with fewer heads has
fewer parameters, as in the paper.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence

from graphrl.compare.report import markdown
from reproduce.contest import Contest, Entrant
from reproduce.results import Table, bullets, of_rows
from reproduce.topoformer.settings import DECODED, DECODERS, ENCODERS, ENDS, OURS, RANDOM, Settings
from reproduce.topoformer.tables import Score, scores, seconds_text, spread, verdict

# tables 3 and 4: gap of greedy, sample and beam from approximate DP with K = 100,000, percent, on 500 ops
PAPER: dict[str, tuple[float, float, float]] = {
    "mlp": (8.31, 4.41, 6.5),
    "transformer": (8.46, 4.72, 6.52),
    "gat": (5.94, 4.19, 4.22),
    "gat-both": (4.84, 3.55, 3.55),
    "topoformer-dag": (4.82, 3.67, 3.68),
    OURS: (4.31, 3.35, 3.08),
    "gat + autoregressive": (6.13, 4.71, 4.87),
    "topoformer + autoregressive": (4.43, 3.33, 3.14),
}


def encoders(settings: Settings) -> Iterator[Table]:
    """Table 3."""
    yield from _ablation(settings, "Encoders", ENCODERS)


def decoders(settings: Settings) -> Iterator[Table]:
    """Table 4."""
    yield from _ablation(settings, "Decoders", DECODERS)


def _ablation(settings: Settings, title: str, variants: Mapping[str, Sequence[str]]) -> Iterator[Table]:
    names = [*variants][: 1 if settings.quick else None]
    trained = {name: settings.trained(name.replace(" + ", "-"), variants[name]) for name in names}
    for ops in settings.ablation_sizes:
        print(f"{title}: layered graphs of {ops:,} ops", file=sys.stderr, flush=True)
        entrants = [settings.reference(), Entrant(RANDOM, ["random-priorities"], ENDS)]
        for name, files in trained.items():
            entrants += settings.decoded(files, f", {name}")
        contest = settings.on_layered(ops, entrants)
        yield _table(settings, f"{title}: layered graphs of {ops:,} ops", names, contest, ops)


def _table(settings: Settings, title: str, names: Sequence[str], contest: Contest, ops: int) -> Table:
    by_label = scores(contest)
    lines = [
        _cells(name, decode, by_label[f"{decode}, {name}"], contest, PAPER[name][i] if ops == 500 else None)
        for name in names
        for i, decode in enumerate(DECODED)
    ]
    headings = ("network", "decoding", "gap from approx. DP", "of the seeds", "paper", "against random 100", "seconds")
    how = (
        f"{settings.graphs} unseen graphs; approximate DP keeps K = {settings.width:,} "
        f"sets, on the first {settings.few}. Means over graphs and {settings.seeds} seed(s) of training, "
        "with 95% intervals over graphs; then the least and the largest mean of a seed."
    )
    others = (name for name in names if name != OURS)
    notes = [line for name in others for line in verdict(contest, f"greedy, {name}", f"greedy, {OURS}")]
    parts = how, markdown(headings, lines), bullets([*notes, *contest.faults()])
    return Table(title, of_rows(contest.rows), parts)


def _cells(name: str, decode: str, one: Score, contest: Contest, paper: float | None) -> list[str]:
    return [
        name,
        decode,
        one.gap.percent(True),
        spread(contest, f"{decode}, {name}"),
        "" if paper is None else f"{paper:.2f}%",
        one.random.percent(True),
        seconds_text(one.seconds),
    ]
