"""A learner's state as files of orbax's: a folder of arrays, written and read by this process alone."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

_LATE = "Event loop is closed"


def save(path: Path, state: Any) -> None:
    """Writes a pytree of NumPy arrays into a new folder.

    Raises:
      OSError: it cannot be written.
    """
    try:
        with _orbax() as checkpointer:
            checkpointer.save(str(path.absolute()), state)
    except ValueError as error:
        # tensorstore's, of a full disk: "...: Failed writing ...: No space left on device [os_error_code='28']"
        reason = " ".join(str(error).split()).partition(" [os_error_code")[0].rpartition(": ")[2]
        raise OSError(None, reason[:300]) from None


def restore(path: Path) -> Any:
    """The pytree of a folder: NumPy arrays in nested dicts (of NamedTuples and dataclasses too) and lists.

    Raises:
      ValueError: the folder, or a file in it, is missing or broken; one line.
    """
    usual = sys.unraisablehook

    def without_late(unraisable: "sys.UnraisableHookArgs") -> None:
        # After the first broken array tensorstore's threads say of the others that orbax no longer listens.
        if str(unraisable.exc_value) != _LATE:
            usual(unraisable)

    sys.unraisablehook = without_late
    try:
        with _orbax() as checkpointer:
            state = checkpointer.restore(str(path.absolute()))
    except (OSError, ValueError, KeyError) as error:  # the hook stays: the late ones are still to come
        raise ValueError(" ".join(str(error).split()).partition(" [tensorstore_spec=")[0][:300]) from None
    except BaseException:
        sys.unraisablehook = usual
        raise
    sys.unraisablehook = usual
    if not state:
        raise ValueError("it has no arrays")
    return state


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Orbax for this process alone: of several processes the first one writes, and each reads for itself."""
    import orbax.checkpoint as ocp

    log = logging.getLogger("absl")
    level = log.level
    # Orbax warns that there is no OCDBT to merge, whether it was asked for or not, and logs the errors that it raises.
    log.setLevel(logging.CRITICAL)
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
    # one file an array: OCDBT, made for thousands of them, takes twice as long for ours
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=alone)
    checkpointer = ocp.Checkpointer(handler, multiprocessing_options=alone)
    try:
        yield checkpointer
    finally:
        checkpointer.close()
        log.setLevel(level)
