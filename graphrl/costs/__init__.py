"""Costs of plans in pure JAX (`device`), their exact host twin (`exact`), and lower bounds (`bounds`).

A `Problem` has the number d of devices, the transfer model between them and the objective to minimise. A decision is a
placement p(v), a device for each op v, and a total order of nodes. A node is an op, or a **transfer** (t, b): one for
every tensor t and every device b that has a consumer of t and is not the device of t's producer. A transfer comes after
the producer and before the consumers of t on b; control edges need no transfer. On the host op v is node v, and the
transfer of tensor t to device b is node n + t * d + b. Ops with the same `colocation` share a device, under every
objective.

**Decoding.** An order can also be given by keys in [0, 1), one for each op and each (tensor, device) pair: repeatedly,
the ready node with the highest key runs. Ties go to ops before transfers, then to the lower node. Keys are quantised
before they are compared: of a 31-bit word, keys get the bits that are not needed to number n + t * (d - 1) nodes, on
the host and on the device. A chromosome (REGAL) also has affinities: an op goes to the device of its largest, ties to
the lower device.

**Time.** Each device has a clock, and nodes are simulated in order. An op on device a starts at the latest of a's
clock, the arrival of its inputs on a and the ends of its control predecessors. It occupies a for its run time. A
transfer from a to b takes latency + bytes / bandwidth seconds and, by the transfer model,

- `rendezvous` (REGAL's synchronous transfer, the default) starts at the latest of both clocks and its producer's end,
  and sets both clocks to its end, even if it takes no time;
- `free` starts at its producer's end and occupies no device: if transfers take no time, this is P|prec|Cmax;
- `link` starts at the later of its producer's end and the time when a's outgoing link is free, and occupies only that
  link (as in Placeto and Baechi).

The makespan is the latest end of an op. Printed makespans name their transfer model: under `free` one pass of list
scheduling comes within 0.4% of the best known, under `rendezvous` not within 15% (docs/results/opponents-dags.md).

**Memory** is counted per device, by position in the order and not by time. An op allocates its outputs on its device;
then the live bytes and its workspace are compared with the device's peak; then each distinct input loses one use, and
an output without readers on the device is freed. A transfer allocates its copy on b, is compared there, and counts as
one use of the tensor on a. A tensor is freed on a device after its last use there, except for the graph's outputs,
which stay on their producer's device. With `resident_weights` the weights of a device's ops are live from the start.
`costs/exact/memory.py` defines which tensors share a buffer and the bytes that this saves. On one device this is the
memory model of "Neural Topological Ordering for Computation Graphs" (Gagrani et al. 2022), equations 1 to 3.

**Objectives.** `peak_memory`, the largest peak of a device in bytes; `makespan` in seconds; or `max_load`, below. The
last two may have a memory limit for each device: then every plan that fits ranks before every plan that does not, and
plans that do not fit rank by their excess.

**Pipelined execution** (`max_load`; Tarnawski et al. 2020): samples follow one another through the devices, so the
objective is the largest load of a device, in seconds per sample. It depends only on the placement. Here the devices are
accelerators and, after them, `cpus` CPUs. A device's load is the run time of its ops (on a CPU `cpu_runtime`) and, on
an accelerator, that of its transfers: each tensor that it produces and another device reads once, however many do, and
each tensor that it reads and another device produces once. A CPU pays for no transfer, and control edges cost nothing.
A transfer takes a tensor's `transfer_seconds`, by default latency + bytes / bandwidth. An accelerator holds the weights
of its ops, and its memory limit applies to them; CPUs have no limit. No op is placed on a device that cannot run it.
The load does not depend on a plan's order; its makespan is that of a single sample, under the transfer model, with
these seconds. Overlap of transfers with computation is not modelled, as in the paper.

**Exactness.** On the device bytes and seconds are float32, in units of the graph (graphs/padding.py), which is enough
to search. Every number that leaves the library is recomputed from the decision by `costs/exact` in int64 and float64.
Tests check that the two agree.

**Example.** Op a (1 s) writes a0 (4 B); b (2 s) reads a0 and writes b0 (3 B); c (3 s, workspace 2 B) reads a0 and
writes c0 (5 B); d (1 s) reads b0 and c0 and writes d0 (1 B). No outputs are kept.

- On one device the order a b c d peaks at 14 B and a c b d at 12 B, the optimum; both take 7 s.
- On two devices, c on device 1 and all else on device 0, equal keys give the order a, b, a0 -> 1, c, c0 -> 0, d. The
  peaks are 9 B and 11 B. It takes 7 s under `rendezvous` and 5 s under `free`; with a latency of 0.5 s and a bandwidth
  of 4 B/s, 10.25 s and 8.25 s.
- With c and d on device 1, a latency of 3.5 s and 4 B/s, the order a, b, a0 -> 1, c, b0 -> 1, d takes 9.5 s under
  `free`; 10.75 s under `link`, where b0 waits from 3 to 5.5 s for a0 to leave; 15.75 s under `rendezvous`.
"""
