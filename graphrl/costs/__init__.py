"""What a decision costs: pure JAX on padded graphs (`device`), one exact twin on the host (`exact`), and what no
decision can beat (`bounds`).

A `Problem` says the number d of devices, how tensors move between them and what is minimised. A decision is a placement
p(v), a device for each op v, and a total order of nodes. A node is an op, or a **transfer** (t, b): there is one for
every tensor t and every device b that has a consumer of t and is not its producer's. A transfer comes after the
producer and before the consumers of t on b; control edges need none. On the host op v is node v, and the transfer of
tensor t to device b is node n + t * d + b. Ops of one `colocation` are on one device, under every objective.

**Decoding.** Orders also come from keys in [0, 1), of ops and of (tensor, device) pairs: repeatedly, the ready node of
the highest key runs. Ties go to ops before transfers, then to the lower node. Keys are compared after quantisation: of
a word of 31 bits they have what is left beside a number for each of n + t * (d - 1) nodes, on the host as on the
device. A chromosome (REGAL) holds affinities too: an op goes to the device of its largest, ties to the lower device.

**Time.** Each device has a clock, and the order is walked. An op on a starts at the latest of a's clock, the arrival of
its inputs on a and the ends of its control predecessors, and holds a for its run time. A transfer from a to b takes
latency + bytes / bandwidth seconds and, by the transfer model,

- `rendezvous` (REGAL's synchronous transfer, the default) starts at the latest of both clocks and its producer's end,
  and sets both clocks to its end, also where it takes no time;
- `free` starts at its producer's end and holds nobody: where it takes no time, this is P|prec|Cmax;
- `link` starts at the later of its producer's end and the time when a's outgoing link is free, and holds that link
  alone (as in Placeto and Baechi).

The makespan is the latest end of an op. Whoever prints one says of which model: under `free` one pass of list
scheduling comes within 0.4% of the best known, under `rendezvous` not within 15% (docs/results/opponents-dags.md).

**Memory**, per device, along the order and not along the clock. An op allocates its outputs on its device; then the
live bytes and its workspace are compared with the device's peak; then each distinct input has had one use, and an
output that nobody on the device reads is freed. A transfer allocates its copy on b, is compared there, and is one use
of the tensor on a. A tensor is freed on a device after its last use there, but for those that the graph names as
outputs, which stay on their producer's device. With `resident_weights` the weights of a device's ops are there from the
start. Which tensors share a buffer, and what that saves, stands in `costs/exact/memory.py`. On one device this is the
memory of "Neural Topological Ordering for Computation Graphs" (Gagrani et al. 2022), equations 1 to 3.

**Objectives.** `peak_memory`, the largest peak of a device in bytes; `makespan` in seconds; or `max_load`, below. The
last two also under a memory limit for each device: then every plan that fits ranks before every plan that does not, and
those rank by their excess.

**Pipelined execution** (`max_load`; Tarnawski et al. 2020): samples follow one another through the devices, so what
counts is the largest load of a device in seconds a sample, which only the placement decides. Here the devices are
accelerators and, after them, `cpus` CPUs. A device's load is the run time of its ops (on a CPU `cpu_runtime`) and, on
an accelerator, that of its transfers: each tensor that it produces and another device reads once, however many do, and
each tensor that it reads and another device produces once. A CPU pays for none, nor do control edges cost any. A
transfer takes a tensor's `transfer_seconds`, by default latency + bytes / bandwidth. An accelerator holds the weights
of its ops, which its memory limit is for; CPUs have none. No op runs where it cannot. A plan's order is then one of
many that do as well; its makespan is that of one sample that runs alone, under the transfer model, with these seconds.
Overlap of transfers with computation is not modelled, as in the paper.

**Exactness.** On the device bytes and seconds are float32, in units of the graph (graphs/padding.py), which is enough
to search. Every number that leaves the library is computed anew from the decision by `costs/exact` in int64 and
float64. Tests hold the two together.

**Example.** Op a (1 s) writes a0 (4 B); b (2 s) reads a0 and writes b0 (3 B); c (3 s, workspace 2 B) reads a0 and
writes c0 (5 B); d (1 s) reads b0 and c0 and writes d0 (1 B). No outputs are kept.

- On one device the order a b c d peaks at 14 B and a c b d at 12 B, the optimum; both take 7 s.
- On two devices, c on device 1 and all else on device 0, equal keys give the order a, b, a0 -> 1, c, c0 -> 0, d. The
  peaks are 9 B and 11 B. It takes 7 s under `rendezvous` and 5 s under `free`; with a latency of 0.5 s and a bandwidth
  of 4 B/s, 10.25 s and 8.25 s.
- With c and d on device 1, a latency of 3.5 s and 4 B/s, the order a, b, a0 -> 1, c, b0 -> 1, d takes 9.5 s under
  `free`; 10.75 s under `link`, where b0 waits from 3 to 5.5 s for a0 to leave; 15.75 s under `rendezvous`.
"""
