"""Costs on the device that jax computes on, against the exact costs."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.bench.cases import TRANSFERS, problem, random_graphs
from graphrl.costs import exact
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.fusion import device as fusion_device
from graphrl.costs.fusion import exact as fusion_exact
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.maps import device as maps_device
from graphrl.costs.maps import exact as maps_exact
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.problem import map_problem
from graphrl.costs.problem import Transfer
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.datasets.zoo import load
from graphrl.graphs.padding import common_sizes, pad_batch
from reproduce.accelerator.job import Job, Row, Write, faults

DEVICES, LANES = 3, 8
AGREEMENT = 1e-5  # relative: float32 sums of large graphs
SHARING = "lstm2/inference/b1/hlo", "resnet50v2/inference/b16/hlo"  # with aliases, reuses, workspace and weights


def costs(job: Job, write: Write) -> None:
    """Compares each kind of cost on the device with its exact value, and writes a row."""
    kinds: dict[str, Callable[[Job], Row]] = {
        f"decoded schedules, {transfer}: makespan and peak memory": functools.partial(_schedules, transfer=transfer)
        for transfer in TRANSFERS
    }
    kinds |= {"memory maps: latency and bytes moved": _maps, "fusion: seconds of kernels": _kernels}
    for what, measure in kinds.items():
        with faults(write, what=what):
            write({"what": what, **measure(job)})


def _schedules(job: Job, transfer: Transfer) -> Row:
    """Compares costs of random decisions for random graphs and programs, on three devices."""
    rng = np.random.default_rng(job.seed)
    graphs = random_graphs(16 if job.small else 64, 3 if job.small else 21, job.seed)
    graphs += [load(name).graph for name in SHARING[: 1 if job.small else 2]]
    goal = dataclasses.replace(problem("makespan", transfer), devices=DEVICES, resident_weights=True)
    to, g = common_sizes(graphs), len(graphs)
    decisions = Decisions(
        placement=jnp.asarray(rng.integers(0, DEVICES, (to.ops, g, LANES)), jnp.int32),
        op_keys=jnp.asarray(rng.random((to.ops, g, LANES)), jnp.float32),
        transfer_keys=jnp.asarray(rng.random((DEVICES, to.tensors, g, LANES)), jnp.float32),
    )
    padded = jax.tree.map(jnp.asarray, pad_batch(graphs, to))
    result, host = jax.device_get((jax.jit(evaluate)(padded, decisions, DeviceProblem.of(goal)), decisions))
    pairs: list[tuple[Any, Any]] = []
    for (i, graph), lane in itertools.product(enumerate(graphs), range(LANES)):
        n, t = graph.arrays.num_ops, graph.arrays.num_tensors
        placement, keys = host.placement[:n, i, lane], host.op_keys[:n, i, lane]
        order = exact.decode(graph, goal, placement, keys, host.transfer_keys[:, :t, i, lane].T)
        expected = exact.evaluate(graph, goal, placement, order)
        pairs.append((result.makespan[i, lane] * padded.second_unit[i], expected.makespan))
        pairs.append((result.peak_memory[:, i, lane] * padded.byte_unit[i], expected.peak_memory))
    return _compared(g, g * LANES, pairs)


def _maps(job: Job) -> Row:
    """Compares costs of random memory maps of ResNet-50 on EGRL's chip."""
    task = map_problem(WORKLOADS["resnet50"](), NNP_I)
    padded, count = maps_device.pad(task), 16 if job.small else 256
    choices = np.random.default_rng(job.seed).integers(0, task.memories, (2, padded.sizes.steps, count))
    result = jax.jit(maps_device.evaluate)(jax.tree.map(jnp.asarray, padded), *jnp.asarray(choices, jnp.int32))
    expected = [maps_exact.evaluate(task, *choices[:, : task.steps, i]) for i in range(count)]
    pairs = [
        (result.latency, [one.latency for one in expected]),
        (1 + result.error, [1 + one.error for one in expected]),
    ]
    return _compared(1, count, pairs)


def _kernels(job: Job) -> Row:
    """Compares costs of random fusion priorities of a training step."""
    task = fusion_problem(load("lstm2/training/b8/jaxpr" if job.small else "vgg16/training/b8/jaxpr").graph)
    padded, count = fusion_device.pad(task), 4 if job.small else 64
    choices = np.random.default_rng(job.seed).integers(0, 4, (count, fusion_device.common_sizes([task]).ops))
    fuse = jax.jit(jax.vmap(fusion_device.fuse, (None, 0)))
    result = fuse(jax.tree.map(jnp.asarray, padded), jnp.asarray(choices, jnp.int32))
    expected = [fusion_exact.fuse(task, one[: task.num_ops]) for one in choices]
    return _compared(1, count, [(result.seconds[:, : task.num_ops], [one.op_seconds for one in expected])])


def _compared(graphs: int, decisions: int, pairs: list[tuple[Any, Any]]) -> Row:
    """Computes the greatest relative difference of (given, right) pairs; float32 sums explain it below `AGREEMENT`."""
    result, expected = (
        np.concatenate([np.ravel(np.asarray(one, float)) for one in side]) for side in zip(*pairs, strict=True)
    )
    difference = float((np.abs(result - expected) / np.maximum(np.abs(expected), 1e-30)).max())
    agrees = "yes" if difference <= AGREEMENT else "**no**"
    counts = {"graphs": graphs, "decisions": decisions, "figures": len(expected)}
    return {**counts, "difference": difference, "agrees": agrees}
