"""What a computation graph is, and where graphs come from.

A `ComputationGraph` is a directed acyclic multigraph on the host, of any size. An **op** has a name, a type, a
`runtime` in seconds, `workspace_bytes` (memory that it holds only while it runs), `weight_bytes` (resident on its
device for the whole run) and `flops`. It reads tensors, writes any number of tensors of known `bytes`, and may wait for
other ops (`after`, control predecessors). A **tensor** has one producer and any number of consumers. Names of ops are
unique, and so are those of tensors. Ops stand in any order; an op's index is its place. A tensor that no op writes is
declared as an external input: it is always there and costs nothing in an order (readers give the bytes of weights to
the ops that read them).

Compiled programs share buffers. An output may say `alias` and name an input of its op: on its op's device it always is
that tensor's buffer, which lives until the last use of either, and costs nothing (so one of an external input costs
nothing at all there); its `bytes` are what a copy takes on another device. Or it may say `reuses`: where the op is the
last use of that input, the output takes over its buffer, which must be at least as large; then nothing is allocated for
it, and the input's bytes are not freed but become the output's. No output has both.

For pipelined execution (the objective `max_load` of `graphrl.costs`, graphs/graph.py) an op, a tensor and the
graph may say, in this order:

    "pipelined": {"cpu_runtime": 2.0, "cpu_only": false, "colocation": 3, "backward": false}
    "transfer_seconds": 0.5
    "machine": {"accelerators": 6, "cpus": 1, "memory_bytes": 17179869184}

Ops of equal `colocation` stand on one device under every objective; the rest is for pipelined execution alone.

**File format** `graphrl-graph`, version 1, JSON, gzipped or not:

    {"format": "graphrl-graph", "version": 1, "name": "tiny",
     "inputs": [{"name": "x", "bytes": 4}],
     "ops": [{"name": "a", "type": "input", "runtime": 1.0, "inputs": ["x"], "after": [],
              "outputs": [{"name": "a0", "bytes": 4}], "workspace_bytes": 0, "weight_bytes": 0, "flops": 0},
             {"name": "b", "inputs": ["a0"], "outputs": [{"name": "b0", "bytes": 4, "alias": "a0"}]},
             {"name": "c", "inputs": ["b0"], "outputs": [{"name": "c0", "bytes": 4, "reuses": "b0"}]}],
     "outputs": ["c0"]}

`outputs` names the tensors that stay in memory to the end. All but the `name` of an op or a tensor may be left out, and
is then empty or 0. Whole numbers may be written as 1000000, 1e6 or 1000000.0, and count to the last digit, also beyond
2^53. A file is refused with one line that names it and the op for: a cycle (one is printed), a name that
appears twice or that nothing has, a count of bytes that is negative or no whole number, a run time that is negative or
not finite, an unknown or repeated key, another version, JSON that is cut off, or more than 2^31 - 1 ops or edges. Files
are written whole or not at all.

For the device a graph becomes a `PaddedGraph` (graphs/padding.py): arrays of fixed sizes from a small set of buckets,
so that a mixed set of graphs compiles a handful of programs.
"""
