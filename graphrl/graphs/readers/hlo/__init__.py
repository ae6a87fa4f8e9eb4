"""XLA's HLO modules, as text or protobuf, as graphs.

- reader.py: `read_hlo`; head.py: how such a file begins; proto.py, module.py: a module and its instructions;
- lower.py: from instructions to ops and tensors; values.py, sharing.py: which of them share a buffer;
- shape.py, flops.py, work.py: bytes, FLOPs and run times; fingerprint.py: what makes two modules the same program.
"""
