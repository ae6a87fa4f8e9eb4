"""SIGINT and SIGTERM: commands respond to the first promptly, also while they compile, and end at the second."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_agent import train_tiny
from training_processes import ENVIRONMENT, assert_same, final_state, start_together

from graphrl.signals import stop_on_signals
from graphrl.training.checkpoints import Checkpoints, read_info

SCRIPT = str(Path(__file__).resolve().parents[1] / "helpers/stopped_training.py")

COMMAND = """
import hashlib, sys, time
from graphrl import cli
class Finalized:
    def __del__(self):
        print("busy", flush=True)
        time.sleep(60)
def run(arguments):
    try:
        WORK
        print("result", flush=True)
        return 0
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 1
cli._run = run
sys.exit(cli.main())
"""
# A command whose main thread is where Python runs no signal handler; it ends with "result" if it is not stopped.
BUSY = COMMAND.replace("WORK", 'print("busy", flush=True)\n        hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000_000)')
# A command inside a finalizer, where Python ignores exceptions.
FINALIZING = COMMAND.replace("WORK", "Finalized()\n        time.sleep(60)")


def lines_of(command: Sequence[str], at: str, *signals: signal.Signals, pause: float = 0.0) -> tuple[int, list[str]]:
    """Exit code and lines of a Python process (both streams) that receives signals, `pause` seconds apart, after a
    line.
    """
    python = [sys.executable, *command]
    pipe, lines = subprocess.PIPE, []
    with subprocess.Popen(python, env=ENVIRONMENT, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if lines[-1] == at:
                    time.sleep(0.2)  # the command is in the midst of what the line announces
                    for number in signals:
                        process.send_signal(number)
                        time.sleep(pause)
            return process.wait(timeout=60), lines
        finally:
            process.kill()


def train(which: str, folder: Path, *settings: str) -> list[str]:
    """The command line of a training that is slow to compile."""
    return [SCRIPT, which, "train", "tiny", "--out", str(folder), *(w for one in settings for w in ("--set", one))]


pytestmark = pytest.mark.usefixtures("ctrl_c")


@pytest.mark.parametrize(
    ("program", "signals"),
    [
        (BUSY, [signal.SIGINT]),
        (BUSY, [signal.SIGTERM, signal.SIGTERM]),  # as `timeout` sends it: to the process, and to its group
        (FINALIZING, [signal.SIGTERM]),
    ],
    ids=["busy", "twice", "in a finalizer"],
)
def test_a_command_announces_promptly_that_it_will_stop(program: str, signals: list[signal.Signals]) -> None:
    code, lines = lines_of(["-c", program], "busy", *signals, pause=0.05)
    assert lines == ["busy", "graphrl: stopping after this step; press Ctrl-C again to stop now", "interrupted"]
    assert code == 1


def test_a_second_signal_ends_a_command_immediately() -> None:
    code, lines = lines_of(["-c", BUSY], "busy", signal.SIGINT, signal.SIGTERM, pause=0.6)
    assert (code, lines[2:]) == (1, ["graphrl: ended immediately"])


def test_a_signal_that_is_ignored_stays_so() -> None:
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{BUSY}"
    assert lines_of(["-c", ignoring], "busy", signal.SIGINT) == (0, ["busy", "result"])


def test_training_announces_promptly_that_it_will_stop(tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    code, lines = lines_of(train("update", run), "compiling", signal.SIGINT)
    answer = lines[lines.index("compiling") :]
    assert answer[1:3] == [
        "graphrl: stopping after this compilation and this update; press Ctrl-C again to stop now",
        "compiled",
    ]
    assert answer[-1] == (
        f"graphrl: stopped at step 1, checkpoint saved; resume with: graphrl train tiny --out {run} --resume"
    )
    assert code == 1
    for folder in (run, whole):
        train_tiny(folder, resume=True)
    assert_same(final_state(run), final_state(whole))


def test_a_second_signal_ends_training_with_the_last_checkpoint(tmp_path: Path) -> None:
    code, lines = lines_of(train("update", tmp_path), "compiling", signal.SIGTERM, signal.SIGINT, pause=0.6)
    last = tmp_path / "step-00000000"
    assert lines[-1] == f"graphrl: ended immediately: the last checkpoint is {last}: --resume continues from it"
    assert (code, "compiled" in lines) == (1, False)
    assert Checkpoints(tmp_path, 1).latest() == last
    assert read_info(last).step == 0
    assert train_tiny(tmp_path, resume=True).outcome.step == 12


def test_a_signal_before_the_first_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, lines = lines_of(train("evaluate", run), "compiling", signal.SIGTERM)
    answer = lines[lines.index("compiling") :]
    assert answer[1].startswith("graphrl: stopping after this compilation and this validation; press Ctrl-C again")
    assert answer[2:] == [
        "compiled",
        "graphrl: interrupted before the first checkpoint: nothing to resume",
    ]
    assert (code, run.exists()) == (1, False)


def test_a_signal_while_it_updates_is_answered(tmp_path: Path) -> None:
    rarely = ("training.steps=100000", "training.checkpoint_every=100000", "training.validate_every=90000")
    code, lines = lines_of(train("update", tmp_path, *rarely), "compiled", signal.SIGTERM)
    stopping = next(number for number, line in enumerate(lines) if line.startswith("graphrl: stopping after"))
    assert re.fullmatch(
        r"graphrl: stopping after .*(this update|this checkpoint); press Ctrl-C again to stop now", lines[stopping]
    )
    assert "stopped at step" in lines[-1]
    assert (code, len(lines) - stopping < 20) == (1, True)


@pytest.mark.slow
def test_one_of_several_processes_is_answered_before_it_trains(tmp_path: Path) -> None:
    """`jax.distributed` handles SIGTERM, which has no other effect."""
    processes = start_together([*train("init", tmp_path / "run"), "--distributed"])
    try:
        for process in processes:  # a process that is not yet so far ends alone, and the other fails without it
            assert process.stdout is not None
            assert "compiling\n" in iter(process.stdout.readline, "")
        for process in processes:
            process.terminate()
        for process in processes:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 1, err
            assert "interrupted before the first checkpoint" in err.splitlines()[-1]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_program_keeps_its_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        time.sleep(0.6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_training_in_a_thread_is_never_stopped(tmp_path: Path) -> None:
    reached = []
    thread = threading.Thread(target=lambda: reached.append(train_tiny(tmp_path, "training.steps=2").outcome.step))
    thread.start()
    thread.join()
    assert reached == [2]
    assert os.path.islink(tmp_path / "best")
