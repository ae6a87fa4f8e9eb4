"""`Compile-v0`: choose device, priority and fusion of all ops in one step (GO)."""
