"""Section `waiting`: an unrolled transformer of many layers, with weights split over eight devices, under jax's rules.

XLA's scheduler delays gradients that nothing waits for, and their operands stay in memory until then.
"""

import functools
import statistics
from collections.abc import Iterator

import jax

from graphrl.compare.report import markdown
from reproduce.checkpoint.measured import CHIP, SHARDED, TIMED, Settings
from reproduce.checkpoint.sharded import DEVICES, build, measured, ruled
from reproduce.measurements import Figures, mebibytes, ratio
from reproduce.results import Table

DEEP = 32  # layers


def waiting(settings: Settings) -> Iterator[Table]:
    """Yields the table of an unrolled transformer of 32 layers under rules, whose gradients wait or do not."""
    lines, quotients = [], []
    for rule in TIMED if not settings.quick else TIMED[:1]:
        alone, waits = (
            settings.measurements.get(
                {"what": "waiting", "rule": rule, "waits": waits, "size": settings.size},
                functools.partial(_under_rule, settings, rule, waits),
            )
            for waits in (False, True)
        )
        if alone is None or waits is None:
            continue
        quotients.append(waits["temporaries"] / alone["temporaries"])
        slower = ratio(waits["seconds"] / alone["seconds"] - 1)
        gathers = f"{alone['all-gather']} / {waits['all-gather']}"
        lines.append([rule, *(mebibytes(each["temporaries"]) for each in (alone, waits)), slower, gathers])
    how = (
        f"Temporaries a device, in MiB, of the fully sharded transformer with {DEEP} unrolled layers, by XLA's "
        f"compiler for {DEVICES} H200 that are not there, with its latency-hiding scheduler. `with waits`: the same "
        "rule around each layer, and `graphrl.checkpoint(loss, budget=1.0)` around the loss, which computes nothing "
        "else again."
    )
    summary = (
        f"Where gradients wait for one another, {DEEP} layers under the same rule need "
        f"{ratio(statistics.geometric_mean(quotients))} of the memory (geometric mean of {len(quotients)} rules)."
    )
    headings = ["rule", "alone", "with waits", "estimated seconds", "gathers"]
    yield settings.measurements.table("Gradients that wait", how, markdown(headings, lines), summary=summary)


def _under_rule(settings: Settings, rule: str, waits: bool) -> Figures:
    sizes = {} if settings.quick else {"depth": DEEP}
    deep = build(SHARDED[0], small=settings.quick, chip=CHIP, **sizes)
    loss = ruled(deep, rule)
    return measured(deep, jax.value_and_grad(deep.own(loss, budget=1.0, cache=False) if waits else loss))
