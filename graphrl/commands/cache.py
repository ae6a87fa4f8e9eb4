"""A compilation cache on disk, so that the second process does not compile what the first one did."""

import os
from pathlib import Path


def keep_compiled() -> None:
    """Turns JAX's persistent compilation cache on for this process, unless the user has set one of her own.

    It lies in `$XDG_CACHE_HOME/graphrl/jax` (by default ~/.cache/graphrl/jax). For the commands: a library leaves
    this to the program that imports it. A folder that cannot be written costs nothing but the compilation.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "graphrl" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
