"""A fingerprint of an XLA module that does not depend on where, when and under which names it was compiled."""

import functools
import hashlib
import json
from typing import Any

# What differs between two compilations of one program, or does not matter to a schedule: names, source lines, values of
# constants, ids, and maps (protobuf writes them in any order).
_LEFT_OUT = (
    "name",
    "metadata",
    "literal",
    "id",
    "operand_ids",
    "control_predecessor_ids",
    "called_computation_ids",
    "frontend_attributes",
    "statistics_viz",
    "original_value",
)


def fingerprint(module: Any) -> str:
    """SHA-256 of an `HloModuleProto`, in hexadecimal: of each computation from its instructions in their order, with
    operands by place and called computations by their own hashes; and of the donated parameters.
    """
    digests: dict[int, bytes] = {}
    for computation in module.computations:
        digests[computation.id] = _digest(computation, digests)
    whole = hashlib.sha256(digests[module.entry_computation_id])
    whole.update(b"".join(sorted(e.SerializeToString(deterministic=True) for e in module.input_output_alias.entries)))
    return whole.hexdigest()


def _digest(computation: Any, digests: dict[int, bytes]) -> bytes:
    place = {i.id: k for k, i in enumerate(computation.instructions)}
    whole = hashlib.sha256()
    for i in computation.instructions:
        kept = type(i)()
        kept.CopyFrom(i)
        for field in _LEFT_OUT:
            kept.ClearField(field)
        kept.backend_config = _canonical(i.backend_config)
        links = ([place[k] for k in i.operand_ids], sorted([place[k] for k in i.control_predecessor_ids]))
        own = kept.SerializeToString(deterministic=True)
        whole.update(f"{len(own)} {links} {i.id == computation.root_id}".encode())
        whole.update(own)
        for called in i.called_computation_ids:
            whole.update(digests[called])
    return whole.digest()


@functools.lru_cache(1024)
def _canonical(config: bytes) -> bytes:
    """A configuration in JSON with its keys sorted: XLA writes them in any order."""
    try:
        return json.dumps(json.loads(config), sort_keys=True).encode()
    except ValueError:
        return config
