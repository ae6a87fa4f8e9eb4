"""Costs of memory maps, which place every op's weights and outputs in the memories of a chip.

A **chip** (`chip.py`) has memories 0, 1, 2, ... from the largest and slowest to the smallest and fastest. Ops run one
after the other, in the graph's topological order or in another; here **step** i is the i-th op of that order, and every
array is by step. A **map** gives every step a memory for its weights and one for its outputs. External inputs are in
memory 0. So is a weight that several ops share, for all but the first, which owns it.

**Time.** A step takes launch + max(operations / peak, max over memories m of T_m) seconds. T_m adds, over every
distinct tensor, the set-up of m and its bytes over m's bandwidth: inputs that are in m and the step's weights, if they
have bytes, over the read bandwidth, outputs over the write bandwidth. The latency of a map is the sum over steps.

**Room**, in whole pages. Weights occupy their memory for the whole run. An output occupies its memory from the step
that writes it to that of its last reader: to the end if the graph keeps it, and only for its own step if it has no
reader. A map is **valid** if no memory ever holds more than its capacity. A tensor that aliases another is in the same
memory: it is not written, takes no room, and keeps the other alive; reading it takes its own bytes. `reuses` is
ignored.

The **compiler** makes any map valid. It visits steps in order and places their weights, then their outputs. They take
the requested memory if it has room for them over their whole life, in addition to everything accepted before. Else they
take the next larger memory with room, down to memory 0, which must hold everything. The error of a map is the bytes
that moved over all bytes; a map is valid exactly if nothing moves. The compiler's own map is its result when the map
requests the fastest memory for everything.

**Room needs no table of steps.** Everything that was accepted before step i and is live later is already live at i, so
its room in a memory never grows after i. So outputs have room for their whole life if they have room at step i, and
weights if there is room for them at the fullest step so far. `device.py` and the compiled searches keep two numbers for
each memory; `exact.py`, their host twin and the source of every reported number, keeps the table.

**Example.** A chip with memories big (no limit, 1 B/s) and small (8 B, 4 B/s), no set-up, no launch, 1 operation/s and
pages of 1 B. Op a (2 operations, weights of 4 B) writes 4 B; op b (1 operation) reads them and writes 4 B. If the map
requests small for everything, a's weights and output fit; b's output does not, since 8 B are taken at its step, and
moves to big: the error is 4/12. Step a takes max(2, 8/4) = 2 s, b max(1, 4/4, 4/1) = 4 s: 6 s in all. All in big, a
takes 8 s and b 8 s.
"""
