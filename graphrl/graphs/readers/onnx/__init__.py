"""ONNX models as graphs.

`parse_onnx` (reader.py) reads a file without its weights, checks it and inlines its functions (model.py). Then it
infers all shapes (shapes.py). It sets aside the declared types of computed tensors (declared.py) and repeats these
steps until no shape is new: ONNX's inference (inference.py); the results of loops (shapes.py), and of sequences and
optionals (sequences.py); branches whose condition is known (bodies.py); values that are computed from shapes (`fold` of
inference.py); and, only if none of these gives anything new, declared types and `dims` (declared.py). It rejects a
model that no runtime could run or whose sizes are unknown (checks.py). Each remaining node becomes an op, with its
FLOPs and run time (work.py). values.py has the types that all of these share.
"""
