"""A fingerprint of an XLA module that does not depend on where, when and under which names it was compiled."""

import functools
import hashlib
import json

from graphrl.graphs.readers.hlo.module import Computation, HloModule

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


def fingerprint(module: HloModule) -> str:
    """SHA-256 of a module, in hexadecimal: of each computation from its instructions in their order, with operands by
    place and called computations by their own hashes; and of the donated parameters.
    """
    digests: dict[str, bytes] = {}
    for computation in module.computations.values():
        digests[computation.name] = _digest(computation, digests)
    whole = hashlib.sha256(digests[module.entry.name])
    aliases = module.message.input_output_alias.entries
    whole.update(b"".join(sorted(e.SerializeToString(deterministic=True) for e in aliases)))
    return whole.hexdigest()


def _digest(computation: Computation, digests: dict[str, bytes]) -> bytes:
    place = {name: k for k, name in enumerate(computation.by_name)}
    whole = hashlib.sha256()
    for i in computation.instructions:
        kept = type(i.attributes)()
        kept.CopyFrom(i.attributes)
        for field in _LEFT_OUT:
            kept.ClearField(field)
        kept.backend_config = _canonical(i.attributes.backend_config)
        links = ([place[name] for name in i.operands], sorted([place[name] for name in i.control_predecessors]))
        own = kept.SerializeToString(deterministic=True)
        whole.update(f"{len(own)} {links} {i.is_root}".encode())
        whole.update(own)
        for called in i.called:
            whole.update(digests[called])
    return whole.digest()


@functools.lru_cache(1024)
def _canonical(config: bytes) -> bytes:
    """A configuration in JSON with its keys sorted: XLA writes them in any order."""
    try:
        return json.dumps(json.loads(config), sort_keys=True).encode()
    except ValueError:
        return config
