"""`Compile-v0`: choose device and priority of every op at once (GO)."""
