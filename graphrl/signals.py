"""SIGINT (Ctrl-C) and SIGTERM: a command responds to the first within a second, and ends at the second.

Python runs signal handlers in the main thread, between two of its own instructions: not while XLA compiles or a
compiled program runs. So a command has a thread that reads the signals of `signal.set_wakeup_fd`. A program that only
imports graphrl has no such thread: it keeps its own handlers, and training responds as soon as Python can.

Python ignores exceptions in finalizers and in callbacks of its garbage collector, of which JAX has one. A
KeyboardInterrupt that is raised there is raised again, or the command would run to its end.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_SIGNAL = 0.5  # seconds within which signals count as one: `timeout` sends it to the process and to its group
_PATIENCE = 0.3  # seconds that the main thread has to respond before the thread does
_IGNORED = b"\0"  # in the pipe of signals: Python has ignored the KeyboardInterrupt of the last one
# modules that trace, lower or compile
_COMPILERS = ("jax._src.interpreters.partial_eval", "jax._src.interpreters.mlir", "jax._src.compiler", "numba.core.")
_CLEAR = "\r\x1b[K"  # removes a progress bar from its line
_AGAIN = "press Ctrl-C again to stop now"
_CURSOR = "\x1b[?25h"  # shows the cursor that a progress bar hides


@dataclasses.dataclass
class Stop:
    """A request to stop, and the texts of its messages.

    Attributes:
      requested: True once a signal has arrived.
      work: the work to finish before stopping.
      saved: the results that remain if the process ends without finishing it.
    """

    requested: bool = False
    work: str = "this step"
    saved: str = ""

    def __call__(self) -> bool:
        return self.requested

    def announce(self) -> None:
        """Prints the work to finish before stopping."""
        _print(f"stopping after {'this compilation and ' if _compiling() else ''}{self.work}; {_AGAIN}")


class _Listener:
    """Signal handling of a command, in a thread that reads the signals from a pipe.

    Args:
      writing: file descriptor of the pipe's end that signals are written to.

    Attributes:
      raised: True if a KeyboardInterrupt was raised in the main thread.
      hook: the previous `sys.unraisablehook`.
      stop: the `Stop` of work that checks it between its steps; None if a KeyboardInterrupt ends the work.
    """

    def __init__(self, writing: int) -> None:
        self.raised = False
        self.stop: Stop | None = None
        self.hook = sys.unraisablehook
        self._writing = writing
        self._last: int = signal.SIGINT

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Signal handler of the main thread: raises KeyboardInterrupt at the first signal; the thread handles the next.

        Raises:
          KeyboardInterrupt: at the first signal.
        """
        if not self.raised:
            self.raised, self._last = True, number
            raise KeyboardInterrupt

    def ignored(self, exception: Any) -> None:
        """Replacement of `sys.unraisablehook`: a signal whose KeyboardInterrupt Python ignored is repeated."""
        if exception.exc_type is KeyboardInterrupt:
            self.raised = False
            os.write(self._writing, _IGNORED)
        else:
            self.hook(exception)

    def listen(self, reading: int) -> None:
        """Runs in the thread: reads signals from the pipe until its other end is closed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # while the main thread blocks signals, they wait for it
        first, repeated = None, 0
        while byte := os.read(reading, 1):
            if byte == _IGNORED:
                repeated += self._repeat()
            elif byte[0] not in _SIGNALS:
                continue
            elif repeated:
                repeated -= 1
            elif first is None:
                first = time.monotonic()
                self._announce()
            elif time.monotonic() - first > _SAME_SIGNAL:
                saved = f": {self.stop.saved}" if self.stop and self.stop.saved else ""
                _print(f"ended immediately{saved}{_CURSOR if os.isatty(2) else ''}")
                os._exit(1)

    def _repeat(self) -> bool:
        """Resends the last signal after the main thread has left the code that ignored it; returns True if sent."""
        time.sleep(_PATIENCE)
        repeats = not self.raised
        if repeats:
            signal.pthread_kill(threading.main_thread().ident or 0, self._last)
        return repeats

    def _announce(self) -> None:
        if self.stop is not None:
            self.stop.announce()
            return
        time.sleep(_PATIENCE)
        if not self.raised:
            _print(f"stopping after {'this compilation' if _compiling() else 'this step'}; {_AGAIN}")


_listener: _Listener | None = None  # of the process, if it is a command


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[_Listener]:
    """Context manager: the first SIGINT or SIGTERM raises KeyboardInterrupt; a line is printed if that takes a while.

    A second signal ends the process immediately with exit code 1; files written by then are complete. Signals that the
    process was started to ignore stay ignored. In a thread other than the main one nothing changes.
    """
    global _listener
    if threading.current_thread() is not threading.main_thread():
        yield _Listener(-1)
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _listener = listener = _Listener(writing)
    sys.unraisablehook = listener.ignored
    previous = _set_handlers(listener.interrupt)
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=listener.listen, args=(reading,), name="graphrl-signals", daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        signal.set_wakeup_fd(descriptor)
        listener.raised = True  # nothing is sent again
        _restore(previous)
        sys.unraisablehook = listener.hook
        os.close(writing)
        thread.join()
        os.close(reading)
        _listener = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Context manager that gives a `Stop`, set by SIGINT and SIGTERM, for work that checks it between its steps.

    In a thread other than the main one no signal can be caught: the `Stop` is never set.

    Raises:
      KeyboardInterrupt: by a second signal, if the process is no command (see `interrupt_on_signals`).
    """
    stop, first = Stop(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not stop.requested:
            stop.requested, first = True, time.monotonic()
            if _listener is None:
                stop.announce()
        elif _listener is None and time.monotonic() - first > _SAME_SIGNAL:
            raise KeyboardInterrupt

    previous = _set_handlers(note)
    if _listener is not None:
        _listener.stop = stop
    try:
        yield stop
    finally:
        if _listener is not None:
            _listener.stop = None
        _restore(previous)


@contextlib.contextmanager
def keep_handlers() -> Iterator[None]:
    """Context manager that restores Python's handlers of SIGINT and SIGTERM at its end.

    `jax.distributed` replaces them with its own, which does not call them."""
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _SIGNALS}
            _restore({number: handler for number, handler in handlers.items() if handler is not None})


def _set_handlers(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Sets the handler of the signals that are not ignored; returns their previous ones."""
    numbers = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    return {number: signal.signal(number, handler) for number in numbers}


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _compiling() -> bool:
    """True if the main thread is compiling, or tracing or lowering for it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False


def _print(text: str) -> None:
    """Prints a line on standard error, without Python's buffers: the main thread may own their locks."""
    with contextlib.suppress(OSError):
        os.write(2, f"{_CLEAR if os.isatty(2) else ''}graphrl: {text}\n".encode())
