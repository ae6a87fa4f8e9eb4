"""Section `jax`: training steps that `graphrl.shard` splits over eight devices, and the same steps split by hand.

Steps are `value_and_grad` of losses of `reproduce.checkpoint.sharded`, with fewer layers, compiled for eight H200 that
are not there. By hand, the batch and the results of each layer are split over the devices; weights are whole (*data
parallel*), split too (*fully sharded*), or split by expert (*expert parallel*). graphrl gets the loss without any
sharding.
"""

import functools
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import graphrl
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError, ProblemError
from graphrl.xla.topology import compile_for
from reproduce.checkpoint.measured import CHIP, SHARDED
from reproduce.checkpoint.sharded import DEVICES, PROGRAMS, Sharded, build, fully
from reproduce.gpu_compile import memory_of
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.models.losses import undecorated
from reproduce.results import Table
from reproduce.sharding.settings import Settings

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
STEPS = {"transformer": SHARDED[0], "mixture of experts": SHARDED[3]}
BY_HAND = ("data parallel", "fully sharded", "expert parallel")
FREE, LIMITED = "graphrl", "graphrl, limited"
DEPTH = 2  # layers
SHARE = 0.9  # limit of memory, of what data parallel needs
SECONDS = 30.0  # of graphrl's search
MARGIN = 0.97  # of the limit, for the next try
TRIES = 3  # compilations until XLA's figure keeps the limit
BITS = {"pred": 8, "bf16": 16, "f16": 16, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f64": 64, "s64": 64, "u64": 64}
_COLLECTIVE = re.compile(
    r" = (?P<result>.*?) (?P<kind>all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
    r"(?P<start>-start)?\("
)
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


def from_jax(settings: Settings) -> Iterator[Table]:
    """Yields the table of bytes that a device sends and of its memory, for each step and way to split it."""
    lines, kept, shares = [], 0, []
    for step in STEPS:
        rows = {method: own for method in _methods(step) if (own := _figures(settings, step, method)) is not None}
        if missing := {BY_HAND[0], FREE, LIMITED} - {*rows}:
            raise GraphrlError(f"{step}: {min(missing)} was not measured")
        limit = _limit(rows[BY_HAND[0]])
        lines += [_line(step, method, own, limit) for method, own in rows.items()]
        kept += _total(rows[LIMITED]) <= limit
        shares.append(_sent(rows[FREE]) / min(_sent(rows[method]) for method in BY_HAND if method in rows))
    how = (
        f"Steps of {DEPTH} layers. Bytes that one of {DEVICES} H200 sends in a step, in MiB, of the collectives in "
        "XLA's module: a ring of n devices sends (n - 1) / n of an array, twice for an all-reduce. Memory is XLA's: "
        f"arguments, results and temporaries, in MiB; the limit is {SHARE:.0%} of data parallel's. If XLA's figure "
        f"exceeds it, graphrl gets a lower one, up to {TRIES} times in all. Predicted memory is that of the problem."
    )
    headings = ["step", "split", "sent", *KINDS, "memory", "within the limit", "predicted", "planning and compiling, s"]
    summary = (
        f"Without a limit a device sends {' and '.join(map(ratio, shares))} of the bytes of the best split by hand "
        f"({' and '.join(STEPS)}); {kept} of {len(STEPS)} limits of memory are kept, which data parallel exceeds."
    )
    yield settings.measurements.table("Steps from JAX", how, markdown(headings, lines), summary=summary)


def _line(step: str, method: str, own: Figures, limit: int) -> list[str]:
    predicted = mebibytes(own["predicted"]) if own["predicted"] else "-"
    return [
        step, method, mebibytes(_sent(own)), *(mebibytes(own[kind]) for kind in KINDS), mebibytes(_total(own)),
        "yes" if _total(own) <= limit else "no", predicted, f"{own['seconds']:.0f}",
    ]  # fmt: skip


def _sent(own: Figures) -> float:
    return float(sum(own[kind] for kind in KINDS))


def _methods(step: str) -> tuple[str, ...]:
    hand = BY_HAND if step == "mixture of experts" else BY_HAND[:2]
    return (*hand, FREE, LIMITED)


def _figures(settings: Settings, step: str, method: str) -> Figures | None:
    limit = None
    if method == LIMITED:
        whole = _figures(settings, step, BY_HAND[0])
        if whole is None:
            return None
        limit = _limit(whole)
    key = {"what": "jax", "step": step, "method": method, "quick": settings.quick, "limit": limit}
    return settings.measurements.get(key, functools.partial(_compiled, step, method, settings.quick, limit))


def _limit(whole: Mapping[str, Any]) -> int:
    return int(SHARE * _total(whole))


def _total(own: Mapping[str, Any]) -> int:
    return int(own["arguments"] + own["results"] + own["temporaries"])


def _compiled(step: str, method: str, quick: bool, limit: int | None) -> Figures:
    sharded, started = build(STEPS[step], small=quick, chip=CHIP, depth=DEPTH), time.perf_counter()
    if method in BY_HAND:
        return _measured(_by_hand(sharded, method), started, 0)
    gradient, memory, figures = jax.value_and_grad(sharded.program.loss(undecorated)), limit, None
    for _ in range(TRIES):
        try:
            own = graphrl.shard(
                gradient, sharded.mesh, *sharded.program.args, memory=memory, chip=CHIP, seconds=SECONDS
            )
        except ProblemError:  # nothing fits by the model, whose figure is below XLA's
            break
        args = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), sharded.program.args, own.in_shardings
        )
        figures = _measured(compile_for(own.jitted, *args), started, own.report.peak_bytes)
        if limit is None or memory is None or _total(figures) <= limit:
            break
        memory = int(MARGIN * min(memory, own.report.peak_bytes) * limit / _total(figures))
    if figures is None:
        raise GraphrlError(f"{step}: no plan fits into {limit:,} bytes")
    return figures


def _by_hand(sharded: Sharded, method: str) -> Any:
    """Compiles a step that is split by hand."""

    def split(path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path)
        rules = {BY_HAND[0]: lambda *_: P(), BY_HAND[1]: fully, BY_HAND[2]: PROGRAMS[SHARDED[3]].split}
        return NamedSharding(sharded.mesh, rules[method](name, leaf.shape))

    of_params = jax.tree_util.tree_map_with_path(split, sharded.program.params)
    own = sharded._replace(shardings=(of_params, *sharded.shardings[1:]))
    results = NamedSharding(own.mesh, P()), of_params
    return compile_for(jax.value_and_grad(own.loss(undecorated)), *own.args, out_shardings=results)


def _measured(compiled: Any, started: float, predicted: int) -> Figures:
    seconds = time.perf_counter() - started
    memory = memory_of(compiled)
    return {**memory._asdict(), **sent(compiled.as_text()), "seconds": seconds, "predicted": predicted}


def sent(module: str) -> dict[str, float]:
    """Returns the bytes that one device sends by each kind of collective of an HLO module; loops count once."""
    total = dict.fromkeys(KINDS, 0.0)
    for line in module.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        kind, devices = match["kind"], _group(line)
        arrays = [_bytes(*array) for array in _ARRAY.findall(match["result"])]
        if match["start"] and kind != "all-reduce":  # operands, then results
            arrays = arrays[len(arrays) // 2 :] if kind != "collective-permute" else arrays[1:2]
        size = sum(arrays) * (devices if kind == "reduce-scatter" else 1)
        part = 1.0 if kind == "collective-permute" else (devices - 1) / devices
        total[kind] += size * part * (2 if kind == "all-reduce" else 1)
    return total


def _group(line: str) -> int:
    """Returns the number of devices that take part in a collective together."""
    match = re.search(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})", line)
    if match is None:
        return DEVICES
    return int(match[1]) if match[1] else len(match[2].split(","))


def _bytes(kind: str, shape: str) -> float:
    size = 1
    for each in shape.split(","):
        size *= int(each or 1)
    return size * BITS.get(kind, 32) / 8
