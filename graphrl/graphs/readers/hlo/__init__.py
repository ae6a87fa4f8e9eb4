"""XLA's HLO modules, as text or protobuf, as graphs.

- reader.py: `read_hlo`; head.py: recognition by the first bytes of a file;
- proto.py: protobuf messages, shapes and their bytes; module.py: a module, its instructions, and its fingerprint, which
  identifies equal programs;
- values.py: buffers of values, and which of them share one; work.py: ops of the graph, FLOPs and run times.
"""
