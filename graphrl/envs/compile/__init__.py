"""`Compile-v0`: choose device, priority and fusion of every op at once (GO)."""
