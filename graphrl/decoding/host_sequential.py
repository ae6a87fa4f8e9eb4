"""Orders of `sequential.py` by compiled code, as a part of a jitted program for CPUs, and the gradient of their
log-probabilities.

A lane of `host_steps.py` is an order; `host_beam.py` is the beam search. Custom calls as in `compiled/custom_call.py`:
an item of `_decode` is an order of a graph, an item of `_differentiate` is a graph, whose gradient is summed over its
orders.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import (
    MANY,
    count_outer,
    custom_call,
    data,
    operand,
    own_address,
    result,
    row_of,
    run_items,
    size,
    typed,
)
from graphrl.compiled.pointers import array, load_half, matrix
from graphrl.decoding.host_steps import (
    CHOICE,
    COTANGENT,
    F32,
    GIVEN,
    GIVEN_ORDER,
    GREEDY,
    I32,
    LOG_PROB,
    NUM_FEATURES,
    ORDER,
    OUT,
    SAMPLE,
    SEEDS,
    U32,
    best,
    draw,
    lane_of,
    operands_of,
    place_of,
    results_of,
    run,
    score,
    start,
    unused,
)
from graphrl.decoding.op_features import Head, Usage
from graphrl.decoding.random_words import random_word, unit_interval
from graphrl.graphs.padding import PaddedGraph

# Results of `_differentiate`: gradients of each graph
TO_PRIORITY, TO_HIDDEN, TO_KERNEL, TO_OUT = 0, 1, 2, 3  # [g, n], [g, n, h], [g, F, h], [g, h] float32

FEW = 500  # ops times orders that one thread computes alone: scheduling another takes as long
_0, _1 = np.float32(0), np.float32(1)
_NEVER = np.float32(-np.inf)


@custom_call("graphrl_sequential_orders", "orders by the state of memory", 10)
def sequential_orders(pointer: Any) -> Any:
    """Orders of all lanes of a batch of graphs, and their log-probabilities."""
    return run_items(pointer, own_address(), _plan_orders, _decode)


@custom_call("graphrl_sequential_gradient", "the gradient of orders by the state of memory", 10)
def sequential_gradient(pointer: Any) -> Any:
    """The gradients of the log-probabilities of a batch of graphs' orders, weighted by the cotangents."""
    return run_items(pointer, own_address(), _plan_gradient, _differentiate)


@inlined
def _plan_orders(call: int) -> tuple[int, int, int]:
    """Number of lanes, largest number of threads, and bytes that a thread needs."""
    like = result(call, ORDER)
    lanes = count_outer(like, 1)
    few = lanes * size(like, -1) < FEW
    return lanes, integer(1 if few else MANY), lane_of(call, integer(0), integer(0), integer(0), like).end


@inlined
def _plan_gradient(call: int) -> tuple[int, int, int]:
    like = result(call, TO_PRIORITY)
    return count_outer(like, 1), integer(MANY), lane_of(call, integer(0), integer(0), integer(0), like).end


@part
def _decode(call: int, item: int, memory: int) -> None:
    like = result(call, ORDER)
    graphs, samples, n = size(like, -3), size(like, -2), size(like, -1)
    outer, graph, sample = item // samples // graphs, item // samples % graphs, item % samples
    lane = lane_of(call, memory, outer, graph, like)
    choice = load_half(data(operand(call, CHOICE)), 0)
    seeds = array(row_of(call, SEEDS, integer(2), outer, graph, like), integer(2), U32)
    order = array(data(like) + 4 * item * n, n, I32)
    log_prob, count = _0, start(call, lane, outer, graph, like)
    if choice == GIVEN:
        given = array(row_of(call, GIVEN_ORDER, integer(3), outer, graph, like) + 4 * sample * n, n, I32)
        for step in range(n):
            order[step] = given[step]
    for step in range(lane.ops):
        if count == 0:
            break
        score(lane, count, step)
        if choice == GIVEN:
            place = place_of(lane, count, order[step])
        elif choice == GREEDY:
            place = best(lane, count)
        else:
            word = random_word(seeds, step * samples + sample)
            place = draw(lane, count, unit_interval(word))
        if place < 0:
            log_prob = _NEVER
            break
        log_prob += lane.log_prob[place]
        op = lane.ready[place]
        order[step] = op
        count = run(lane, count, place, step)
    for step in range(lane.ops, n):
        order[step] = n
    array(data(result(call, LOG_PROB)), item + 1, F32)[item] = log_prob


@part
def _differentiate(call: int, item: int, memory: int) -> None:
    like = result(call, TO_PRIORITY)
    graphs, n = size(like, -2), size(like, -1)
    outer, graph, width = item // graphs, item % graphs, size(operand(call, OUT), -1)
    samples = size(operand(call, GIVEN_ORDER), -2)
    lane = lane_of(call, memory, outer, graph, like)
    to_priority = array(data(like) + 4 * item * n, n, F32)
    to_hidden = matrix(data(result(call, TO_HIDDEN)) + 4 * item * n * width, n, width, F32)
    features = integer(NUM_FEATURES)
    to_kernel = matrix(data(result(call, TO_KERNEL)) + 4 * item * features * width, features, width, F32)
    to_out = array(data(result(call, TO_OUT)) + 4 * item * width, width, F32)
    to_priority[:] = _0
    to_hidden[:] = _0
    to_kernel[:] = _0
    to_out[:] = _0
    cotangent = array(row_of(call, COTANGENT, integer(2), outer, graph, like), samples, F32)
    for sample in range(samples):
        given = array(row_of(call, GIVEN_ORDER, integer(3), outer, graph, like) + 4 * sample * n, n, I32)
        count = start(call, lane, outer, graph, like)
        for step in range(lane.ops):
            if count == 0:
                break
            score(lane, count, step)
            place = place_of(lane, count, given[step])
            if place < 0:
                break
            for k in range(count if count > 1 else 0):
                chosen = _1 if k == place else _0
                slope = (chosen - np.exp(lane.log_prob[k])) * cotangent[sample]
                op = lane.ready[k]
                to_priority[op] += slope
                for i in range(width):
                    to_out[i] += slope * lane.relu[k, i]
                    inner = slope * lane.out[i] if lane.relu[k, i] > _0 else _0
                    lane.relu[k, i] = inner
                    to_hidden[op, i] += inner
                for f in range(NUM_FEATURES):
                    for i in range(width):
                        to_kernel[f, i] += lane.features[k, f] * lane.relu[k, i]
            count = run(lane, count, place, step)


def host_rollout(
    graph: PaddedGraph, usage: Usage, head: Head, seeds: jax.Array | None, samples: int
) -> tuple[jax.Array, jax.Array]:
    """Decodes orders `[g, s, n]` int32 and their log-probabilities `[g, s]`; greedily without seeds `[g, 2]` uint32."""
    no_seeds, given = unused(len(graph.num_ops), samples)
    choice = GREEDY if seeds is None else SAMPLE
    operands = operands_of(choice, graph, usage, head, no_seeds if seeds is None else seeds, given)
    orders, log_probs = sequential_orders(results_of(graph, samples), *operands)
    return orders, log_probs


def host_log_prob(graph: PaddedGraph, usage: Usage, head: Head, order: jax.Array) -> jax.Array:
    """Computes log-probabilities `[g, s]` of orders `[g, s, n]`: -inf for orders that run an op before its inputs."""
    operands = operands_of(GIVEN, graph, usage, head, unused(len(order), 1)[0], order)
    return sequential_orders(results_of(graph, order.shape[1]), *operands)[1]


def host_gradient(graph: PaddedGraph, usage: Usage, head: Head, order: jax.Array, cotangent: jax.Array) -> Head:
    """Computes the head's gradient of the sum of log-probabilities times cotangents `[g, s]`; of an order that runs an
    op before its inputs, only the steps before that op count.
    """
    operands = operands_of(GIVEN, graph, usage, head, unused(len(order), 1)[0], order)
    (g, n, width), features = head.hidden.shape, len(head.kernel)
    shapes = [(g, n), (g, n, width), (g, features, width), (g, width)]
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    priority, hidden, kernel, out = sequential_gradient(
        results, *operands, *typed(np.float32, cotangent.shape, cotangent)
    )
    return Head(priority, hidden, kernel.sum(0), out.sum(0))
