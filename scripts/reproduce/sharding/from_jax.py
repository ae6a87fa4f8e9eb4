"""Section `jax`: training steps that `graphrl.shard` splits over eight devices, and the same steps split by hand.

Steps are `value_and_grad` of losses of `reproduce.checkpoint.sharded`, compiled for eight H200 that
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
from graphrl.errors import GraphrlError
from graphrl.xla.checkpoint.settings import Compiler
from graphrl.xla.topology import compile_for
from reproduce.checkpoint.measured import CHIP, SHARDED, covered
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
SHARE = 0.9  # limit of memory, of what data parallel needs
SECONDS = 30.0  # of each search of graphrl
BITS = {"pred": 8, "bf16": 16, "f16": 16, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f64": 64, "s64": 64, "u64": 64}
_COLLECTIVE = re.compile(
    r" = (?P<result>.*?) (?P<kind>all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
    r"(?P<start>-start)?\("
)
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


def from_jax(settings: Settings) -> Iterator[Table]:
    """Yields the table of bytes that a device sends and of its memory, for each step and way to split it."""
    lines, kept, shares, steps = [], 0, [], []
    for step in STEPS:
        rows = {method: own for method in _methods(step) if (own := _figures(settings, step, method)) is not None}
        if {BY_HAND[0], FREE, LIMITED} - {*rows}:
            continue
        steps.append(step)
        limit = _limit(rows[BY_HAND[0]])
        lines += [_line(step, method, own, limit) for method, own in rows.items()]
        kept += _total(rows[LIMITED]) <= limit
        shares.append(_sent(rows[FREE]) / min(_sent(rows[method]) for method in BY_HAND if method in rows))
    if not steps:
        raise GraphrlError(f"no step was measured by {BY_HAND[0]}, {FREE} and {LIMITED}")
    how = (
        f"Steps of {settings.layers} layers. Bytes that one of {DEVICES} H200 sends in a step, in MiB, of the "
        "collectives in XLA's module: a ring of n devices sends (n - 1) / n of an array, twice for an all-reduce. "
        "Memory is XLA's: arguments, results and temporaries, in MiB; the limit is "
        f"{SHARE:.0%} of data parallel's, which graphrl "
        "verifies (`verify=`). Predicted memory is that of the problem. Searches have at most "
        f"{SECONDS:.0f} s for each plan that is compiled; planning is tracing, strategies and searches together."
    )
    headings = ["step", "split", "sent", *KINDS, "memory", "within the limit", "predicted", "nodes"]
    headings += ["planning, s", "compiling, s", "plans compiled"]
    summary = (
        f"Without a limit a device sends {' and '.join(map(ratio, shares))} of the bytes of the best split by hand "
        f"({' and '.join(steps)}); {kept} of {len(steps)} limits of memory are kept, which data parallel exceeds."
        f"{covered(steps, [*STEPS])}"
    )
    yield settings.measurements.table("Steps from JAX", how, markdown(headings, lines), summary=summary)


def _line(step: str, method: str, own: Figures, limit: int) -> list[str]:
    predicted = mebibytes(own["predicted"]) if own["predicted"] else "-"
    return [
        step, method, mebibytes(_sent(own)), *(mebibytes(own[kind]) for kind in KINDS), mebibytes(_total(own)),
        "yes" if _total(own) <= limit else "no", predicted, f"{own['nodes']:,}" if own["nodes"] else "-",
        f"{own['planning']:.0f}", f"{own['compiling']:.0f}", str(own["compilations"]),
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
    key["layers"] = settings.layers
    return settings.measurements.get(key, functools.partial(_compiled, settings, step, method, limit))


def _limit(whole: Mapping[str, Any]) -> int:
    return int(SHARE * _total(whole))


def _total(own: Mapping[str, Any]) -> int:
    return int(own["arguments"] + own["results"] + own["temporaries"])


def _compiled(settings: Settings, step: str, method: str, limit: int | None) -> Figures:
    sharded = build(STEPS[step], small=settings.quick, chip=CHIP, depth=settings.layers)
    started = time.perf_counter()
    modules, compiling = list[Any](), list[float]()

    def compiler(function: Any, *args: Any, **options: Any) -> Any:
        before = time.perf_counter()
        modules.append(compile_for(function, *args, **options))
        compiling.append(time.perf_counter() - before)
        return modules[-1]

    report = None
    if method in BY_HAND:
        _by_hand(sharded, method, compiler)
    else:
        gradient = jax.value_and_grad(sharded.program.loss(undecorated))
        report = graphrl.shard(
            gradient, sharded.mesh, *sharded.program.args, memory=limit, chip=CHIP, seconds=SECONDS, verify=compiler
        ).report
    seconds, memory = time.perf_counter() - started, memory_of(modules[-1])
    return {
        **memory._asdict(), **sent(modules[-1].as_text()), "predicted": report.peak_bytes if report else 0,
        "nodes": report.nodes if report else 0, "compilations": len(modules), "compiling": sum(compiling),
        "planning": seconds - sum(compiling),
    }  # fmt: skip


def _by_hand(sharded: Sharded, method: str, compiler: Compiler) -> None:
    """Compiles a step that is split by hand."""

    def split(path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path)
        rules = {BY_HAND[0]: lambda *_: P(), BY_HAND[1]: fully, BY_HAND[2]: PROGRAMS[SHARDED[3]].split}
        return NamedSharding(sharded.mesh, rules[method](name, leaf.shape))

    of_params = jax.tree_util.tree_map_with_path(split, sharded.program.params)
    own = sharded._replace(shardings=(of_params, *sharded.shardings[1:]))
    results = NamedSharding(own.mesh, P()), of_params
    compiler(jax.value_and_grad(own.loss(undecorated)), *own.args, out_shardings=results)


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
