"""A compilation cache on disk, so that the second process does not compile what the first one did."""

import os
import sys

from graphrl.files import cache_folder


def keep_compiled() -> None:
    """Turns JAX's persistent compilation cache on for this process and its children, unless the user has set one of her
    own, or JAX is in use already. JAX itself is not imported: not every search needs it.

    It lies in `$XDG_CACHE_HOME/graphrl/jax` (by default ~/.cache/graphrl/jax). For the commands: a library leaves
    this to the program that imports it. A folder that cannot be written costs nothing but the compilation.
    """
    if "jax" not in sys.modules and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder("jax"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
