"""Starts processes that have an owner: whatever is killed, and however, nothing is left running.

``spawn`` starts a command under a guardian (see ``guardian.py`` for how it works) and returns an
``OwnedProcess``. What is promised, on Linux and macOS, also under kill -9:

- the owner ends: the command and all its descendants are killed at once;
- the command ends: its descendants are killed (a node's JVM and Python workers go with the node);
- the guardian is killed: the command and its descendants are killed.

The owner is the process that called ``spawn``, not the thread: spawning from a thread that ends is fine.
A process forked from the owner without exec (``multiprocessing`` with the fork method) inherits the lifeline
and would keep the commands alive after the owner's death: use the spawn method there.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from unbroken.errors import UnbrokenError
from unbroken.local import guardian
from unbroken.security.private_files import append_private

START_DEADLINE_S = 30.0
"""A guardian starts within a tenth of a second; the bound is for machines that are starting a lot at once."""

REPORT_DEADLINE_S = 5.0
"""How long after the last possible moment of a stop the guardian may take to say that it is done."""

POLL_S = 0.02
"""Interval at which the end of a guardian is looked for."""


class ProcessError(UnbrokenError):
    """A process could not be started or ended."""


class OwnedProcess:
    """A command that ends when this process does. Made by ``spawn``; safe to use from several threads."""

    def __init__(self, pid: int, supervisor: subprocess.Popen[bytes], lifeline: int, status: int, log_file: Path):
        self.pid = pid
        """The id of the command itself, also the id of the session that its descendants belong to."""
        self.log_file = log_file
        self._supervisor = supervisor
        self._lifeline = lifeline
        self._status = status
        self._text = b""
        self._returncode: int | None = None
        self._closed = False
        self._lock = threading.RLock()
        # psutil remembers when the process started, so a signal never hits a later process with the same id.
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process = psutil.Process(pid)

    @property
    def guardian_pid(self) -> int:
        return int(self._supervisor.pid)

    @property
    def returncode(self) -> int | None:
        """None while the command runs, then its exit code, negative if a signal ended it."""
        with self._lock:
            self._read_status()
            return self._returncode

    def alive(self) -> bool:
        """Whether the command runs. Its last descendants may outlive it by the time it takes to kill them."""
        return self.returncode is None

    def kill9(self) -> None:
        """SIGKILL the command and nothing else, as a fault would. The guardian clears up what it leaves."""
        if self.alive() and self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()

    def freeze(self) -> None:
        """SIGSTOP the command and its descendants, as a fault: they keep their connections and do nothing."""
        self._signal_session(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let frozen processes go on."""
        self._signal_session(signal.SIGCONT)

    def wait(self, deadline_s: float) -> int | None:
        """Wait until the command and all its descendants are gone; the exit code, or None at the deadline."""
        end = time.monotonic() + deadline_s
        while True:
            with self._lock:
                if self._supervisor.poll() is not None:
                    self._finish()
                    return self._returncode
            if time.monotonic() >= end:
                return None
            time.sleep(POLL_S)

    def stop(self, deadline_s: float = 10.0) -> None:
        """End the command: SIGTERM at once, and SIGKILL to all that is left after ``deadline_s``."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    os.write(self._lifeline, f"stop {max(deadline_s, 0.0)}\n".encode())
        if self.wait(deadline_s + REPORT_DEADLINE_S) is not None:
            return
        # The guardian hangs (it may have been frozen by a fault): do its work here.
        self._supervisor.kill()
        if self.wait(guardian.SWEEP_DEADLINE_S) is None:
            raise ProcessError(
                f"Process {self.pid} and its guardian {self.guardian_pid} were killed and did not end.\n"
                f"    -> they hang in the operating system, often on a lost file system; see {self.log_file}"
            )

    def _signal_session(self, number: signal.Signals) -> None:
        if not self.alive():
            return
        for pid in guardian.session_members(self.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _read_status(self) -> None:
        """Take in what the guardian has reported. The end of the pipe without a report: it was killed."""
        while not self._closed and self._returncode is None:
            try:
                text = os.read(self._status, 4096)
            except BlockingIOError:
                return
            if not text:
                # Nobody will say how the command ended, but it is certain that it will be made to.
                self._returncode = -signal.SIGKILL
                return
            self._text += text
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                word, _, argument = line.partition(b" ")
                if word == b"exited":
                    self._returncode = int(argument)

    def _finish(self) -> None:
        """The guardian has ended. If it was killed, sweep as the sentinel does; being second does no harm."""
        if self._closed:
            return
        self._read_status()
        if self._supervisor.returncode != 0:
            left = guardian.sweep(lambda: guardian.session_members(self.pid))
            if left:
                raise ProcessError(f"Processes {left} of {self.pid} did not end although they were killed.")
        self._closed = True
        os.close(self._lifeline)
        os.close(self._status)


def spawn(
    args: Sequence[str | Path],
    *,
    log_file: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> OwnedProcess:
    """Start a command that this process owns, with its output appended to ``log_file``.

    ``env`` is the whole environment of the command; None means this process's own. The command gets no
    standard input and leads a session of its own, so that Ctrl-C reaches only the owner, which then ends what
    it owns.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    lifeline_read, lifeline_write = os.pipe()
    status_read, status_write = os.pipe()
    os.set_blocking(status_read, False)
    os.set_blocking(lifeline_write, False)
    command = [
        sys.executable,
        # Run as a file, and without its directory on the path: importing the package would cost every
        # guardian the memory of all that the package imports.
        "-P",
        guardian.__file__,
        str(lifeline_read),
        str(status_write),
        "--",
        *(str(each) for each in args),
    ]
    try:
        with append_private(log_file) as log:
            supervisor = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                pass_fds=(lifeline_read, status_write),
                start_new_session=True,
            )
    except OSError as error:
        os.close(lifeline_write)
        os.close(status_read)
        raise ProcessError(f"Cannot start {args[0]}: {error}. -> see that {cwd or Path.cwd()} exists") from error
    finally:
        os.close(lifeline_read)
        os.close(status_write)
    try:
        pid = _await_start(status_read, str(args[0]), log_file)
    except ProcessError:
        os.close(lifeline_write)
        os.close(status_read)
        supervisor.kill()
        supervisor.wait()
        raise
    return OwnedProcess(pid, supervisor, lifeline_write, status_read, log_file)


def _await_start(status: int, name: str, log_file: Path) -> int:
    """Read the guardian's first line byte by byte, so that a report right behind it is left for later."""
    end = time.monotonic() + START_DEADLINE_S
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(status, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(end - time.monotonic(), 0.0)):
                raise ProcessError(f"{name} was not started within {START_DEADLINE_S:g} s. -> see {log_file}")
            byte = os.read(status, 1)
            if not byte:
                raise ProcessError(f"The guardian of {name} ended before it started it. -> see {log_file}")
            line += byte
    word, _, argument = line.decode(errors="replace").strip().partition(" ")
    if word != "started":
        raise ProcessError(f"Cannot start {name}: {argument}. -> see that the command exists and may be run")
    return int(argument)


def tail(log_file: Path, lines: int = 20, most_bytes: int = 16384) -> str:
    """The last lines of a log, for error messages."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
