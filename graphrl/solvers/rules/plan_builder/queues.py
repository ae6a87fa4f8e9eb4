"""Queues of a builder: binary heaps, of which the least key comes first."""

from graphrl.compiled import part
from graphrl.solvers.rules.plan_builder.state import Builder


@part
def push(b: Builder, queue: int, key: float, item: int) -> None:
    """Adds an item."""
    queues, lengths = b.queues, b.lengths
    base, i = queue * len(b.inputs), lengths[queue]
    lengths[queue] += 1
    while i > 0 and queues[base + (i - 1) // 2].key > key:
        above = queues[base + (i - 1) // 2]
        queues[base + i].key, queues[base + i].item = above.key, above.item
        i = (i - 1) // 2
    queues[base + i].key, queues[base + i].item = key, item


@part
def pop(b: Builder, queue: int) -> int:
    """Takes the first item."""
    queues, lengths = b.queues, b.lengths
    lengths[queue] -= 1
    base, i, length = queue * len(b.inputs), 0, lengths[queue]
    item, last = queues[base].item, queues[base + length]
    while True:
        child = 2 * i + 1
        if child + 1 < length and queues[base + child + 1].key < queues[base + child].key:
            child += 1
        if child >= length or queues[base + child].key >= last.key:
            break
        queues[base + i].key, queues[base + i].item = queues[base + child].key, queues[base + child].item
        i = child
    queues[base + i].key, queues[base + i].item = last.key, last.item
    return item
