"""A compilation cache on disk, so that the second process does not compile what the first one did."""

from graphrl.files import cache_folder


def keep_compiled() -> None:
    """Turns JAX's persistent compilation cache on for this process, unless the user has set one of her own.

    It lies in `$XDG_CACHE_HOME/graphrl/jax` (by default ~/.cache/graphrl/jax). For the commands: a library leaves
    this to the program that imports it. A folder that cannot be written costs nothing but the compilation.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_folder("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
