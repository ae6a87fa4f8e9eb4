"""Sections `fit`, `fit-sharded` and `fit-batch`: whole training steps within memory, under `graphrl.fit` and by hand.

By hand: a rule around each layer, and microbatches in a `lax.scan`, in all combinations (`models/whole.py`). The steps
of `fit-sharded` are shared by eight devices: a fully sharded transformer, and tensor-parallel Llama over 2 x 4, both
with their layers in a `lax.scan`.
"""

import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

import graphrl
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.graphs.roofline import find_chip
from graphrl.units import format_seconds
from graphrl.xla.checkpoint.largest import PRECISION, largest_size
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Static, UnmetError
from graphrl.xla.checkpoint.steps import Rules, Step
from reproduce.checkpoint import sharded
from reproduce.checkpoint.measured import CHIP, NONE, POLICIES, WHOLE, WHOLE_SHARDED, Settings, covered
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.models import whole
from reproduce.models.losses import Wrap, undecorated
from reproduce.models.whole import Whole
from reproduce.results import Table

ROOMS = (16, 40, 80)  # GiB
SHARDED_ROOMS = (10, 20, 40)  # GiB of each of eight devices
COUNTS = (1, 2, 4, 8)  # of microbatches
SECONDS, SHARDED_SECONDS = 3.0, 6.0  # of each search
RULES: Mapping[str, Wrap] = {
    NONE: undecorated,
    "nothing saveable": functools.partial(jax.checkpoint, policy=POLICIES["nothing saveable"]),
    "dots saveable": functools.partial(jax.checkpoint, policy=POLICIES["dots saveable"]),
}


HAND = [(rule, count) for rule in RULES for count in COUNTS]
SHARDED_HAND = [(rule, count) for rule in (NONE, "nothing saveable") for count in (1, 2, 4)]


class Kind(NamedTuple):
    """A kind of whole step: at a size for a GPU, and at one for a test."""

    build: Callable[..., Whole]
    full: Mapping[str, Any]
    small: Mapping[str, Any]


_TEXT = {"width": 1024, "heads": 16, "tokens": 1024}
_SMALL_TEXT = {"batch": 8, "depth": 2, "width": 16, "heads": 2, "tokens": 8, "words": 32}
STEPS = {
    WHOLE[0]: Kind(whole.optax_decoder, {**_TEXT, "batch": 112, "depth": 3, "words": 16384}, _SMALL_TEXT),
    WHOLE[1]: Kind(
        whole.nnx_images,
        {"batch": 2048, "side": 224, "patch": 16, "depth": 3, "width": 768, "heads": 12},
        {"batch": 8, "side": 8, "patch": 4, "depth": 2, "width": 16, "heads": 2},
    ),
    WHOLE[2]: Kind(
        whole.equinox_decoder,
        {**_TEXT, "batch": 48, "depth": 6, "hidden": 2816, "words": 32768},
        {**_SMALL_TEXT, "hidden": 24},
    ),
}  # fmt: skip


def selected(settings: Settings, names: tuple[str, ...] = WHOLE) -> tuple[str, ...]:
    """Returns the steps to measure."""
    return tuple(name for name in (names[-1:] if settings.quick else names) if name in (settings.programs or names))


def build(settings: Settings, name: str, batch: int | None = None) -> Whole:
    """Builds a step by its name; `batch` overrides the batch of its size."""
    if name in WHOLE_SHARDED:
        shared = sharded.build(name, small=settings.quick, chip=CHIP)
        return whole.sharded_decoder(shared.program, shared.shardings, shared.wrap)
    kind = STEPS[name]
    sizes = dict(kind.small if settings.quick else kind.full)
    return kind.build(**sizes if batch is None else sizes | {"batch": batch})


def _by_hand(settings: Settings, name: str, rule: str, count: int, batch: int | None = None) -> Figures | None:
    """Returns XLA's bytes and the estimated seconds of a step that is written by hand."""
    key: dict[str, Any] = {"what": "fit-hand", "program": name, "rule": rule, "count": count, "size": settings.size}
    if batch is not None:
        key["batch"] = batch

    def measured() -> Figures:
        step = build(settings, name, batch)
        traced = Step(step.step(RULES[rule], count), {}, Static(), {}).trace(Rules(), step.args, {})
        traced = traced.with_shards(find_chip(CHIP), None)
        memory, seconds = traced.compile(CHIP), gradient_seconds(traced.on_one_device(), CHIP)
        return {"total": memory.total, "outside": memory.outside, "seconds": seconds}

    return settings.measurements.get(key, measured)


def _fitted(settings: Settings, name: str, room: int, *, largest: bool = False) -> Figures | None:
    """Returns figures of a step under `graphrl.fit` for `room` bytes; of `total` None if nothing fits."""
    key = {"what": "fit-batch" if largest else "fit", "program": name, "room": room, "size": settings.size}

    def measured() -> Figures:
        step, started = build(settings, name), time.perf_counter()
        own = step.step(undecorated, 1)
        options: dict[str, Any] = {
            "memory": f"{room}B",
            "batch_axis": step.batch_axis,
            "chip": CHIP,
            "cache": False,
            "seconds": SHARDED_SECONDS if name in WHOLE_SHARDED else SECONDS,
            "progress": functools.partial(print, file=sys.stderr, flush=True),
        }
        try:
            fitted = graphrl.fit(own, *step.args, largest_batch=largest, **options)
        except UnmetError as error:
            return {"total": None, "least": error.least, "took": time.perf_counter() - started}
        way = fitted.report().fitted
        return {
            "total": way.bytes, "seconds": way.seconds, "count": way.microbatches, "plan": way.plan,
            "batch": fitted.batch, "took": time.perf_counter() - started, "report": str(fitted.report()),
        }  # fmt: skip

    return settings.measurements.get(key, measured)


def _rooms(settings: Settings, name: str, rooms: Sequence[int] = ()) -> list[int]:
    """Returns limits in bytes, by default those of its kind of step; of the small size, shares of the step as it is."""
    if not settings.quick:
        return [room * 2**30 for room in rooms or (SHARDED_ROOMS if name in WHOLE_SHARDED else ROOMS)]
    plain = _by_hand(settings, name, NONE, 1)
    assert plain is not None
    return [int(plain["outside"] + share * (plain["total"] - plain["outside"])) for share in (0.3, 0.6, 1.0)]


def fit(settings: Settings) -> Iterator[Table]:
    """Yields the table of steps within memory, then one of the combinations by hand for each step; raises as
    `_within`.
    """
    yield from _within(settings, WHOLE, HAND, "Whole steps", "the whole step by XLA's compiler for an H200")


def fit_sharded(settings: Settings) -> Iterator[Table]:
    """Yields the same for steps that eight devices share."""
    where = f"one of {sharded.DEVICES} devices by XLA's compiler for H200, which are not there"
    yield from _within(settings, WHOLE_SHARDED, SHARDED_HAND, "Whole sharded steps", where)


def _within(
    settings: Settings, names: tuple[str, ...], combinations: Sequence[tuple[str, int]], title: str, where: str
) -> Iterator[Table]:
    """Yields the table of steps within memory, then one of the combinations by hand for each step.

    Args:
      settings: the script's options.
      names: the steps.
      combinations: rules a layer and numbers of microbatches by hand.
      title: title of the table.
      where: what has the memory, and by which compiler.

    Raises:
      GraphrlError: the step without a rule was not measured.
    """
    lines, kept, ahead, details, total, compared = [], 0, 0, [], 0, 0
    for name in selected(settings, names):
        hand = {each: _by_hand(settings, name, *each) for each in combinations}
        plain = hand[NONE, 1]
        if plain is None:
            raise GraphrlError(f"{name}: the step without a rule was not measured")
        for room in _rooms(settings, name):
            own = _fitted(settings, name, room)
            if own is None:
                continue
            is_compared = None not in hand.values()
            total, compared = total + 1, compared + is_compared
            fitting = [
                (each["seconds"], f"{rule}, {count}", each)
                for (rule, count), each in hand.items()
                if each and each["total"] <= room
            ]
            _, best, by_hand = min(fitting, key=lambda each: each[0], default=(0.0, "", None))
            cells = [name, mebibytes(room)]
            if own["total"] is None:
                cells += [f"nothing fits: the least is {mebibytes(own['least'])}", "-", "-"]
            else:
                kept += own["total"] <= room
                ahead += is_compared and (by_hand is None or own["seconds"] <= by_hand["seconds"] * 1.001)
                cells += [f"{own['plan']}, {own['count']}", mebibytes(own["total"])]
                cells.append(ratio(own["seconds"] / plain["seconds"] - 1))
            if by_hand is None or not is_compared:
                cells += ["nothing fits" if is_compared else "not all measured", "-", "-"]
            else:
                cells += [best, mebibytes(by_hand["total"]), ratio(by_hand["seconds"] / plain["seconds"] - 1)]
            lines.append([*cells, f"{own['took']:.0f}"])
        details.append(_of_step(settings, name, hand))
    how = (
        f"Memory of {where}: arguments, results and temporaries, less results in "
        "donated arguments, in MiB. The number after each method is that of the microbatches. Slowdowns are against "
        f"the step as it is, by roofline of {CHIP}. By hand: the fastest by the same estimate that fits, of "
        f"{len(combinations)} combinations of a rule a layer and a number of microbatches."
    )
    summary = (
        f"`graphrl.fit` is within the memory in {kept} of {total} cases, and by estimate as fast as the best "
        f"combination by hand, or faster, in {ahead} of {compared}"
        f"{' for which all combinations are measured' if compared < total else ''}."
        f"{covered(selected(settings, names), names)}"
    )
    headings = ["step", "memory", "graphrl.fit", "needs", "slowdown", "by hand", "needs", "slowdown", "fitting, s"]
    yield settings.measurements.table(title, how, markdown(headings, lines), summary=summary)
    yield from details


def _of_step(settings: Settings, name: str, hand: Mapping[tuple[str, int], Figures | None]) -> Table:
    plain = hand[NONE, 1]
    assert plain is not None
    lines = [
        [rule, str(count), mebibytes(each["total"]), ratio(each["seconds"] / plain["seconds"] - 1)]
        for (rule, count), each in hand.items()
        if each is not None
    ]
    how = f"By hand; the step takes {format_seconds(plain['seconds'])} by estimate."
    headings = ["rule, a layer", "microbatches", "needs, MiB", "slowdown"]
    return settings.measurements.table(name, how, markdown(headings, lines))


def fit_batch(settings: Settings) -> Iterator[Table]:
    """Yields the table of the largest batches without microbatches, with a row for each step."""
    lines, gains = [], []
    for name in selected(settings):
        rules = {rule: each for rule in RULES if rule != NONE and (each := _by_hand(settings, name, rule, 1))}
        rule = min(rules, key=lambda each: rules[each]["total"])
        for room in _rooms(settings, name, settings.rooms):
            own = _fitted(settings, name, room, largest=True)
            if own is None:
                continue
            by_hand = _largest_by_hand(settings, name, rule, room, rules[rule])
            ours, needs = (0, "-") if own["total"] is None else (own["batch"], mebibytes(own["total"]))
            gains.append(max(1, ours) / max(1, by_hand))
            plan = "-" if own["total"] is None else own["plan"]
            lines.append([name, mebibytes(room), str(ours), plan, needs, rule, str(by_hand), f"{own['took']:.0f}"])
    how = (
        "The largest batch whose whole step fits by XLA's compiler for an H200, without microbatches: under "
        "`graphrl.fit(..., largest_batch=True)`, and by hand with the rule around each layer that needs least at the "
        "step's own batch. Memory in MiB. With the plan of least memory found, or with the rule, a batch "
        f"{PRECISION:.0%} larger does not fit."
    )
    mean = sum(gains) / max(1, len(gains))
    summary = f"On the mean `graphrl.fit` finds {mean:.2f} times the batch of the best rule by hand."
    summary += covered(selected(settings), WHOLE)
    headings = ["step", "memory", "graphrl.fit", "its plan", "needs", "rule by hand", "its batch", "fitting, s"]
    yield settings.measurements.table("Largest batches of whole steps", how, markdown(headings, lines), summary=summary)


def _largest_by_hand(settings: Settings, name: str, rule: str, room: int, own: Figures) -> int:
    """Returns the largest batch under a rule; `own` has the figures for the step's own batch."""

    def needed(batch: int) -> float:
        figures = _by_hand(settings, name, rule, 1, batch)
        return math.inf if figures is None else figures["total"]

    batch = (STEPS[name].small if settings.quick else STEPS[name].full)["batch"]
    temporaries = own["total"] - own["outside"]  # nearly linear in the batch
    return largest_size(needed, room, max(1, int(batch * (room - own["outside"]) / temporaries)))
