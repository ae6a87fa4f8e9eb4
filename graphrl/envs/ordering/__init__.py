"""`Ordering-v0`: choose the order of the ops, one by one or from priorities in one go (Topoformer)."""
