"""Ctrl-C and SIGTERM as a question that the loop asks between its steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Gives what tells whether a signal to stop has come while the `with` lasts; a second one raises at once.

    In a thread other than the main one no signal can be caught: the answer is always no.

    Raises:
      KeyboardInterrupt: by the second signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            return
        handler = before[signal.SIGINT]
        if callable(handler):
            handler(signal.SIGINT, frame)  # the command line's own, which remembers that it was called
        raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
